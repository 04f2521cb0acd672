// Several heads as one: their mean, or their sum.

import { BaseHead, combineCells, withBounds } from "#data/heads.js";
import { sumRanked } from "#data/ranked.js";

/**
 * @import { Blocks, Cell, Corner, RegionRows, Tile } from '#data/heads.js'
 * @import { Ranked } from '#data/ranked.js'
 */

/** How several heads are combined. */
export const REDUCTIONS = ["mean", "sum"];

/** @param {BaseHead[]} heads @param {string} reduce @returns {BaseHead} */
export function combineHeads(heads, reduce = "mean") {
  if (heads.length === 1) return heads[0];
  const mean = new MeanHead(heads);
  return reduce === "sum" ? new SumHead(mean, heads.length) : mean;
}

/** The mean of several heads. What is unknown of one of them is unknown of the mean. */
export class MeanHead extends BaseHead {
  /** @param {BaseHead[]} heads */
  constructor(heads) {
    super(heads[0].numKeys);
    this.heads = heads;
    this.isDense = heads.every(({ isDense }) => isDense);
    this.isRemote = heads.every(({ isRemote }) => isRemote);
  }

  get blocks() {
    return MeanBlocks.of(this.heads.map(({ blocks }) => blocks));
  }

  get finestBlocks() {
    return MeanBlocks.of(this.heads.map(({ finestBlocks }) => finestBlocks));
  }

  /** @param {number} cell @param {Corner} from @param {Corner} to */
  tiles(cell, from, to) {
    return meanTiles(this.heads.map((head) => head.tiles(cell, from, to)));
  }

  /** @param {number} query */
  prefetch(query) {
    for (const head of this.heads) head.prefetch(query);
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return this.heads.every((head) => head.isMasked(query, key));
  }

  /** @param {number[]} queries @param {number[]} keys */
  requestAll(queries, keys) {
    return this.heads.map((head) => head.requestAll(queries, keys)).every(Boolean);
  }

  /** @param {number[]} queries @param {number[]} keys */
  async fetch(queries, keys) {
    for (const head of this.heads) await head.fetch(queries, keys);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    return combineCells(
      this.heads.map((head) => head.cell(query, key)),
      this.heads.length,
    );
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const rows = this.heads.map((head) => head.row(query));
    const mean = sumRanked(rows, ({ key }) => key, 1 / rows.length);
    return withBounds(mean, ({ key }) => this.cell(query, key));
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    const columns = this.heads.map((head) => head.column(key));
    const mean = sumRanked(columns, ({ query }) => query, 1 / columns.length);
    return withBounds(mean, ({ query }) => this.cell(query, key));
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    if (!this.isRemote) return super.regionRows(queries, keys, hidden);
    const all = this.heads.map((head) => head.regionRows(queries, keys, hidden).rows);
    if (all.includes(null)) return { rows: null, error: 0, approximate: false };
    const mean = (/** @type {number} */ row) => all.reduce((sum, rows) => sum + Number(rows?.[row]), 0) / all.length;
    return {
      rows: Float64Array.from(/** @type {Float64Array} */ (all[0]), (_, row) => mean(row)),
      error: 0,
      approximate: false,
    };
  }
}

/** The sum of several heads: `count` times their mean. */
class SumHead extends BaseHead {
  /** @param {BaseHead} mean @param {number} count */
  constructor(mean, count) {
    super(mean.numKeys);
    this.mean = mean;
    this.numHeads = count;
    this.isDense = mean.isDense;
    this.isRemote = mean.isRemote;
  }

  get blocks() {
    return ScaledBlocks.of(this.mean.blocks, this.numHeads);
  }

  get finestBlocks() {
    return ScaledBlocks.of(this.mean.finestBlocks, this.numHeads);
  }

  /** @param {number} cell @param {Corner} from @param {Corner} to */
  tiles(cell, from, to) {
    const tiles = this.mean.tiles(cell, from, to);
    return tiles.map((tile) => ({ ...tile, blocks: ScaledBlocks.of(tile.blocks, this.numHeads) }));
  }

  /** @param {number} query */
  prefetch(query) {
    this.mean.prefetch(query);
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return this.mean.isMasked(query, key);
  }

  /** @param {number[]} queries @param {number[]} keys */
  requestAll(queries, keys) {
    return this.mean.requestAll(queries, keys);
  }

  /** @param {number[]} queries @param {number[]} keys */
  fetch(queries, keys) {
    return this.mean.fetch(queries, keys);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const { state, weight, upperBound, error } = this.mean.cell(query, key);
    const n = this.numHeads;
    return { state, weight: n * weight, upperBound: n * upperBound, error: n * error };
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    return sumRanked([this.mean.row(query)], ({ key }) => key, this.numHeads);
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    return sumRanked([this.mean.column(key)], ({ query }) => query, this.numHeads);
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    const { rows, error, approximate } = this.mean.regionRows(queries, keys, hidden);
    return { rows: rows?.map((row) => this.numHeads * row) ?? null, error: this.numHeads * error, approximate };
  }
}

/** The means of the tiles that every head has. @param {Tile[][]} tiles @returns {Tile[]} */
function meanTiles([first, ...others]) {
  return first.flatMap((tile) => {
    const same = others.map((all) =>
      all.find(
        ({ row, column, blocks }) => row === tile.row && column === tile.column && blocks.size === tile.blocks.size,
      ),
    );
    if (same.includes(undefined)) return [];
    const blocks = [tile, .../** @type {Tile[]} */ (same)].map((each) => each.blocks);
    return [{ ...tile, blocks: MeanBlocks.of(blocks) }];
  });
}

/** @type {WeakMap<Blocks, {all: Blocks[], mean: MeanBlocks}>} */
const meansByFirst = new WeakMap(); // so that the same blocks give the same object, which who drew it recognizes
/** @type {WeakMap<Blocks, Map<number, ScaledBlocks>>} */
const multiples = new WeakMap();

/** @implements {Blocks} */
class ScaledBlocks {
  /** @param {Blocks} blocks @param {number} factor */
  constructor(blocks, factor) {
    this.blocks = blocks;
    this.factor = factor;
    this.rows = blocks.rows;
    this.columns = blocks.columns;
    this.size = blocks.size;
  }

  /** @param {Blocks} blocks @param {number} factor */
  static of(blocks, factor) {
    const cached = multiples.get(blocks) ?? new Map();
    multiples.set(blocks, cached);
    if (!cached.has(factor)) cached.set(factor, new ScaledBlocks(blocks, factor));
    return /** @type {ScaledBlocks} */ (cached.get(factor));
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    return this.factor * this.blocks.at(row, column);
  }
}

/** @implements {Blocks} */
class MeanBlocks {
  /** @param {Blocks[]} all */
  static of(all) {
    const cached = meansByFirst.get(all[0]);
    if (cached && cached.all.length === all.length && cached.all.every((each, index) => each === all[index])) {
      return cached.mean;
    }
    const mean = new MeanBlocks(all);
    meansByFirst.set(all[0], { all, mean });
    return mean;
  }

  /** @param {Blocks[]} all */
  constructor(all) {
    this.all = all;
    this.rows = all[0].rows;
    this.columns = all[0].columns;
    this.size = all[0].size;
  }

  /** @param {number} row @param {number} column  NaN where every head is masked. */
  at(row, column) {
    let [sum, visible] = [0, false];
    for (const each of this.all) {
      const weight = each.at(row, column);
      if (Number.isNaN(weight)) continue;
      sum += weight;
      visible = true;
    }
    return visible ? sum / this.all.length : NaN;
  }
}
