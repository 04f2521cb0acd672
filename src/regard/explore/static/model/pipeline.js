// Text in, and out what the model makes of it and everything that it computed: a translator, a language model, or a BERT.

import { encodeStart, layerNumbers } from "#model/computed.js";
import { Matrices } from "#model/matrices.js";
import { choicesOf, search } from "#model/search.js";
import { Tokenizer } from "#model/tokenizer.js";
import { Transformer, UNCHANGED } from "#model/transformer.js";

/**
 * @import { Tensor } from '#data/page_format.js'
 * @import { Computed, ModelHeader } from '#model/computed.js'
 * @import { Change, State } from '#model/transformer.js'
 * @typedef {{beam: number, change: Change, begins: number[], pause: () => Promise<void>}} RunOptions
 *   `begins`: with what the generated text begins.
 */

/** A model with its tokenizer. */
export class Pipeline {
  /** @param {ModelHeader} header @param {Record<string, Tensor>} tensors @param {boolean} wasm */
  constructor(header, tensors, wasm = true) {
    this.header = header;
    this.tokenizer = new Tokenizer(header.tokenizer);
    this.matrices = new Matrices(tensors, header.tied, wasm);
    this.model = new Transformer(this.matrices, header.config);
    this.read = { state: this.model.start(), change: "" }; // by a language model, last
  }

  /** Null if the text shows nothing. @param {string} text @param {RunOptions} options @returns {Promise<Computed | null>} */
  async run(text, options) {
    const { header, model } = this;
    const start = encodeStart(this.tokenizer, text, header.max_tokens);
    if (!start) return null;
    const ids = [...header.before, ...start.ids, ...header.after];
    const run = { translate: this.translate, generate: this.generate, "fill-mask": this.fill }[header.kind];
    try {
      model.change(options.change);
      const computed = await run.call(this, ids, options);
      return { ...computed, truncated: start.truncated, scale: model.scale };
    } finally {
      model.change(UNCHANGED);
    }
  }

  /** @param {number[]} source @param {RunOptions} options */
  async translate(source, { beam, change, begins: first, pause }) {
    const { model, header } = this;
    const { bos_id: bos, max_seq_len: longest } = header.config;
    const begins = this.possible(first, longest - 1);
    const { ends, suppressed } = header;
    const isMasked = model.masked;
    model.change({ ...change, without: change.without.filter((each) => each !== "mask") });
    const encoded = model.encode(source);
    const maxTokens = Math.max(Math.min(2 * source.length + 20, longest), begins.length + 1);
    const options = { beam, maxTokens, ends, suppressed, written: begins.length, pause };
    const found = await search(model, model.start(encoded.memories), [bos, ...begins], options);
    const written = found.end === null ? found.tokens : [...found.tokens, found.end];
    const state = isMasked ? found.state : this.unmasked(model.start(encoded.memories), found.state.tokens, change);
    const predicted = isMasked ? written : state.choices.map(([{ token }]) => token);
    return {
      text: this.tokenizer.decode(predicted),
      sequences: { source, written: predicted, read: state.tokens },
      written: predicted,
      choices: state.choices,
      finished: found.end !== null,
      layers: [
        ...layerNumbers("encoder", encoded.tracks, header.config),
        ...layerNumbers("decoder", state.self, header.config),
        ...layerNumbers("cross", state.cross, header.config),
      ],
    };
  }

  /** @param {number[]} prompt @param {RunOptions} options */
  async generate(prompt, { change, begins: first, pause }) {
    const { model, header } = this;
    const { ends, suppressed, new_tokens: newTokens } = header;
    const isMasked = model.masked;
    model.change({ ...change, without: change.without.filter((each) => each !== "mask") });
    const room = header.config.max_seq_len + 1 - prompt.length; // the model does not read the last token
    const begins = this.possible(first, room - 1);
    const maxTokens = Math.max(Math.min(newTokens, room), begins.length + 1);
    const options = { beam: 1, maxTokens, ends, suppressed, written: begins.length, pause };
    const start = this.startOf(prompt, JSON.stringify(change));
    const found = await search(model, start, [...prompt.slice(start.tokens.length), ...begins], options);
    const state = isMasked ? found.state : this.unmasked(model.start(), found.state.tokens, change);
    const choices = isMasked ? state.choices : state.choices.slice(prompt.length - 1);
    const predicted = isMasked ? found.tokens : choices.map(([{ token }]) => token);
    const text = this.tokenizer.decode([...prompt, ...predicted]);
    return {
      text: text.slice(this.tokenizer.decode(prompt).length),
      sequences: { source: state.tokens },
      written: found.end === null || !isMasked ? predicted : [...predicted, found.end],
      choices,
      finished: found.end !== null,
      layers: layerNumbers("decoder", state.self, header.config),
    };
  }

  /** The tokens of a text that does not end, at most some. @param {number[]} begins @param {number} most */
  possible(begins, most) {
    const end = begins.findIndex((token) => this.header.ends.includes(token));
    return begins.slice(0, Math.min(end < 0 ? most : end, most));
  }

  /** What was read before of a prompt, without its last token. @param {number[]} prompt @param {string} change  In which model. */
  startOf(prompt, change) {
    const { tokens } = this.read.change === change ? this.read.state : this.model.start();
    const differs = prompt.findIndex((token, index) => token !== tokens[index]);
    const state = this.read.state.beginning(Math.min(differs < 0 ? Infinity : differs, prompt.length - 1));
    this.read = { state, change };
    return state;
  }

  /** All tokens are read at once, and each sees all. @param {State} state @param {number[]} tokens @param {Change} change */
  unmasked(state, tokens, change) {
    const { model } = this;
    model.change(change);
    const states = tokens.map(() => state);
    const rows = model.logits(model.step(tokens, states));
    state.choices = rows.map((row) => choicesOf(row, this.header));
    return state;
  }

  /** @param {number[]} ids */
  async fill(ids) {
    const { config, mask } = this.header;
    const { output, tracks } = this.model.encode(ids);
    const masks = ids.flatMap((id, position) => (id === mask ? [position] : []));
    const { d_model: size } = config;
    const hidden = Float32Array.from(masks.flatMap((at) => [...output.subarray(at * size, (at + 1) * size)]));
    const choices = this.model.head ? this.model.logits(hidden).map((row) => choicesOf(row, this.header)) : [];
    const best = new Map(masks.flatMap((position, index) => (choices[index] ? [[position, choices[index][0]]] : [])));
    const filled = ids.map((id, position) => best.get(position)?.token ?? id);
    return {
      text: choices.length ? this.tokenizer.decode(filled) : "",
      sequences: { source: ids },
      written: [...best.values()].map(({ token }) => token),
      choices,
      finished: true,
      layers: layerNumbers("encoder", tracks, config),
    };
  }
}
