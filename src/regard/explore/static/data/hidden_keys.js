// A head without the keys that are left out, the others as they are or rescaled.

import { isMasked, Known } from "#data/heads.js";

/**
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {import("#data/heads.js").Cell} Cell
 * @typedef {import("#data/heads.js").Some} Some
 */

const LEAST = 0.01; // a row that leaves less than this is not rescaled: the numbers that are stored are not so exact
const NOISE = 0.02; // what remains of a square is no more than this share of it where nothing may remain

/** A head without some of its keys. @implements {Head} */
export class Reduced extends Known {
  /**
   * @param {Head} head @param {{hidden: boolean[], queries: number, rescale: boolean, sinks: boolean, remote: boolean}} how
   *   Whether each key is left out; how many rows there are; whether the weights that remain of a row are divided by 1 − those
   *   that do not; whether something that is no key takes part of each row, so that it does not add up to 1; whether
   *   a server tells each row when it is asked.
   */
  constructor(head, { hidden, queries, rescale, sinks, remote }) {
    super();
    this.head = head;
    this.hidden = hidden;
    this.queries = queries;
    this.rescale = rescale;
    this.sinks = sinks;
    this.whole = head.whole;
    this.remote = remote;
    this.exact = head.exact;
    /** @type {Head["finer"]} */
    this.finer =
      head.finer &&
      ((...part) =>
        (head.finer?.(...part) ?? []).map((tile) =>
          remote ? tile : { ...tile, squares: this.without(tile.squares) },
        ));
    this.isMasked =
      head.isMasked && ((/** @type {number} */ query, /** @type {number} */ key) => isMasked(head, query, key));
    this.keys = hidden.flatMap((is, key) => (is ? [key] : []));
    this.shares = new Map(); // of rows
    /** @type {WeakMap<import("#data/heads.js").SquareMap, import("#data/heads.js").SquareMap>} */
    this.maps = new WeakMap(); // by those of the head, made when they are first asked for
  }

  /** @param {number[]} queries @param {number[]} keys */
  ask(queries, keys = []) {
    return this.head.ask(queries, keys);
  }

  get squares() {
    return this.without(this.head.squares);
  }

  /** @returns {Cell} */
  cell(query, key) {
    const cell = this.head.cell(query, key);
    if (this.hidden[key]) return { state: "hidden", weight: NaN, most: 0 };
    const share = this.share(query) ?? 1;
    return { state: cell.state, weight: cell.weight / share, most: Math.min(cell.most / share, 1) };
  }

  /** @returns {Some} */
  row(query) {
    const { links, left, waiting } = this.head.row(query);
    const share = this.share(query);
    return {
      links: links
        .filter(({ key }) => !this.hidden[key])
        .map((link) => ({ ...link, weight: link.weight / (share ?? 1) })),
      left: left / (share ?? 1),
      waiting,
      unscaled: share === null,
    };
  }

  /** @returns {Some} */
  column(key) {
    if (this.hidden[key]) return { links: [], left: 0 };
    const { links, left, rough, waiting } = this.head.column(key);
    // A server would have to be asked for every row.
    const shares = new Map(links.map(({ query }) => [query, this.remote && this.rescale ? null : this.share(query)]));
    const scaled = links.map((link) => ({ ...link, weight: link.weight / (shares.get(link.query) ?? 1) }));
    return {
      links: scaled.sort((a, b) => b.weight - a.weight),
      left,
      rough: rough || (this.rescale && left > 0), // of rows that are not told
      waiting,
      unscaled: [...shares.values()].includes(null),
    };
  }

  /** What weights of a row are divided by: what it leaves to keys that are shown. Null where that is not known, or too little. */
  share(query) {
    if (!this.rescale) return 1;
    if (this.remote) return this.shareOf(query); // what is not known yet will be
    if (!this.shares.has(query)) this.shares.set(query, this.shareOf(query));
    return this.shares.get(query);
  }

  shareOf(query) {
    if (!this.whole && !this.remote && this.keys.some((key) => this.head.cell(query, key).state === "unknown"))
      return null;
    const { links, left, waiting } = this.head.row(query);
    if (waiting) return null;
    let [out, rest] = [0, left];
    for (const { key, weight } of links) {
      if (this.hidden[key]) out += weight;
      else rest += weight;
    }
    if (out === 0) return 1;
    // Without sinks both are the same, but small weights are stored more exactly than 1 − a large one.
    const share = this.sinks ? 1 - out : rest;
    return share < LEAST ? null : share;
  }

  get finest() {
    return this.without(this.head.finest ?? this.head.squares);
  }

  /** The squares of a head without the keys. @param {import("#data/heads.js").SquareMap} squares */
  without(squares) {
    const known = this.maps.get(squares) ?? (this.whole ? this.cells(squares) : this.mapOf(squares));
    this.maps.set(squares, known);
    return known;
  }

  /** The squares of a whole head: its cells. */
  cells(squares) {
    return {
      rows: squares.rows,
      columns: squares.columns,
      size: 1,
      at: (row, column) => (this.hidden[column] ? NaN : squares.at(row, column) / (this.share(row) ?? 1)),
    };
  }

  /** The squares of a sketch: less those of hidden keys alone, and less what is known to go to hidden keys. None is rescaled. */
  mapOf(squares) {
    const { size, rows, columns } = squares;
    const within = Array.from({ length: columns }, (_, column) =>
      this.keys.filter((key) => Math.floor(key / size) === column),
    );
    const all = within.map(({ length }, column) => length === Math.min(size, this.hidden.length - column * size));
    const known = new Map();
    const without = (row, column) => {
      const whole = squares.at(row, column);
      const queries = Array.from({ length: size }, (_, index) => row * size + index).filter(
        (query) => query < this.queries,
      );
      const out =
        queries
          .flatMap((query) => within[column].map((key) => this.head.cell(query, key).weight || 0))
          .reduce((a, b) => a + b, 0) / queries.length;
      const rest = whole - out;
      return Number.isNaN(whole) ? NaN : rest > NOISE * whole ? rest : 0;
    };
    const at = (row, column) => {
      if (all[column]) return NaN;
      if (!within[column].length || this.remote) return squares.at(row, column);
      const place = row * columns + column;
      if (!known.has(place)) known.set(place, without(row, column));
      return known.get(place);
    };
    return { rows, columns, size, at };
  }
}
