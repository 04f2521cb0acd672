// Light or dark: as the system has it, or as chosen.

import { THEMES } from "#state/url.js";
import { element } from "#ui/elements.js";

const system = window.matchMedia("(prefers-color-scheme: dark)");

/** The theme that is seen now. @param {{theme: string}} state @returns {"light" | "dark"} */
export function themeOf(state) {
  if (state.theme !== "auto") return state.theme === "dark" ? "dark" : "light";
  return system.matches ? "dark" : "light";
}

/** @param {HTMLElement} place @param {import("#state/store.js").Store} store */
export function mountTheme(place, store) {
  const inputs = THEMES.map((theme) => element("input", { type: "radio", name: "theme", value: theme }));
  const labels = inputs.map((input) => element("label", {}, input, element("span", {}, input.value)));
  place.append(
    element("fieldset", { class: "theme" }, element("legend", { class: "visually-hidden" }, "Theme"), ...labels),
  );
  for (const input of inputs) input.addEventListener("change", () => store.set({ theme: input.value }));
  const { signal } = store;
  system.addEventListener("change", () => store.set({}), { signal }); // canvases have no style sheet: they are drawn again
  store.subscribe((state) => {
    document.documentElement.dataset.theme = themeOf(state);
    for (const input of inputs) input.checked = input.value === state.theme;
  });
}
