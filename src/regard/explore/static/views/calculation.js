// The calculation of one query's attention in one head: from its vectors to weights and output, a table for each step.

import { attentionSteps, scoreByFeature, weightedValues } from "#data/attention_steps.js";
import { PAIR, pairCells, roundTo, WeightColumn } from "#export/csv.js";
import { whenLoaded } from "#export/loading.js";
import { focusedCells } from "#state/store.js";
import { element, hint } from "#ui/elements.js";
import { featureNode, stepNodes } from "#views/calculation_steps.js";
import { fitTable } from "#views/calculation_table.js";

/**
 * @import { Measured, Steps } from '#data/attention_steps.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Table } from '#export/csv.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @import { StepInputs } from '#views/calculation_steps.js'
 */

const NUM_KEYS = 12; // rows of a table, unless the reader wants all
const NUM_FEATURES = 8;
const MANY_KEYS = 256; // of which all are listed for one query only
const MAX_KEYS = 2048; // that are listed

/** @type {ViewDefinition} */
export default {
  name: "calculation",
  title: "Calculation",
  help: "How a head computes the attention of one token, with its own numbers: query, products with the keys, scores, weights and output. Select a token to see its calculation.",
  unit: "token",
  mount: (place, view) => new CalculationView(place, view),
};

class CalculationView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.view = view;
    this.heading = element("p", { class: "calculation-of" });
    this.keysButton = element("button", { type: "button" });
    this.featuresButton = element("button", { type: "button" });
    const label = { class: "tools", role: "group", "aria-label": "How much is listed" };
    this.stage = element("div", { class: "steps" });
    place.append(this.heading, element("div", label, this.keysButton, this.featuresButton), this.stage);
    this.allKeys = false;
    this.allFeatures = false;
    this.keysButton.addEventListener("click", () => this.toggle("allKeys"));
    this.featuresButton.addEventListener("click", () => this.toggle("allFeatures"));
    this.query = ""; // that is calculated: its layer, head and position
    this.drawn = ""; // what the tables were drawn for
    this.width = 0; // for which they were fitted
    /** @type {StepInputs | null} */
    this.inputs = null;
    this.key = -1; // whose score is split
  }

  /** @param {"allKeys" | "allFeatures"} field */
  toggle(field) {
    this[field] = !this[field];
    this.view.schedulePaint();
  }

  paint() {
    const { view } = this;
    const { layer, state } = view;
    const place = { layer, head: state.heads[0], query: currentQuery(view) };
    const query = [state.layer, place.head, place.query].join(" ");
    if (query !== this.query && layer.keys.length > MANY_KEYS) this.allKeys = false;
    const drawn = [query, state.heads.length, state.hide, state.rescale, this.allKeys, this.allFeatures].join(" ");
    if (drawn !== this.drawn) {
      const steps = layer.isLoaded ? attentionSteps(layer, place.head, place.query) : null;
      this.drawn = steps ? drawn : "";
      if (!steps) return this.stage.replaceChildren(hint("Loading …"));
      if (query !== this.query) this.key = steps.rows[0]?.key ?? -1;
      this.query = query;
      this.draw(steps, place.query);
    }
    this.fit();
    this.markRows();
  }

  /** @param {Steps} steps @param {number} query */
  draw(steps, query) {
    const { layer, state, queries, keys, recording } = this.view;
    const { rows } = steps;
    const numFeatures = steps.query?.length ?? 0;
    const more = state.heads.length > 1 ? `, the first of the ${state.heads.length} selected heads` : "";
    const name = element("b", { dir: "auto" }, nameIn(queries, query));
    const where = ` in ${layer.name}, head ${layer.headIndices[state.heads[0]]}${more}`;
    this.heading.replaceChildren(name, where, ...hiddenNote(state));
    const allKeys = rows.length > MAX_KEYS ? `the ${MAX_KEYS} strongest` : `all ${rows.length}`;
    showToggle(this.keysButton, this.allKeys, rows.length > NUM_KEYS, [
      `Show ${allKeys} keys`,
      `Show the ${NUM_KEYS} strongest keys`,
    ]);
    showToggle(this.featuresButton, this.allFeatures, numFeatures > NUM_FEATURES, [
      `Show all ${numFeatures} features`,
      `Show ${NUM_FEATURES} features`,
    ]);
    this.inputs = {
      layer,
      isServed: recording.isServed,
      steps,
      drawn: rows.slice(0, this.allKeys ? MAX_KEYS : NUM_KEYS),
      queryName: nameIn(queries, query),
      numFeatures: this.allFeatures ? Infinity : NUM_FEATURES,
      nameOf: (key) => nameIn(keys, key),
      actions: {
        point: (key) => this.point(query, key),
        select: (key) => this.select(key),
      },
    };
    const isEmpty = rows.length === 0 && steps.rest === 0;
    const empty = hint("Every key of this query is masked, so nothing is computed.");
    this.stage.replaceChildren(...(isEmpty ? [empty] : stepNodes(this.inputs, this.key)));
    this.width = 0;
  }

  /** @param {number} query @param {number | null} key */
  point(query, key) {
    if (key !== null) this.view.set({ hover: { cell: { query, key } } });
    else if (this.view.state.hover) this.view.set({ hover: null });
  }

  /** Split the score of a key. @param {number} key */
  select(key) {
    const split = this.stage.querySelector(".step:nth-child(4)");
    this.key = key;
    if (!this.inputs || !split || this.inputs.steps.source === "weights") return;
    split.replaceWith(featureNode(this.inputs, key));
    this.width = 0;
    this.fit();
    this.markRows();
  }

  fit() {
    const { clientWidth } = this.stage;
    if (clientWidth === this.width) return;
    this.width = clientWidth;
    for (const sheet of this.stage.querySelectorAll(".sheet"))
      fitTable(/** @type {HTMLElement} */ (sheet), clientWidth);
  }

  /** Mark the key that is pointed at, and the one whose score is split. */
  markRows() {
    const { hover } = this.view.state;
    const focused = hover?.cell && hover.cell.query === currentQuery(this.view) ? hover.cell.key : -1;
    const isSplit = this.inputs?.steps.source !== "weights";
    for (const row of this.stage.querySelectorAll("tr[data-key]")) {
      const key = Number(row.getAttribute("data-key"));
      row.classList.toggle("focused", key === focused);
      row.querySelector("button")?.setAttribute("aria-pressed", String(isSplit && key === this.key));
    }
  }

  /** All numbers: a line for each key, and one for the output. @returns {Promise<Table>} */
  async table() {
    const { layer, state, queries, keys, recording } = this.view;
    const [head, query] = [state.heads[0], currentQuery(this.view)];
    const steps = await whenLoaded(recording, () => (layer.isLoaded ? attentionSteps(layer, head, query) : null));
    return toTable(steps, layer.header.scale, { queries, keys, query });
  }
}

