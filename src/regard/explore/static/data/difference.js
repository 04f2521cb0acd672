// What one head gives more than another, for the tokens that are in both.

import { aligned, byPlace } from "#data/pairing.js";

/**
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {import("#data/layer.js").Layer} Layer
 * @typedef {import("#data/pairing.js").Alignment} Alignment
 * @typedef {{layer: Layer, against: Layer, rows: Alignment, columns: Alignment, why: string | null}} Pair
 *   Two layers, and how their tokens are aligned; `why` is why there is no difference.
 */

const alignments = new WeakMap(); // of tokens, with others

/** @returns {Alignment} */
function alignmentOf(one, other) {
  const known = alignments.get(one) ?? new WeakMap();
  alignments.set(one, known);
  if (!known.has(other)) known.set(other, aligned(one, other));
  return known.get(other);
}

/** Two layers as a pair: weights are compared where tokens are aligned; squares by place, where there are as many of one size. @param {Layer} layer @param {Layer} against @returns {Pair} */
export function paired(layer, against) {
  const [rows, columns] = [alignmentOf(layer.queries, against.queries), alignmentOf(layer.keys, against.keys)];
  const forms = [layer.header.form, against.header.form];
  if (forms.every((form) => form === "whole")) {
    const why =
      rows.pairs.length && columns.pairs.length ? null : "No token is in both, so there is no difference to show.";
    return { layer, against, rows, columns, why };
  }
  const sizes = [layer, against].map(({ header }) => (header.form === "whole" ? 1 : header.size));
  const counts = [layer, against].map(({ queries, keys }) => `${queries.length} × ${keys.length}`);
  if (counts[0] !== counts[1])
    return {
      layer,
      against,
      rows,
      columns,
      why: `No difference is shown: the texts are long, so the file holds squares of many tokens, and those can be compared only where both have as many tokens (A has ${counts[0]}, B ${counts[1]}).`,
    };
  if (sizes[0] !== sizes[1])
    return {
      layer,
      against,
      rows,
      columns,
      why: `No difference is shown: a square of A is ${sizes[0]} × ${sizes[0]} tokens, and one of B ${sizes[1]} × ${sizes[1]}.`,
    };
  return { layer, against, rows: byPlace(layer.queries.length), columns: byPlace(layer.keys.length), why: null };
}

/** How much more the other head gives than the one: of each aligned row to each aligned column, or of squares. */
export class Difference {
  /** @param {Head} one @param {Head} other @param {Pair} pair */
  constructor(one, other, { rows, columns }) {
    this.size = one.squares.size;
    this.whole = true; // nothing but squares is drawn of it
    this.heads = [one, other];
    this.pairs = [rows.pairs, columns.pairs];
    const single = this.size === 1;
    const [high, wide] = single ? this.pairs.map(({ length }) => length) : [one.squares.rows, one.squares.columns];
    this.places = single ? this.pairs : [byPlace(high).pairs, byPlace(wide).pairs]; // of rows and columns in both
    const values = new Float32Array(high * wide);
    for (let row = 0; row < high; row++) {
      const [here, there] = this.places[0][row];
      for (let column = 0; column < wide; column++) {
        const [key, otherKey] = this.places[1][column];
        values[row * wide + column] = other.squares.at(there, otherKey) - one.squares.at(here, key); // NaN where either is masked
      }
    }
    this.values = values;
    this.squares = { rows: high, columns: wide, size: this.size, at: (row, column) => values[row * wide + column] };
  }

  /** What is known of an aligned cell. @returns {import("#data/heads.js").Cell} */
  cell(row, column) {
    const [one, other] = this.heads.map((head, which) =>
      head.cell(this.pairs[0][row][which], this.pairs[1][column][which]),
    );
    if (one.state === "masked" || other.state === "masked") return { state: "masked", weight: NaN, most: 0 };
    const known = one.state === "known" && other.state === "known";
    return {
      state: known ? "known" : "unknown",
      weight: known ? other.weight - one.weight : NaN,
      most: Math.max(one.most, other.most),
    };
  }

  /** The mean size of the difference over the cells, or squares, that both have; NaN where there are none. */
  mean() {
    let [sum, count] = [0, 0];
    for (const value of this.values) {
      if (Number.isNaN(value)) continue;
      sum += Math.abs(value);
      count++;
    }
    return sum / count;
  }

  /** The largest size of a row. */
  most(row) {
    let found = 0;
    for (let column = 0; column < this.squares.columns; column++)
      found = Math.max(found, Math.abs(this.squares.at(row, column)) || 0);
    return found;
  }
}
