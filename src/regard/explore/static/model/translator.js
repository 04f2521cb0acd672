// Text in, translation and everything that was computed for it out.

import { Matrices } from "#model/matrices.js";
import { beamSearch } from "#model/search.js";
import { Tokenizer } from "#model/tokenizer.js";
import { Transformer } from "#model/transformer.js";

/**
 * @import { Tensor } from '#data/page_format.js'
 * @import { Config, Track } from '#model/layers.js'
 * @typedef {{config: Config, tokenizer: import("#model/tokenizer.js").TokenizerHeader, tied: Record<string, string>, max_tokens: number}} ModelHeader  See playground.py.
 * @typedef {{name: string, query: Float32Array, key: Float32Array, value: Float32Array, weights: Float32Array}} LayerNumbers
 *   Query, key and value (heads, tokens, features), and weights (heads, queries, keys), NaN where masked.
 * @typedef {{translation: string, source: number[], target: number[], finished: boolean, truncated: boolean, layers: LayerNumbers[]}} Translated
 *   Token ids: the source with EOS, and what was generated, with EOS if it is finished.
 */

const MAX_CHARACTERS = 2000; // a longer word would take seconds to split
const NOTHING = /^[\p{C}\p{Z}\p{M}\u115f\u1160\u2800\u3164\uffa0]*$/u;

/** Token ids, at most as many as the page translates, and whether that is all of the text. @param {Tokenizer} tokenizer @param {string} text @param {number} limit */
export function encodeStart(tokenizer, text, limit) {
  const characters = [...text.slice(0, 2 * MAX_CHARACTERS)].slice(0, MAX_CHARACTERS).join("");
  const ids = tokenizer.encode(characters);
  return { ids: ids.slice(0, limit), truncated: characters.length < text.length || ids.length > limit };
}

/** A translator with its tokenizer. */
export class Translator {
  /** @param {ModelHeader} header @param {Record<string, Tensor>} tensors @param {boolean} wasm */
  constructor(header, tensors, wasm = true) {
    this.header = header;
    this.tokenizer = new Tokenizer(header.tokenizer);
    this.model = new Transformer(new Matrices(tensors, header.tied, wasm), header.config);
  }

  /** Translate a text; null if it shows nothing. @param {string} text @param {number} beam @param {() => Promise<void>} pause @returns {Promise<Translated | null>} */
  async translate(text, beam, pause) {
    const { ids, truncated } = encodeStart(this.tokenizer, text, this.header.max_tokens);
    if (NOTHING.test(text) || ids.length === 0) return null;
    const { eos_id: eos, max_seq_len: longest } = this.header.config;
    const source = [...ids, eos];
    const encoded = this.model.encode(source);
    const maxTokens = Math.min(2 * source.length + 20, longest);
    const { tokens, finished, state } = await beamSearch(this.model, encoded, { beam, maxTokens, pause });
    const layers = [
      ...this.numbers("encoder", encoded.tracks),
      ...this.numbers("decoder", state.self),
      ...this.numbers("cross", state.cross),
    ];
    const target = finished ? [...tokens, eos] : tokens;
    return { translation: this.tokenizer.decode(tokens), source, target, finished, truncated, layers };
  }

  /** @param {string} kind @param {Track[]} tracks @returns {LayerNumbers[]} */
  numbers(kind, tracks) {
    const { num_heads: heads, num_kv_heads: kvHeads } = this.header.config;
    return tracks.map(({ queries, keys, values, weights }, index) => ({
      name: `${kind}.${index}`,
      query: byHead(queries, heads),
      key: byHead(keys, kvHeads),
      value: byHead(values, kvHeads),
      weights: weightsByHead(weights, keys.length, heads),
    }));
  }
}

/** (heads, tokens, features) of a vector for each token. @param {Float32Array[]} vectors @param {number} heads */
function byHead(vectors, heads) {
  const size = vectors[0].length / heads;
  const result = new Float32Array(vectors.length * heads * size);
  for (let head = 0; head < heads; head++) {
    for (const [token, vector] of vectors.entries()) {
      result.set(vector.subarray(head * size, (head + 1) * size), (head * vectors.length + token) * size);
    }
  }
  return result;
}

/** (heads, queries, keys); NaN for the keys that a query does not see. @param {Float32Array[]} weights @param {number} keys @param {number} heads */
function weightsByHead(weights, keys, heads) {
  const result = new Float32Array(heads * weights.length * keys).fill(NaN);
  for (const [query, row] of weights.entries()) {
    const seen = row.length / heads;
    for (let head = 0; head < heads; head++) {
      result.set(row.subarray(head * seen, (head + 1) * seen), (head * weights.length + query) * keys);
    }
  }
  return result;
}
