// The patches of an image: which tokens they are, and what they are called.

/**
 * @import { Sequence } from '#data/sequence.js'
 * @typedef {{rows: number, columns: number, tokens: number[], patchOf: Map<number, number>}} PatchGrid
 *   The token of each patch, row by row, and the patch of each of these tokens.
 */

/** @type {WeakMap<Sequence, PatchGrid | null>} */
const grids = new WeakMap();

/** The patches of a text: the tokens named `row,column`, in any order and place; null unless they are each patch of one image once. @param {Sequence} sequence @returns {PatchGrid | null} */
export function patchGrid(sequence) {
  const cached = grids.get(sequence);
  if (cached !== undefined) return cached;
  const grid = findGrid(sequence.tokens);
  grids.set(sequence, grid);
  return grid;
}

/** What a token is called: a patch by its row and column, another token by its label. @param {Sequence} sequence @param {number} index */
export function tokenName(sequence, index) {
  return patchGrid(sequence)?.patchOf.has(index) ? `patch ${sequence.tokens[index]}` : sequence.labels[index];
}

/** @param {string[]} tokens @returns {PatchGrid | null} */
function findGrid(tokens) {
  const places = tokens.flatMap((token, index) => {
    const found = /^(\d+),(\d+)$/.exec(token);
    return found ? [{ index, row: Number(found[1]), column: Number(found[2]) }] : [];
  });
  const rows = 1 + places.reduce((last, { row }) => Math.max(last, row), -1);
  const columns = 1 + places.reduce((last, { column }) => Math.max(last, column), -1);
  if (!places.length || places.length !== rows * columns) return null;
  const patchOf = new Map(places.map(({ index, row, column }) => [index, row * columns + column]));
  const tokenOf = new Map([...patchOf].map(([index, patch]) => [patch, index]));
  if (tokenOf.size < places.length) return null; // a patch occurs twice
  return { rows, columns, tokens: places.map((_, patch) => tokenOf.get(patch) ?? 0), patchOf };
}
