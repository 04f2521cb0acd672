// The selected weights as CSV: of a region, else of the selected tokens, else of the whole head. They are loaded and written row
// after row, so that a server's page needs no more room than one.

import { range } from "#data/numbers.js";
import { csvHeader, csvLines, PAIR, pairCells, WeightColumn } from "#export/csv.js";
import { NotSaved, whenLoaded } from "#export/loading.js";
import { focusedCells } from "#state/store.js";
import { WORDINGS } from "#ui/shown.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @import { View } from '#ui/view.js'
 * @typedef {{name: string, rows: number[], columns: number[], keys: [number, number] | null, inOrder: boolean}} Selection
 *   `rows` and `columns` are saved whole, except that `keys` are the first and last key of a region. `inOrder`: by key, not by weight.
 */

const MAX_NAMED = 3; // tokens in the name of a file
const MAX_NAME = 20; // characters of each
const MAX_WEIGHTS = 4_000_000; // that a server computes for a file

/**
 * @param {View} view @param {(progress: string) => void} report
 * @returns {Promise<{name: string, parts: string[], note: string}>} `name` says what is in the file, whose text is `parts`.
 */
export async function selectedWeights(view, report) {
  const { layer, unit, state, recording, queries, keys, shown } = view;
  const selection = selectionOf(view);
  if (!layer.isPartial) checkSize(selection, queries.length, keys.length);
  const head = await whenLoaded(recording, () => (layer.isLoaded ? unit.head(layer, state.heads, shown) : null));
  const writer = new Writer(queries, keys, columnOf(shown, state));
  const { isPartial } = layer;
  writer.column.isPartial = isPartial;
  const isSaved = new Set(selection.rows);
  for (const [index, query] of selection.rows.entries()) {
    if (layer.isRemote) report(`Loading ${index + 1} of ${selection.rows.length} rows …`);
    await head.fetch([query], []);
    writer.add(head.row(query), (entry) => isWithin(entry, selection), selection.inOrder);
  }
  for (const [index, key] of selection.columns.entries()) {
    if (layer.isRemote) report(`Loading ${index + 1} of ${selection.columns.length} columns …`);
    await head.fetch([], [key]);
    writer.add(head.column(key), ({ query }) => !isSaved.has(query));
  }
  return {
    name: unit.isWord ? `words-${selection.name}` : selection.name,
    parts: writer.finish(),
    note: isPartial
      ? `${writer.count} weights were saved, all that this file stores of the selection. Weights that are not in the table are not zero.`
      : "",
  };
}

/** @param {string} shown @param {import("#state/store.js").State} state */
function columnOf(shown, state) {
  if (shown === "weights") return new WeightColumn(state);
  const heads = shown === "relevance" ? [] : state.heads;
  return new WeightColumn({ ...state, heads, rescale: false }, WORDINGS[shown].option);
}

/** The first selected tokens, as a name of a file can have them. @param {View} view */
function namesOf({ state, unit, recording }) {
  const names = state.tokens.map(({ sequence, index }) => unit.text(recording.sequences[sequence]).labels[index]);
  return names
    .slice(0, MAX_NAMED)
    .map((name) => name.replace(/[^\p{L}\p{N}]+/gu, "").slice(0, MAX_NAME))
    .filter(Boolean);
}

/** What the file would be of, such as `“it”`; empty for all weights. @param {View} view */
export function describeSelection({ layer, state, unit, recording }) {
  if (state.region) return "the region";
  const { queries, keys } = focusedCells(layer, { ...state, hover: null });
  if (!queries.length && !keys.length) return "";
  const [{ sequence, index }, ...others] = state.tokens;
  const name = unit.text(recording.sequences[sequence]).labels[index];
  return others.length ? `${state.tokens.length} ${unit.name}s` : `“${name}”`;
}

/** @param {View} view @returns {Selection} */
function selectionOf(view) {
  const { layer, state, queries } = view;
  const { region } = state;
  if (region) return { name: "region", rows: range(...region.queries), columns: [], keys: region.keys, inOrder: true };
  const { queries: rows, keys: columns } = focusedCells(layer, { ...state, hover: null });
  if (rows.length || columns.length)
    return { name: ["tokens", ...namesOf(view)].join("-"), rows, columns, keys: null, inOrder: false };
  return { name: "weights", rows: range(0, queries.length - 1), columns: [], keys: null, inOrder: true };
}

/** @param {Entry} entry @param {Selection} selection */
function isWithin({ key }, { keys }) {
  return keys === null || (key >= keys[0] && key <= keys[1]);
}

/** @param {Selection} selection @param {number} numQueries @param {number} numKeys */
function checkSize({ rows, columns, keys }, numQueries, numKeys) {
  const perRow = keys ? keys[1] - keys[0] + 1 : numKeys;
  const count = rows.length * perRow + columns.length * (numQueries - rows.length);
  if (count <= MAX_WEIGHTS) return;
  const [selected, limit] = [count, MAX_WEIGHTS].map((number) => number.toLocaleString("en"));
  throw new NotSaved(
    `A file holds ${limit} weights at most, and these are ${selected}: select fewer tokens, or a region.`,
  );
}

/** Collects the lines of a file. */
class Writer {
  /** @param {import("#data/sequence.js").Sequence} queries @param {import("#data/sequence.js").Sequence} keys @param {WeightColumn} column */
  constructor(queries, keys, column) {
    this.queries = queries;
    this.keys = keys;
    this.column = column;
    /** @type {string[]} */
    this.parts = [];
    this.count = 0;
  }

  /** @param {Ranked} ranked  A row or column. @param {(entry: Entry) => boolean} isSelected @param {boolean} inOrder */
  add({ entries, loading, notRescaled }, isSelected, inOrder = false) {
    if (loading) throw new NotSaved("Some weights could not be loaded, so no file was saved.");
    const selected = entries.filter(isSelected);
    if (inOrder) selected.sort((a, b) => a.key - b.key);
    this.count += selected.length;
    this.column.someNotRescaled ||= Boolean(notRescaled);
    const rows = selected.map((entry) => [...pairCells(this.queries, this.keys, entry), this.column.round(entry)]);
    this.parts.push(csvLines(rows));
  }

  /** The header, which says how exact the weights are, and the lines. */
  finish() {
    return [csvHeader([...PAIR, this.column.name]), ...this.parts];
  }
}
