// The layers of a Transformer, as in regard.nn: norms, attention, feed-forward networks, and the residuals around them.

/**
 * @import { Linear, Matrices } from '#model/matrices.js'
 * @typedef {{d_model: number, num_heads: number, num_kv_heads: number, head_dim: number, activation: string, gated: boolean, norm: string,
 *   norm_first: boolean, norm_eps: number, num_encoder_layers: number, num_decoder_layers: number, scale_embeddings: boolean, max_seq_len: number, vocab_size: number,
 *   pad_id: number, bos_id: number, eos_id: number}} Config  Of regard.models; a BERT has no layers of a decoder, a GPT none of an encoder.
 * @typedef {{track: Track, count: number, position: number}} Context  What a row attends to: the first `count` keys of a track; and its own position.
 * @typedef {{rotary: Float32Array | null, bias: Float32Array | null}} Places  Of self-attention: cosines and sines (2, positions, pairs), and what is
 *   added to the scores of each head at each distance (heads, 2 · positions − 1).
 */

/** What one attention layer computed for one sequence: a vector for each token, and the weights of each query, (heads, keys). */
export class Track {
  constructor() {
    /** @type {Float32Array[]} */
    this.queries = [];
    /** @type {Float32Array[]} */
    this.keys = [];
    /** @type {Float32Array[]} */
    this.values = [];
    /** @type {Float32Array[]} */
    this.weights = [];
  }

  /** Another that goes on from here, or from after some tokens. @param {number} [count] */
  copy(count) {
    return Object.assign(new Track(), {
      queries: this.queries.slice(0, count),
      keys: this.keys.slice(0, count),
      values: this.values.slice(0, count),
      weights: this.weights.slice(0, count),
    });
  }
}

/** A norm. */
export class Norm {
  /** @param {Matrices} matrices @param {string} name @param {Config} config */
  constructor(matrices, name, { norm, norm_eps: eps, d_model: size }) {
    this.weight = matrices.get(`${name}.weight`).values;
    this.bias = matrices.tensors.get(`${name}.bias`)?.values;
    this.centered = norm === "layer_norm";
    this.eps = eps;
    this.size = size;
  }

  /** @param {Float32Array} x @returns {Float32Array} */
  apply(x) {
    const { size, weight, bias } = this;
    const y = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += size) {
      let [sum, squares] = [0, 0];
      for (let at = start; at < start + size; at++) sum += x[at];
      const mean = this.centered ? sum / size : 0;
      for (let at = start; at < start + size; at++) squares += (x[at] - mean) ** 2;
      const factor = 1 / Math.sqrt(squares / size + this.eps);
      for (let at = 0; at < size; at++)
        y[start + at] = (x[start + at] - mean) * factor * weight[at] + (bias?.[at] ?? 0);
    }
    return y;
  }
}

/** Multi-head attention; consecutive query heads share a key and value head if there are fewer of these. */
export class Attention {
  /** @param {Matrices} matrices @param {string} name @param {Config} config @param {Places} places */
  constructor(matrices, name, { num_heads: heads, num_kv_heads: kvHeads, head_dim: size }, places = NOWHERE) {
    this.matrices = matrices;
    this.heads = heads;
    this.own = places;
    this.places = places;
    this.temperature = 1;
    this.shared = heads / kvHeads;
    this.size = size;
    this.scale = 1 / Math.sqrt(size);
    /** @type {number[]} */
    this.off = [];
    const [queries, keys] = [heads * size, kvHeads * size];
    this.query = matrices.linear(`${name}.in_proj`, 0, queries);
    this.key = matrices.linear(`${name}.in_proj`, queries, keys);
    this.value = matrices.linear(`${name}.in_proj`, queries + keys, keys);
    this.out = matrices.linear(`${name}.out_proj`);
  }

  /** Compute something else. @param {{off: number[], temperature: number, scaled: boolean, positioned: boolean}} change  Heads that are left out, what the scores are divided by, and whether there are positions. */
  change({ off, temperature, scaled, positioned }) {
    this.off = off;
    this.temperature = temperature;
    this.scale = (scaled ? 1 / Math.sqrt(this.size) : 1) / temperature;
    this.places = positioned ? this.own : NOWHERE;
  }

  /** The vector of each row after a linear map. @param {Float32Array} x @param {Linear} linear */
  project(x, linear) {
    const y = this.matrices.multiply(x, linear);
    return Array.from({ length: y.length / linear.outer }, (_, row) =>
      y.subarray(row * linear.outer, (row + 1) * linear.outer),
    );
  }

  /** Keys and values of tokens at some positions. @param {Float32Array} x @param {number[]} positions */
  memory(x, positions) {
    const keys = this.project(x, this.key);
    for (const [row, key] of keys.entries()) this.rotate(key, positions[row]);
    return { keys, values: this.project(x, this.value) };
  }

  /** Turn pairs of features of each head by angles that grow with the position. @param {Float32Array} vector @param {number} position */
  rotate(vector, position) {
    const { size } = this;
    const { rotary } = this.places;
    if (!rotary) return;
    const pairs = Math.floor(size / 2);
    const [cosines, sines] = [position * pairs, rotary.length / 2 + position * pairs];
    for (let start = 0; start < vector.length; start += size) {
      for (let pair = 0; pair < pairs; pair++) {
        const [first, second] = [vector[start + pair], vector[start + pairs + pair]];
        const [cosine, sine] = [rotary[cosines + pair], rotary[sines + pair]];
        vector[start + pair] = first * cosine - second * sine;
        vector[start + pairs + pair] = first * sine + second * cosine;
      }
    }
  }

