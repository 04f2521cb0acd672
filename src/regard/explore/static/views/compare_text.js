// What the comparison says in words: what is compared, and the numbers of a cell.

import { element } from "#ui/elements.js";
import { formatWeight, signed } from "#ui/format.js";
import { pairNode } from "#views/matrix_tip.js";

/**
 * @import { Alignment, LayerPair } from '#data/difference.js'
 * @import { Cell } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Comparison, Side } from '#views/compare.js'
 */

/** The layers, the heads, and how much their texts have in common. @param {Comparison} comparison @param {Layer} layer  Of A. @param {number[]} selected  Heads. */
export function describeComparison({ pair, a, b }, layer, selected) {
  if (!pair)
    return `B has no layer to compare with ${layer.name} of A: none has that name, and A and B have different numbers of layers of its kind.`;
  const indices = (/** @type {number[]} */ heads) => heads.map((head) => layer.headIndices[head]).join(", ");
  const layers = pair.a.name === pair.b.name ? [] : [`${pair.a.name} of A is compared with ${pair.b.name} of B.`];
  if (!b) return [...layers, `B has no head ${indices(selected)} in that layer.`].join(" ");
  const onlyInA = selected.filter((head) => !a.heads.includes(head));
  const skipped = onlyInA.length ? [`Head ${indices(onlyInA)} exists only in A; skipped.`] : [];
  return [...layers, ...skipped, ...describeTexts(pair)].join(" ");
}

/** @param {LayerPair} pair */
function describeTexts({ a, b, rows, columns, unit, isByPosition }) {
  const describe = (/** @type {Alignment} */ alignment) =>
    isByPosition ? countEqual(alignment) : countInBoth(alignment, unit.name);
  const isOneText = [a, b].every(({ querySequence, keySequence }) => querySequence === keySequence);
  const counts = isOneText ? [describe(rows)] : [`Rows: ${describe(rows)}`, `Columns: ${describe(columns)}`];
  return isByPosition ? [...counts, "Blocks are compared by position."] : counts;
}

/** @param {Alignment} alignment */
function countEqual({ a, b, pairs }) {
  const equal = pairs.filter(([inA, inB]) => a.tokens[inA] === b.tokens[inB]);
  return `${equal.length} of ${pairs.length} positions have the same token.`;
}

/** @param {Alignment} alignment @param {string} unit */
function countInBoth({ a, b, pairs }, unit) {
  const counts = { A: a.length - pairs.length, B: b.length - pairs.length };
  const only = Object.entries(counts).flatMap(([name, count]) => (count > 0 ? [`${count} only in ${name}`] : []));
  return `${pairs.length} of ${a.length} ${unit}s are in both${only.length ? ` (${only.join(", ")})` : ""}.`;
}

/**
 * What a cell is in A, in B, and the difference.
 * @param {Comparison} comparison @param {import("#views/compare_cells.js").Spots} spots @returns {{from: string, to: string, lines: [name: string, text: string][]} | null} null where neither has the cell
 */
export function describeCells(comparison, spots) {
  const [a, b] = [cellOf(comparison.a, spots.a), cellOf(comparison.b, spots.b)];
  const known = a ?? b;
  if (!known) return null;
  /** @type {[string, string][]} */
  const lines = [
    ["A", describeCell(a?.cell)],
    ["B", describeCell(b?.cell)],
  ];
  if (a && b && comparison.difference) lines.push(["B − A", describeDifference(comparison, a, b)]);
  return { from: known.from, to: known.to, lines };
}

/** @param {Side | null} side @param {import("#views/matrix.js").Spot} spot */
function cellOf(side, { query, key }) {
  if (!side || query === null || key === null) return null;
  const [from, to] = [side.queries.labels[query], side.keys.labels[key]];
  return { query, key, from, to, cell: side.head.cell(query, key) };
}

/** @param {Cell | undefined} cell */
function describeCell(cell) {
  if (!cell) return "does not exist";
  if (cell.state === "masked" || cell.state === "hidden") return cell.state;
  return cell.state === "known"
    ? formatWeight(cell.weight, cell.error)
    : `not stored in this file: at most ${formatWeight(cell.upperBound)}`;
}

/** @param {Comparison} comparison @param {{query: number, key: number, cell: Cell}} a @param {{query: number, key: number, cell: Cell}} b */
function describeDifference({ difference }, a, b) {
  const absent = ["masked", "hidden"].find((state) => a.cell.state === state || b.cell.state === state);
  if (absent) return `none: ${absent}`;
  if (a.cell.state === "known" && b.cell.state === "known") {
    return formatDifference(b.cell.weight - a.cell.weight, a.cell.error + b.cell.error);
  }
  if (!difference || a.query !== b.query || a.key !== b.key) return "not stored in this file";
  const { size } = difference.blocks;
  const mean = difference.blocks.at(Math.floor(a.query / size), Math.floor(a.key / size));
  const { blockErrors } = difference;
  return `${formatDifference(mean, blockErrors.a + blockErrors.b)} to the ${size} keys around it, averaged over ${size} rows`;
}

/** A difference with its sign, if it is large enough to have one. @param {number} value @param {number} error */
function formatDifference(value, error) {
  if (value === 0 && error === 0) return "0";
  const size = formatWeight(Math.abs(value), error);
  return size.startsWith("<") ? size : signed(value, size);
}

/** @param {{from: string, to: string, lines: [name: string, text: string][]}} cells */
export function tipContent({ from, to, lines }) {
  const nodes = lines.map(([name, text]) => {
    const parts = [element("span", { class: "rank" }, name), " ", element("span", { class: "value" }, text)];
    return element("span", { class: "compare-line" }, ...parts);
  });
  return [pairNode(from, to), ...nodes];
}
