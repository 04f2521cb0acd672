// A head without some keys, such as the first token; the other weights as they are, or as if the hidden keys were masked.

import { DerivedHead } from "#data/derived_head.js";
import { combineCells } from "#data/heads.js";
import { byStrength } from "#data/ranked.js";

/**
 * @import { BaseHead, Blocks, Cell, Corner, RegionRows } from '#data/heads.js'
 * @import { Ranked } from '#data/ranked.js'
 * @import { Sequence } from '#data/sequence.js'
 */

/** Keys that often receive attention for want of anything better. */
export const HIDE_OPTIONS = ["first", "special"];

const MIN_SHARE = 0.001; // a row that leaves less than this is not rescaled
const MAX_RELATIVE_ERROR = 0.02; // nor is a row whose remaining share is known less precisely
/** @type {Cell} */
const NOTHING = { state: "known", weight: 0, upperBound: 0, error: 0 };
const NOISE = 0.02; // what a block of hidden keys and others leaves is zero below this share of the block

/** Which keys are hidden. @param {Sequence} keys @param {string[]} hide @returns {boolean[]} */
export function hiddenKeys(keys, hide) {
  const [first, special] = HIDE_OPTIONS.map((option) => hide.includes(option));
  if (!hide.length) return Array(keys.length).fill(false);
  return keys.isSpecial.map((isSpecial, key) => (first && key === 0) || (special && isSpecial));
}

/** A head without some of its keys. With `rescale`, a row is divided by 1 − its hidden weights: the softmax without hidden keys. */
export class HiddenKeysHead extends DerivedHead {
  /** @param {BaseHead} head @param {boolean[]} hidden  For each key. @param {{rescale: boolean, queries: number}} options */
  constructor(head, hidden, { rescale, queries }) {
    super([head], hidden.length);
    this.head = head;
    this.hidden = hidden;
    this.keys = hidden.flatMap((isHidden, key) => (isHidden ? [key] : []));
    this.rescale = rescale && !head.isSigned;
    this.queries = queries;
    /** @type {Map<number, {share: number, error: number} | null>} */
    this.shares = new Map();
    /** @type {WeakMap<Blocks, Blocks>} */
    this.visible = new WeakMap();
    /** Whether a server has still to send the hidden columns, which say what each row leaves. */
    this.isLoading = this.rescale && head.isRemote;
    this.sharesLoaded = this.isLoading ? this.loadShares() : Promise.resolve();
  }

  async loadShares() {
    try {
      await this.head.fetch([], this.keys);
    } catch {
      return; // disconnected: it keeps loading
    }
    for (let query = 0; query < this.queries; query++) this.shares.set(query, this.computeShare(query));
    this.isLoading = false;
  }

  get blocks() {
    return this.withoutHidden(this.head.blocks);
  }

  get finestBlocks() {
    return this.withoutHidden(this.head.finestBlocks);
  }

  /** @param {number} cell @param {Corner} from @param {Corner} to */
  tiles(cell, from, to) {
    return this.head.tiles(cell, from, to).map((tile) => ({ ...tile, blocks: this.withoutHidden(tile.blocks, tile) }));
  }

  /** @param {number[]} queries @param {number[]} keys */
  requestAll(queries, keys) {
    return super.requestAll(queries, keys) && !this.isLoading;
  }

  /** @param {number[]} queries @param {number[]} keys */
  async fetch(queries, keys) {
    await this.sharesLoaded;
    await super.fetch(queries, keys);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    if (this.hidden[key]) return { state: "hidden", weight: NaN, upperBound: 0, error: 0 };
    if (this.isLoading) return { state: "unknown", weight: NaN, upperBound: this.limit, error: 0 };
    const cell = this.head.cell(query, key);
    const { weight, error } = this.rescaled(query, cell);
    const upperBound = Math.min(cell.upperBound / this.divisorOf(query), this.limit);
    return { state: cell.state, weight, error, upperBound };
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const ranked = this.head.row(query);
    if (ranked.loading || this.isLoading) return { entries: [], rest: 0, loading: true };
    const { entries, rest, total, numOrdered = 0, isComplete, approximate } = ranked;
    const isVisible = (/** @type {{key: number}} */ { key }) => !this.hidden[key];
    const hidden = this.hiddenOf(query);
    const isKnown = hidden.state === "known";
    const known = this.shareOf(query);
    const share = known?.share ?? 1;
    return {
      entries: entries.filter(isVisible).map((entry) => ({ ...entry, ...this.rescaled(query, entry) })),
      rest: rest / share,
      total: typeof total === "number" && isKnown ? Math.max(0, total - hidden.weight) / share : null,
      numOrdered: entries.slice(0, numOrdered).filter(isVisible).length,
      isComplete,
      approximate: approximate || (!isKnown && rest > 0), // a part of the rest is hidden
      notRescaled: this.rescale && !known,
    };
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    if (this.hidden[key]) return { entries: [], rest: 0, isComplete: true };
    const ranked = this.head.column(key);
    if (!this.rescale) return ranked;
    if (ranked.loading || this.isLoading) return { entries: [], rest: 0, loading: true };
    const entries = ranked.entries.map((entry) => ({ ...entry, ...this.rescaled(entry.query, entry) }));
    return {
      ...ranked,
      entries: entries.sort(byStrength),
      approximate: ranked.approximate || ranked.rest > 0,
      notRescaled: ranked.entries.some(({ query }) => !this.shareOf(query)),
    };
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    if (!this.isRemote) return super.regionRows(queries, keys, hidden);
    const within = this.keys.filter((key) => keys[0] <= key && key <= keys[1]);
    const { rows } = this.head.regionRows(queries, keys, within);
    if (!rows || this.isLoading) return { rows: null, error: 0, approximate: false };
    return {
      rows: rows.map((row, index) => row / this.divisorOf(queries[0] + index)),
      error: 0,
      approximate: false,
    };
  }

