// Every number of one attention layer and of the block around it: the steps of regard.tracing, by their names.

import { byHead } from "#model/computed.js";
import { Track } from "#model/layers.js";

/**
 * @import { Attention, Config, Context, Norm } from '#model/layers.js'
 * @import { Linear } from '#model/matrices.js'
 * @import { Layer, Transformer } from '#model/transformer.js'
 * @typedef {Record<string, {shape: number[], values: Float32Array}>} Tensors
 * @typedef {{tensors: Tensors, words: number[]}} Traced  `words` are the tokens of the axis of words.
 * @typedef {{input: Float32Array, memory: Float32Array, positions: number[], others: number[], causal: boolean}} Read
 *   What an attention layer reads: rows for queries and for keys with their positions; and whether later keys are masked.
 */

const TOP = 3; // words that are shown for each position

/** @param {Transformer} model @param {string} name  Of an attention layer, such as `cross.2`. @param {Record<string, number[]>} sequences @returns {Traced} */
export function traced(model, name, sequences) {
  const [kind, number] = [name.split(".")[0], Number(name.split(".")[1])];
  const side = kind === "encoder" ? "src" : "tgt";
  const ids = kind === "encoder" ? sequences.source : (sequences.read ?? sequences.source);
  const positions = [...ids.keys()];
  const layers = kind === "encoder" ? model.encoder : model.decoder;
  const source = model.encoder.length && kind !== "encoder" ? model.encode(sequences.source).output : null;
  const sources = source ? [...sequences.source.keys()] : [];
  const causal = kind !== "encoder" && model.masked;
  const made = new Made(model.config);
  if (number === 0 && kind !== "cross") embedding(made, model, ids, side);
  let x = model.embed(ids, positions, side);
  const ownOf = (/** @type {Layer} */ { self }) => {
    return (/** @type {Float32Array} */ input) =>
      contexts(self, { input, memory: input, positions, others: positions, causal });
  };
  const crossOf = (/** @type {Layer} */ { cross }) =>
    cross && source
      ? contexts(cross, { input: x, memory: source, positions, others: sources, causal: false })
      : undefined;
  for (const layer of layers.slice(0, number)) x = layer.apply(x, ownOf(layer), crossOf(layer));
  const layer = layers[number];
  if (kind === "cross") x = selfAttention(layer, x, ownOf(layer));
  const norm = kind === "cross" ? layer.crossNorm : layer.selfNorm;
  const attention = kind === "cross" ? layer.cross : layer.self;
  if (!norm || !attention) throw new Error(`the model has no layer ${name}`);
  if (layer.normFirst && (kind === "cross" || number > 0)) made.rows("hidden state", x);
  const input = layer.normFirst ? made.norm("", norm, x, "input") : x;
  if (!layer.normFirst) made.rows("input", x);
  if (kind === "cross" && source) made.rows("memory", source);
  const memory = kind === "cross" && source ? source : input;
  const others = kind === "cross" ? sources : positions;
  const output = attend(made, attention, { input, memory, positions, others, causal: causal && kind !== "cross" });
  x = made.sum("attention", "attention result", [x, output], layer.normFirst ? null : norm);
  if (kind === "decoder" && layer.cross) return { tensors: made.tensors, words: [] };
  x = block(made, layer, x);
  return { tensors: made.tensors, words: number === layers.length - 1 ? words(made, model, kind, x) : [] };
}

/** Steps by name. */
class Made {
  /** @param {Config} config */
  constructor(config) {
    this.size = config.d_model;
    /** @type {Tensors} */
    this.tensors = {};
  }

  /** @param {string} name @param {Float32Array} values @param {...number} shape */
  add(name, values, ...shape) {
    this.tensors[name] = { shape, values };
    return values;
  }

  /** Several of one shape; returns the last. @param {number[]} shape @param {Record<string, Float32Array>} steps @returns {Float32Array} */
  all(shape, steps) {
    const added = Object.entries(steps).map(([name, values]) => this.add(name, values, ...shape));
    return added[added.length - 1];
  }

