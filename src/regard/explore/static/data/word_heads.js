// Words of several tokens as one: weights are summed over the pieces of the word attended to, and are means over those of
// the word that attends. So the weights of a word add up to 1, as those of a token do.

import { Known, summed, Whole } from "#data/heads.js";
import { wordsOf } from "#data/words.js";

/**
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {import("#data/heads.js").Cell} Cell
 * @typedef {import("#data/heads.js").Some} Some
 * @typedef {import("#state/store.js").State} State
 * @typedef {import("#state/store.js").Store} Store
 */

/** The words of a sequence of tokens, in their order. */
export class Words {
  /** @param {string[]} tokens */
  constructor(tokens) {
    const words = wordsOf(tokens);
    this.count = words.length;
    this.tokens = words.map(({ token }) => token);
    /** Where each word begins; and, last, where the tokens end. */
    this.starts = [...words.map(({ pieces }) => pieces[0]), tokens.length];
    /** The word of each token. */
    this.of = new Uint32Array(tokens.length);
    for (let word = 0; word < this.count; word++) this.of.fill(word, this.starts[word], this.starts[word + 1]);
  }

  /** The tokens that a word is made of. */
  pieces(word) {
    return Array.from({ length: this.length(word) }, (_, piece) => this.starts[word] + piece);
  }

  /** How many they are. */
  length(word) {
    return this.starts[word + 1] - this.starts[word];
  }
}

/** A head between words. @param {Head} head @param {Words} queries @param {Words} keys @returns {Head} */
export function between(head, queries, keys) {
  return head.whole
    ? new Whole(/** @type {any} */ (summedSquares(head, queries, keys)))
    : new WordSketch(head, queries, keys);
}

/** All weights between words. Where the mask forbids some of the cells they are zero, and where all of them there is no weight. */
function summedSquares({ squares }, queries, keys) {
  const sums = new Float64Array(queries.count * keys.count).fill(NaN);
  for (let row = 0; row < queries.of.length; row++) {
    const word = queries.of[row];
    for (let column = 0; column < keys.of.length; column++) {
      const weight = squares.at(row, column);
      if (Number.isNaN(weight)) continue;
      const place = word * keys.count + keys.of[column];
      sums[place] = (sums[place] || 0) + weight / queries.length(word);
    }
  }
  return { rows: queries.count, columns: keys.count, size: 1, at: (row, column) => sums[row * keys.count + column] };
}

/** What a sketch of tokens knows of words: its links and what they leave out. Of words there are no squares. @implements {Head} */
class WordSketch extends Known {
  /** @param {Head} head @param {Words} queries @param {Words} keys */
  constructor(head, queries, keys) {
    super();
    this.head = head;
    this.queries = queries;
    this.keys = keys;
    this.whole = false;
  }

  /** @param {number[]} queries @param {number[]} keys */
  ask(queries, keys = []) {
    const [rows, columns] = [
      queries.flatMap((query) => this.queries.pieces(query)),
      keys.flatMap((key) => this.keys.pieces(key)),
    ];
    return this.head.ask(rows, columns);
  }

  /** @returns {never} */
  get squares() {
    throw new Error("the squares of a sketch are of tokens: ask inTokens");
  }

  /** @returns {Cell} */
  cell(query, key) {
    const cells = this.queries
      .pieces(query)
      .flatMap((row) => this.keys.pieces(key).map((column) => this.head.cell(row, column)));
    const seen = cells.filter(({ state }) => state !== "masked");
    if (seen.length === 0) return cells[0];
    const most = seen.reduce((sum, cell) => sum + cell.most, 0) / this.queries.length(query);
    const known = seen.every(({ state }) => state === "known");
    return { state: known ? "known" : "unknown", weight: known ? most : NaN, most: Math.min(most, 1) };
  }

  /** @returns {Some} */
  row(query) {
    const { links, left, waiting } = this.head.rows(this.queries.pieces(query));
    return summed(
      [{ links: links.map(({ key, weight }) => ({ query, key: this.keys.of[key], weight })), left, waiting }],
      ({ key }) => key,
      1,
    );
  }

  /** @returns {Some} */
  column(key) {
    const { links, left, waiting } = this.head.columnsOf(this.keys.pieces(key));
    const merged = links.map(({ query, weight }) => ({
      query: this.queries.of[query],
      key,
      weight: weight / this.queries.length(this.queries.of[query]),
    }));
    // What is left out comes from tokens that are not told, so that how long their words are is not known.
    return {
      ...summed([{ links: merged, left, waiting }], ({ query }) => query, 1),
      rough: left > 0 && this.queries.count < this.queries.of.length,
    };
  }
}

