// The matrix by which attention rollout leads from the nodes above a layer to those below it.

import { DenseHead } from "#data/heads.js";

/** @import { Layer } from '#data/layer.js' */

const RESIDUAL = 0.5; // the share of the residual connection
const MIN_WEIGHT = 1e-9; // of a cell that is not masked, so that a flow is 0 only where no path leads

/** A = ½ I + ½ W of a layer, each row divided by its sum, with W the mean of its heads. */
export class RolloutMatrix {
  /** @param {Layer} layer  With its blocks loaded. */
  constructor(layer) {
    const heads = layer.heads ?? [];
    const { rows, columns } = heads[0].blocks;
    this.size = rows;
    this.values = new Float64Array(rows * columns); // the sum of the heads, until it is normalized
    /** How far a value may be from the exact one because a stored weight is, and what each row adds up to is. */
    this.error = 0;
    this.rowErrors = new Float64Array(rows);
    const visibleHeads = new Uint16Array(rows); // that attend to anything
    for (const head of heads) this.addHead(head, visibleHeads);
    const precision = Math.max(...heads.map((head) => (head instanceof DenseHead ? head.error : layer.precision)));
    const isSumKnown = precision > 0 && rowsAddUpToOne(layer);
    const share = (1 - RESIDUAL) / heads.length;
    for (let row = 0; row < rows; row++) {
      const attended = this.normalizeRow(row, share);
      const sumError = isSumKnown
        ? Math.abs(attended - share * visibleHeads[row])
        : (1 - RESIDUAL) * precision * columns;
      this.rowErrors[row] = precision && sumError / (RESIDUAL + attended);
      if (attended > 0) this.error = Math.max(this.error, ((1 - RESIDUAL) * precision) / (RESIDUAL + attended));
    }
  }

  /** @param {import("#data/heads.js").BaseHead} head @param {Uint16Array} visibleHeads */
  addHead(head, visibleHeads) {
    const { blocks } = head;
    const isDense = head instanceof DenseHead;
    for (let row = 0, place = 0; row < this.size; row++) {
      let isVisible = false;
      for (let column = 0; column < this.size; column++, place++) {
        const weight = isDense ? head.weight(row, column) : blocks.at(row, column);
        if (Number.isNaN(weight)) continue; // masked
        isVisible = true;
        this.values[place] += Math.max(weight, MIN_WEIGHT);
      }
      visibleHeads[row] += Number(isVisible);
    }
  }

  /** @param {number} row @param {number} share  Of each head. @returns {number} what the heads have of the row's sum before it is 1 */
  normalizeRow(row, share) {
    const line = this.values.subarray(row * this.size, (row + 1) * this.size);
    const attended = share * line.reduce((sum, weight) => sum + weight, 0);
    for (let column = 0; column < this.size; column++) line[column] *= share / (RESIDUAL + attended);
    line[row] += RESIDUAL / (RESIDUAL + attended);
    return attended;
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    return this.values[row * this.size + column];
  }

  /** Where the flow of the nodes above a layer goes below it, r A. @param {Float64Array} flow */
  propagateDown(flow) {
    const below = new Float64Array(this.size);
    for (let row = 0; row < this.size; row++) {
      if (flow[row] === 0) continue;
      for (let column = 0; column < this.size; column++)
        below[column] += flow[row] * this.values[row * this.size + column];
    }
    return below;
  }

  /** How much of what is at each node above a layer comes to nodes below it, A u. @param {Float64Array} shares  Of the nodes below. */
  propagateUp(shares) {
    return shares.map((_, row) => {
      let sum = 0;
      for (let column = 0; column < this.size; column++) sum += this.values[row * this.size + column] * shares[column];
      return sum;
    });
  }

  /**
   * How far a flow may be from the exact one because of the rounded weights of this layer. With a row w of ½ I + ½ W, its sum s
   * and any number c, the error of A u in this row is (Σ Δw (u − c) + Δs (c − A u)) / s, and Δs is known better than Σ |Δw|.
   * @param {Float64Array} flow  Above. @param {Float64Array} below  The shares u. @param {Float64Array} above  A u.
   */
  errorOf(flow, below, above) {
    if (this.error === 0) return 0;
    const median = below.toSorted()[below.length >> 1];
    const spread = below.reduce((sum, share) => sum + Math.abs(share - median), 0);
    return flow.reduce(
      (sum, part, row) => sum + part * (this.error * spread + this.rowErrors[row] * Math.abs(median - above[row])),
      0,
    );
  }
}

/** Whether every row that attends to anything is known to add up to 1. @param {Layer} layer */
function rowsAddUpToOne({ header, heads, isDense, queries }) {
  if (isDense) return !header.has_sinks;
  const [head] = heads ?? []; // a mask that is stored is the same for all heads
  return header.mask !== "unknown" && queries.tokens.every((_, query) => head.row(query).total === 1);
}
