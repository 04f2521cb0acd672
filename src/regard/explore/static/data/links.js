// Links as views show them: without the keys that are hidden.

import { isSpecial } from "#data/tokens.js";

/** @type {WeakMap<import("#data/layer.js").Layer, Map<string, boolean[]>>} */
const hiddenKeys = new WeakMap(); // of layers, by what is hidden

/** Whether a key of a layer is left out. @param {import("#data/layer.js").Layer} layer @param {{hidden: string[]}} state */
export function hides(layer, { hidden }) {
  if (!hidden.length) return (/** @type {number} */ _) => false;
  const known = hiddenKeys.get(layer) ?? new Map();
  hiddenKeys.set(layer, known);
  const name = hidden.join();
  const keys =
    known.get(name) ??
    layer.keys.map(
      (token, key) => (hidden.includes("first") && key === 0) || (hidden.includes("special") && isSpecial(token)),
    );
  known.set(name, keys);
  return (/** @type {number} */ key) => keys[key];
}

/** Links, strongest first, without those to hidden keys. @param {import("#data/layer.js").Layer} layer @param {import("#data/heads.js").Some} some @param {{hidden: string[]}} state @returns {import("#data/heads.js").Link[]} */
export function links(layer, some, state) {
  const hidden = hides(layer, state);
  return some.links.filter(({ key }) => !hidden(key));
}
