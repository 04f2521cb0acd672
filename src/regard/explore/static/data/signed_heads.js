// What has either sign: the gradient of the weights, gradient × weight, and relevance. Every cell is known, or masked.

import { CompleteHead } from "#data/heads.js";
import { joinBytes } from "#data/page_format.js";

/**
 * @import { BaseHead, Blocks, Cell } from '#data/heads.js'
 * @import { Tensor } from '#data/page_format.js'
 * @typedef {{value: number, error: number}} Value
 * @typedef {(query: number, key: number) => Value} Values  NaN where masked.
 */

/** What a page shows, cell by cell. */
export const SHOWN = ["weights", "gradient", "gradient_times_weights", "relevance"];
const ZERO_CODE = 2 ** 15; // of a gradient, see gradients.py
const IDENTITY_ERROR = 2 ** -22; // of R − I on the diagonal, where R is about 1 in float32

/** A head whose cells are all known, of either sign. */
export class SignedHead extends CompleteHead {
  /** @param {number} rows @param {number} columns @param {Values} values */
  constructor(rows, columns, values) {
    super(rows, columns, { hasSinks: true }); // a row has no known sum
    this.isDense = true;
    this.isSigned = true;
    this.values = values;
    /** @type {Blocks} */
    this.cells = { rows, columns, size: 1, at: (row, column) => values(row, column).value };
  }

  get blocks() {
    return this.cells;
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const { value, error } = this.values(query, key);
    return { state: Number.isNaN(value) ? "masked" : "known", weight: value, upperBound: value, error };
  }
}

/**
 * The gradients of a layer's heads, or these times the weights.
 * @param {BaseHead[]} heads  Of weights. @param {Record<string, Tensor>} tensors @param {string} show @returns {SignedHead[]}
 */
export function signedHeads(heads, { gradient, gradient_unit: unit }, show) {
  const { shape, values } = unit ? joinBytes(gradient) : gradient;
  const [, rows, columns] = shape;
  return heads.map((weights, head) => {
    const step = unit?.values[head] ?? 1;
    return new SignedHead(rows, columns, (query, key) => {
      const weight = weights.cell(query, key);
      if (weight.state !== "known") return { value: NaN, error: 0 };
      const code = values[(head * rows + query) * columns + key];
      const [value, error] = unit ? [(code - ZERO_CODE) * step, step / 2] : [code, 0];
      if (show === "gradient") return { value, error };
      const largest = weight.weight + weight.error;
      return { value: value * weight.weight, error: error * largest + Math.abs(value) * weight.error };
    });
  });
}

/** The relevance of all layers of a part of the model. @param {Tensor} relevance @param {boolean} isSelfAttention  Of which it is R − I. */
export function relevanceHead({ shape: [rows, columns], values }, isSelfAttention) {
  return new SignedHead(rows, columns, (query, key) => ({
    value: values[query * columns + key],
    error: isSelfAttention && query === key ? IDENTITY_ERROR : 0,
  }));
}
