// A Transformer: an encoder, a decoder, or both, as regard.models.Bert, GPT and Transformer.

import { ACTIVATIONS, Attention, FeedForward, Norm, residual, Track } from "#model/layers.js";

/**
 * @import { Config, Context, Places } from '#model/layers.js'
 * @import { Matrices } from '#model/matrices.js'
 * @typedef {{tracks: Track[], output: Float32Array, memories: {keys: Float32Array[], values: Float32Array[]}[]}} Encoded
 *   A source: what the encoder's layers computed, their output, and keys and values for each layer of the decoder.
 * @typedef {{token: number, probability: number}} Choice
 * @typedef {{off: string[], temperature: number, without: string[]}} Change  What is different from the model: heads that are
 *   switched off, such as `cross.2.5`; what scores are divided by; and `scale`, `positions` or `mask`, which are left out.
 */

/** @type {Change} */
export const UNCHANGED = { off: [], temperature: 1, without: [] };

/** One layer of the encoder or the decoder. */
export class Layer {
  /** @param {Matrices} matrices @param {string} name @param {Config} config @param {boolean} cross @param {Places} places */
  constructor(matrices, name, config, cross, places) {
    const norm = (/** @type {string} */ part) => new Norm(matrices, `${name}.${part}_residual.norm`, config);
    this.normFirst = config.norm_first;
    this.selfNorm = norm("self_attention");
    this.self = new Attention(matrices, `${name}.self_attention`, config, places);
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
  /** @param {number} layers @param {Encoded["memories"]} memories */
  constructor(layers, memories) {
    /** @type {number[]} */
    this.tokens = [];
    /** The most probable next tokens, of the last tokens or of all. @type {Choice[][]} */
    this.choices = [];
    this.self = Array.from({ length: layers }, () => new Track());
    this.cross = memories.map((memory) => Object.assign(new Track(), memory));
  }

  /** Another that goes on from here. @returns {State} */
  copy() {
    return Object.assign(Object.create(State.prototype), {
      tokens: [...this.tokens],
      choices: [...this.choices],
      self: this.self.map((track) => track.copy()),
      cross: this.cross.map((track) => track.copy()),
    });
  }

  /** Another that has read the first tokens only, without a source. @param {number} count @returns {State} */
  beginning(count) {
    return Object.assign(new State(0, []), {
      tokens: this.tokens.slice(0, count),
      self: this.self.map((track) => track.copy(count)),
    });
  }
}

/** The model. */
export class Transformer {
  /** @param {Matrices} matrices @param {Config} config */
  constructor(matrices, config) {
    this.matrices = matrices;
    this.config = config;
    const { num_encoder_layers: encoders, num_decoder_layers: decoders, norm_first: normFirst } = config;
    const valuesOf = (/** @type {string} */ name) => matrices.tensors.get(name)?.values ?? null;
    const stack = (/** @type {string} */ name, /** @type {number} */ count, /** @type {boolean} */ cross) => {
      const places = { rotary: valuesOf("rotary"), bias: valuesOf(`${name}_bias`) };
      return Array.from(
        { length: count },
        (_, index) => new Layer(matrices, `${name}.layers.${index}`, config, cross, places),
      );
    };
    this.encoder = stack("encoder", encoders, false);
    this.decoder = stack("decoder", decoders, encoders > 0);
    this.encoderNorm = normFirst && encoders ? new Norm(matrices, "encoder.norm", config) : null;
    this.decoderNorm = normFirst && decoders ? new Norm(matrices, "decoder.norm", config) : null;
    this.embeddingNorm = matrices.tensors.has("embedding_norm.weight")
      ? new Norm(matrices, "embedding_norm", config)
      : null;
    const fills = matrices.tensors.has("mlm_head.dense.weight");
    this.head = decoders ? matrices.linear("lm_head") : fills ? matrices.linear("mlm_head.decoder") : null;
    this.filling = fills // what a BERT that fills masks has before its head
      ? { dense: matrices.linear("mlm_head.dense"), norm: new Norm(matrices, "mlm_head.norm", config) }
      : null;
    this.masked = true;
    this.positioned = true;
  }

