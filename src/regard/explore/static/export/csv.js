// Numbers as a file of CSV, which spreadsheets open and run nothing of.

import { unmarked } from "#data/tokens.js";

/**
 * @typedef {{columns: string[], rows: (string | number | null)[][]}} Table  A cell of which nothing is known is null.
 * @typedef {() => Table} Tell  What a view shows now.
 */

export const PAIR = ["query index", "query token", "key index", "key token"];

/** @param {Table} table */
export function csvOf({ columns, rows }) {
  return `\ufeff${[columns, ...rows].map((cells) => cells.map(cellOf).join(",")).join("\r\n")}\r\n`;
}

/** What weights are called. @param {{hidden: string[], rescale: boolean}} state */
export function unitOf({ hidden, rescale }) {
  return hidden.length && rescale ? "weight, rescaled" : "weight";
}

/** A token as it is written: of words the mark is left out that stands for a space. @param {string} token @param {{words: boolean}} state */
export function nameOf(token, { words }) {
  return words ? unmarked(token) : token;
}

/** Weights, each with its query and its key. @param {import("#data/layer.js").Layer} layer @param {import("#data/heads.js").Link[]} links @param {{words: boolean, hidden: string[], rescale: boolean}} state @returns {Table} */
export function linksIn(layer, links, state = { words: false, hidden: [], rescale: false }) {
  const name = (/** @type {string} */ token) => nameOf(token, state);
  return {
    columns: [...PAIR, unitOf(state)],
    rows: links.map(({ query, key, weight }) => [
      query,
      name(layer.queries[query]),
      key,
      name(layer.keys[key]),
      weight,
    ]),
  };
}

/** A cell. One that a spreadsheet would take for a formula has a ' before it. @param {string | number | null} value */
function cellOf(value) {
  if (typeof value !== "string") return Number.isFinite(value) ? String(rounded(/** @type {number} */ (value))) : "";
  const safe = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {number} value */
function rounded(value) {
  return Number.isInteger(value) ? value : Number(value.toPrecision(6));
}
