// What is known of a head: all its weights, or a sketch of them. What is not known is said, never shown as zero.

import { Squares } from "#data/page_format.js";

/**
 * @typedef {import("#data/page_format.js").Reader} Reader
 * @typedef {import("#data/layer.js").Layer} Layer
 * @typedef {{rows: number, columns: number, size: number, at(row: number, column: number): number}} SquareMap  Squares, or the mean of some.
 * @typedef {{query: number, key: number, weight: number}} Link  One weight and where it stands; a masked cell has none.
 * @typedef {{state: "known" | "masked" | "unknown" | "hidden", weight: number, most: number}} Cell
 *   `most` is what the weight of an unknown cell can be at most.
 * @typedef {{links: Link[], left: number, waiting?: boolean, rough?: boolean, unscaled?: boolean}} Some
 *   Links, strongest first, and the mass of those that are not among them: roughly, or exactly; `waiting` where a server was
 *   asked for them; `unscaled` where weights were to be rescaled, but could not be in some of the rows.
 * @typedef {{row: number, column: number}} Spot
 * @typedef {Spot & {squares: SquareMap}} Tile  Squares, and the cell where they begin.
 * @typedef {{squares: SquareMap, cell(query: number, key: number): Cell, row(query: number): Some, column(key: number): Some,
 *   rows(queries: number[]): Some, prepare?(query: number): void, columnsOf(keys: number[]): Some, whole: boolean, exact?: boolean, finest?: SquareMap,
 *   ask(queries: number[], keys?: number[]): Promise<void>, sum?(queries: [number, number], keys: [number, number]): number | null, times?: number,
 *   finer?: (cell: number, from: Spot, to: Spot) => Tile[], isMasked?: (query: number, key: number) => boolean,
 *   inTokens?: (region: import("#state/store.js").Region) => import("#state/store.js").Region & {head: Head}}} Head
 *   `rows` is the mean of several rows, `columnsOf` the sum of several columns. `ask` has a server tell rows and columns, and `sum` what some
 *   rows give to some columns, each from the first to the last; null while that is on its way. `finer` gives smaller squares of a part of
 *   the matrix, those that are there, for cells of so many CSS pixels, and `finest` are the smallest that a file has of all. Of a sum of heads, `times` is how many they are.
 */

/** What every head can tell of several rows and columns. @abstract */
export class Known {
  /** @param {number} query @returns {Some} */
  row(query) {
    throw new Error(`a head tells nothing of row ${query}`);
  }

  /** @param {number} key @returns {Some} */
  column(key) {
    throw new Error(`a head tells nothing of column ${key}`);
  }

  /** The mean of some rows. @param {number[]} queries @returns {Some} */
  rows(queries) {
    return queries.length === 1
      ? this.row(queries[0])
      : summed(
          queries.map((query) => this.row(query)),
          ({ key }) => key,
          1 / queries.length,
        );
  }

  /** Have some rows and columns told, where a server has to. @param {number[]} _queries @param {number[]} _keys @returns {Promise<void>} */
  async ask(_queries, _keys = []) {}

  /** The sum of some columns. @param {number[]} keys @returns {Some} */
  columnsOf(keys) {
    return keys.length === 1
      ? this.column(keys[0])
      : summed(
          keys.map((key) => this.column(key)),
          ({ query }) => query,
          1,
        );
  }
}

/** A head of which every weight is known. @implements {Head} */
export class Whole extends Known {
  /** @param {Squares} squares */
  constructor(squares) {
    super();
    this.squares = squares;
    this.whole = true;
  }

  /** @param {Reader} reader @param {Layer} layer @returns {Head[]} */
  static all(reader, layer) {
    return reader
      .codes(layer.codes, layer.heads.length, [layer.queries.length, layer.keys.length])
      .map((squares) => new Whole(squares));
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const weight = this.squares.at(query, key);
    return { state: Number.isNaN(weight) ? "masked" : "known", weight, most: weight };
  }

  /** @param {number} query @returns {Some} */
  row(query) {
    return ranked(this.squares.columns, (key) => ({ query, key, weight: this.squares.at(query, key) }));
  }

  /** @param {number} key @returns {Some} */
  column(key) {
    return ranked(this.squares.rows, (query) => ({ query, key, weight: this.squares.at(query, key) }));
  }
}

/** A head of which the map is known, the strongest keys of each row, and what each key receives. @implements {Head} */
export class Sketch extends Known {
  /**
   * @param {Squares} squares @param {Uint16Array | Uint32Array} keys @param {Float32Array} weights @param {Float32Array} left
   * @param {Float32Array} received @param {{allows(query: number, key: number): boolean | null}} runs  null: what the mask allows is not told.
   */
  constructor(squares, keys, weights, left, received, runs, levels = /** @type {Squares[]} */ ([])) {
    super();
    this.squares = squares;
    this.keys = keys; // (queries, strongest)
    this.weights = weights;
    this.left = left; // (queries,)
    this.received = received; // (keys,)
    this.runs = runs;
    this.levels = levels; // maps of smaller squares, if there are any
    this.finest = levels.at(-1) ?? squares;
    this.strongest = keys.length / left.length;
    this.whole = false;
    /** @type {Map<number, Link[]> | null} */
    this.columns = null;
  }

