// The views beside the overview: which of them are open, and what each is.

import { firstView, VIEWS } from "#state/store.js";
import { element } from "#ui/elements.js";

/** What each view is called, what it shows, and for which recordings there is one. */
const ABOUT = {
  text: {
    title: "Text",
    about:
      "The text that was read or written. Point at a token: its arcs and tint say what it attends to (blue) and what attends to it (orange).",
  },
  matrix: {
    title: "Matrix",
    about:
      "A row for each token that attends, a column for each that it may attend to; the darker a cell, the larger the weight. In long texts a square stands for many tokens, until you zoom in.",
  },
  translation: {
    title: "Translation",
    about:
      "The source and its translation, word by word. A line says how much a word of the translation looked back at a word of the source when it was written: the mean over the pieces of the one, the sum over the pieces of the other. At rest each word has its strongest lines; point at a word for all of them, with their weights.",
  },
  generation: {
    title: "Generation",
    about:
      "The text step by step, as the model went through it. At each step the tint says what the model attended to there; what came later is faint, for it could not be seen yet.",
  },
  image: {
    title: "Image",
    about:
      "The picture as the model saw it, cut into patches. The shade of a patch says how much attention it gets from the patch that is chosen, or gives to it, as a share of the strongest. Before anything is chosen, it is the class token that looks.",
  },
  graph: {
    title: "Graph",
    about:
      "Attention rollout: the chosen token after the last layer, and layer by layer below it the tokens that it is made of, down to the input. In each layer half of a token is taken to be itself, half what its heads attend to, on their mean; what one token gives to the next is an edge, as wide as its share. Point at a node to see the paths through it; click it to begin there. The numbers say where information could have come from, not what was made of it.",
  },
  calculation: {
    title: "Calculation",
    about:
      "How one token’s attention in one head is computed: its query is multiplied with every key that it may see, the products are scaled and made into shares by the softmax, and the values are added up by these shares. Point at a row to see the key elsewhere on the page.",
  },
  compare: {
    title: "Compare",
    about:
      "Two recordings side by side, and their difference for the tokens that are in both: orange and + where B gives more, blue and − where A does. Tokens are aligned in their order; a token that is in one only has no row or column in the difference. Below, heads by how much they differ.",
  },
};

/**
 * Mount the views that there are, each with a button that opens and closes it.
 * @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store
 * @param {Record<string, import("#state/token_or_word.js").Mount>} mounts  How each is mounted; one that gives false is not for this recording.
 * @param {(name: string, title: string, body: () => HTMLElement, tell: import("#export/csv.js").Tell | void) => Node} tools  What stands at the end of the head of each.
 */
export function mountViews(place, recording, store, mounts, tools) {
  const buttons = element("div", { class: "view-buttons", role: "group", "aria-label": "Views" });
  place.append(buttons);
  /** @type {string[]} */
  const there = [];
  for (const name of VIEWS.filter((each) => each in mounts)) {
    const { title, about } = ABOUT[name];
    const body = element("div", { class: name, id: name });
    const help = element(
      "details",
      { class: "about" },
      element("summary", {}, "What am I looking at?"),
      element("p", { class: "note" }, about),
    );
    const head = element("div", { class: "view-head" }, element("h3", {}, title), help);
    const section = element("section", { class: "view", "aria-label": title }, head, body);
    const button = element("button", { type: "button", "aria-controls": name }, title);
    place.append(section);
    const tell = mounts[name](body, recording, store);
    if (tell === false) {
      section.remove();
      continue;
    }
    head.append(tools(name, title, () => /** @type {HTMLElement} */ (section.lastElementChild), tell));
    buttons.append(button);
    there.push(name);
    button.addEventListener("click", () => {
      const { views } = store.get();
      store.set({
        views: VIEWS.filter((each) => (each === name ? !views.includes(name) : views.includes(each))),
        hover: null,
      });
    });
    store.subscribe(({ views }) => {
      section.hidden = !views.includes(name);
      button.setAttribute("aria-pressed", String(views.includes(name)));
    });
  }
  store.subscribe(({ views }) => {
    if (views.length && !views.some((name) => there.includes(name))) store.set({ views: firstView(recording).views });
  });
}
