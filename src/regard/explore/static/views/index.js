// All views, in the order of their buttons. To add one, import it and add it to the list.

import { element } from "#ui/elements.js";
import { View } from "#ui/view.js";
import calculation from "#views/calculation.js";
import compare from "#views/compare.js";
import generation from "#views/generation.js";
import image from "#views/image.js";
import matrix from "#views/matrix.js";
import rolloutGraph from "#views/rollout_graph.js";
import segments from "#views/segments.js";
import text from "#views/text.js";
import translation from "#views/translation.js";

/** @import { Painter, ViewDefinition } from '#ui/view.js' */

/** @type {ViewDefinition[]} */
export const VIEWS = [text, matrix, translation, generation, rolloutGraph, segments, calculation, compare, image];

/** The views that are open at first. @param {import("#data/recording.js").Recording} recording */
export function initialViews({ compareWith, texts }) {
  if (compareWith) return ["compare"];
  return "image" in texts ? ["matrix", "image"] : ["text", "matrix"];
}

/**
 * The views that a recording has, each with a button that opens and closes it; a view is mounted when it is opened first.
 * @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/unit.js").Units} units
 * @param {(definition: ViewDefinition, view: View, painter: Painter) => Node | string} tools  What to put at the end of a view's heading.
 */
export function mountViews(place, recording, units, tools) {
  const { store } = units;
  const buttons = element("div", { class: "view-buttons", role: "group", "aria-label": "Views" });
  place.append(buttons);
  const available = VIEWS.filter(({ isAvailable }) => isAvailable?.(recording) ?? true);
  const order = available.map(({ name }) => name);
  for (const definition of available) {
    const { name, title } = definition;
    const { section, heading, body } = sectionFor(definition);
    const button = element("button", { type: "button", "aria-controls": name }, title);
    place.append(section);
    const view = new View(body, recording, units, {
      unit: definition.unit,
      showsGradients: definition.showsGradients,
      isOpen: () => store.get().views.includes(name),
    });
    buttons.append(button);
    button.addEventListener("click", () => {
      const { views } = store.get();
      const toggled = views.includes(name) ? views.filter((each) => each !== name) : [...views, name];
      store.set({ views: order.filter((each) => toggled.includes(each)), hover: null });
    });
    store.subscribe(({ views }) => {
      section.hidden = !views.includes(name);
      if (!section.hidden && !view.painter) heading.append(tools(definition, view, view.mount(definition.mount)));
      button.setAttribute("aria-pressed", String(views.includes(name)));
    });
  }
  store.subscribe(({ views }) => {
    const open = views.filter((name) => order.includes(name));
    if (open.length < views.length) store.set({ views: open.length ? open : initialViews(recording) }); // from a link
  });
}

/** @param {ViewDefinition} definition */
function sectionFor({ name, title, help }) {
  const body = element("div", { class: name, id: name });
  const about = element(
    "details",
    { class: "about" },
    element("summary", {}, "What am I looking at?"),
    element("p", { class: "note" }, help),
  );
  const heading = element("div", { class: "view-head" }, element("h3", {}, title), about);
  return { section: element("section", { class: "view", "aria-label": title }, heading, body), heading, body };
}