  /** Compute with a change until the next one. @param {Change} change */
  change({ off, temperature, without }) {
    this.masked = !without.includes("mask");
    this.positioned = !without.includes("positions");
    const scaled = !without.includes("scale");
    const set = (/** @type {Attention | null} */ attention, /** @type {string} */ layer) => {
      const heads = off.filter((name) => name.startsWith(`${layer}.`)).map((name) => Number(name.split(".")[2]));
      attention?.change({ off: heads, temperature, scaled, positioned: this.positioned });
    };
    for (const [index, layer] of this.encoder.entries()) set(layer.self, `encoder.${index}`);
    for (const [index, layer] of this.decoder.entries()) {
      set(layer.self, `decoder.${index}`);
      set(layer.cross, `cross.${index}`);
    }
  }

  /** What products of queries and keys are multiplied with. */
  get scale() {
    return (this.encoder[0] ?? this.decoder[0]).self.scale;
  }

  /** Token embeddings plus positions. @param {number[]} ids @param {number[]} positions @param {"src" | "tgt"} side */
  embed(ids, positions, side) {
    const { d_model: size, scale_embeddings: scaled } = this.config;
    const { tensors } = this.matrices;
    const table = this.matrices.get(`${side}_embedding.weight`).values;
    const places = this.positioned ? tensors.get(`${side}_positions`)?.values : undefined;
    const type = tensors.get("token_type")?.values; // of a BERT: that of the first text
    const factor = scaled ? Math.sqrt(size) : 1;
    const x = new Float32Array(ids.length * size);
    for (const [row, id] of ids.entries()) {
      for (let at = 0; at < size; at++) {
        const token = Math.fround(factor * table[id * size + at]) + (type?.[at] ?? 0);
        x[row * size + at] = Math.fround(token) + (places?.[positions[row] * size + at] ?? 0);
      }
    }
    return this.embeddingNorm?.apply(x) ?? x;
  }

  /** @param {number[]} ids  With special tokens. @returns {Encoded} */
  encode(ids) {
    const tracks = this.encoder.map(() => new Track());
    const positions = ids.map((_, position) => position);
    /** @type {Float32Array} */
    let x = this.embed(ids, positions, "src");
    for (const [index, layer] of this.encoder.entries()) {
      x = layer.apply(x, (input) => {
        Object.assign(tracks[index], layer.self.memory(input, positions));
        return positions.map((position) => ({ track: tracks[index], count: ids.length, position }));
      });
    }
    const output = this.encoderNorm?.apply(x) ?? x;
    const memories = this.decoder.flatMap(({ cross }) => cross?.memory(output, positions) ?? []);
    return { tracks, output, memories };
  }

  /** A decoded sequence before the first token. @param {Encoded["memories"]} memories  Of the source, if there is one. */
  start(memories = []) {
    return new State(this.decoder.length, memories);
  }

  /**
   * Add a token to each state. Several tokens of one state see those before them; or all, without the mask.
   * @param {number[]} tokens @param {State[]} states @returns {Float32Array} The hidden states.
   */
  step(tokens, states) {
    const positions = states.map((state, row) => state.tokens.push(tokens[row]) - 1);
    /** @type {Float32Array} */
    let x = this.embed(tokens, positions, "tgt");
    for (const [index, layer] of this.decoder.entries()) {
      const others = states.flatMap(({ cross }, row) =>
        cross.length ? [{ track: cross[index], count: cross[index].keys.length, position: positions[row] }] : [],
      );
      const own = (/** @type {Float32Array} */ input) => {
        const { keys, values } = layer.self.memory(input, positions);
        for (const [row, { self }] of states.entries()) {
          self[index].keys.push(keys[row]);
          self[index].values.push(values[row]);
        }
        return states.map(({ self }, row) => {
          const track = self[index];
          const position = positions[row];
          return { track, count: this.masked ? position + 1 : track.keys.length, position };
        });
      };
      x = layer.apply(x, own, others);
    }
    return this.decoderNorm?.apply(x) ?? x;
  }

  /** The logits for each hidden state: of the next token, or in a BERT of the one at this place. @param {Float32Array} hidden @returns {Float32Array[]} */
  logits(hidden) {
    const { head, filling, matrices, config } = this;
    if (!head) throw new Error("the model has no head for tokens");
    const { outer } = head;
    const activation = ACTIVATIONS[config.activation];
    const x = filling ? filling.norm.apply(matrices.multiply(hidden, filling.dense).map(activation)) : hidden;
    const logits = matrices.multiply(x, head);
    return Array.from({ length: logits.length / outer }, (_, row) => logits.subarray(row * outer, (row + 1) * outer));
  }
}
