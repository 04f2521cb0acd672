// How weights are shown: how several heads are combined, the color scale, and which keys are hidden.

import { REDUCTIONS } from "#data/combined_heads.js";
import { HIDE_OPTIONS } from "#data/hidden_keys.js";
import { PALETTES, SCALES } from "#ui/color.js";
import { dropdown, element, hint } from "#ui/elements.js";
import { WORDINGS } from "#ui/shown.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { Store } from '#state/store.js'
 */

const NAMES = {
  sqrt: "square root",
  log: "logarithm",
  row_max: "row maximum",
  first: "the first token",
  special: "special tokens",
};
const nameOf = (/** @type {string} */ value) => NAMES[/** @type {keyof typeof NAMES} */ (value)] ?? value;

/** @param {HTMLElement} place @param {Recording} recording @param {Store} store */
export function mountOptions(place, recording, store) {
  const reduce = choice("reduce", "Combine heads ", REDUCTIONS, store);
  const hide = HIDE_OPTIONS.map((name) => hideBox(name, store));
  const show = choice("show", "Show ", recording.shown, store, (value) => WORDINGS[value].option);
  show.hidden = recording.shown.length === 1;
  const unit = choice("unit", "Text in ", ["words", "tokens"], store);
  unit.hidden = !recording.hasSubwords;
  const { scale, palette, hide: hidden } = store.get();
  const isChanged = scale !== SCALES[0] || palette !== PALETTES[0] || hidden.length > 0; // by a link
  place.append(
    unit,
    show,
    reduce,
    element(
      "details",
      { class: "options", ...(isChanged && { open: "" }) },
      element("summary", {}, "Options: scale, colors, hide"),
      choice("scale", "Scale ", SCALES, store),
      choice("palette", "Colors ", PALETTES, store),
      element("fieldset", { class: "field" }, element("legend", {}, "Hide"), ...hide, rescaleBox(store)),
    ),
    notes(recording, store),
  );
  store.subscribe(({ heads, layer, show }) => {
    reduce.hidden = heads.length === 1 || recording.layers[layer].shown(show) === "relevance";
  });
}

/** @param {string} field @param {string} label @param {string[]} values @param {Store} store @param {(value: string) => string} name */
function choice(field, label, values, store, name = nameOf) {
  const options = values.map((value) => /** @type {[string, string]} */ ([value, name(value)]));
  const { select, node } = dropdown(field, label, options, (value) => store.set({ [field]: value }));
  store.subscribe((state) => {
    select.value = state[field];
  });
  return node;
}

/** @param {string} name @param {Store} store */
function hideBox(name, store) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => {
    const { hide } = store.get();
    store.set({ hide: HIDE_OPTIONS.filter((each) => (each === name ? box.checked : hide.includes(each))) });
  });
  store.subscribe(({ hide }) => {
    box.checked = hide.includes(name);
  });
  return element("label", {}, box, ` ${nameOf(name)}`);
}

/** @param {Store} store */
function rescaleBox(store) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => store.set({ rescale: box.checked }));
  store.subscribe(({ hide, rescale }) => {
    box.checked = rescale;
    box.disabled = hide.length === 0;
  });
  return element("label", {}, box, " rescale the rest");
}

/** Notes that say how the weights on the page differ from the model's weights between tokens. @param {Recording} recording @param {Store} store */
function notes(recording, store) {
  const place = element("div", { class: "legend-notes" });
  store.subscribe(({ layer, hide, rescale, unit, show }) => {
    const { isDense, isPartial, header } = recording.layers[layer];
    const shown = recording.layers[layer].shown(show);
    const isRescaled = hide.length > 0 && rescale && shown === "weights";
    const sentences = [
      header.omits_gradient &&
        "This file has no gradients of a text this long. Save the recording, recording.save(path): regard serve path shows them.",
      show !== shown && `This layer has no ${WORDINGS[show].option} here, so its weights are shown.`,
      shown !== "weights" && "Text, Matrix and the lists show it; the small maps and the other views show weights.",
      shown === "relevance" &&
        "Chefer et al. 2021: R − I in self-attention, so without the 1 of each token for itself.",
      unit === "words" &&
        "Words: the sum over the subwords of the word attended to, the mean over the subwords of the word that attends.",
      unit === "words" && !isDense && "The stored map has tokens, so the matrix shows tokens, not words.",
      isRescaled && "Rescaled: the remaining weights of a row are divided by 1 minus the hidden weight.",
      isRescaled && !isDense && "Blocks are not rescaled.",
      isRescaled && isPartial && "Rows are not rescaled if their hidden weights are not stored in this file.",
    ];
    place.replaceChildren(...sentences.filter((sentence) => typeof sentence === "string").map(hint));
  });
  return place;
}
