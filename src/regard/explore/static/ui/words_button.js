// The button that shows the subwords of a word as one.

import { element } from "#ui/elements.js";

/** @param {Element} place @param {import("#state/unit.js").Units} units */
export function mountWordsButton(place, { hasSubwords, store }) {
  if (!hasSubwords) return store.subscribe(({ mergeWords }) => mergeWords && store.set({ mergeWords: false })); // from a link
  const attributes = { type: "button", class: "words-button", title: "Show the subwords of a word as one" };
  const button = element("button", attributes, "Words");
  button.addEventListener("click", () => store.set({ mergeWords: !store.get().mergeWords, hover: null }));
  store.subscribe(({ mergeWords }) => button.setAttribute("aria-pressed", String(mergeWords)));
  place.append(button);
}
