// What the colours mean, with their unit; and how they are chosen.

import { TOGETHER } from "#data/combined_heads.js";
import { HIDEABLE } from "#state/store.js";
import { drawPixels, PALETTES, position, SCALES, weightAt } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";

const TICKS = {
  root: [0, 0.01, 0.1, 0.25, 0.5, 1],
  linear: [0, 0.25, 0.5, 0.75, 1],
  log: [0.0001, 0.001, 0.01, 0.1, 1],
  rows: [0, 0.5, 1],
};
const SHADES = 256;
const UNITS = { rows: "times the strongest of the row" };
const NAMES = {
  root: "square root",
  linear: "linear",
  log: "logarithm",
  rows: "row maximum",
  sum: "their sum",
  mean: "their mean",
  first: "the first token",
  special: "special tokens",
};

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountLegend(place, recording, store) {
  const scale = element("canvas", { class: "scale", "aria-hidden": "true" });
  const ticks = element("div", { class: "ticks", "aria-hidden": "true" });
  const unit = element("span", { class: "unit" });
  const square = element("p", { class: "hint" });
  const hasMask = element("span", { class: "masked-word" }, element("i", { class: "masked" }), "may not be seen");
  const several = choice("several", "Several heads ", TOGETHER, store);
  place.append(
    element("p", { class: "legend-title" }, "Attention weight ", unit),
    element("div", { class: "scale-frame" }, scale, ticks),
    square,
    element(
      "p",
      { class: "arc-key" },
      element("span", { class: "out-word" }, element("i", { class: "stroke out" }), "attends to"),
      element("span", { class: "in-word" }, element("i", { class: "stroke in" }), "is attended by"),
      hasMask,
    ),
    several,
    choice("scale", "Scale ", SCALES, store),
    choice("palette", "Colours ", PALETTES, store),
    element(
      "fieldset",
      { class: "field" },
      element("legend", {}, "Leave out"),
      ...HIDEABLE.map((name) => hiding(name, store)),
      rescaling(store),
    ),
    notes(recording, store),
  );
  let drawn = "";
  const draw = (state) => {
    const theme = themeOf(state);
    const layer = recording.layers[state.layer];
    const count = state.several === "sum" ? state.heads.length : 1;
    several.hidden = state.heads.length === 1;
    const name = [theme, state.scale, state.palette, count, layer.name, layer.ready].join(" ");
    if (name === drawn) return;
    drawn = name;
    const line = { rows: 1, columns: SHADES, at: (_, column) => weightAt(column / (SHADES - 1), state.scale) };
    drawPixels(scale, line, { ...state, scale: state.scale === "rows" ? "linear" : state.scale }, theme);
    ticks.replaceChildren(...TICKS[state.scale].map((weight) => tick(weight, state.scale)));
    unit.textContent =
      UNITS[state.scale] ??
      (count > 1
        ? `shares of a row in ${count} heads, added up: 0 to ${count}, the last colour from 1 on`
        : "share of a row, 0 to 1");
    const size = layer.header.size ?? 1;
    const finest = layer.header.finer?.at(-1)?.size;
    square.textContent =
      size > 1
        ? `A square is ${size} × ${size} tokens${finest ? `, or down to ${finest} × ${finest} as you zoom in` : ""}: how much its rows give to its columns, on the mean of the rows.`
        : "";
    hasMask.hidden = !layer.thumbnails.some((squares) => squares.stored.includes(squares.codes.weights.length - 1));
  };
  store.subscribe(draw);
  recording.begun.then(() => {
    drawn = "";
    draw(store.get());
  });
}

function tick(weight, scale) {
  const made = element("span", {}, String(weight));
  made.style.left = `${100 * position(weight, scale)}%`;
  return made;
}

function choice(name, text, values, store) {
  const select = element(
    "select",
    { id: name },
    ...values.map((value) => element("option", { value }, NAMES[value] ?? value)),
  );
  select.addEventListener("change", () => store.set({ [name]: select.value }));
  store.subscribe((state) => (select.value = state[name]));
  return element("label", { class: "field", for: name }, text, select);
}

function hiding(name, store) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () =>
    store.set({ hidden: HIDEABLE.filter((each) => (each === name ? box.checked : store.get().hidden.includes(each))) }),
  );
  store.subscribe(({ hidden }) => (box.checked = hidden.includes(name)));
  return element("label", {}, box, ` ${NAMES[name]}`);
}

function rescaling(store) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => store.set({ rescale: box.checked }));
  store.subscribe(({ hidden, rescale }) => {
    box.checked = rescale;
    box.disabled = hidden.length === 0;
  });
  return element("label", {}, box, " rescale the rest");
}

/** What is said where weights are other than those of the tokens, as they were computed. */
function notes(recording, store) {
  const place = element("div", { class: "legend-notes" });
  store.subscribe(({ layer, hidden, rescale, words }) => {
    const sketched = recording.layers[layer].header.form !== "whole";
    const told = [
      words && "Words: the sum over the pieces of the word attended to, the mean over those of the word that attends.",
      words &&
        sketched &&
        "The map is of tokens, so the matrix shows tokens; of words the links that this file names are summed.",
      hidden.length && rescale && "Rescaled: what remains of a row is divided by 1 less what is left out.",
      hidden.length &&
        rescale &&
        (sketched
          ? "Squares are not rescaled, nor rows that leave out what this file does not name, or nearly all."
          : "Rows that leave out nearly all are not rescaled."),
    ];
    place.replaceChildren(...told.filter(Boolean).map((text) => element("p", { class: "hint" }, text)));
  });
  return place;
}