  /** Of a vector for each token. @param {string} name @param {Float32Array} values */
  rows(name, values) {
    return this.add(name, values, values.length / this.size, this.size);
  }

  /** @param {string} prefix @param {Norm} norm @param {Float32Array} x @param {string} result */
  norm(prefix, norm, x, result) {
    const { size } = this;
    const count = x.length / size;
    const [means, roots, normalized] = [new Float32Array(count), new Float32Array(count), new Float32Array(x.length)];
    for (let row = 0; row < count; row++) {
      const own = x.subarray(row * size, (row + 1) * size);
      if (norm.centered) means[row] = own.reduce((sum, value) => sum + value, 0) / size;
      const squares = own.reduce((sum, value) => sum + (value - means[row]) ** 2, 0);
      roots[row] = Math.sqrt(squares / size + norm.eps);
      for (let at = 0; at < size; at++) normalized[row * size + at] = (own[at] - means[row]) / roots[row];
    }
    if (norm.centered) this.add(`${prefix}mean`, means, count);
    this.add(`${prefix}${norm.centered ? "standard deviation" : "root mean square"}`, roots, count);
    this.rows(`${prefix}normalized`, normalized);
    this.add(`${prefix}norm weight`, norm.weight, size);
    if (norm.bias) this.add(`${prefix}norm bias`, norm.bias, size);
    return this.rows(result, norm.apply(x));
  }

  /** A residual connection: the sum, and its norm if this is not before the sublayer. @param {string} part @param {string} result @param {[Float32Array, Float32Array]} terms @param {Norm | null} norm */
  sum(part, result, [x, y], norm) {
    const total = x.map((value, at) => value + y[at]);
    if (!norm) return this.rows(result, total);
    return this.norm(`${part} `, norm, this.rows(`${part} sum`, total), result);
  }
}

/** @param {Attention} attention @param {Read} read @returns {Context[]} */
function contexts(attention, { memory, positions, others, causal }) {
  const track = Object.assign(new Track(), attention.memory(memory, others));
  return positions.map((position) => ({ track, count: causal ? position + 1 : others.length, position }));
}

/** The output of a self-attention with its residual connection. @param {Layer} layer @param {Float32Array} x @param {(input: Float32Array) => Context[]} own */
function selfAttention({ self, selfNorm, normFirst }, x, own) {
  const input = normFirst ? selfNorm.apply(x) : x;
  const y = self.attend(input, own(input)).map((value, at) => value + x[at]);
  return normFirst ? y : selfNorm.apply(y);
}

/** @param {Made} made @param {Transformer} model @param {number[]} ids @param {"src" | "tgt"} side */
function embedding(made, model, ids, side) {
  const { size } = made;
  const { tensors } = model.matrices;
  const table = model.matrices.get(`${side}_embedding.weight`).values;
  const gather = (/** @type {Float32Array} */ from, /** @type {number[]} */ rows) => {
    const found = new Float32Array(rows.length * size);
    for (const [at, row] of rows.entries()) found.set(from.subarray(row * size, (row + 1) * size), at * size);
    return found;
  };
  made.add("ids", Float32Array.from(ids), ids.length);
  let x = made.rows("token embedding", gather(table, ids));
  const scaled = x.map((value) => value * Math.sqrt(size));
  if (model.config.scale_embeddings) x = made.rows("scaled embedding", scaled);
  const type = tensors.get("token_type")?.values;
  const places = model.positioned ? tensors.get(`${side}_positions`)?.values : undefined;
  if (type) made.add("token type embedding", type, size);
  const added = places ? made.rows("position embedding", gather(places, [...ids.keys()])) : null;
  if (!type && !added) return;
  const sum = x.map((value, at) => value + (type?.[at % size] ?? 0) + (added?.[at] ?? 0));
  x = made.rows("embedding", sum);
  if (model.embeddingNorm) made.norm("embedding ", model.embeddingNorm, x, "embedding norm");
}

