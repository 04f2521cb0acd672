// Layers with known weights, stored as pack.py stores them and read as the page reads them.

import { Layer } from "../../../src/regard/explore/static/data/layer.js";
import { Sequence } from "../../../src/regard/explore/static/data/sequence.js";

/** @typedef {number[][][]} Weights  (heads, queries, keys), NaN where masked. */

export const PRECISION = 1 / 6000;
const MASKED = 4095;
const DTYPES = { Uint8Array: "U8", Uint16Array: "U16", Uint32Array: "U32", Float32Array: "F32" };

/** A safetensors file. @param {Record<string, {shape: number[], values: Uint8Array | Uint16Array | Uint32Array | Float32Array}>} tensors @returns {ArrayBuffer} */
export function safetensors(tensors) {
  let end = 0;
  const places = Object.entries(tensors)
    .sort(([, a], [, b]) => b.values.BYTES_PER_ELEMENT - a.values.BYTES_PER_ELEMENT) // so that each is aligned
    .map(([name, { shape, values }]) => {
      const [start, dtype] = [end, DTYPES[values.constructor.name]];
      end += values.byteLength;
      return { name, values, start, entry: { dtype, shape, data_offsets: [start, end] } };
    });
  const json = JSON.stringify(Object.fromEntries(places.map(({ name, entry }) => [name, entry])));
  const header = new TextEncoder().encode(json.padEnd(Math.ceil(json.length / 8) * 8));
  const bytes = new Uint8Array(8 + header.length + end);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(header.length), true);
  bytes.set(header, 8);
  for (const { values, start } of places) {
    bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), 8 + header.length + start);
  }
  return bytes.buffer;
}

/** @param {number} weight */
export function code(weight) {
  if (Number.isNaN(weight)) return MASKED;
  const nearest = Math.round(3000 * weight);
  return nearest % 2 === 0 && (3000 * weight) % 1 === 0.5 ? nearest - 1 : nearest; // a half to the odd one
}

/** Integers as byte planes. @param {number[]} shape @param {number[]} numbers */
export function planes(shape, numbers, width = 2) {
  const values = Array.from({ length: width }, (_, byte) => numbers.map((number) => Math.floor(number / 256 ** byte)));
  return { shape: [width, ...shape], values: Uint8Array.from(values.flat()) };
}

/** @param {number[]} shape @param {number[]} numbers */
export const floats = (shape, numbers) => ({ shape, values: Float32Array.from(numbers) });

