// One attention head: all of its weights, or a sketch of them. What is not stored is reported as such, never as zero.

import { rankEntries, sumRanked } from "#data/ranked.js";

/**
 * @import { BlockMap } from '#data/page_format.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @typedef {{allows(query: number, key: number): boolean | null}} Mask  Null if it is not known.
 * @typedef {{rows: number, columns: number, size: number, at(row: number, column: number): number}} Blocks  A BlockMap, or what is computed from some.
 * @typedef {{state: "known" | "masked" | "unknown" | "hidden", weight: number, upperBound: number, error: number}} Cell
 *   `upperBound` is the largest weight that an unknown cell can have; `error` is how far a known weight may be from the exact one.
 * @typedef {{sum: number | null, error: number, approximate: boolean}} RegionSum  `sum` is null while it is loading.
 * @typedef {{rows: Float64Array | null, error: number, approximate: boolean}} RegionRows  Sums of rows; null while they are loading.
 * @typedef {{row: number, column: number}} Corner
 * @typedef {Corner & {blocks: Blocks}} Tile  A part of the matrix, and the cell where it begins.
 */

const MAX_SUMS = 4; // of rows and columns that are remembered
const MAX_SUMMED_CELLS = 70_000; // of a region whose cells are added one by one

/**
 * The sum of some cells, divided by a number; masked and hidden ones count as 0. What is unknown of one is unknown of the sum.
 * @param {Cell[]} cells @param {number} divisor @param {number} limit  The largest sum that there can be. @returns {Cell}
 */
export function combineCells(cells, divisor, limit = Infinity) {
  const visible = cells.filter(({ state }) => state !== "masked" && state !== "hidden");
  if (visible.length === 0) return cells[0];
  /** @type {(field: "upperBound" | "error") => number} */
  const sum = (field) => visible.reduce((total, cell) => total + cell[field], 0) / divisor;
  const known = visible.every(({ state }) => state === "known");
  const upperBound = Math.min(sum("upperBound"), limit);
  return { state: known ? "known" : "unknown", weight: known ? upperBound : NaN, upperBound, error: sum("error") };
}

/**
 * A sum of rows or columns of a sketch lists what some of them store, although others may add to it: what they add at most
 * is part of the error. @param {Ranked} ranked @param {(entry: Entry) => Cell} cellOf  The sum at an entry. @returns {Ranked}
 */
export function withBounds(ranked, cellOf) {
  if (ranked.isComplete || ranked.loading) return ranked;
  const entries = ranked.entries.map((entry) => {
    const { state, upperBound } = cellOf(entry);
    return state === "unknown" ? { ...entry, error: Math.max(entry.error, upperBound - entry.weight) } : entry;
  });
  return { ...ranked, entries };
}

/** @param {Blocks} blocks */
function largestSize(blocks) {
  let largest = 0;
  for (let row = 0; row < blocks.rows; row++) {
    for (let column = 0; column < blocks.columns; column++)
      largest = Math.max(largest, Math.abs(blocks.at(row, column)) || 0);
  }
  return largest || 1;
}

/** What every head has. @abstract */
export class BaseHead {
  /** @param {number} numKeys */
  constructor(numKeys) {
    this.numKeys = numKeys;
    /** Whether every weight is known. */
    this.isDense = false;
    /** Whether every weight can be loaded exactly. */
    this.isRemote = false;
    /** Whether some weights are not known. */
    this.isPartial = false;
    /** How many heads this one is the sum of. */
    this.numHeads = 1;
    /** Whether its cells are not weights, but gradients or what follows from these. */
    this.isSigned = false;
    this.largestSize = 0; // once it is known
    /** @type {Map<string, Ranked>} */
    this.sums = new Map();
  }

  /** Where colors and widths end: 1 of weights, and of signed values the largest size. @returns {number} */
  get scaleEnd() {
    if (!this.isSigned) return 1;
    this.largestSize ||= largestSize(this.blocks);
    return this.largestSize;
  }