/** The steps of an attention layer, and its output. @param {Made} made @param {Attention} attention @param {Read} read */
function attend(made, attention, read) {
  const { heads, shared, size } = attention;
  const { positions, others, memory, causal } = read;
  const kvHeads = heads / shared;
  const [queries, keys] = [positions.length, others.length];
  const project = (
    /** @type {"query" | "key" | "value"} */ name,
    /** @type {Float32Array} */ x,
    /** @type {number} */ count,
  ) => {
    const letter = name[0].toUpperCase();
    made.add(`W_${letter}`, weightByHead(attention[name], count, size), count, made.size, size);
    if (attention[name].bias) made.add(`b_${letter}`, attention[name].bias, count, size);
    const vectors = attention.project(x, attention[name]);
    made.add(name, byHead(vectors, count), count, vectors.length, size);
    return vectors;
  };
  const query = project("query", read.input, heads);
  const key = project("key", memory, kvHeads);
  const value = project("value", memory, kvHeads);
  if (attention.places.rotary) {
    for (const [row, vector] of query.entries()) attention.rotate(vector, positions[row]);
    for (const [row, vector] of key.entries()) attention.rotate(vector, others[row]);
    made.add("rotated query", byHead(query, heads), heads, queries, size);
    made.add("rotated key", byHead(key, kvHeads), kvHeads, keys, size);
  }
  const scores = new Float32Array(heads * queries * keys);
  const bias = attention.places.bias ? new Float32Array(scores.length) : null;
  for (let row = 0; row < queries; row++) {
    const own = new Float32Array(heads * keys);
    attention.addBias(own, keys, positions[row]);
    for (let head = 0; head < heads; head++) {
      const start = (head * queries + row) * keys;
      for (let at = 0; at < keys; at++) {
        const [one, other] = [head * size, Math.floor(head / shared) * size];
        for (let dim = 0; dim < size; dim++) scores[start + at] += query[row][one + dim] * key[at][other + dim];
        if (bias) bias[start + at] = own[head * keys + at];
      }
    }
  }
  const weights = softmaxSteps(made, { scores, bias, scale: attention.scale, causal, shape: [heads, queries, keys] });
  const joined = joinHeads(weights, value, { heads, shared, size, queries, off: attention.off });
  made.add("sum of weighted values", byHead(joined, heads), heads, queries, size);
  const all = Float32Array.from(joined.flatMap((vector) => [...vector]));
  made.add("heads joined", all, queries, heads * size);
  made.add("W_O", outByHead(attention.out, heads * size, made.size), heads, size, made.size);
  if (attention.out.bias) made.add("b_O", attention.out.bias, made.size);
  return made.rows("output", attention.matrices.multiply(all, attention.out));
}

/** @param {Made} made @param {{scores: Float32Array, bias: Float32Array | null, scale: number, causal: boolean, shape: [number, number, number]}} given */
function softmaxSteps(made, { scores, bias, scale, causal, shape }) {
  const [heads, queries, keys] = shape;
  let read = made.all(shape, { scores, "scaled scores": scores.map((score) => score * scale) });
  if (bias) {
    const biased = read.map((score, at) => score + bias[at]);
    read = made.all(shape, { "position bias": bias, "biased scores": biased });
  }
  if (causal) {
    const mask = read.map((_, at) => Number(at % keys <= Math.floor(at / keys) % queries));
    read = made.all(shape, { mask, "masked scores": read.map((score, at) => (mask[at] ? score : -Infinity)) });
  }
  const powers = new Float32Array(read.length);
  const sums = new Float32Array(heads * queries);
  for (let row = 0; row < sums.length; row++) {
    const largest = read.subarray(row * keys, (row + 1) * keys).reduce((a, b) => Math.max(a, b), -Infinity);
    for (let at = row * keys; at < (row + 1) * keys; at++) sums[row] += powers[at] = Math.exp(read[at] - largest);
  }
  made.add("sums", sums, heads, queries);
  return made.all(shape, {
    exponentials: powers,
    weights: powers.map((power, at) => power / sums[Math.floor(at / keys)]),
  });
}