/** Pseudo-random numbers from 0 to 1. @param {number} seed @returns {() => number} */
export function random(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Softmax weights of random scores. @param {{heads?: number, queries: number, keys: number, allows?: (query: number, key: number, head: number) => boolean, sharpness?: number, sink?: number, seed?: number}} options @returns {Weights} */
export function randomWeights({ heads = 1, queries, keys, allows = () => true, sharpness = 3, sink = 0, seed = 1 }) {
  const next = random(seed);
  const range = (/** @type {number} */ count) => Array.from({ length: count }, (_, index) => index);
  return range(heads).map((head) =>
    range(queries).map((query) => {
      const exp = range(keys).map((key) => (allows(query, key, head) ? Math.exp(sharpness * next()) : NaN));
      const sum = exp.reduce((total, value) => total + (value || 0), sink);
      return exp.map((value) => value / sum);
    }),
  );
}

/** A text of so many tokens; `words` and `special` are as in its header. @param {number} count @param {Partial<import("../../../src/regard/explore/static/data/sequence.js").SequenceHeader>} header */
export function sequence(count, { role = "source", words, special = [], ...header } = {}) {
  const tokens = Array.from({ length: count }, (_, index) => `${role}${index}`);
  const own = words ?? tokens.map((_, index) => index);
  const texts = wordTexts(tokens, own);
  return new Sequence({ role, tokens, display: tokens, words: own, word_texts: texts, special, spaces: [], ...header });
}

/** The texts of words of some tokens. @param {string[]} tokens @param {number[]} words */
export function wordTexts(tokens, words) {
  return [...new Set(words)].map((word) => tokens.filter((_, index) => words[index] === word).join(""));
}

/**
 * @typedef {{queries?: Sequence, keys?: Sequence, hasSinks?: boolean, score?: string | null, storage?: string}} Options
 * @param {Weights} weights @param {Record<string, any>} tensors @param {object} header @param {Options} options
 */
async function load(weights, tensors, header, options) {
  const { queries = sequence(weights[0].length, { role: "written" }), keys = sequence(weights[0][0].length) } = options;
  const about = {
    name: "a",
    kind: "cross",
    heads: weights.map((_, head) => head),
    queries: 0,
    keys: 1,
    scale: 1,
    score: options.score ?? null,
    has_sinks: options.hasSinks ?? false,
    scores: {},
    thumbnail: [1, 1],
    qkv: [],
    ...header,
  };
  const layer = new Layer(/** @type {any} */ (about), [queries, keys], PRECISION, async () => safetensors(tensors));
  await layer.load();
  return layer;
}

/** A layer of which the page has all weights. @param {Weights} weights @param {Options & {tensors?: object}} options */
export function denseLayer(weights, { tensors = {}, ...options } = {}) {
  const shape = [weights.length, weights[0].length, weights[0][0].length];
  const codes = planes(shape, weights.flat(2).map(code));
  return load(weights, { weights: codes, ...tensors }, { storage: "dense", levels: [1] }, options);
}

/** The same from a server: exact weights. @param {Weights} weights @param {Options} options */
export function exactLayer(weights, options = {}) {
  const shape = [weights.length, weights[0].length, weights[0][0].length];
  return load(weights, { weights: floats(shape, weights.flat(2)) }, { storage: "dense", levels: [1] }, options);
}

/** A layer of which the page has a sketch. @param {Weights} weights @param {Options & {levels: number[], k: number, mask?: "none" | "runs" | "unknown"}} options */
export function sketchLayer(weights, { levels, k, mask = "runs", ...options }) {
  const [heads, queries, keys] = [weights.length, weights[0].length, weights[0][0].length];
  const sum = (/** @type {number[]} */ some) => some.reduce((total, weight) => total + (weight || 0), 0);
  const strongest = (/** @type {number[]} */ row) =>
    row
      .map((_, key) => key)
      .sort((a, b) => (row[b] || 0) - (row[a] || 0))
      .slice(0, k);
  const top = weights.map((head) => head.map(strongest));
  const topWeights = weights.map((head, h) => head.map((row, q) => top[h][q].map((key) => row[key] || 0)));
  const rest = weights.map((head, h) => head.map((row, q) => Math.max(0, sum(row) - sum(topWeights[h][q]))));
  const received = weights.map((head) => head[0].map((_, key) => sum(head.map((row) => row[key]))));
  const tensors = {
    ...mapTensors(weights, levels),
    top_keys: planes([heads, queries, k], top.flat(2), keys > 256 ? 2 : 1),
    top_weights: planes([heads, queries, k], topWeights.flat(2).map(code)),
    rest: planes([heads, queries], rest.flat().map(code)),
    received: floats([heads, keys], received.flat()),
    ...(mask === "runs" && maskTensors(weights)),
  };
  return load(weights, tensors, { storage: "sketch", levels, mask }, options);
}

/** A layer whose weights the page computes from queries, which are the logarithms of the weights, and keys, the identity. @param {Weights} weights @param {Options & {size: number}} options */
export function computedLayer(weights, { size, ...options }) {
  const [heads, queries, keys] = [weights.length, weights[0].length, weights[0][0].length];
  const lse = weights.flatMap((_, head) => Array.from({ length: queries }, (_, query) => head + query / queries));
  const logarithms = weights.flat().flatMap((row, at) => row.map((weight) => (Math.log(weight) || 0) + lse[at]));
  const eye = Array.from({ length: keys * keys }, (_, at) => (at % (keys + 1) === 0 ? 1 : 0));
  const tensors = {
    ...mapTensors(weights, [size]),
    ...maskTensors(weights),
    query: floats([heads, queries, keys], logarithms),
    key: floats([1, keys, keys], eye),
    lse: floats([heads, queries], lse),
  };
  return load(weights, tensors, { storage: "computed", levels: [size], mask: "runs" }, options);
}

/** @param {Weights} weights @param {number[]} levels */
function mapTensors(weights, levels) {
  const maps = levels.map((size) => {
    const blocks = weights.map((head) => blockMeans(head, size));
    const shape = [weights.length, blocks[0].length, blocks[0][0].length];
    return [`blocks_${size}`, planes(shape, blocks.flat(2).map(code))];
  });
  return Object.fromEntries(maps);
}

/** @param {Weights} weights */
function maskTensors(weights) {
  const edges = weights[0].map((row) =>
    [...row, NaN].flatMap((weight, key) => (Number.isNaN(weight) === Number.isNaN(row[key - 1] ?? NaN) ? [] : [key])),
  );
  const flat = edges.flat();
  return {
    mask_counts: { shape: [edges.length], values: Uint32Array.from(edges, ({ length }) => length) },
    mask_edges: { shape: [flat.length], values: Uint32Array.from(flat, (edge, at) => edge - (flat[at - 1] ?? 0)) },
  };
}

/** How much a query gives to a block of keys, averaged over a block of queries. @param {number[][]} matrix @param {number} size */
export function blockMeans(matrix, size) {
  const blocks = Array.from({ length: Math.ceil(matrix.length / size) }, (_, row) =>
    Array.from({ length: Math.ceil(matrix[0].length / size) }, (_, column) => {
      const rows = matrix.slice(row * size, (row + 1) * size);
      const cells = rows.flatMap((each) => each.slice(column * size, (column + 1) * size));
      const visible = cells.filter((weight) => !Number.isNaN(weight));
      return visible.length ? visible.reduce((a, b) => a + b, 0) / rows.length : NaN;
    }),
  );
  return blocks;
}
