// What is chosen: one small store. The URL fragment is its serialisation.

import { TOGETHER } from "#data/combined_heads.js";
import { PALETTES, SCALES } from "#ui/color.js";

/**
 * @typedef {{sequence: number, index: number}} Token  A place in one of the recording's token sequences.
 * @typedef {{query: number, key: number}} Cell
 * @typedef {{queries: [number, number], keys: [number, number]}} Region  From the first to the last, both in it.
 * @typedef {{query: number, key: number, cell: number}} Zoom  What is in the middle of the matrix, and the pixels of a cell.
 * @typedef {{layer: number, heads: number[], tokens: Token[], region: Region | null, zoom: Zoom | null, views: string[], step: number | null,
 *   several: string, aligned: string, facing: string, tint: number,
 *   scale: string, palette: string, hidden: string[], rescale: boolean, words: boolean, sort: string, least: number, search: string, theme: string,
 *   hover: {token?: Token, cell?: Cell} | null}} State
 *   `tokens` are held until others are chosen; `hover` is what pointer or keyboard is at, and is in no fragment.
 * @typedef {{get(): State, set(change: Partial<State>): void, subscribe(listener: (state: State, before: State) => void): void}} Store
 * @typedef {import("#data/recording.js").Recording} Recording
 */
/**
 * @template Value
 * @typedef {{name?: string, write(value: Value, recording: Recording, state: State): string | null,
 *   read(text: string, recording: Recording, state: State): Value | undefined}} Part
 */

export const THEMES = ["auto", "light", "dark"];
/** What can be shown beside the overview, by the order in which it stands. */
export const VIEWS = ["text", "matrix", "translation", "generation", "graph", "calculation", "compare", "image"];
/** Keys that can be left out: those that much attention rests on for want of better. */
export const HIDEABLE = ["first", "special"];
/** What a translation is aligned by: the heads that are chosen, the mean of all of their layer, or of all layers. */
export const ALIGNED = ["heads", "layer", "all"];
/** What an image shows of a patch: what it attends to, or what attends to it. */
export const FACINGS = ["out", "in"];
const PAUSE = 200; // ms; browsers refuse an address that changes with every key stroke

/** @param {State} initial @returns {Store} */
export function createStore(initial) {
  let state = initial;
  /** @type {((state: State, before: State) => void)[]} */
  const listeners = [];
  return {
    get: () => state,
    /** Change some of the state and tell every listener what it was before. */
    set(change) {
      const before = state;
      state = { ...state, ...change };
      for (const listener of listeners) listener(state, before);
    },
    subscribe(listener) {
      listeners.push(listener);
      listener(state, state);
    },
  };
}

/** What a newcomer sees: the most decided head of the last cross-attention, or of the first layer. @param {Recording} recording @returns {State} */
export function firstView(recording) {
  const layer = Math.max(
    recording.layers.findLastIndex(({ kind }) => kind === "cross"),
    0,
  );
  return {
    layer,
    heads: [mostDecided(recording.layers[layer])],
    tokens: [],
    region: null,
    zoom: null,
    views: recording.beside ? ["compare"] : "image" in recording.texts ? ["matrix", "image"] : ["text", "matrix"],
    step: null,
    several: TOGETHER[0],
    aligned: ALIGNED[0],
    facing: FACINGS[0],
    tint: 0.7,
    scale: SCALES[0],
    palette: PALETTES[0],
    hidden: [],
    rescale: false,
    words: false,
    sort: "order",
    least: 0,
    search: "",
    theme: THEMES[0],
    hover: null,
  };
}

/** The head whose rows are least spread. @param {import("#data/layer.js").Layer} layer */
function mostDecided({ scores, heads }) {
  const entropies = heads.map((_, head) => scores.entropy?.[head] ?? Infinity);
  return entropies.indexOf(Math.min(...entropies));
}

/** @param {string} text @param {number} count */
const numbers = (text, count) => {
  const found = text.split(/[.,]/).map(Number);
  return found.length === count && text !== "" && found.every(Number.isFinite) ? found : null;
};
/** @param {string[]} known @returns {Part<string[]>} */
const several = (known) => ({
  write: (values) => values.join(","),
  read(text) {
    const found = text.split(",").filter((value) => known.includes(value));
    return found.length > 0 || text === "" ? found : undefined;
  },
});
/** @type {Part<boolean>} */
const flag = { write: (on) => (on ? "1" : null), read: (text) => (text === "1" ? true : undefined) };
/** @param {string[]} known @returns {Part<string>} */
const oneOf = (known) => ({ write: (value) => value, read: (text) => (known.includes(text) ? text : undefined) });

/** @type {Part<number>} */
const share = { write: String, read: (text) => (Number(text) >= 0 && Number(text) <= 1 ? Number(text) : undefined) };

/**
 * How each part of the state is written into a fragment, and read from one: undefined where a text tells nothing that exists.
 * @type {{[Name in Exclude<keyof State, "hover">]: Part<State[Name]>}}
 */