  /** @param {Reader} reader @param {Layer} layer @returns {Head[]} */
  static all(reader, layer) {
    const { size, map, finer, strongest, mask } = /** @type {Required<import("#data/recording.js").LayerHeader>} */ (
      layer.header
    );
    const [heads, queries, keys] = [layer.heads.length, layer.queries.length, layer.keys.length];
    const squares = reader.codes(layer.codes, heads, map, size);
    const named = reader.integers(heads * queries * strongest, keys <= 2 ** 16 ? 2 : 4);
    const [weights, left] = [reader.integers(heads * queries * strongest, 2), reader.integers(heads * queries, 2)].map(
      (codes) => Float32Array.from(codes, (code) => layer.codes.weights[code]),
    );
    const received = reader.halves(heads * keys);
    const runs = mask ? Runs.from(reader, queries, mask) : mask === 0 ? { allows: () => true } : { allows: () => null };
    const levels = finer.map((level) => reader.codes(layer.codes, heads, level.map, level.size));
    /** @template {Uint16Array | Uint32Array | Float32Array} Numbers @param {Numbers} numbers @param {number} width @param {number} head */
    const part = (numbers, width, head) => /** @type {Numbers} */ (numbers.subarray(head * width, (head + 1) * width));
    return squares.map(
      (each, head) =>
        new Sketch(
          each,
          part(named, queries * strongest, head),
          part(weights, queries * strongest, head),
          part(left, queries, head),
          part(received, keys, head),
          runs,
          levels.map((all) => all[head]),
        ),
    );
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const from = query * this.strongest;
    const place = this.keys.subarray(from, from + this.strongest).indexOf(key);
    const allowed = this.runs.allows(query, key);
    if (allowed === false) return { state: "masked", weight: NaN, most: 0 };
    const weight = place < 0 ? 0 : this.weights[from + place];
    if (place >= 0 && (weight > 0 || allowed)) return { state: "known", weight, most: weight };
    return { state: "unknown", weight: NaN, most: Math.min(this.weights[from + this.strongest - 1], this.left[query]) };
  }

  /** @param {number} query @returns {Some} */
  row(query) {
    const from = query * this.strongest;
    const links = Array.from({ length: this.strongest }, (_, place) => ({
      query,
      key: this.keys[from + place],
      weight: this.weights[from + place],
    }));
    return {
      links: links.filter(({ key, weight }) => weight > 0 || this.runs.allows(query, key)),
      left: this.left[query],
    };
  }

  /** The smallest squares that take a pixel. @param {number} cell @returns {Tile[]} */
  finer(cell) {
    const squares = this.levels.findLast(({ size }) => size * cell >= 1);
    return squares ? [{ squares, row: 0, column: 0 }] : [];
  }

  /** @param {number} key @returns {Some} */
  column(key) {
    this.columns ??= this.byKey();
    const links = this.columns.get(key) ?? [];
    const left = Math.max(0, this.received[key] - links.reduce((sum, { weight }) => sum + weight, 0));
    return links.length && left > 0 ? { links, left, rough: true } : { links, left }; // by what each link is rounded, the rest is wrong
  }

  byKey() {
    /** @type {Map<number, Link[]>} */
    const found = new Map();
    for (let place = 0; place < this.keys.length; place++) {
      const [query, key, weight] = [Math.floor(place / this.strongest), this.keys[place], this.weights[place]];
      if (weight === 0) continue;
      const links = found.get(key) ?? [];
      links.push({ query, key, weight });
      found.set(key, links);
    }
    for (const links of found.values()) links.sort((a, b) => b.weight - a.weight);
    return found;
  }
}

/** Which keys each row may see, as runs. */
class Runs {
  /** @param {Uint32Array} starts @param {Uint32Array} places */
  constructor(starts, places) {
    this.starts = starts; // where the boundaries of each row begin
    this.places = places;
  }

  /** @param {Reader} reader @param {number} rows @param {number} boundaries */
  static from(reader, rows, boundaries) {
    const counts = reader.integers(rows, 4);
    const places = /** @type {Uint32Array} */ (reader.integers(boundaries, 4));
    for (let index = 1; index < boundaries; index++) places[index] += places[index - 1]; // modulo 2³²
    const starts = new Uint32Array(rows + 1);
    for (let row = 0; row < rows; row++) starts[row + 1] = starts[row] + counts[row];
    return new Runs(starts, places);
  }

  /** @param {number} row @param {number} key */
  allows(row, key) {
    let passed = 0;
    for (let index = this.starts[row]; index < this.starts[row + 1] && this.places[index] <= key; index++) passed++;
    return passed % 2 === 1;
  }
}

/** Links of the cells that are not masked, strongest first. @param {number} count @param {(index: number) => Link} link @returns {Some} */
function ranked(count, link) {
  const links = Array.from({ length: count }, (_, index) => link(index)).filter(({ weight }) => !Number.isNaN(weight));
  return { links: links.sort((a, b) => b.weight - a.weight), left: 0 };
}

/** Links that meet at a place, added up. @param {Some[]} all @param {(link: Link) => number} place @param {number} factor @returns {Some} */
export function summed(all, place, factor) {
  /** @type {Map<number, Link>} */
  const sums = new Map();
  for (const link of all.flatMap(({ links }) => links)) {
    const sum = sums.get(place(link)) ?? { ...link, weight: 0 };
    sum.weight += factor * link.weight;
    sums.set(place(link), sum);
  }
  return {
    links: [...sums.values()].sort((a, b) => b.weight - a.weight),
    left: all.reduce((sum, { left }) => sum + factor * left, 0),
    waiting: all.some(({ waiting }) => waiting),
    rough: all.some(({ rough }) => rough),
    unscaled: all.some(({ unscaled }) => unscaled),
  };
}

/** Whether the mask forbids a cell, as far as that is known without asking. @param {Head} head @param {number} query @param {number} key */
export function isMasked(head, query, key) {
  return head.isMasked ? head.isMasked(query, key) : head.cell(query, key).state === "masked";
}