/** Where words of a layer stand in its text. @typedef {{of(sequence: number): Words, layers: {querySequence: number, keySequence: number}[]}} Places */

/**
 * The store as views of words see it. What is chosen is always kept as tokens: here they are their words, and who chooses a
 * word chooses all of its pieces.
 * @param {Store} store @param {Places} places @returns {Store}
 */
export function wordStore(store, places) {
  let [from, to] = [store.get(), stateInWords(store.get(), places)]; // the last state that was translated
  const translated = (/** @type {State} */ state) => {
    if (state !== from) [from, to] = [state, stateInWords(state, places)];
    return to;
  };
  return {
    get: () => translated(store.get()),
    set: (change) => store.set(toTokens(change, store.get(), places)),
    subscribe: (listener) =>
      store.subscribe((state, before) =>
        listener(translated(state), state === before ? translated(state) : stateInWords(before, places)),
      ),
  };
}

/** @param {State} state @param {Places} places @returns {State} */
function stateInWords(state, places) {
  const [queries, keys] = textsOf(state, places);
  const token = ({ sequence, index }) => ({ sequence, index: places.of(sequence).of[index] });
  const cell = ({ query, key }) => ({ query: queries.of[query], key: keys.of[key] });
  const range = (/** @type {[number, number]} */ [first, last], /** @type {Words} */ words) =>
    /** @type {[number, number]} */ ([words.of[first], words.of[last]]);
  const { hover, region, zoom } = state;
  return {
    ...state,
    tokens: state.tokens
      .map(token)
      .filter(
        ({ sequence, index }, at, all) =>
          all.findIndex((other) => other.sequence === sequence && other.index === index) === at,
      ),
    hover: hover && {
      ...hover,
      ...(hover.token && { token: token(hover.token) }),
      ...(hover.cell && { cell: cell(hover.cell) }),
    },
    region: region && { queries: range(region.queries, queries), keys: range(region.keys, keys) },
    zoom: zoom && { ...zoom, query: wordAt(zoom.query, queries), key: wordAt(zoom.key, keys) },
  };
}

/** @param {Partial<State>} change @param {State} state @param {Places} places @returns {Partial<State>} */
function toTokens(change, state, places) {
  const [queries, keys] = textsOf({ ...state, ...change }, places);
  const { tokens, hover, region, zoom } = change;
  const first = ({ sequence, index }) => ({ sequence, index: places.of(sequence).starts[index] });
  const cell = ({ query, key }) => ({ query: queries.starts[query], key: keys.starts[key] });
  const range = (/** @type {[number, number]} */ [from, to], /** @type {Words} */ words) =>
    /** @type {[number, number]} */ ([words.starts[from], words.starts[to + 1] - 1]);
  return {
    ...change,
    ...(tokens && {
      tokens: tokens.flatMap(({ sequence, index }) =>
        places
          .of(sequence)
          .pieces(index)
          .map((piece) => ({ sequence, index: piece })),
      ),
    }),
    ...(hover && {
      hover: {
        ...hover,
        ...(hover.token && { token: first(hover.token) }),
        ...(hover.cell && { cell: cell(hover.cell) }),
      },
    }),
    ...(region && { region: { queries: range(region.queries, queries), keys: range(region.keys, keys) } }),
    ...(zoom && { zoom: { ...zoom, query: tokenAt(zoom.query, queries), key: tokenAt(zoom.key, keys) } }),
  };
}

function textsOf({ layer }, places) {
  const { querySequence, keySequence } = places.layers[layer];
  return [places.of(querySequence), places.of(keySequence)];
}

/** The place among words of a place among tokens; a whole number is the middle of one. Within a word it runs evenly. */
function wordAt(place, words) {
  const index = Math.min(Math.max(Math.floor(place + 0.5), 0), words.of.length - 1);
  const word = words.of[index];
  return word + (place + 0.5 - words.starts[word]) / words.length(word) - 0.5;
}

/** The other way round. */
function tokenAt(place, words) {
  const word = Math.min(Math.max(Math.floor(place + 0.5), 0), words.count - 1);
  return words.starts[word] + (place + 0.5 - word) * words.length(word) - 0.5;
}