const PARTS = {
  layer: {
    write: (layer, { layers }) => layers[layer].name,
    read: (text, { layers }) => indexOr(layers.findIndex(({ name }) => name === text)),
  },
  heads: {
    name: "head",
    write: (heads, { layers }, { layer }) => heads.map((head) => layers[layer].heads[head]).join(","),
    read(text, { layers }, { layer }) {
      const found = text.split(",").map((each) => layers[layer].heads.indexOf(/^\d+$/.test(each) ? Number(each) : -1));
      return found.includes(-1) ? undefined : [...new Set(found)];
    },
  },
  tokens: {
    name: "token",
    write: (tokens, { sequences }) =>
      tokens.map(({ sequence, index }) => `${sequences[sequence].role}.${index}`).join(","),
    read: (text, recording) => text.split(",").flatMap((each) => tokenNamed(each, recording) ?? []),
  },
  region: {
    write: (region) => region && [...region.queries, ...region.keys].join("."),
    read(text, { layers }, { layer }) {
      const [a, b, c, d] = (/^\d+(\.\d+){3}$/.test(text) && numbers(text, 4)) || [];
      const { queries, keys } = layers[layer];
      return a <= b && c <= d && b < queries.length && d < keys.length ? { queries: [a, b], keys: [c, d] } : undefined;
    },
  },
  zoom: {
    write: (zoom) => zoom && [zoom.query.toFixed(1), zoom.key.toFixed(1), zoom.cell.toPrecision(3)].join(","),
    read(text) {
      const [query, key, cell] = (text.split(",").length === 3 && text.split(",").map(Number)) || [];
      return [query, key, cell].every(Number.isFinite) && cell > 0 ? { query, key, cell } : undefined;
    },
  },
  views: several(VIEWS),
  step: {
    write: (step) => (step === null ? null : String(step)),
    read: (text) => (/^\d+$/.test(text) ? Number(text) : undefined),
  },
  several: oneOf(TOGETHER),
  aligned: oneOf(ALIGNED),
  facing: oneOf(FACINGS),
  tint: share,
  scale: oneOf(SCALES),
  palette: oneOf(PALETTES),
  hidden: several(HIDEABLE),
  rescale: flag,
  words: flag,
  sort: {
    write: (sort) => sort,
    read: (text, { layers }) => (Object.hasOwn(layers[0].scores, text) ? text : undefined),
  },
  least: share,
  search: { write: (search) => search, read: (text) => text.slice(0, 200) },
  theme: oneOf(THEMES),
};

/** The parts by their names. @returns {[keyof typeof PARTS, Part<any>][]} */
function parts() {
  return /** @type {[keyof typeof PARTS, Part<any>][]} */ (Object.entries(PARTS));
}

/** The state as a URL fragment, as `layer=encoder.0&head=3&token=source.5`: what is not as in the first view, and the head. @param {State} state @param {Recording} recording */
export function toFragment(state, recording) {
  const fields = new URLSearchParams();
  const first = firstView(recording);
  for (const [part, { name = part, write }] of parts()) {
    const text = write(state[part], recording, state);
    const always = part === "layer" || part === "heads";
    if (text !== null && (always || text !== write(first[part], recording, first))) fields.set(name, text);
  }
  return fields.toString().replaceAll("%2C", ",");
}

/** The state that a fragment tells; what it does not tell, or what does not exist, is as in the first view. @param {string} fragment @param {Recording} recording @returns {State} */
export function fromFragment(fragment, recording) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = firstView(recording);
  for (const [part, { name = part, read }] of parts()) {
    const text = fields.get(name);
    const value = text === null ? undefined : read(text, recording, state);
    if (value !== undefined) Object.assign(state, { [part]: value });
    if (part === "layer")
      state.heads = [
        state.layer === firstView(recording).layer ? state.heads[0] : mostDecided(recording.layers[state.layer]),
      ];
  }
  return state;
}

/** Keep the address and the store the same, both ways. @param {Store} store @param {Recording} recording @param {Window} place */
export function bindFragment(store, recording, place = window) {
  let timer = 0;
  const tell = () => place.history.replaceState(null, "", `#${toFragment(store.get(), recording)}`);
  store.subscribe((state, before) => {
    if (state === before || toFragment(state, recording) === toFragment(before, recording)) return;
    clearTimeout(timer);
    timer = setTimeout(tell, PAUSE);
  });
  place.addEventListener("hashchange", () => {
    store.set(fromFragment(place.location.hash, recording));
    tell();
  });
  if (place.location.hash) tell(); // what a link named and is not here is not in the address either
}

/** The rows and columns of a layer that are pointed at, or else held; `cell` where it is one cell. @param {import("#data/layer.js").Layer} layer @param {State} state @returns {{queries: number[], keys: number[], cell: boolean}} */
export function focusIn(layer, state) {
  if (state.hover?.cell) return { queries: [state.hover.cell.query], keys: [state.hover.cell.key], cell: true };
  const tokens = state.hover?.token ? [state.hover.token] : state.tokens;
  /** @param {number} wanted */
  const at = (wanted) => tokens.filter(({ sequence }) => sequence === wanted).map(({ index }) => index);
  return { queries: at(layer.querySequence), keys: at(layer.keySequence), cell: false };
}

/** Hold a token alone, or let it go if it was; with `more`, beside those that are held. @param {Store} store @param {Token} token @param {boolean} more */
export function hold(store, token, more = false) {
  const { tokens } = store.get();
  const others = tokens.filter(({ sequence, index }) => sequence !== token.sequence || index !== token.index);
  const held = others.length < tokens.length;
  store.set({ tokens: more ? (held ? others : [...tokens, token]) : held && tokens.length === 1 ? [] : [token] });
}

/** @param {number} index */
function indexOr(index) {
  return index < 0 ? undefined : index;
}

/** @param {string} name @param {Recording} recording @returns {Token | null} */
function tokenNamed(name, recording) {
  const dot = name.lastIndexOf(".");
  const index = /^\d+$/.test(name.slice(dot + 1)) ? Number(name.slice(dot + 1)) : -1;
  const sequence = recording.sequences.findIndex(({ role }) => role === name.slice(0, dot));
  return sequence >= 0 && index >= 0 && index < recording.sequences[sequence].tokens.length
    ? { sequence, index }
    : null;
}
