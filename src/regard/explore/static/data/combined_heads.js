// Several heads as one: their mean, or their sum.

import { DerivedHead } from "#data/derived_head.js";
import { combineCells, withBounds } from "#data/heads.js";
import { sumRanked } from "#data/ranked.js";

/**
 * @import { BaseHead, Blocks, Cell, Corner, RegionRows, Tile } from '#data/heads.js'
 * @import { Ranked } from '#data/ranked.js'
 */

/** How several heads are combined. */
export const REDUCTIONS = ["mean", "sum"];

/** @param {BaseHead[]} heads @param {string} reduce @returns {BaseHead} */
export function combineHeads(heads, reduce = "mean") {
  return heads.length === 1 ? heads[0] : new CombinedHead(heads, reduce === "sum" ? 1 : heads.length);
}

/** The sum of several heads, divided by a number. What is unknown of one of them is unknown of the sum. */
class CombinedHead extends DerivedHead {
  /** @param {BaseHead[]} heads @param {number} divisor */
  constructor(heads, divisor) {
    super(heads, heads[0].numKeys);
    this.divisor = divisor;
    this.numHeads = heads.length / divisor;
  }

  get blocks() {
    const blocks = this.heads.map((head) => head.blocks);
    return combineBlocks(blocks, this.divisor);
  }

  get finestBlocks() {
    const blocks = this.heads.map((head) => head.finestBlocks);
    return combineBlocks(blocks, this.divisor);
  }

  /** The tiles that every head has. @param {number} cell @param {Corner} from @param {Corner} to @returns {Tile[]} */
  tiles(cell, from, to) {
    const [first, ...others] = this.heads.map((head) => head.tiles(cell, from, to));
    return first.flatMap((tile) => {
      const isSame = (/** @type {Tile} */ { row, column, blocks }) =>
        row === tile.row && column === tile.column && blocks.size === tile.blocks.size;
      const same = others.flatMap((tiles) => tiles.find(isSame) ?? []);
      if (same.length < others.length) return [];
      const blocks = [tile, ...same].map((each) => each.blocks);
      return [{ ...tile, blocks: combineBlocks(blocks, this.divisor) }];
    });
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const cells = this.heads.map((head) => head.cell(query, key));
    return combineCells(cells, this.divisor);
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const rows = this.heads.map((head) => head.row(query));
    const combined = sumRanked(rows, ({ key }) => key, 1 / this.divisor);
    return withBounds(combined, ({ key }) => this.cell(query, key));
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    const columns = this.heads.map((head) => head.column(key));
    const combined = sumRanked(columns, ({ query }) => query, 1 / this.divisor);
    return withBounds(combined, ({ query }) => this.cell(query, key));
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    if (!this.isRemote) return super.regionRows(queries, keys, hidden);
    const all = this.heads.flatMap((head) => head.regionRows(queries, keys, hidden).rows ?? []);
    const sum = (/** @type {number} */ row) => all.reduce((total, rows) => total + rows[row], 0);
    const rows = all.length < this.heads.length ? null : all[0].map((_, row) => sum(row) / this.divisor);
    return { rows, error: 0, approximate: false };
  }
}

/** @type {WeakMap<Blocks, Map<number, {all: Blocks[], blocks: Blocks}>>} */
const combinations = new WeakMap(); // by the first, so that a view recognizes blocks that it has drawn

/** The sum of the blocks of several heads, divided by a number; NaN where every head is masked. @param {Blocks[]} all @param {number} divisor @returns {Blocks} */
function combineBlocks(all, divisor) {
  const cached = combinations.get(all[0]) ?? new Map();
  combinations.set(all[0], cached);
  const found = cached.get(divisor);
  if (found?.all.length === all.length && all.every((each, index) => each === found.all[index])) return found.blocks;
  const { rows, columns, size } = all[0];
  /** @type {(row: number, column: number) => number} */
  const at = (row, column) => {
    let [sum, visible] = [0, false];
    for (const each of all) {
      const weight = each.at(row, column);
      if (Number.isNaN(weight)) continue;
      sum += weight;
      visible = true;
    }
    return visible ? sum / divisor : NaN;
  };
  const blocks = { rows, columns, size, at };
  cached.set(divisor, { all, blocks });
  return blocks;
}
