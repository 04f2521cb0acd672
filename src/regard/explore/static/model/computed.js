// What a model computed for a text, as the page gets it.

/**
 * @import { Choice } from '#model/transformer.js'
 * @import { Config, Track } from '#model/layers.js'
 * @import { TokenizerHeader } from '#model/tokenizer.js'
 * @typedef {"translate" | "generate" | "fill-mask"} Kind
 * @typedef {{kind: Kind, config: Config, tokenizer: TokenizerHeader, tied: Record<string, string>, max_tokens: number, new_tokens: number,
 *   before: number[], after: number[], ends: number[], suppressed: number[], mask: number | null}} ModelHeader
 *   See playground.py: `max_tokens` of a text and `new_tokens` after it; special tokens before and after it; those that end a
 *   generated text, and those that are never generated.
 * @typedef {{name: string, query: Float32Array, key: Float32Array, value: Float32Array, weights: Float32Array}} LayerNumbers
 *   Query, key and value (heads, tokens, features), and weights (heads, queries, keys), NaN where masked.
 * @typedef {{text: string, sequences: Record<string, number[]>, written: number[], choices: Choice[][], finished: boolean, truncated: boolean,
 *   layers: LayerNumbers[], scale: number}} Computed
 *   `text` is a translation, a continuation, or a text without masks. `sequences` are the token ids of rows and columns; `written`
 *   was generated, with EOS if it is finished; `choices` are for each of these or, in a BERT, for each mask; `scale` is that of all scores.
 */

const MAX_CHARACTERS = 2000; // a longer word would take seconds to split
const NOTHING = /^[\p{C}\p{Z}\p{M}\u115f\u1160\u2800\u3164\uffa0]*$/u;

/** Token ids of a text, at most as many as the page reads, and whether that is all of it; null if it shows nothing. @param {import("#model/tokenizer.js").Tokenizer} tokenizer @param {string} text @param {number} limit */
export function encodeStart(tokenizer, text, limit) {
  const characters = [...text.slice(0, 2 * MAX_CHARACTERS)].slice(0, MAX_CHARACTERS).join("");
  const ids = NOTHING.test(characters) ? [] : tokenizer.encode(characters);
  if (ids.length === 0) return null;
  return { ids: ids.slice(0, limit), truncated: characters.length < text.length || ids.length > limit };
}

/** @param {string} kind  Of layers. @param {Track[]} tracks @param {Config} config @returns {LayerNumbers[]} */
export function layerNumbers(kind, tracks, { num_heads: heads, num_kv_heads: kvHeads }) {
  return tracks.map(({ queries, keys, values, weights }, index) => ({
    name: `${kind}.${index}`,
    query: byHead(queries, heads),
    key: byHead(keys, kvHeads),
    value: byHead(values, kvHeads),
    weights: weightsByHead(weights, keys.length, heads),
  }));
}

/** (heads, tokens, features) of a vector for each token. @param {Float32Array[]} vectors @param {number} heads */
export function byHead(vectors, heads) {
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
