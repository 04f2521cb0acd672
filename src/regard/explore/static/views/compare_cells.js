// Which cells of the compared recordings belong together, and their numbers as a table.

import { nameOf, WeightColumn } from "#export/csv.js";

/**
 * @import { Difference, Pair } from '#data/difference.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Focus } from '#state/store.js'
 * @import { Comparison, Side } from '#views/compare.js'
 * @import { Spot } from '#views/matrix.js'
 * @typedef {{a: Spot, b: Spot}} Spots  A place in each recording; null where it does not exist.
 */

/** What a place of a panel is in each recording. @param {import("#views/compare_panel.js").PanelName} panel @param {Spot} at @param {Comparison} comparison @returns {Spots} */
export function spotsOf(panel, { query, key }, { pair }) {
  /** @type {(rows: ArrayLike<number> | undefined, columns: ArrayLike<number> | undefined) => Spot} */
  const through = (rows, columns) => ({ query: look(rows, query), key: look(columns, key) });
  if (panel === "a") return { a: { query, key }, b: through(pair?.rows.aToB, pair?.columns.aToB) };
  if (panel === "b") return { a: through(pair?.rows.bToA, pair?.columns.bToA), b: { query, key } };
  const side = (/** @type {0 | 1} */ at) => {
    const [rows, columns] = [pair?.rows, pair?.columns].map((all) => all?.pairs.map((positions) => positions[at]));
    return through(rows, columns);
  };
  return { a: side(0), b: side(1) };
}

/** @param {ArrayLike<number> | undefined} map @param {number | null} index */
function look(map, index) {
  const found = index === null ? -1 : (map?.[index] ?? -1);
  return found < 0 ? null : found;
}

/** @param {Spot} spot @returns {Focus} */
export function focusOn({ query, key }) {
  const all = (/** @type {number | null} */ index) => (index === null ? [] : [index]);
  return { queries: all(query), keys: all(key), cell: query !== null && key !== null };
}

/** The focus at other positions. @param {Focus} focus @param {Int32Array} rows @param {Int32Array} columns  The position of each, or −1. @returns {Focus} */
export function mapFocus({ queries, keys, cell }, rows, columns) {
  const through = (/** @type {number[]} */ indices, /** @type {Int32Array} */ map) =>
    indices.map((index) => map[index]).filter((index) => index >= 0);
  const mapped = { queries: through(queries, rows), keys: through(keys, columns) };
  return { ...mapped, cell: cell && mapped.queries.length > 0 && mapped.keys.length > 0 };
}

/** The cells, or blocks, whose weights both recordings have. @param {Comparison} comparison @param {import("#state/store.js").State} state @returns {import("#export/csv.js").Table} */
export function tableOf({ difference, a }, state) {
  const size = difference?.blocks.size ?? 1;
  const options = { ...state, heads: a.heads, rescale: state.rescale && size === 1 }; // blocks are not rescaled
  const weights = { A: new WeightColumn(options), B: new WeightColumn(options), "B − A": new WeightColumn(options) };
  const rows = difference ? rowsOf(difference, a, weights) : [];
  const places = ["query", "key"].flatMap((side) => [`${side} index A`, `${side} index B`, `${side} token`]);
  const blocks = size > 1 ? `, blocks of ${size} × ${size} tokens` : "";
  return {
    columns: [...places, ...Object.entries(weights).map(([name, column]) => `${name}: ${column.name}${blocks}`)],
    rows,
  };
}

/** @param {Difference} difference @param {Side} side  A. @param {Record<string, WeightColumn>} columns */
function rowsOf(difference, { queries, keys }, columns) {
  const { size } = difference.blocks;
  /** @type {(text: Sequence, pair: Pair) => (string | number)[]} */
  const place = (text, [inA, inB]) => [inA * size, inB * size, nameOf(text, inA * size)];
  return difference.blockPairs.rows.flatMap((query, row) => {
    columns.A.someNotRescaled ||= Boolean(difference.a.row(query[0] * size).notRescaled);
    columns.B.someNotRescaled ||= Boolean(difference.b.row(query[1] * size).notRescaled);
    columns["B − A"].someNotRescaled = columns.A.someNotRescaled || columns.B.someNotRescaled;
    return difference.blockPairs.columns.flatMap((key, column) => {
      const { a, b } = difference.weights(row, column);
      const between = { weight: b.weight - a.weight, error: a.error + b.error };
      if (Number.isNaN(between.weight)) return []; // masked or hidden
      const weights = [columns.A.round(a), columns.B.round(b), columns["B − A"].round(between)];
      return [[...place(queries, query), ...place(keys, key), ...weights]];
    });
  });
}