  /** The largest sum of a row. */
  get limit() {
    return this.isSigned ? Infinity : this.numHeads;
  }

  /** The whole matrix, in blocks. @returns {Blocks} */
  get blocks() {
    throw new Error("a head has blocks");
  }

  /** The whole matrix in the smallest blocks that the page has. @returns {Blocks} */
  get finestBlocks() {
    return this.blocks;
  }

  /** Smaller blocks of a part of the matrix, those that are loaded, for cells of some CSS pixels. @param {number} _cell @param {Corner} _from @param {Corner} _to @returns {Tile[]} */
  tiles(_cell, _from, _to) {
    return [];
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    throw new Error(`a head has a cell at ${query}, ${key}`);
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    throw new Error(`a head has a row ${query}`);
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    throw new Error(`a head has a column ${key}`);
  }

  /** The mean of several rows. @param {number[]} queries @returns {Ranked} */
  rows(queries) {
    if (queries.length === 1) return this.row(queries[0]);
    if (!this.requestAll(queries, [])) return { entries: [], rest: 0, loading: true };
    return this.remember(`rows ${queries}`, () => {
      const rows = queries.map((query) => this.row(query));
      const mean = sumRanked(rows, ({ key }) => key, 1 / queries.length);
      /** @type {(entry: Entry) => Cell[]} */
      const cells = ({ key }) => queries.map((query) => this.cell(query, key));
      return withBounds(mean, (entry) => combineCells(cells(entry), queries.length));
    });
  }

  /** The sum of several columns. @param {number[]} keys @returns {Ranked} */
  columns(keys) {
    if (keys.length === 1) return this.column(keys[0]);
    if (!this.requestAll([], keys)) return { entries: [], rest: 0, loading: true };
    return this.remember(`columns ${keys}`, () => {
      const columns = keys.map((key) => this.column(key));
      const sum = sumRanked(columns, ({ query }) => query, 1);
      /** @type {(entry: Entry) => Cell[]} */
      const cells = ({ query }) => keys.map((key) => this.cell(query, key));
      return withBounds(sum, (entry) => combineCells(cells(entry), 1, this.limit));
    });
  }

  /** The last sums, which every view wants in every frame. @param {string} name @param {() => Ranked} compute */
  remember(name, compute) {
    const cached = this.sums.get(name);
    if (cached) return cached;
    const ranked = compute();
    if (ranked.loading) return ranked;
    if (this.sums.size >= MAX_SUMS) this.sums.clear();
    this.sums.set(name, ranked);
    return ranked;
  }

  /** Request rows and columns together. Whether all are there. @param {number[]} _queries @param {number[]} _keys */
  requestAll(_queries, _keys) {
    return true;
  }

  /** Whether the mask excludes a cell, as far as that is known without loading anything. @param {number} query @param {number} key */
  isMasked(query, key) {
    return this.cell(query, key).state === "masked";
  }

  /** Load a row that will be shown soon. @param {number} _query */
  prefetch(_query) {}

  /** Load rows and columns, and hand them over as they come. @param {number[]} _queries @param {number[]} _keys @returns {Promise<void>} */
  async fetch(_queries, _keys) {}

  /**
   * The sum of the weights from the first to the last query and key.
   * @param {[number, number]} queries @param {[number, number]} keys @returns {RegionSum}
   */
  regionSum(queries, keys) {
    const { rows, error, approximate } = this.regionRows(queries, keys, []);
    return { sum: rows?.reduce((sum, row) => sum + row, 0) ?? null, error, approximate };
  }

  /**
   * What each row of a region gives to its keys.
   * @param {[number, number]} queries @param {[number, number]} keys @param {number[]} _hidden  Keys that a server does not count. @returns {RegionRows}
   */
  regionRows(queries, keys, _hidden) {
    const count = (queries[1] - queries[0] + 1) * (keys[1] - keys[0] + 1);
    const cells = this.isDense || count <= MAX_SUMMED_CELLS ? this.sumCells(queries, keys) : null;
    return cells ?? { rows: this.sumBlocks(queries, keys), error: 0, approximate: true };
  }

