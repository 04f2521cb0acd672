// The state as a URL fragment, such as `layer=encoder.0&head=3&token=source.5`, synchronized with the address or the notebook.

import { REDUCTIONS } from "#data/combined_heads.js";
import { HIDE_OPTIONS } from "#data/hidden_keys.js";
import { PALETTES, SCALES } from "#ui/color.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { State, Store, Token } from '#state/store.js'
 */

/**
 * A field of the state: its name in the URL, its value at first, and how it is written and read; `read` returns undefined for what does not exist.
 * @template Value
 * @typedef {{name?: string, initial: Value | ((recording: Recording) => Value), write(value: Value, recording: Recording, state: State): string | null,
 *   read(text: string, recording: Recording, state: State): Value | undefined}} Field
 */
/** @typedef {Record<string, Field<any>>} Fields */

export const THEMES = ["auto", "light", "dark"];
const STEPS = ["layer", "heads", "tokens", "region", "views", "sort", "looksAt", "show", "unit"];
const PAUSE = 200; // ms; browsers refuse an address that changes with every key stroke

/** One of the names that a recording has. @param {Field<string>["initial"]} initial @param {(name: string, recording: Recording) => boolean} exists @returns {Field<string>} */
const oneThatExists = (initial, exists) => ({
  initial,
  write: (name) => name,
  read: (text, recording) => (exists(text, recording) ? text : undefined),
});

/** @param {string[]} options */
export const oneOf = (options) => oneThatExists(options[0], (text) => options.includes(text));

/** @param {string[]} options @returns {Field<string[]>} */
export const someOf = (options) => ({
  initial: [],
  write: (values) => values.join(","),
  read(text) {
    const found = text.split(",").filter((value) => options.includes(value));
    return found.length > 0 || text === "" ? found : undefined;
  },
});

/** @type {Field<boolean>} */
export const flag = {
  initial: false,
  write: (on) => (on ? "1" : null),
  read: (text) => (text === "1" ? true : undefined),
};

/** A number from 0 to 1. @param {number} initial @returns {Field<number>} */
export const fraction = (initial) => ({
  initial,
  write: String,
  read: (text) => (text !== "" && Number(text) >= 0 && Number(text) <= 1 ? Number(text) : undefined),
});

/** A whole number, or null. @type {Field<number | null>} */
export const count = {
  initial: null,
  write: (number) => (number === null ? null : String(number)),
  read: (text) => (/^\d+$/.test(text) ? Number(text) : undefined),
};

/** @type {Fields} */
const PAGE_FIELDS = {
  layer: {
    initial: (/** @type {Recording} */ { opening }) => opening.layer,
    write: (layer, { layers }) => layers[layer].name,
    read(text, { layers }) {
      const index = layers.findIndex(({ name }) => name === text);
      return index < 0 ? undefined : index;
    },
  },
  heads: {
    name: "head",
    initial: (/** @type {Recording} */ { opening }) => [opening.head],
    write: (heads, { layers }, { layer }) =>
      heads.map((/** @type {number} */ head) => layers[layer].headIndices[head]).join(","),
    read(text, { layers }, { layer }) {
      const heads = text
        .split(",")
        .map((each) => layers[layer].headIndices.indexOf(/^\d+$/.test(each) ? Number(each) : -1));
      return heads.includes(-1) ? undefined : [...new Set(heads)];
    },
  },
  tokens: {
    name: "token",
    initial: [],
    write: (tokens, { sequences }) =>
      tokens.map((/** @type {Token} */ { sequence, index }) => `${sequences[sequence].role}.${index}`).join(","),
    read: (text, recording) => text.split(",").flatMap((each) => readToken(each, recording) ?? []),
  },
  region: {
    initial: null,
    write: (region) => region && [...region.queries, ...region.keys].join("."),
    read(text, { layers }, { layer }) {
      const { queries, keys } = layers[layer];
      if (!/^\d+(\.\d+){3}$/.test(text)) return undefined;
      const [top, bottom, left, right] = text.split(".").map(Number);
      const exists = top <= bottom && left <= right && bottom < queries.length && right < keys.length;
      return exists ? { queries: [top, bottom], keys: [left, right] } : undefined;
    },
  },
  reduce: oneOf(REDUCTIONS),
  scale: oneOf(SCALES),
  palette: oneOf(PALETTES),
  show: oneThatExists("weights", (text, { shown }) => shown.includes(text)),
  hide: someOf(HIDE_OPTIONS),
  rescale: flag,
  unit: oneThatExists(
    ({ hasSubwords, isReduced }) => (hasSubwords && !isReduced ? "words" : "tokens"), // the map of a long text has tokens
    (text, { hasSubwords }) => text === "tokens" || (text === "words" && hasSubwords),
  ),
  sort: oneThatExists("order", (text, { layers }) => text === "selection" || Object.hasOwn(layers[0].scores, text)),
  looksAt: { name: "looks_at", initial: "", write: (word) => word, read: (text) => text.slice(0, 200) },
  minScore: { ...fraction(0), name: "min_score" },
  theme: oneOf(THEMES),
  swap: { ...flag, read: (text, { compareWith }) => (text === "1" && compareWith ? true : undefined) }, // the second is first
};

/** The fields of the page and of its views. @param {{name: string, urlFields?: Fields}[]} views @param {(recording: Recording) => string[]} open  The views that are open at first. @returns {Fields} */
export function fieldsOf(views, open) {
  return {
    ...PAGE_FIELDS,
    views: { ...someOf(views.map(({ name }) => name)), initial: open },
    ...Object.assign({}, ...views.map(({ urlFields }) => urlFields ?? {})),
  };
}

