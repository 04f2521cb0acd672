// A head of a long text whose queries and keys are in the page: a map of all weights, and each weight exactly.

import { CompleteHead } from "#data/heads.js";

/**
 * @import { Corner, Mask, Tile } from '#data/heads.js'
 * @import { Vectors } from '#data/layer.js'
 * @import { BlockMap } from '#data/page_format.js'
 */

const TILE = 256; // rows and columns of a part of the matrix whose cells are computed together
const MAX_TILES = 32;

/** Weights are exp(scale · q · k − lse). */
export class ComputedHead extends CompleteHead {
  /** @param {BlockMap} map @param {{query: Vectors, key: Vectors, lse: ArrayLike<number>, scale: number, mask: Mask}} data  `lse` is log Σ exp of the scores of each row. */
  constructor(map, { query, key, lse, scale, mask }) {
    super(lse.length, key.values.length / key.features);
    this.map = map;
    this.query = query;
    this.key = key;
    this.lse = lse;
    this.scale = scale;
    this.mask = mask;
    /** @type {Map<string, Tile>} */
    this.cells = new Map(); // parts of the matrix, the latest last
  }

  get blocks() {
    return this.map;
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return !this.mask.allows(query, key);
  }

  /** @param {number} query @param {number} key */
  weight(query, key) {
    if (this.isMasked(query, key)) return NaN;
    const { features } = this.query;
    let product = 0;
    for (let at = 0; at < features; at++)
      product += this.query.values[query * features + at] * this.key.values[key * features + at];
    return Math.exp(this.scale * product - this.lse[query]);
  }

  /** Single cells where one takes a pixel. @param {number} cell @param {Corner} from @param {Corner} to @returns {Tile[]} */
  tiles(cell, from, to) {
    const tiles = [];
    for (
      let row = TILE * Math.floor(from.row / TILE);
      cell >= 1 && row < Math.min(to.row, this.numQueries);
      row += TILE
    ) {
      for (
        let column = TILE * Math.floor(from.column / TILE);
        column < Math.min(to.column, this.numKeys);
        column += TILE
      )
        tiles.push(this.cellsFrom(row, column));
    }
    return tiles;
  }

  /** @param {number} row @param {number} column @returns {Tile} */
  cellsFrom(row, column) {
    const name = `${row} ${column}`;
    const cached = this.cells.get(name);
    if (cached) return cached;
    const [rows, columns] = [Math.min(TILE, this.numQueries - row), Math.min(TILE, this.numKeys - column)];
    const weights = new Float32Array(rows * columns);
    for (let at = 0; at < weights.length; at++)
      weights[at] = this.weight(row + Math.floor(at / columns), column + (at % columns));
    const at = (/** @type {number} */ y, /** @type {number} */ x) => weights[y * columns + x];
    const tile = { row, column, blocks: { rows, columns, size: 1, at } };
    if (this.cells.size >= MAX_TILES) this.cells.clear();
    this.cells.set(name, tile);
    return tile;
  }
}
