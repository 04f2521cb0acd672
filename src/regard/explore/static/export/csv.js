// Numbers as CSV, in which a spreadsheet runs nothing.

import { WordSequence } from "#data/sequence.js";

/**
 * @import { Entry } from '#data/ranked.js'
 * @import { Sequence } from '#data/sequence.js'
 * @typedef {string | number | null} Cell  Null where a value is not known.
 * @typedef {{columns: string[], rows: Cell[][]}} Table
 * @typedef {{heads: number[], reduce: string, hide: string[], rescale: boolean}} WeightOptions  Fields of the state.
 */

/** Columns that name a query and a key. */
export const PAIR = ["query index", "query token", "key index", "key token"];

const BYTE_ORDER_MARK = "\ufeff"; // by which spreadsheets recognize UTF-8
const FORMULA = /^[=+\-@\t\r\n]/; // begins a formula in a spreadsheet
const DIGITS = 6;

/** @param {Table} table */
export function toCsv({ columns, rows }) {
  return csvHeader(columns) + csvLines(rows);
}

/** @param {string[]} columns */
export function csvHeader(columns) {
  return BYTE_ORDER_MARK + csvLines([columns]);
}

/** @param {Cell[][]} rows */
export function csvLines(rows) {
  return rows.map((cells) => `${cells.map(formatCell).join(",")}\r\n`).join("");
}

/** @param {Cell} value */
function formatCell(value) {
  if (typeof value !== "string") return value === null || !Number.isFinite(value) ? "" : String(significant(value));
  const safe = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {number} value */
function significant(value) {
  return Number.isInteger(value) ? value : Number(value.toPrecision(DIGITS));
}

/** A token as the tokenizer writes it, or a word as it is displayed. @param {Sequence} text @param {number} index */
export function nameOf(text, index) {
  return (text instanceof WordSequence ? text.display : text.tokens)[index];
}

/** The cells that name a query and a key. @param {Sequence} queries @param {Sequence} keys @param {{query: number, key: number}} place @returns {Cell[]} */
export function pairCells(queries, keys, { query, key }) {
  return [query, nameOf(queries, query), key, nameOf(keys, key)];
}

/** A column of weights: rounds each to its true digits, and says in its name what the weights are and how exact. */
export class WeightColumn {
  /** @param {WeightOptions} options @param {string} title */
  constructor({ heads, reduce, hide, rescale }, title = "weight") {
    const combined = heads.length > 1 ? [`${reduce} of ${heads.length} heads`] : [];
    this.parts = [title, ...combined];
    this.isRescaled = hide.length > 0 && rescale;
    /** Whether some weights could not be rescaled. */
    this.someNotRescaled = false;
    /** Whether the file leaves weights out that are not 0. */
    this.isPartial = false;
    this.error = 0; // the largest
  }

  /** @param {{weight: number, error: number}} weight */
  round({ weight, error }) {
    const rounded = roundTo(weight, error);
    if (error > 0) this.error = Math.max(this.error, error + Math.abs(rounded - weight));
    return rounded;
  }

  /** After all weights: `weight`, `weight, mean of 3 heads`, `weight (± 0.0002)`. */
  get name() {
    const rescaled = this.someNotRescaled ? "rescaled where possible" : "rescaled";
    const partial = this.isPartial ? ["the others are not stored"] : [];
    const name = [...this.parts, ...(this.isRescaled ? [rescaled] : []), ...partial].join(", ");
    return this.error > 0 ? `${name} (± ${roundUp(this.error)})` : name;
  }
}

/** A number without the decimals that its error makes meaningless. @param {number} value @param {number} error */
export function roundTo(value, error) {
  return error > 0 ? Number(value.toFixed(Math.max(0, Math.ceil(-Math.log10(error))))) : value;
}

/** Two significant digits, not less than a number but for the rounding of float32. @param {number} error */
function roundUp(error) {
  const unit = 10 ** (Math.floor(Math.log10(error)) - 1);
  return Number((Math.ceil(error / unit - 1e-2) * unit).toPrecision(2));
}

/**
 * Weights, each with its query and its key. @param {{queries: Sequence, keys: Sequence}} texts @param {Entry[]} entries @param {WeightOptions} options
 * @returns {Table}
 */
export function weightTable({ queries, keys }, entries, options) {
  const column = new WeightColumn(options);
  const rows = entries.map((entry) => [...pairCells(queries, keys, entry), column.round(entry)]);
  return { columns: [...PAIR, column.name], rows };
}
