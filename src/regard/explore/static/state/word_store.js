// The store as views between words see it. What is selected is always kept in tokens; a view sees their words, and to select a
// word is to select all of its tokens.

import { clamp } from "#data/numbers.js";
import { tokenRange } from "#data/word_heads.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { WordSequence } from '#data/sequence.js'
 * @import { CellPosition, State, Store, Token } from '#state/store.js'
 */

/** @param {Store} store @param {Recording} recording @returns {Store} */
export function wordStore(store, recording) {
  let [from, to] = [store.get(), intoWords(store.get(), recording)]; // the state that was translated last
  const translate = (/** @type {State} */ state) => {
    if (state !== from) [from, to] = [state, intoWords(state, recording)];
    return to;
  };
  return {
    signal: store.signal,
    get: () => translate(store.get()),
    set: (change) => store.set(toTokens(change, store.get(), recording)),
    subscribe: (listener) =>
      store.subscribe((state, before) =>
        listener(translate(state), state === before ? translate(state) : intoWords(before, recording)),
      ),
  };
}

/** The words of rows and columns. @param {Recording} recording @param {number} layer */
function wordsOf(recording, layer) {
  const { queries, keys } = recording.layers[layer];
  return { queries: queries.words, keys: keys.words };
}

/** @param {State} state @param {Recording} recording @returns {State} */
function intoWords(state, recording) {
  const { queries, keys } = wordsOf(recording, state.layer);
  const { tokens, hover, region, zoom } = state;
  /** @type {(token: Token) => Token} */
  const wordOf = ({ sequence, index }) => ({ sequence, index: recording.sequences[sequence].words.of[index] });
  /** @type {(cell: CellPosition) => CellPosition} */
  const cellOf = ({ query, key }) => ({ query: queries.of[query], key: keys.of[key] });
  /** @type {(range: [number, number], words: WordSequence) => [number, number]} */
  const rangeOf = ([first, last], words) => [words.of[first], words.of[last]];
  return {
    ...state,
    tokens: unique(tokens.map(wordOf)),
    hover: hover && {
      ...(hover.token && { token: wordOf(hover.token) }),
      ...(hover.cell && { cell: cellOf(hover.cell) }),
    },
    region: region && { queries: rangeOf(region.queries, queries), keys: rangeOf(region.keys, keys) },
    zoom: zoom && { ...zoom, query: wordAt(zoom.query, queries), key: wordAt(zoom.key, keys) },
  };
}

/** @param {Partial<State>} change @param {State} state @param {Recording} recording @returns {Partial<State>} */
function toTokens(change, state, recording) {
  const { queries, keys } = wordsOf(recording, change.layer ?? state.layer);
  const { tokens, hover, region, zoom } = change;
  /** @type {(token: Token) => Token[]} */
  const tokensOf = ({ sequence, index }) =>
    recording.sequences[sequence].words.tokensOf(index).map((token) => ({ sequence, index: token }));
  /** @type {(cell: CellPosition) => CellPosition} */
  const firstCell = ({ query, key }) => ({ query: queries.starts[query], key: keys.starts[key] });
  return {
    ...change,
    ...(tokens && { tokens: tokens.flatMap(tokensOf) }),
    ...(hover && {
      hover: {
        ...(hover.token && { token: tokensOf(hover.token)[0] }),
        ...(hover.cell && { cell: firstCell(hover.cell) }),
      },
    }),
    ...(region && { region: { queries: tokenRange(queries, region.queries), keys: tokenRange(keys, region.keys) } }),
    ...(zoom && { zoom: { ...zoom, query: tokenAt(zoom.query, queries), key: tokenAt(zoom.key, keys) } }),
  };
}

/** @param {Token[]} tokens */
function unique(tokens) {
  const names = tokens.map(({ sequence, index }) => `${sequence}.${index}`);
  return tokens.filter((_, at) => names.indexOf(names[at]) === at);
}

/** The place among words of a place among tokens; a whole number is the middle of one. @param {number} place @param {WordSequence} words */
function wordAt(place, words) {
  const index = clamp(Math.floor(place + 0.5), 0, words.of.length - 1);
  const word = words.of[index];
  return word + (place + 0.5 - words.starts[word]) / words.size(word) - 0.5;
}

/** The other way round. @param {number} place @param {WordSequence} words */
function tokenAt(place, words) {
  const word = clamp(Math.floor(place + 0.5), 0, words.length - 1);
  return words.starts[word] + (place + 0.5 - word) * words.size(word) - 0.5;
}
