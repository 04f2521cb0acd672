// The patches of an image: which tokens they are, and what they are called.

/**
 * @import { Sequence } from '#data/sequence.js'
 * @typedef {{first: number, rows: number, columns: number}} PatchGrid  The token of the first patch, and how many there are.
 */

/** @type {WeakMap<Sequence, PatchGrid | null>} */
const grids = new WeakMap();

/** The patches of a text: its last tokens, row by row, each named `row,column`; null if it has none. @param {Sequence} sequence @returns {PatchGrid | null} */
export function patchGrid(sequence) {
  const cached = grids.get(sequence);
  if (cached !== undefined) return cached;
  const grid = findGrid(sequence.tokens);
  grids.set(sequence, grid);
  return grid;
}

/** What a token is called: a patch by its row and column, another token by its label. @param {Sequence} sequence @param {number} index */
export function tokenName(sequence, index) {
  const grid = patchGrid(sequence);
  return grid && index >= grid.first ? `patch ${sequence.tokens[index]}` : sequence.labels[index];
}

/** @param {string[]} tokens @returns {PatchGrid | null} */
function findGrid(tokens) {
  const first = tokens.indexOf("0,0");
  const last = /^(\d+),(\d+)$/.exec(tokens[tokens.length - 1] ?? "");
  if (first < 0 || !last) return null;
  const [rows, columns] = [Number(last[1]) + 1, Number(last[2]) + 1];
  if (tokens.length - first !== rows * columns) return null;
  const isInOrder = tokens
    .slice(first)
    .every((token, index) => token === `${Math.floor(index / columns)},${index % columns}`);
  return isInOrder ? { first, rows, columns } : null;
}
