// What is chosen: one small store. The URL fragment is its serialisation.

/**
 * @typedef {{sequence: number, index: number}} Token  A place in one of the recording's token sequences.
 * @typedef {{query: number, key: number}} Cell
 * @typedef {{layer: number, head: number, token: Token | null, theme: string, hover: {token?: Token, cell?: Cell} | null}} State
 *   `token` is held until another is chosen; `hover` is what pointer or keyboard is at, and is in no fragment.
 */

export const THEMES = ["auto", "light", "dark"];
const PAUSE = 200; // ms; browsers refuse an address that changes with every key stroke

/** @param {State} initial */
export function createStore(initial) {
  let state = initial;
  const listeners = [];
  return {
    /** @returns {State} */
    get: () => state,
    /** Change some of the state and tell every listener what it was before. @param {Partial<State>} change */
    set(change) {
      const before = state;
      state = { ...state, ...change };
      for (const listener of listeners) listener(state, before);
    },
    /** @param {(state: State, before: State) => void} listener */
    subscribe(listener) {
      listeners.push(listener);
      listener(state, state);
    },
  };
}

/** The state as a URL fragment, as `layer=encoder.0&head=3&token=source.5`. */
export function toFragment(state, recording) {
  const fields = new URLSearchParams({ layer: recording.layers[state.layer].name, head: String(state.head) });
  if (state.token) fields.set("token", `${recording.sequences[state.token.sequence].role}.${state.token.index}`);
  if (state.theme !== "auto") fields.set("theme", state.theme);
  return fields.toString();
}

/** The state that a fragment tells; what it does not tell, or what does not exist, is as in the first view. @returns {State} */
export function fromFragment(fragment, recording) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const first = firstView(recording);
  const named = recording.layers.findIndex((layer) => layer.name === fields.get("layer"));
  const layer = named < 0 ? first.layer : named;
  const head = /^\d+$/.test(fields.get("head") ?? "") ? Number(fields.get("head")) : -1;
  return {
    layer,
    head: head >= 0 && head < recording.layers[layer].heads ? head : layer === first.layer ? first.head : 0,
    token: tokenNamed(fields.get("token") ?? "", recording),
    theme: THEMES.includes(fields.get("theme")) ? fields.get("theme") : "auto",
    hover: null,
  };
}

/** Keep the address and the store the same, both ways. */
export function bindFragment(store, recording, place = window) {
  let timer = 0;
  store.subscribe((state, before) => {
    if (state === before || toFragment(state, recording) === toFragment(before, recording)) return;
    clearTimeout(timer);
    timer = setTimeout(() => place.history.replaceState(null, "", `#${toFragment(store.get(), recording)}`), PAUSE);
  });
  place.addEventListener("hashchange", () => store.set(fromFragment(place.location.hash, recording)));
}

/** Where the chosen or hovered token, or the hovered cell, stands in a layer: a row, a column, both or neither. */
export function focusIn(layer, state) {
  if (state.hover?.cell) return { ...state.hover.cell, cell: true };
  const token = state.hover?.token ?? state.token;
  return {
    query: token && token.sequence === layer.querySequence ? token.index : null,
    key: token && token.sequence === layer.keySequence ? token.index : null,
    cell: false,
  };
}

function tokenNamed(name, recording) {
  const dot = name.lastIndexOf(".");
  const index = /^\d+$/.test(name.slice(dot + 1)) ? Number(name.slice(dot + 1)) : -1;
  const sequence = recording.sequences.findIndex(({ role }) => role === name.slice(0, dot));
  return sequence >= 0 && index >= 0 && index < recording.sequences[sequence].tokens.length ? { sequence, index } : null;
}

/** The head that a newcomer meets: the most decided one of the last cross-attention, or of the first layer. */
function firstView(recording) {
  const cross = recording.layers.findLastIndex(({ kind }) => kind === "cross");
  const layer = Math.max(cross, 0);
  const { heads, queries } = recording.layers[layer];
  const decided = Array.from({ length: heads }, (_, head) =>
    queries.reduce((sum, _, query) => sum + Math.max(0, ...recording.layers[layer].row(head, query).map(({ weight }) => weight)), 0),
  );
  return { layer, head: decided.indexOf(Math.max(...decided)) };
}
