// The attention of one query in one head, step by step: products, scores, softmax, output.

import { range } from "#data/numbers.js";

/**
 * @import { Layer, Vectors } from '#data/layer.js'
 * @typedef {{value: number, error: number}} Measured  A number, and how far it may be from the exact one.
 * @typedef {{key: number, weight: Measured, exp: number, product: number, scaled: number, vector: Float32Array | null, value: Float32Array | null}} Row
 *   `product` and `scaled` are NaN without query and key, and so is `exp`, of what the score is below the largest one, if the weights are stored.
 * @typedef {{source: "qk" | "products" | "weights", query: Float32Array | null, rows: Row[], isComplete: boolean, rest: number, sum: number}} Steps
 *   `source` is where the weights come from: query and key; or they are stored, and the products of query and key explain them in part, or not.
 *   Rows are in the order of their weights. `isComplete`: all keys have one; else `rest` is the weight of the others. `sum` of the exponentials
 *   is NaN if the weights are stored.
 */

/** @param {Layer} layer @param {number} head @param {number} query @returns {Steps | null} null while something is loading */
export function attentionSteps(layer, head, query) {
  const known = layer.head([head]);
  const vectors = layer.vectors(head);
  if (!known || !vectors) return null;
  const ranked = known.row(query);
  if (ranked.loading) return null;
  const { score, scale, mask } = layer.header;
  const hasAllKeys = !layer.isPartial;
  const [queries, keys, values] = vectors.map(rowReader);
  const vector = queries?.(query) ?? null;
  const isProduct = vector !== null && (score === null || score.includes("ScaledDotProduct"));
  const isComputed = isProduct && score === null && (hasAllKeys || mask !== "unknown");
  const entries = isComputed && !hasAllKeys ? visibleKeys(known, layer, query) : ranked.entries;
  /** @type {Row[]} */
  const rows = entries.map(({ key, weight, error }) => {
    const product = isProduct ? dot(vector, keys(key)) : NaN;
    return {
      key,
      weight: { value: weight, error },
      exp: NaN,
      product,
      scaled: scale * product,
      vector: isProduct ? keys(key) : null,
      value: values?.(key) ?? null,
    };
  });
  const source = isComputed ? "qk" : isProduct ? "products" : "weights";
  const sum = isComputed ? computeSoftmax(rows) : NaN;
  return { source, query: vector, rows, isComplete: isComputed || hasAllKeys, rest: ranked.rest, sum };
}

/** @param {Vectors} vectors @returns {(token: number) => Float32Array} */
function rowReader({ features, values }) {
  return (token) => values.subarray(token * features, (token + 1) * features);
}

/** The keys that a mask allows. @param {import("#data/heads.js").BaseHead} head @param {Layer} layer @param {number} query */
function visibleKeys(head, layer, query) {
  const keys = range(0, layer.keys.length - 1).filter((key) => !head.isMasked(query, key));
  return keys.map((key) => ({ key, weight: NaN, error: 0 }));
}

/** Weights from scores, and the sum of the exponentials. @param {Row[]} rows */
function computeSoftmax(rows) {
  const largest = rows.reduce((max, { scaled }) => Math.max(max, scaled), -Infinity);
  for (const row of rows) row.exp = Math.exp(row.scaled - largest);
  const sum = rows.reduce((total, { exp }) => total + exp, 0);
  for (const row of rows) row.weight = { value: row.exp / sum, error: 0 };
  rows.sort((a, b) => b.weight.value - a.weight.value);
  return sum;
}

/** @param {Float32Array} a @param {Float32Array} b */
function dot(a, b) {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += a[index] * b[index];
  return sum;
}

/** Σ weight × value. @param {Row[]} rows @returns {Measured[]} for each feature */
export function weightedValues(rows) {
  const sums = Array.from(rows[0]?.value ?? [], () => ({ value: 0, error: 0 }));
  for (const { weight, value } of rows) {
    for (const [feature, sum] of sums.entries()) {
      const factor = value?.[feature] ?? 0;
      sum.value += weight.value * factor;
      sum.error += weight.error * Math.abs(factor);
    }
  }
  return sums;
}

/** What each feature adds to the scaled product: scale · q_f · k_f. @param {Steps} steps @param {Row} row @param {number} scale @returns {number[]} */
export function scoreByFeature({ query }, { vector }, scale) {
  return Array.from(query ?? [], (value, feature) => scale * value * (vector?.[feature] ?? 0));
}
