// The recording as views are given it: in tokens or in words, and without the keys that are left out.

import { Reduced } from "#data/hidden_keys.js";
import { hides } from "#data/links.js";
import { between, Words, wordStore } from "#data/word_heads.js";
import { element } from "#ui/elements.js";

/**
 * @typedef {import("#data/recording.js").Recording} Recording
 * @typedef {import("#data/layer.js").Layer} Layer
 * @typedef {import("#state/store.js").State} State
 * @typedef {import("#state/store.js").Store} Store
 * @typedef {{recording: Recording, store: Store}} Seen  What a view is mounted on.
 * @typedef {import("#export/csv.js").Tell} Tell
 * @typedef {(place: HTMLElement, recording: Recording, store: Store) => Tell | void | false} Mount
 *   False: there is no such view of this recording. Else a view may give what tells its numbers.
 */

const KEPT = 24; // heads that are kept as they were made

/** A recording's tokens and its words, and which of them is seen. */
export class Shown {
  /** @param {Recording} recording @param {Store} store */
  constructor(recording, store) {
    const words = wordsIn(recording);
    /** Whether any word is of more than one token. */
    this.hasWords = words.some(({ count, of }) => count < of.length);
    /** Whether of some layer not all weights are known, so that its matrix is of tokens only. */
    this.sketched = [recording, recording.beside].some((each) =>
      each?.layers.some(({ header }) => header.form !== "whole"),
    );
    /** @type {Seen} */
    this.tokens = { recording: inTokens(recording, store), store };
    /** @type {Seen} */
    this.words = {
      recording: inWords(this.tokens.recording, recording, store, words),
      store: wordStore(store, { of: (sequence) => words[sequence], layers: recording.layers }),
    };
    this.store = store;
  }

  /** What is seen now. @param {State} state @returns {Seen} */
  now(state = this.store.get()) {
    return state.words && this.hasWords ? this.words : this.tokens;
  }

  /** Mount a view on the tokens only. @param {Mount} mount @returns {Mount} */
  ofTokens(mount) {
    return (place) => mount(place, this.tokens.recording, this.store);
  }

  /** Mount a view on what is seen: once on the tokens and, when first they are asked for, once on the words. @param {Mount} mount @returns {Mount} */
  ofEither(mount) {
    return (place) => {
      /** @type {Map<Seen, HTMLElement>} */
      const mounted = new Map();
      /** @type {Map<Seen, Tell | void>} */
      const tells = new Map();
      let current = place;
      let answer = /** @type {Tell | void | false} */ (undefined);
      this.store.subscribe((state) => {
        const seen = this.now(state);
        const body = mounted.get(seen) ?? (mounted.size ? /** @type {HTMLElement} */ (place.cloneNode(false)) : place);
        if (body !== current) current.replaceWith(body);
        current = body;
        if (mounted.has(seen)) return;
        if (answer === false) return; // there is no such view
        mounted.set(seen, body);
        answer = mount(
          body,
          seen.recording,
          whileSeen(seen.store, () => this.now() === seen),
        );
        if (answer) tells.set(seen, answer);
      });
      return tells.size ? () => /** @type {Tell} */ (tells.get(this.now()))() : answer;
    };
  }
}

/** The button that merges subwords to words, where there are any. @param {Element} place @param {Shown} shown @param {Store} store */
export function mountWords(place, shown, store) {
  if (!shown.hasWords) return store.subscribe(({ words }) => words && store.set({ words: false })); // as a link may say
  const button = element(
    "button",
    { type: "button", class: "merge", title: "Show the pieces of a word as one" },
    "Words",
  );
  button.addEventListener("click", () => store.set({ words: !store.get().words, hover: null }));
  store.subscribe(({ words }) => button.setAttribute("aria-pressed", String(words)));
  place.append(button);
}

/** A store that tells nothing of what happens while its view is not seen. @param {Store} store @param {() => boolean} isSeen @returns {Store} */
function whileSeen(store, isSeen) {
  let last = store.get();
  return {
    get: () => (isSeen() ? store.get() : last),
    set: (change) => store.set(change),
    subscribe(listener) {
      let told = null;
      store.subscribe((state, before) => {
        if (!isSeen()) return;
        const from = told ?? before;
        last = told = state;
        listener(state, from);
      });
    },
  };
}

/** The words of each text. @param {Recording} recording */
function wordsIn({ sequences }) {
  return sequences.map(({ tokens }) => new Words(tokens));
}

/** A recording without the keys that are left out, and so what stands beside it. @param {Recording} recording @param {Store} store @returns {Recording} */
function inTokens(recording, store) {
  const { beside } = recording;
  return Object.create(recording, {
    layers: { value: recording.layers.map((layer) => layerOf(layer, store)) },
    beside: { value: beside && inTokens(beside, store) },
  });
}

/** The same in words. @param {Recording} tokens  Without the keys that are left out. @param {Recording} recording  With them. @param {Store} store @returns {Recording} */
function inWords(tokens, recording, store, words = wordsIn(recording)) {
  const { beside } = recording;
  const layers = recording.layers.map((layer, index) =>
    layerOf(layer, store, {
      queries: words[layer.querySequence],
      keys: words[layer.keySequence],
      tokens: tokens.layers[index],
    }),
  );
  return Object.create(recording, {
    sequences: { value: recording.sequences.map((sequence, index) => ({ ...sequence, tokens: words[index].tokens })) },
    layers: { value: layers },
    beside: { value: beside && inWords(/** @type {Recording} */ (tokens.beside), beside, store) },
  });
}

/**
 * A layer of which keys are left out, in words where these are given. All that is not named here is the layer's own.
 * @param {Layer} layer @param {Store} store @param {{queries: Words, keys: Words, tokens: Layer} | null} words @returns {Layer}
 */
function layerOf(layer, store, words = null) {
  const kept = new Map(); // heads
  const made = (heads, { hidden, rescale }) => {
    let head = layer.head(heads);
    if (head && words) head = between(head, words.queries, words.keys);
    const isHidden = hides(shown, { hidden });
    if (head && hidden.length)
      head = new Reduced(head, {
        hidden: shown.keys.map((_, key) => isHidden(key)),
        queries: shown.queries.length,
        rescale,
        sinks: layer.header.sinks,
        remote: layer.header.form === "remote",
      });
    // What only tokens tell, as the sum of a region in a sketch.
    if (head && words && !head.whole)
      head.inTokens = ({ queries, keys }) => ({
        head: /** @type {import("#data/heads.js").Head} */ (words.tokens.head(heads)),
        queries: within(words.queries, queries),
        keys: within(words.keys, keys),
      });
    return head;
  };
  const head = (heads) => {
    const state = store.get();
    if (!layer.ready || (!words && !state.hidden.length)) return layer.head(heads);
    const name = [heads, state.hidden, state.rescale].join(" ");
    if (kept.size >= KEPT) kept.clear();
    const found = kept.get(name) ?? made(heads, state);
    if (found && layer.header.form !== "remote") kept.set(name, found); // what a server tells grows
    return found;
  };
  /** @type {PropertyDescriptorMap} */
  const own = words ? { queries: { value: words.queries.tokens }, keys: { value: words.keys.tokens } } : {};
  const shown = Object.create(layer, { load: { value: () => layer.load() }, head: { value: head }, ...own });
  return shown;
}

/** From the first token of the first word to the last of the last. @returns {[number, number]} */
function within(words, [first, last]) {
  return [words.starts[first], words.starts[last + 1] - 1];
}
