// What is shown of a head in words: its weights, or their gradients and what follows from these.

import { formatValue, formatWeight } from "#ui/format.js";

/**
 * @typedef {{option: string, title: string, unit: string, row: string, rows: string, column: string, columns: string}} Wording
 *   `option` in the list of options; `title` of a number; `unit` says what it is; the others follow the name of a token, or of several.
 */

/** @type {Record<string, Wording>} */
export const WORDINGS = {
  weights: {
    option: "weights",
    title: "Attention weight",
    unit: "share of a row, 0 to 1",
    row: " attends to",
    rows: " attend to, on average",
    column: " is attended to by",
    columns: " together are attended to by",
  },
  gradient: {
    option: "gradient",
    title: "Gradient of the weights",
    unit: "how much the loss changes with a weight",
    row: ": gradient of its weights on",
    rows: ": gradient of their weights, on average, on",
    column: ": gradient of the weights on it, by row",
    columns: ": gradient of the weights on them together, by row",
  },
  gradient_times_weights: {
    option: "gradient × weight",
    title: "Gradient × weight",
    unit: "how much of the loss comes through a weight, to first order",
    row: ": gradient × weight on",
    rows: ": gradient × weight, on average, on",
    column: ": gradient × weight on it, by row",
    columns: ": gradient × weight on them together, by row",
  },
  relevance: {
    option: "relevance",
    title: "Relevance",
    unit: "of the token of a column for that of a row, through all layers and heads of this part of the model",
    row: ": relevance for it of",
    rows: ": relevance for them, on average, of",
    column: ": its relevance for",
    columns: ": their relevance for",
  },
};

/** How a head's numbers are written. @param {{isSigned: boolean}} head @returns {(value: number, error?: number) => string} */
export const formatOf = ({ isSigned }) => (isSigned ? formatValue : formatWeight);

/** The class of a value's color: of its sign, or else of its direction. @param {{isSigned: boolean}} head @param {number} value @param {string} direction */
export const colorClass = ({ isSigned }, value, direction) =>
  isSigned ? (value < 0 ? "negative" : "positive") : direction;
