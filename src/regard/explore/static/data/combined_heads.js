// Several heads as one: their mean, or their sum.

import { isMasked, Known, summed } from "#data/heads.js";

/**
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {import("#data/heads.js").Cell} Cell
 * @typedef {import("#data/heads.js").Some} Some
 * @typedef {import("#data/heads.js").SquareMap} SquareMap
 * @typedef {import("#data/heads.js").Tile} Tile
 * @typedef {import("#data/layer.js").Layer} Layer
 */

/** How several heads are seen as one. */
export const TOGETHER = ["sum", "mean"];

/** The head that is looked at; of several their sum or their mean. Null before its weights are read. @param {Layer} layer @param {{heads: number[], several: string}} state @returns {Head | null} */
export function headOf(layer, { heads, several }) {
  const head = layer.head(heads);
  return head && heads.length > 1 && several === "sum" ? new Times(head, heads.length) : head;
}

/** Several heads as one: means of what each gives. @param {Head[]} heads @returns {Head} */
export function together(heads) {
  return heads.length === 1 ? heads[0] : new Mean(heads);
}

/** The mean of several heads. What one of them leaves out is left out. @implements {Head} */
class Mean extends Known {
  /** @param {Head[]} heads */
  constructor(heads) {
    super();
    this.heads = heads;
    this.whole = heads.every(({ whole }) => whole);
    this.exact = heads.every(({ exact }) => exact);
    this.squares = MeanSquares.of(heads.map(({ squares }) => squares));
    this.finest = MeanSquares.of(heads.map(({ squares, finest }) => finest ?? squares));
    /** @type {Head["sum"]} */
    this.sum = heads.every(({ sum }) => sum)
      ? (queries, keys) => mean(heads.map((head) => head.sum?.(queries, keys) ?? null))
      : undefined;
    /** @type {Head["finer"]} */
    this.finer = heads.every(({ finer }) => finer)
      ? (...seen) => meanTiles(heads.map((head) => head.finer?.(...seen) ?? []))
      : undefined;
  }

  /** @param {number} query */
  prepare(query) {
    for (const head of this.heads) head.prepare?.(query);
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return this.heads.every((head) => isMasked(head, query, key));
  }

  /** @param {number[]} queries @param {number[]} keys */
  async ask(queries, keys = []) {
    for (const head of this.heads) await head.ask(queries, keys);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const cells = this.heads.map((head) => head.cell(query, key));
    const seen = cells.filter(({ state }) => state !== "masked");
    if (seen.length === 0) return cells[0];
    const most = seen.reduce((sum, cell) => sum + cell.most, 0) / cells.length;
    const known = seen.every(({ state }) => state === "known");
    return { state: known ? "known" : "unknown", weight: known ? most : NaN, most };
  }

  /** @param {number} query @returns {Some} */
  row(query) {
    return summed(
      this.heads.map((head) => head.row(query)),
      ({ key }) => key,
      1 / this.heads.length,
    );
  }

  /** @param {number} key @returns {Some} */
  column(key) {
    return summed(
      this.heads.map((head) => head.column(key)),
      ({ query }) => query,
      1 / this.heads.length,
    );
  }
}

/** So many times a head: of the mean of some their sum. @implements {Head} */
class Times extends Known {
  /** @param {Head} head @param {number} times */
  constructor(head, times) {
    super();
    this.head = head;
    this.times = times;
    this.whole = head.whole;
    this.exact = head.exact;
    this.finest = head.finest && ScaledSquares.of(head.finest, times);
    const { sum, inTokens, finer } = head;
    /** @type {Head["sum"]} */
    this.sum = sum && ((queries, keys) => scaled(sum.call(head, queries, keys), times));
    /** @type {Head["inTokens"]} */
    this.inTokens = inTokens && ((region) => ({ ...inTokens(region), head: new Times(inTokens(region).head, times) }));
    /** @type {Head["finer"]} */
    this.finer =
      finer &&
      ((cell, from, to) =>
        finer.call(head, cell, from, to).map((tile) => ({ ...tile, squares: ScaledSquares.of(tile.squares, times) })));
  }