/** What a newcomer sees. @param {Recording} recording @param {Fields} fields @returns {State} */
export function defaultState(recording, fields) {
  const values = Object.entries(fields).map(([name, { initial }]) => [
    name,
    typeof initial === "function" ? initial(recording) : initial,
  ]);
  return { ...Object.fromEntries(values), hover: null };
}

/** The fields that differ from the default, and always the head. @param {State} state @param {Recording} recording @param {Fields} fields */
export function toFragment(state, recording, fields) {
  const parameters = new URLSearchParams();
  const initial = defaultState(recording, fields);
  for (const [field, { name = field, write }] of Object.entries(fields)) {
    const text = write(state[field], recording, state);
    const always = field === "layer" || field === "heads";
    if (text !== null && (always || text !== write(initial[field], recording, initial))) parameters.set(name, text);
  }
  return parameters.toString().replaceAll("%2C", ",");
}

/** The state of a fragment; what it does not name, or what does not exist, is as in the default. @param {string} fragment @param {Recording} recording @param {Fields} fields @returns {State} */
export function fromFragment(fragment, recording, fields) {
  const parameters = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = defaultState(recording, fields);
  for (const [field, { name = field, read }] of Object.entries(fields)) {
    const text = parameters.get(name);
    const value = text === null ? undefined : read(text, recording, state);
    if (value !== undefined) state[field] = value;
    if (field === "layer" && state.layer !== recording.opening.layer) {
      state.heads = [lowestEntropyHead(recording.layers[state.layer])];
    }
  }
  return state;
}

/** @param {import("#data/layer.js").Layer} layer */
function lowestEntropyHead({ scores, headIndices }) {
  const entropies = headIndices.map((_, head) => scores.entropy?.[head] ?? Infinity);
  return entropies.indexOf(Math.min(...entropies));
}

/** Whether the way back leads over a change: another head, selection or view, and not a zoom or a color. @param {State} before @param {State} after */
function isStep(before, after) {
  return STEPS.some((field) => JSON.stringify(before[field]) !== JSON.stringify(after[field]));
}

/** Keep the address and the store the same, both ways; Back and Forward go over the steps of the reader. @param {Store} store @param {Recording} recording @param {Fields} fields @param {boolean} isNamed  Whether to say at once what is shown, without what a link named and is not here. */
export function bindAddress(store, recording, fields, isNamed = window.location.hash !== "", place = window) {
  let timer = 0;
  let written = store.get();
  const write = () => {
    clearTimeout(timer);
    written = store.get();
    place.history.replaceState(null, "", `#${toFragment(written, recording, fields)}`);
  };
  const writeStep = () => {
    if (isStep(written, store.get())) place.history.pushState(null, ""); // an entry that is named by `write`
    write();
  };
  store.subscribe((state, before) => {
    if (state === before || toFragment(state, recording, fields) === toFragment(before, recording, fields)) return;
    clearTimeout(timer);
    timer = setTimeout(writeStep, PAUSE);
  });
  if (isNamed) timer = setTimeout(write, PAUSE);
  const { signal } = store;
  signal.addEventListener("abort", () => clearTimeout(timer));
  const follow = (/** @type {HashChangeEvent} */ { newURL }) => {
    // Not the location's hash: a change that waited may have been written between the navigation and this event.
    store.set(fromFragment(new URL(newURL).hash, recording, fields));
    write();
  };
  place.addEventListener("hashchange", follow, { signal });
}

/** Whether this page is in a frame's `srcdoc`, as in a notebook. Such a page has no address. */
export function inFrame(place = window) {
  return place.location.protocol === "about:";
}

/** Keep the state of the notebook's widget and the store the same, both ways; and report the height of the page. @param {Store} store @param {Recording} recording @param {Fields} fields */
export function bindNotebook(store, recording, fields, place = window) {
  // A sandboxed frame does not know its parent's origin, so messages go to any; they hold a fragment and a height.
  const send = (/** @type {object} */ message) => place.parent.postMessage({ regard: message }, "*");
  const { signal } = store;
  let sent = toFragment(store.get(), recording, fields);
  let timer = 0;
  signal.addEventListener("abort", () => clearTimeout(timer));
  store.subscribe((state, before) => {
    if (state === before) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const fragment = toFragment(store.get(), recording, fields);
      if (fragment === sent) return;
      sent = fragment;
      send({ state: sent });
    }, PAUSE / 2);
  });
  place.addEventListener(
    "message",
    ({ source, data }) => {
      const fragment = data?.regard?.state;
      if (source !== place.parent || typeof fragment !== "string" || fragment === sent) return;
      sent = fragment; // if something in it does not exist, the state that is sent back differs
      store.set({ ...fromFragment(fragment, recording, fields), hover: null });
    },
    { signal },
  );
  const { body } = place.document;
  const sizes = new ResizeObserver(() => send({ height: Math.ceil(body.getBoundingClientRect().height) }));
  sizes.observe(body);
  signal.addEventListener("abort", () => sizes.disconnect());
  send({ ready: true });
}

/** @param {string} name  Such as `source.5`. @param {Recording} recording @returns {Token | null} */
function readToken(name, { sequences }) {
  const dot = name.lastIndexOf(".");
  const index = /^\d+$/.test(name.slice(dot + 1)) ? Number(name.slice(dot + 1)) : -1;
  const sequence = sequences.findIndex(({ role }) => role === name.slice(0, dot));
  return sequence >= 0 && index >= 0 && index < sequences[sequence].length ? { sequence, index } : null;
}
