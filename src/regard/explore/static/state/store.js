// What is selected on the page: one small store.

/**
 * @typedef {{sequence: number, index: number}} Token  A position in one of the recording's sequences.
 * @typedef {{query: number, key: number}} CellPosition
 * @typedef {{queries: number[], keys: number[], cell: boolean}} Focus  Rows and columns; `cell`: whether it is one cell.
 * @typedef {{queries: [number, number], keys: [number, number]}} Region  From the first to the last, inclusive.
 * @typedef {{query: number, key: number, cell: number}} Zoom  What is in the middle of the matrix, and the pixels of a cell.
 * @typedef {{token?: Token, cell?: CellPosition}} Hover
 * @typedef {{layer: number, heads: number[], tokens: Token[], region: Region | null, views: string[], reduce: string, scale: string,
 *   palette: string, hide: string[], rescale: boolean, show: string, unit: string, sort: string, looksAt: string, minScore: number, theme: string,
 *   hover: Hover | null, [field: string]: any}} State
 *   `tokens` are selected until others are; `hover` is what the pointer or the keyboard is at. Views add fields of their own.
 * @typedef {{signal: AbortSignal, get(): State, set(change: Partial<State>): void, subscribe(listener: (state: State, before: State) => void): void}} Store
 *   `signal` is aborted when the page shows something else: then nothing outside may hold a listener of what was mounted.
 */

/** @param {State} initial @param {AbortSignal} signal @returns {Store} */
export function createStore(initial, signal = new AbortController().signal) {
  let state = initial;
  /** @type {((state: State, before: State) => void)[]} */
  const listeners = [];
  return {
    signal,
    get: () => state,
    /** Change some fields and call every listener with the state and the one before. */
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

/**
 * The rows and columns of a layer that the pointer is at, or else those that are selected.
 * @param {{querySequence: number, keySequence: number}} layer @param {State} state @returns {Focus}
 */
export function focusedCells({ querySequence, keySequence }, { hover, tokens }) {
  if (hover?.cell) return { queries: [hover.cell.query], keys: [hover.cell.key], cell: true };
  const focused = hover?.token ? [hover.token] : tokens;
  /** @param {number} chosen */
  const within = (chosen) => focused.filter(({ sequence }) => sequence === chosen).map(({ index }) => index);
  return { queries: within(querySequence), keys: within(keySequence), cell: false };
}

/** Select a token alone, or deselect it; with `more`, in addition to those that are selected. @param {Store} store @param {Token} token @param {boolean} more */
export function toggleSelection(store, token, more = false) {
  const { tokens } = store.get();
  const others = tokens.filter(({ sequence, index }) => sequence !== token.sequence || index !== token.index);
  const isSelected = others.length < tokens.length;
  if (more) store.set({ tokens: isSelected ? others : [...tokens, token] });
  else store.set({ tokens: isSelected && tokens.length === 1 ? [] : [token] });
}