  /** Null if a cell is not known. @param {[number, number]} queries @param {[number, number]} keys @returns {RegionRows | null} */
  sumCells([top, bottom], [left, right]) {
    const rows = new Float64Array(bottom - top + 1);
    let error = 0;
    for (let query = top; query <= bottom; query++) {
      for (let key = left; key <= right; key++) {
        const cell = this.cell(query, key);
        if (cell.state === "unknown") return null;
        if (cell.state !== "known") continue;
        rows[query - top] += cell.weight;
        error += cell.error;
      }
    }
    return { rows, error, approximate: false };
  }

  /** As if all weights of a block were the same. @param {[number, number]} queries @param {[number, number]} keys */
  sumBlocks([top, bottom], keys) {
    const blocks = this.finestBlocks;
    const { size } = blocks;
    const [first, last] = keys.map((key) => Math.floor(key / size));
    const shares = Array.from({ length: last - first + 1 }, (_, index) => this.shareOfBlock(first + index, size, keys));
    return Float64Array.from({ length: bottom - top + 1 }, (_, index) => {
      const row = Math.floor((top + index) / size);
      return shares.reduce((sum, share, column) => sum + share * (blocks.at(row, first + column) || 0), 0);
    });
  }

  /** Which share of a block's keys is in a range; the last block may have fewer keys than others. @param {number} column @param {number} size @param {[number, number]} keys */
  shareOfBlock(column, size, [left, right]) {
    const [start, end] = [column * size, Math.min((column + 1) * size, this.numKeys)];
    return (Math.min(end - 1, right) - Math.max(start, left) + 1) / (end - start);
  }
}

/** A head whose cells are all known. @abstract */
export class CompleteHead extends BaseHead {
  /** @param {number} rows @param {number} columns @param {{error?: number, hasSinks?: boolean}} options  `error` is how far a weight may be from the exact one. */
  constructor(rows, columns, { error = 0, hasSinks = false } = {}) {
    super(columns);
    this.numQueries = rows;
    this.error = error;
    this.hasSinks = hasSinks;
    /** @type {ArrayLike<number>[] | null} */
    this.keyOrder = null;
    /** @type {ArrayLike<number>[] | null} */
    this.queryOrder = null;
  }

  /** @param {number} query @param {number} key @returns {number} NaN where masked. */
  weight(query, key) {
    throw new Error(`a head has a weight at ${query}, ${key}`);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const weight = this.weight(query, key);
    return { state: Number.isNaN(weight) ? "masked" : "known", weight, upperBound: weight, error: this.error };
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const entries = this.entriesOf(this.numKeys, (key) => [query, key]);
    const total = this.hasSinks ? null : entries.length ? 1 : 0;
    return { ...rankEntries(entries, this.keyOrder?.[query]), total };
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    const entries = this.entriesOf(this.numQueries, (query) => [query, key]);
    return rankEntries(entries, this.queryOrder?.[key]);
  }

  /** @param {number} count @param {(index: number) => [number, number]} place @returns {Entry[]} */
  entriesOf(count, place) {
    const entries = [];
    for (let index = 0; index < count; index++) {
      const [query, key] = place(index);
      const { state, weight, error } = this.cell(query, key);
      if (state === "known") entries.push({ query, key, weight, error });
    }
    return entries;
  }
}

/** A head whose weights are all stored, or follow from query and key. */
export class DenseHead extends CompleteHead {
  /**
   * @param {BlockMap} blocks  All weights.
   * @param {{error: number, hasSinks: boolean, exactRow?: ((query: number) => Float32Array) | null,
   *   keyOrder?: ArrayLike<number>[] | null, queryOrder?: ArrayLike<number>[] | null}} options
   *   `error` is how far a stored weight may be from the exact one; `exactRow` computes a row from query and key; `keyOrder` and
   *   `queryOrder` say in which order the strongest of each row and column are, see `rankEntries`.
   */
  constructor(blocks, { error, hasSinks, exactRow = null, keyOrder = null, queryOrder = null }) {
    super(blocks.rows, blocks.columns, { error: exactRow ? 0 : error, hasSinks });
    this.isDense = true;
    this.stored = blocks;
    this.exactRow = exactRow;
    this.keyOrder = keyOrder;
    this.queryOrder = queryOrder;
  }

