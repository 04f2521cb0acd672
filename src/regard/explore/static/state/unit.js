// What a view shows: tokens or words; several heads combined; without hidden keys.

import { combineHeads } from "#data/combined_heads.js";
import { HiddenKeysHead, hiddenKeys } from "#data/hidden_keys.js";
import { headBetweenWords } from "#data/word_heads.js";
import { wordStore } from "#state/word_store.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Store } from '#state/store.js'
 */

const MAX_CACHED = 24; // heads of a layer

/** Tokens or words, with the store as views of this unit see it. */
export class Unit {
  /** @param {"token" | "word"} name @param {Store} store */
  constructor(name, store) {
    this.name = name;
    this.isWord = name === "word";
    this.store = store;
    /** @type {WeakMap<Layer, Map<string, Head>>} */
    this.cache = new WeakMap();
  }

  /** @param {Sequence} sequence @returns {Sequence} */
  text(sequence) {
    return this.isWord ? sequence.words : sequence;
  }

  /** The texts at a layer's rows and columns. @param {Layer} layer */
  texts(layer) {
    return { queries: this.text(layer.queries), keys: this.text(layer.keys) };
  }

  /** Whether each key of a layer is hidden; a word is if all of its tokens are. @param {Layer} layer @returns {boolean[]} */
  hidden({ keys }) {
    const hidden = hiddenKeys(keys, this.store.get().hide);
    if (!this.isWord) return hidden;
    const { words } = keys;
    return words.display.map((_, word) => words.tokensOf(word).every((token) => hidden[token]));
  }

  /** Some heads of a layer as the page shows them; null while they are loading. @param {Layer} layer @param {number[]} heads @param {string} show @returns {Head | null} */
  head(layer, heads = this.store.get().heads, show = "weights") {
    const { reduce } = this.store.get();
    const name = [heads.length > 1 ? reduce : "", heads, show].join(" ");
    return this.cached(layer, name, () => layer.head(heads, reduce, show));
  }

  /** The mean of all heads of layers between the same texts; null while they are loading. On a server it has rows before its map. @param {Layer[]} layers @returns {Head | null} */
  meanHead(layers) {
    const name = ["all", ...layers.map((layer) => layer.name)].join(" ");
    const isLoaded = layers.every((layer) => layer.isLoaded);
    return this.cached(layers[0], name, () => isLoaded && combineHeads(layers.flatMap(({ heads }) => heads ?? [])));
  }

  /** A head as the page shows it, computed once. @param {Layer} layer  Of its texts. @param {string} name @param {() => Head | null | false} make @returns {Head | null} */
  cached(layer, name, make) {
    const { hide, rescale } = this.store.get();
    const cached = this.cache.get(layer) ?? new Map();
    this.cache.set(layer, cached);
    const key = [name, hide, hide.length && rescale].join(" ");
    if (cached.has(key)) return cached.get(key);
    const base = make();
    if (!base) return null;
    if (cached.size >= MAX_CACHED) cached.clear();
    const head = this.wrap(layer, base);
    cached.set(key, head);
    return head;
  }

  /** For callers that need only rows: a head on a server has these before its map is loaded. @param {Layer} layer @param {number} head @returns {Head | null} */
  headForRows(layer, head) {
    const base = layer.heads?.[head];
    return base ? this.wrap(layer, base) : null;
  }

  /** A head without hidden keys, in this unit. @param {Layer} layer @param {Head} head */
  wrap(layer, head) {
    const { hide, rescale } = this.store.get();
    const options = { rescale, queries: layer.queries.length };
    const visible = hide.length ? new HiddenKeysHead(head, hiddenKeys(layer.keys, hide), options) : head;
    return this.isWord ? headBetweenWords(visible, layer.queries.words, layer.keys.words) : visible;
  }
}

/** The recording in tokens and in words. */
export class Units {
  /** @param {Recording} recording @param {Store} store */
  constructor(recording, store) {
    this.store = store;
    this.tokens = new Unit("token", store);
    this.words = new Unit("word", wordStore(store, recording));
  }

  /** What the reader has chosen. */
  current() {
    return this.store.get().unit === "words" ? this.words : this.tokens;
  }
}