  get squares() {
    return ScaledSquares.of(this.head.squares, this.times);
  }

  /** @param {number} query */
  prepare(query) {
    this.head.prepare?.(query);
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return isMasked(this.head, query, key);
  }

  /** @param {number[]} queries @param {number[]} keys */
  ask(queries, keys = []) {
    return this.head.ask(queries, keys);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const { state, weight, most } = this.head.cell(query, key);
    return { state, weight: this.times * weight, most: this.times * most };
  }

  /** @param {number} query @returns {Some} */
  row(query) {
    return this.of(this.head.row(query));
  }

  /** @param {number} key @returns {Some} */
  column(key) {
    return this.of(this.head.column(key));
  }

  /** @param {Some} some @returns {Some} */
  of({ links, left, ...more }) {
    return {
      ...more,
      links: links.map((link) => ({ ...link, weight: this.times * link.weight })),
      left: this.times * left,
    };
  }
}

/** @param {number | null} number @param {number} factor */
function scaled(number, factor) {
  return number === null ? null : factor * number;
}

/** Null where one is. @param {(number | null)[]} numbers */
function mean(numbers) {
  return numbers.includes(null)
    ? null
    : /** @type {number[]} */ (numbers).reduce((sum, number) => sum + number / numbers.length, 0);
}

/** The means of those tiles that are there of every head. @param {Tile[][]} tiles @returns {Tile[]} */
function meanTiles([first, ...others]) {
  return first.flatMap((tile) => {
    const same = others.map((all) =>
      all.find(
        ({ row, column, squares }) => row === tile.row && column === tile.column && squares.size === tile.squares.size,
      ),
    );
    return same.includes(undefined)
      ? []
      : [{ ...tile, squares: MeanSquares.of([tile, .../** @type {Tile[]} */ (same)].map(({ squares }) => squares)) }];
  });
}

/** @type {WeakMap<SquareMap, {squares: SquareMap[], mean: MeanSquares}>} */
const means = new WeakMap(); // of squares with others, by the first: who has drawn them knows them again
/** @type {WeakMap<SquareMap, Map<number, ScaledSquares>>} */
const multiples = new WeakMap();

/** So many times what squares give. @implements {SquareMap} */
class ScaledSquares {
  /** @param {SquareMap} squares @param {number} factor */
  constructor(squares, factor) {
    this.squares = squares;
    this.factor = factor;
    this.rows = squares.rows;
    this.columns = squares.columns;
    this.size = squares.size;
  }

  /** The same for the same squares. @param {SquareMap} squares @param {number} factor */
  static of(squares, factor) {
    const known = multiples.get(squares) ?? new Map();
    multiples.set(squares, known);
    if (!known.has(factor)) known.set(factor, new ScaledSquares(squares, factor));
    return /** @type {ScaledSquares} */ (known.get(factor));
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    return this.factor * this.squares.at(row, column);
  }
}

/** The mean of what squares of the same places give. @implements {SquareMap} */
class MeanSquares {
  /** The same for the same squares. @param {SquareMap[]} squares */
  static of(squares) {
    const known = means.get(squares[0]);
    if (
      known &&
      known.squares.length === squares.length &&
      known.squares.every((each, index) => each === squares[index])
    )
      return known.mean;
    const made = { squares, mean: new MeanSquares(squares) };
    means.set(squares[0], made);
    return made.mean;
  }

  /** @param {SquareMap[]} squares */
  constructor(squares) {
    this.all = squares;
    this.rows = squares[0].rows;
    this.columns = squares[0].columns;
    this.size = squares[0].size;
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    let [sum, seen] = [0, false];
    for (const each of this.all) {
      const weight = each.at(row, column);
      if (Number.isNaN(weight)) continue;
      sum += weight;
      seen = true;
    }
    return seen ? sum / this.all.length : NaN;
  }
}