/** The sums of the values, of each query the heads side by side. @param {Float32Array} weights @param {Float32Array[]} values @param {{heads: number, shared: number, size: number, queries: number, off: number[]}} shape */
function joinHeads(weights, values, { heads, shared, size, queries, off }) {
  return Array.from({ length: queries }, (_, row) => {
    const joined = new Float32Array(heads * size);
    for (let head = 0; head < heads; head++) {
      if (off.includes(head)) continue;
      for (const [key, value] of values.entries()) {
        const weight = weights[(head * queries + row) * values.length + key];
        const other = Math.floor(head / shared) * size;
        for (let dim = 0; dim < size; dim++) joined[head * size + dim] += weight * value[other + dim];
      }
    }
    return joined;
  });
}

/** (heads, features, dims) of a projection. @param {Linear} linear @param {number} heads @param {number} size */
function weightByHead({ weight, inner }, heads, size) {
  const result = new Float32Array(weight.length);
  for (let row = 0; row < heads * size; row++) {
    const start = Math.floor(row / size) * inner * size + (row % size);
    for (let at = 0; at < inner; at++) result[start + at * size] = weight[row * inner + at];
  }
  return result;
}

/** (heads · dims, features) of the output projection. @param {Linear} linear @param {number} rows @param {number} columns */
function outByHead({ weight }, rows, columns) {
  return Float32Array.from(weight, (_, at) => weight[(at % columns) * rows + Math.floor(at / columns)]);
}

/** From after the attention to the output of the block. @param {Made} made @param {Layer} layer @param {Float32Array} x */
function block(made, layer, x) {
  const { feedForward, feedForwardNorm, normFirst } = layer;
  const input = normFirst ? made.norm("feed-forward ", feedForwardNorm, x, "feed-forward input") : x;
  const units = feedForward.units(input);
  made.add("hidden units", units, x.length / made.size, feedForward.fc2.inner);
  const output = made.rows("feed-forward output", feedForward.matrices.multiply(units, feedForward.fc2));
  return made.sum("block", "block output", [x, output], normFirst ? null : feedForwardNorm);
}

/** The last norm, and logits and probabilities of the most probable tokens, which are returned. @param {Made} made @param {Transformer} model @param {string} kind @param {Float32Array} x */
function words(made, model, kind, x) {
  const norm = kind === "encoder" ? model.encoderNorm : model.decoderNorm;
  const hidden = norm ? made.norm("final ", norm, x, "final output") : x;
  if (!model.head || (kind === "encoder" && model.decoder.length)) return [];
  const logits = model.logits(hidden);
  const rows = logits.map((row) => {
    const largest = row.reduce((a, b) => Math.max(a, b), -Infinity);
    const sum = row.reduce((total, logit) => total + Math.exp(logit - largest), 0);
    return row.map((logit) => Math.exp(logit - largest) / sum);
  });
  const best = new Map();
  for (const row of rows) {
    const order = [...row.keys()].sort((one, other) => row[other] - row[one]).slice(0, TOP);
    for (const token of order) best.set(token, Math.max(...rows.map((each) => each[token])));
  }
  const tokens = [...best.keys()].sort((one, other) => best.get(other) - best.get(one));
  const pick = (/** @type {Float32Array[]} */ from) =>
    Float32Array.from(from.flatMap((row) => tokens.map((token) => row[token])));
  made.add("logits", pick(logits), rows.length, tokens.length);
  made.add("probabilities", pick(rows), rows.length, tokens.length);
  return tokens;
}
