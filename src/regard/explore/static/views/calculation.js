// The calculation of one query's attention in one head: from its vectors to weights and output, a step at a time.

import { recordedTrace, SENTENCES } from "#calculation/recorded.js";
import { Stage } from "#calculation/stage.js";
import { DEPTHS } from "#calculation/steps.js";
import { attentionSteps, scoreByFeature, weightedValues } from "#data/attention_steps.js";
import { PAIR, pairCells, roundTo, WeightColumn } from "#export/csv.js";
import { whenLoaded } from "#export/loading.js";
import { focusedCells } from "#state/store.js";
import { oneOf } from "#state/url.js";
import { element, hint } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Trace } from '#calculation/trace.js'
 * @import { Measured, Steps } from '#data/attention_steps.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Table } from '#export/csv.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 */

const depths = DEPTHS.map(([depth]) => depth);

/** @type {ViewDefinition} */
export default {
  name: "calculation",
  title: "Calculation",
  help: "How a head computes the attention of one token, with its own numbers: query, products with the keys, scores, weights and output, a step at a time. Select a token to see its calculation. Green cells are above 0, purple cells below, weights are blue. Point at a cell to see its number; the depth “Every number” lists them all.",
  unit: "token",
  urlFields: {
    calculationStep: { name: "calculation", initial: "", write: (slug) => slug, read: (text) => text.slice(0, 40) },
    depth: { ...oneOf(depths), initial: "block" },
  },
  mount: (place, view) => new CalculationView(place, view),
};

class CalculationView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.view = view;
    this.heading = element("p", { class: "calculation-of" });
    this.stage = new Stage(
      (change) => this.change(change),
      "h4",
      (at) => this.point(at),
    );
    this.stage.node.addEventListener("keydown", (event) => this.stage.press(event));
    place.append(this.heading, this.stage.node);
    this.empty = hint("");
    place.append(this.empty);
    this.calculated = ""; // the layer, the head and the query of the calculation
    /** @type {Trace | null} */
    this.trace = null;
    this.drawn = "";
    /** @type {import("#state/store.js").Hover | null} */
    this.hover = null; // what the pointer is at in a step
  }

  /** @param {import("#calculation/stage.js").Change} change */
  change({ step, depth, query }) {
    const { view } = this;
    if (step) view.set({ calculationStep: step });
    if (depth) view.set({ depth });
    if (query !== undefined) view.set({ tokens: [{ sequence: view.layer.querySequence, index: query }] });
  }

  /** Highlight in other views what the pointer is at; the calculation stays that of its query. @param {import("#calculation/picture.js").Pointed} at */
  point(at) {
    const { view } = this;
    const { querySequence, keySequence } = view.layer;
    const positions = this.trace?.header.positions ?? {};
    const [query, key, token] = ["query", "key", "token"].map((axis) => positions[axis]?.[at[axis]] ?? at[axis]);
    if (key !== undefined) this.hover = { cell: { query: query ?? this.query, key } };
    else if (query !== undefined) this.hover = { token: { sequence: querySequence, index: query } };
    else if (token !== undefined) this.hover = { token: { sequence: keySequence, index: token } };
    else if (this.hover && view.state.hover === this.hover) this.hover = null;
    else return; // another view points at something, or none does
    view.set({ hover: this.hover });
  }

  /** The query that is pointed at in another view, or selected; else one with content. */
  get query() {
    const { layer, state, queries, recording } = this.view;
    const isOwn = state.hover !== null && state.hover === this.hover;
    const [focused] = focusedCells(layer, isOwn ? { ...state, hover: null } : state).queries;
    if (focused !== undefined) return focused;
    const { opening, layers } = recording;
    if (layer.querySequence === layers[opening.layer].querySequence) return opening.query;
    const content = queries.display.findIndex((text, index) => !queries.isSpecial[index] && /[\p{L}\p{N}]/u.test(text));
    return Math.max(content, 0);
  }

  paint() {
    const { state, recording } = this.view;
    const { query } = this;
    const [head] = state.heads;
    if (recording.calculation) this.load(recording.calculation);
    else this.read(head, query);
    this.stage.node.hidden = this.trace === null;
    this.empty.hidden = this.trace !== null;
    const { calculationStep: step, depth, hide, rescale } = state;
    const theme = themeOf(state);
    const drawn = [this.calculated, head, query, step, depth, theme, hide, rescale, state.heads.length].join(" ");
    if (!this.trace || drawn === this.drawn) return;
    this.drawn = drawn;
    this.draw(query);
    const place = recording.calculation ? { head, query } : { head: 0, query: 0 };
    this.stage.draw(this.trace, { step, depth, ...place, theme, note: "" });
  }

  /** Let the page compute everything in the layer. @param {NonNullable<import("#data/recording.js").Recording["calculation"]>} calculation */
  load(calculation) {
    const { layer, state } = this.view;
    const calculated = String(state.layer);
    if (calculated === this.calculated) return;
    Object.assign(this, { calculated, trace: null });
    this.empty.textContent = "Loading …";
    const show = (/** @type {Trace | null} */ trace, text = "") => {
      if (calculated !== this.calculated) return;
      this.trace = trace;
      this.empty.textContent = text;
      this.view.schedulePaint();
    };
    calculation(layer).then(show, (error) => show(null, `The calculation failed: ${error}`));
  }

  /** Take what the recording has of a query. @param {number} head @param {number} query */
  read(head, query) {
    const { layer, state, recording, queries, keys } = this.view;
    const calculated = [state.layer, head, query].join(" ");
    if (calculated === this.calculated && this.trace) return;
    const steps = layer.isLoaded ? attentionSteps(layer, head, query) : null;
    const layers = recording.layers.map(({ name }) => name);
    const nameOf = (/** @type {number} */ key) => nameIn(keys, key);
    const about = { layer, layers, isServed: recording.isServed, query, queryName: nameIn(queries, query), nameOf };
    this.trace = steps?.rows.length ? recordedTrace(steps, about, SENTENCES) : null;
    this.calculated = steps ? calculated : "";
    this.empty.textContent = steps ? "Every key of this query is masked, so nothing is computed." : "Loading …";
  }

  /** @param {number} query */
  draw(query) {
    const { layer, state, queries } = this.view;
    const more = state.heads.length > 1 ? `, the first of the ${state.heads.length} selected heads` : "";
    const name = element("b", { dir: "auto" }, nameIn(queries, query));
    const where = ` in ${layer.name}, head ${layer.headIndices[state.heads[0]]}${more}`;
    this.heading.replaceChildren(name, where, ...hiddenNote(state));
  }

  /** All numbers: a line for each key, and one for the output. @returns {Promise<Table>} */
  async table() {
    const { layer, state, queries, keys, recording } = this.view;
    const { query } = this;
    const [head] = state.heads;
    const steps = await whenLoaded(recording, () => (layer.isLoaded ? attentionSteps(layer, head, query) : null));
    return toTable(steps, layer.header.scale, { queries, keys, query });
  }
}

/** A token's label, with its position if the text has another like it. @param {Sequence} text @param {number} index */
function nameIn({ labels, repeated }, index) {
  return repeated.has(labels[index]) ? `${labels[index]} (${index})` : labels[index];
}

/** @param {import("#state/store.js").State} state */
function hiddenNote({ hide, rescale }) {
  if (!hide.length) return [];
  const others = rescale ? "hidden, and the others rescaled, in other views" : "hidden in other views";
  return [`. This is the model’s own calculation, with all keys; some of them are ${others}.`];
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