  /** @param {[number, number]} queries @param {[number, number]} keys */
  sumBlocks(queries, keys) {
    return super.sumBlocks(queries, keys).map((row, index) => row / this.divisorOf(queries[0] + index));
  }

  /** Of the visible keys of a block. @param {number} column @param {number} size @param {[number, number]} keys */
  shareOfBlock(column, size, [left, right]) {
    let [inside, all] = [0, 0];
    for (let key = column * size; key < Math.min((column + 1) * size, this.numKeys); key++) {
      if (this.hidden[key]) continue;
      all++;
      if (left <= key && key <= right) inside++;
    }
    return all ? inside / all : 0;
  }

  /** A weight of a row, rescaled if that is chosen and possible. @param {number} query @param {{weight: number, error: number}} weight */
  rescaled(query, { weight, error }) {
    const known = this.shareOf(query);
    if (!this.rescale || !known) return { weight, error };
    const scaled = weight / known.share;
    return { weight: scaled, error: (error + scaled * known.error) / known.share };
  }

  /** What a row leaves to visible keys; null if that is too little, or not known well enough. @param {number} query */
  shareOf(query) {
    if (!this.rescale) return { share: 1, error: 0 };
    let share = this.shares.get(query);
    if (share === undefined && !this.isLoading) {
      share = this.computeShare(query);
      this.shares.set(query, share);
    }
    return share ?? null;
  }

  /** By what the weights of a row are divided. @param {number} query */
  divisorOf(query) {
    return this.shareOf(query)?.share ?? 1;
  }

  /** What a row gives to all hidden keys. @param {number} query @returns {Cell} */
  hiddenOf(query) {
    return combineCells([NOTHING, ...this.keys.map((key) => this.head.cell(query, key))], 1);
  }

  /** @param {number} query */
  computeShare(query) {
    const { weight, error } = this.hiddenOf(query);
    const share = 1 - weight / this.numHeads;
    const isKnown = share >= MIN_SHARE && error / this.numHeads <= MAX_RELATIVE_ERROR * share; // and not NaN
    return isKnown ? { share, error: error / this.numHeads } : null;
  }

  /** @param {Blocks} blocks @param {Corner} corner  Where they begin in the matrix. @returns {Blocks} */
  withoutHidden(blocks, corner = { row: 0, column: 0 }) {
    const cached =
      this.visible.get(blocks) ??
      (blocks.size === 1 ? this.visibleCells(blocks, corner) : this.visibleBlocks(blocks, corner));
    if (!this.isLoading) this.visible.set(blocks, cached); // else it is drawn again with other weights
    return cached;
  }

  /** @param {Blocks} blocks  Single cells. @param {Corner} corner @returns {Blocks} */
  visibleCells(blocks, corner) {
    const { rows, columns, size } = blocks;
    /** @type {(row: number, column: number) => number} */
    const at = (row, column) =>
      this.hidden[corner.column + column] ? NaN : blocks.at(row, column) / this.divisorOf(corner.row + row);
    return { rows, columns, size, at };
  }

  /** Blocks without what is known of hidden keys; blocks are not rescaled. @param {Blocks} blocks @param {Corner} corner @returns {Blocks} */
  visibleBlocks(blocks, corner) {
    const { size, rows, columns } = blocks;
    const hidden = Array.from({ length: columns }, () => /** @type {number[]} */ ([]));
    for (const key of this.keys) hidden[Math.floor((key - corner.column) / size)]?.push(key);
    const isHidden = hidden.map(
      (keys, column) => keys.length === Math.min(size, this.numKeys - corner.column - column * size),
    );
    /** @type {Map<number, number>} */
    const cached = new Map();
    return {
      rows,
      columns,
      size,
      at: (row, column) => {
        if (isHidden[column]) return NaN;
        if (!hidden[column].length || this.isRemote) return blocks.at(row, column);
        const place = row * columns + column;
        const weight = cached.get(place) ?? this.visibleMean(blocks.at(row, column), row * size, size, hidden[column]);
        cached.set(place, weight);
        return weight;
      },
    };
  }

  /** The mean of a block without hidden keys. @param {number} mean @param {number} start  The first query. @param {number} size @param {number[]} keys  Hidden ones. */
  visibleMean(mean, start, size, keys) {
    const count = Math.min(size, this.queries - start);
    let hidden = 0;
    for (let query = start; query < start + count; query++) {
      for (const key of keys) hidden += this.head.cell(query, key).weight || 0;
    }
    const rest = mean - hidden / count;
    if (this.isSigned) return rest;
    return rest > NOISE * mean || Number.isNaN(mean) ? rest : 0;
  }
}
