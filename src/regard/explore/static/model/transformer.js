// An encoder-decoder Transformer, as regard.models.Transformer: encodes a sentence, and decodes token by token.

import { Attention, FeedForward, Norm, residual, Track } from "#model/layers.js";

/**
 * @import { Config, Context } from '#model/layers.js'
 * @import { Matrices } from '#model/matrices.js'
 * @typedef {{tracks: Track[], memories: {keys: Float32Array[], values: Float32Array[]}[]}} Encoded  A source: what the encoder's layers computed, and keys and values for each layer of the decoder.
 */

/** One layer of the encoder or the decoder. */
class Layer {
  /** @param {Matrices} matrices @param {string} name @param {Config} config @param {boolean} cross */
  constructor(matrices, name, config, cross) {
    const norm = (/** @type {string} */ part) => new Norm(matrices, `${name}.${part}_residual.norm`, config);
    this.normFirst = config.norm_first;
    this.selfNorm = norm("self_attention");
    this.self = new Attention(matrices, `${name}.self_attention`, config);
    this.crossNorm = cross ? norm("cross_attention") : null;
    this.cross = cross ? new Attention(matrices, `${name}.cross_attention`, config) : null;
    this.feedForwardNorm = norm("feed_forward");
    this.feedForward = new FeedForward(matrices, `${name}.feed_forward`, config);
  }

  /** @param {Float32Array} x @param {(x: Float32Array) => Context[]} own  Adds the keys of x and says what each row attends to. @param {Context[]} [others] */
  apply(x, own, others) {
    let y = residual(x, this.selfNorm, this.normFirst, (input) => this.self.attend(input, own(input)));
    const { cross, crossNorm } = this;
    if (cross && crossNorm && others)
      y = residual(y, crossNorm, this.normFirst, (input) => cross.attend(input, others));
    return residual(y, this.feedForwardNorm, this.normFirst, (input) => this.feedForward.apply(input));
  }
}

/** A decoded sequence: its tokens, and what each layer computed for them. */
export class State {
  /** @param {number} layers @param {Encoded} source */
  constructor(layers, { memories }) {
    /** @type {number[]} */
    this.tokens = [];
    this.self = Array.from({ length: layers }, () => new Track());
    this.cross = memories.map((memory) => Object.assign(new Track(), memory));
  }

  copy() {
    const copied = { self: this.self.map((track) => track.copy()), cross: this.cross.map((track) => track.copy()) };
    return Object.assign(Object.create(State.prototype), { tokens: [...this.tokens], ...copied });
  }
}

/** The model. */
export class Transformer {
  /** @param {Matrices} matrices @param {Config} config */
  constructor(matrices, config) {
    this.matrices = matrices;
    this.config = config;
    const stack = (/** @type {string} */ name, /** @type {number} */ count, /** @type {boolean} */ cross) =>
      Array.from({ length: count }, (_, index) => new Layer(matrices, `${name}.layers.${index}`, config, cross));
    this.encoder = stack("encoder", config.num_encoder_layers, false);
    this.decoder = stack("decoder", config.num_decoder_layers, true);
    this.encoderNorm = config.norm_first ? new Norm(matrices, "encoder.norm", config) : null;
    this.decoderNorm = config.norm_first ? new Norm(matrices, "decoder.norm", config) : null;
    this.head = matrices.linear("lm_head");
  }

  /** Token embeddings plus positions. @param {number[]} ids @param {number[]} positions @param {string} side */
  embed(ids, positions, side) {
    const { d_model: size, scale_embeddings: scaled } = this.config;
    const table = this.matrices.get(`${side}_embedding.weight`).values;
    const places = this.matrices.tensors.get(`${side}_positions`)?.values;
    const factor = scaled ? Math.sqrt(size) : 1;
    const x = new Float32Array(ids.length * size);
    for (const [row, id] of ids.entries()) {
      for (let at = 0; at < size; at++) {
        x[row * size + at] = Math.fround(factor * table[id * size + at]) + (places?.[positions[row] * size + at] ?? 0);
      }
    }
    return x;
  }

  /** @param {number[]} ids  With EOS. @returns {Encoded} */
  encode(ids) {
    const tracks = this.encoder.map(() => new Track());
    const positions = ids.map((_, position) => position);
    /** @type {Float32Array} */
    let x = this.embed(ids, positions, "src");
    for (const [index, layer] of this.encoder.entries()) {
      x = layer.apply(x, (input) => {
        Object.assign(tracks[index], layer.self.memory(input));
        return ids.map(() => ({ track: tracks[index], count: ids.length }));
      });
    }
    const encoded = this.encoderNorm?.apply(x) ?? x;
    const memories = this.decoder.flatMap(({ cross }) => cross?.memory(encoded) ?? []);
    return { tracks, memories };
  }

  /** Decoded sequences of a source before the first token. @param {Encoded} source */
  start(source) {
    return new State(this.decoder.length, source);
  }

  /** Add a token to each sequence. @param {number[]} tokens @param {State[]} states @returns {Float32Array[]} The logits of the next token of each. */
  step(tokens, states) {
    const positions = states.map((state) => state.tokens.length);
    for (const [row, state] of states.entries()) state.tokens.push(tokens[row]);
    /** @type {Float32Array} */
    let x = this.embed(tokens, positions, "tgt");
    for (const [index, layer] of this.decoder.entries()) {
      const others = states.map(({ cross }) => ({ track: cross[index], count: cross[index].keys.length }));
      const own = (/** @type {Float32Array} */ input) => {
        const { keys, values } = layer.self.memory(input);
        return states.map(({ self }, row) => {
          self[index].keys.push(keys[row]);
          self[index].values.push(values[row]);
          return { track: self[index], count: self[index].keys.length };
        });
      };
      x = layer.apply(x, own, others);
    }
    const logits = this.matrices.multiply(this.decoderNorm?.apply(x) ?? x, this.head);
    return states.map((_, row) => logits.subarray(row * this.head.outer, (row + 1) * this.head.outer));
  }
}