/** The query that is pointed at or selected; else one with content. @param {View} view */
function currentQuery({ layer, state, queries, recording }) {
  const [focused] = focusedCells(layer, state).queries;
  if (focused !== undefined) return focused;
  const { opening, layers } = recording;
  if (layer.querySequence === layers[opening.layer].querySequence) return opening.query;
  const content = queries.display.findIndex((text, index) => !queries.isSpecial[index] && /[\p{L}\p{N}]/u.test(text));
  return Math.max(content, 0);
}

/** A token's label, with its position if the text has another like it. @param {Sequence} text @param {number} index */
function nameIn({ labels }, index) {
  const label = labels[index];
  return labels.indexOf(label) === labels.lastIndexOf(label) ? label : `${label} (${index})`;
}

/** @param {import("#state/store.js").State} state */
function hiddenNote({ hide, rescale }) {
  if (!hide.length) return [];
  const others = rescale ? "hidden, and the others rescaled, in other views" : "hidden in other views";
  return [`. This is the model’s own calculation, with all keys; some of them are ${others}.`];
}

/** @param {HTMLElement} button @param {boolean} isOn @param {boolean} isNeeded @param {[off: string, on: string]} texts */
function showToggle(button, isOn, isNeeded, texts) {
  button.hidden = !isNeeded;
  button.textContent = texts[Number(isOn)];
  button.setAttribute("aria-pressed", String(isOn));
}

/** @param {Measured} number */
function roundMeasured({ value, error }) {
  return roundTo(value, error);
}

/** @param {Steps} steps @param {number} scale @param {{queries: Sequence, keys: Sequence, query: number}} place @returns {Table} */
function toTable(steps, scale, { queries, keys, query }) {
  const { rows, source } = steps;
  const column = new WeightColumn({ heads: [0], reduce: "", hide: [], rescale: false });
  const hasProducts = source !== "weights";
  const lines = rows.map((row) => [
    ...pairCells(queries, keys, { query, key: row.key }),
    ...(hasProducts ? [row.product, row.scaled] : []),
    column.round({ weight: row.weight.value, error: row.weight.error }),
    ...(hasProducts ? scoreByFeature(steps, row, scale) : []),
    ...weightedValues([row]).map(roundMeasured),
  ]);
  const numbered = (/** @type {string} */ name, /** @type {ArrayLike<unknown> | null | undefined} */ vector) =>
    Array.from(vector ?? [], (_, index) => `${name} ${index}`);
  const columns = [
    ...PAIR,
    ...(hasProducts ? ["product", "scaled product"] : []),
    column.name,
    ...(hasProducts ? numbered("scale × query × key", steps.query) : []),
    ...numbered("weight × value", rows[0]?.value),
  ];
  const output = weightedValues(rows).map(roundMeasured);
  if (!steps.isComplete || !output.length) return { columns, rows: lines };
  const blank = Array(columns.length - 4 - output.length).fill(null);
  return {
    columns,
    rows: [...lines, [...pairCells(queries, keys, { query, key: 0 }).slice(0, 2), null, "output", ...blank, ...output]],
  };
}