  get blocks() {
    return this.stored;
  }

  /** @param {number} query @param {number} key  NaN where masked. */
  weight(query, key) {
    return this.exactRow ? this.exactRow(query)[key] : this.stored.at(query, key);
  }
}

/** A head for which the page has maps, the strongest keys of each row, and what each key receives. */
export class SketchHead extends BaseHead {
  /**
   * @param {{levels: BlockMap[], topKeys: ArrayLike<number>, topWeights: Float32Array, rest: Float32Array, received: ArrayLike<number>,
   *   mask: Mask, error: number, hasSinks: boolean}} data
   *   `levels` are maps, the coarsest first; `topKeys` and `topWeights` are (queries, k); `rest` is what they leave of each row.
   */
  constructor({ levels, topKeys, topWeights, rest, received, mask, error, hasSinks }) {
    super(received.length);
    this.isPartial = true;
    this.levels = levels;
    this.topKeys = topKeys;
    this.topWeights = topWeights;
    this.rest = rest;
    this.received = received;
    this.mask = mask;
    this.error = error;
    this.hasSinks = hasSinks;
    this.k = topKeys.length / rest.length;
    /** @type {Map<number, Entry[]> | null} */
    this.byKey = null;
  }

  get blocks() {
    return this.levels[0];
  }

  get finestBlocks() {
    return this.levels[this.levels.length - 1];
  }

  /** The smallest blocks that take a pixel. @param {number} cell @returns {Tile[]} */
  tiles(cell) {
    const blocks = this.levels.slice(1).findLast(({ size }) => size * cell >= 1);
    return blocks ? [{ blocks, row: 0, column: 0 }] : [];
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const start = query * this.k;
    let at = start;
    while (at < start + this.k && this.topKeys[at] !== key) at++;
    const isStored = at < start + this.k;
    const allowed = this.mask.allows(query, key);
    if (allowed === false) return { state: "masked", weight: NaN, upperBound: 0, error: 0 };
    const weight = isStored ? this.topWeights[at] : 0;
    if (isStored && (weight > 0 || allowed)) return { state: "known", weight, upperBound: weight, error: this.error };
    const upperBound = Math.min(this.topWeights[start + this.k - 1], this.rest[query]) + this.error;
    return { state: "unknown", weight: NaN, upperBound, error: 0 };
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const entries = [];
    for (let at = query * this.k; at < (query + 1) * this.k; at++) {
      const [key, weight] = [this.topKeys[at], this.topWeights[at]];
      if (weight > 0 || this.mask.allows(query, key)) entries.push({ query, key, weight, error: this.error });
    }
    const rest = this.rest[query];
    const total = this.hasSinks ? null : entries.length || rest > 0 ? 1 : 0;
    return { entries, rest, total, numOrdered: entries.length, isComplete: rest === 0 };
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    this.byKey ??= this.groupByKey();
    const entries = this.byKey.get(key) ?? [];
    const rest = Math.max(0, this.received[key] - entries.reduce((sum, { weight }) => sum + weight, 0));
    return { entries, rest, approximate: rest > 0 && entries.length > 0, isComplete: rest === 0 };
  }

  groupByKey() {
    /** @type {Map<number, Entry[]>} */
    const found = new Map();
    for (let at = 0; at < this.topKeys.length; at++) {
      const [query, key, weight] = [Math.floor(at / this.k), this.topKeys[at], this.topWeights[at]];
      if (weight === 0) continue;
      const entries = found.get(key) ?? [];
      entries.push({ query, key, weight, error: this.error });
      found.set(key, entries);
    }
    for (const entries of found.values()) entries.sort((a, b) => b.weight - a.weight);
    return found;
  }
}