  /** Each row attends to its context, where its query and its weights are added. @param {Float32Array} x @param {Context[]} contexts */
  attend(x, contexts) {
    const joined = new Float32Array(contexts.length * this.query.outer);
    for (const [row, query] of this.project(x, this.query).entries()) {
      const { track } = contexts[row];
      this.rotate(query, contexts[row].position);
      track.queries.push(query);
      const result = joined.subarray(row * query.length, (row + 1) * query.length);
      track.weights.push(this.attendRow(query, contexts[row], result));
    }
    return this.matrices.multiply(joined, this.out);
  }

  /** The weights (heads, keys) of a query; their sums of values go into `result`. @param {Float32Array} query @param {Context} context @param {Float32Array} result */
  attendRow(query, { track: { keys, values }, count, position }, result) {
    const { heads, shared, size, scale } = this;
    const weights = new Float32Array(heads * count);
    for (let key = 0; key < count; key++) {
      const vector = keys[key];
      for (let head = 0; head < heads; head++) {
        const [own, other] = [head * size, Math.floor(head / shared) * size];
        let product = 0;
        for (let at = 0; at < size; at++) product += query[own + at] * vector[other + at];
        weights[head * count + key] = product * scale;
      }
    }
    this.addBias(weights, count, position);
    for (let head = 0; head < heads; head++) softmax(weights, head * count, (head + 1) * count);
    for (let key = 0; key < count; key++) {
      const vector = values[key];
      for (let head = 0; head < heads; head++) {
        const [own, other] = [head * size, Math.floor(head / shared) * size];
        const weight = weights[head * count + key];
        for (let at = 0; at < size; at++) result[own + at] += weight * vector[other + at];
      }
    }
    for (const head of this.off) result.fill(0, head * size, (head + 1) * size);
    return weights;
  }

  /** @param {Float32Array} scores  (heads, keys) @param {number} count @param {number} position */
  addBias(scores, count, position) {
    const { bias } = this.places;
    if (!bias) return;
    const distances = bias.length / this.heads;
    for (let head = 0; head < this.heads; head++) {
      const same = head * distances + (distances - 1) / 2 - position;
      for (let key = 0; key < count; key++) scores[head * count + key] += bias[same + key] / this.temperature;
    }
  }
}

/** @type {Places} */
const NOWHERE = { rotary: null, bias: null };

/** Of the numbers from a place to another. @param {Float32Array} numbers @param {number} start @param {number} end */
function softmax(numbers, start, end) {
  let [largest, sum] = [-Infinity, 0];
  for (let at = start; at < end; at++) largest = Math.max(largest, numbers[at]);
  for (let at = start; at < end; at++) sum += numbers[at] = Math.exp(numbers[at] - largest);
  for (let at = start; at < end; at++) numbers[at] /= sum;
}

/** @type {Record<string, (x: number) => number>} */
export const ACTIVATIONS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  gelu_tanh: (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2,
  silu: (x) => x / (1 + Math.exp(-x)),
};

/** The error function, within 1.2e-7 (Numerical Recipes, "erfcc"). @param {number} x */
function erf(x) {
  const t = 1 / (1 + Math.abs(x) / 2);
  const coefficients = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
  ];
  const polynomial = coefficients.reduceRight((sum, coefficient) => sum * t + coefficient, 0);
  return Math.sign(x) * (1 - t * Math.exp(-x * x + polynomial));
}

/** A feed-forward network. */
export class FeedForward {
  /** @param {Matrices} matrices @param {string} name @param {Config} config */
  constructor(matrices, name, { activation, gated }) {
    this.matrices = matrices;
    this.activation = ACTIVATIONS[activation];
    this.gated = gated;
    this.fc1 = matrices.linear(`${name}.fc1`);
    this.fc2 = matrices.linear(`${name}.fc2`);
  }

  /** The hidden units. @param {Float32Array} x */
  units(x) {
    let hidden = this.matrices.multiply(x, this.fc1);
    if (this.gated) {
      const [both, size] = [hidden, this.fc2.inner];
      hidden = new Float32Array(both.length / 2);
      for (let at = 0; at < hidden.length; at++) {
        const gate = at + Math.floor(at / size) * size;
        hidden[at] = this.activation(both[gate]) * both[gate + size];
      }
    } else {
      for (let at = 0; at < hidden.length; at++) hidden[at] = this.activation(hidden[at]);
    }
    return hidden;
  }

  /** @param {Float32Array} x */
  apply(x) {
    return this.matrices.multiply(this.units(x), this.fc2);
  }
}

/** x plus the output of a sublayer, with a norm before the sublayer or after the sum. @param {Float32Array} x @param {Norm} norm @param {boolean} normFirst @param {(x: Float32Array) => Float32Array} sublayer */
export function residual(x, norm, normFirst, sublayer) {
  const y = sublayer(normFirst ? norm.apply(x) : x);
  for (let at = 0; at < y.length; at++) y[at] += x[at];
  return normFirst ? y : norm.apply(y);
}
