// Two recordings: which layers, heads and tokens belong together, and how much more a head gives than another.

import { BaseHead } from "#data/heads.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Unit } from '#state/unit.js'
 * @typedef {[startA: number, startB: number, length: number]} Run
 * @typedef {{sequences: [number, number], tokens: Run[], words: Run[]}} AlignmentHeader  See page_format.py.
 * @typedef {[a: number, b: number]} Pair  A position in each text.
 */

/** The positions of two texts that belong together. */
export class Alignment {
  /** @param {Sequence} a @param {Sequence} b @param {Run[]} runs */
  constructor(a, b, runs) {
    this.a = a;
    this.b = b;
    this.pairs = runs.flatMap(([startA, startB, length]) => pairsFrom(startA, startB, length));
    this.labels = this.pairs.map(([index]) => a.labels[index]);
    // For each position its counterpart, and the index of its pair; −1 where there is none.
    this.aToB = new Int32Array(a.length).fill(-1);
    this.bToA = new Int32Array(b.length).fill(-1);
    this.aToPair = new Int32Array(a.length).fill(-1);
    for (const [index, [inA, inB]] of this.pairs.entries()) {
      this.aToB[inA] = inB;
      this.bToA[inB] = inA;
      this.aToPair[inA] = index;
    }
  }
}

/** @param {number} startA @param {number} startB @param {number} length */
function pairsFrom(startA, startB, length) {
  return Array.from({ length }, (_, index) => /** @type {Pair} */ ([startA + index, startB + index]));
}

/** A layer and the one that it is compared with. */
export class LayerPair {
  /** @param {Layer} a @param {Layer} b @param {Unit} unit @param {(side: "queries" | "keys", byPosition: boolean) => Alignment} align */
  constructor(a, b, unit, align) {
    this.a = a;
    this.b = b;
    this.unit = unit;
    const hasBlocks = !a.isDense || !b.isDense;
    const mismatch = hasBlocks ? mismatchOf(a, b) : "";
    /** Whether blocks are compared, each with the one at the same position. */
    this.isByPosition = hasBlocks && !mismatch;
    this.rows = align("queries", this.isByPosition);
    this.columns = align("keys", this.isByPosition);
    const isEmpty = !this.rows.pairs.length || !this.columns.pairs.length;
    /** Why there is no difference; empty if there is one. */
    this.reason = mismatch || (isEmpty ? `No ${unit.name} is in both, so there is no difference to show.` : "");
  }

  /** Those of some heads of A that B has too, by their index in the model, and their places in B. @param {number[]} heads */
  headsInBoth(heads) {
    const placeInB = (/** @type {number} */ head) => this.b.headIndices.indexOf(this.a.headIndices[head]);
    const inBoth = heads.filter((head) => placeInB(head) >= 0);
    return { a: inBoth, b: inBoth.map(placeInB) };
  }
}

/** Why the blocks of two layers cannot be compared; empty if they can. @param {Layer} a @param {Layer} b */
function mismatchOf(a, b) {
  const [inA, inB] = [a, b].map(({ queries, keys }) => `${queries.length} × ${keys.length}`);
  const [blockA, blockB] = [a, b].map(({ blockSize }) => `${blockSize} × ${blockSize}`);
  if (inA !== inB) {
    return `No difference is shown: long texts are stored in blocks of many tokens, which can be compared only if A and B have the same number of tokens (A has ${inA}, B has ${inB}).`;
  }
  return blockA === blockB
    ? ""
    : `No difference is shown: a block of A has ${blockA} tokens, a block of B has ${blockB}.`;
}

/** The pair of each layer; null for a layer that the second recording does not have. @param {Recording} recording @param {Recording} compareWith @param {Unit} unit */
export function pairLayers({ layers }, { layers: others, counterparts, alignments }, unit) {
  /** @type {Map<string, Alignment>} */
  const cache = new Map(); // layers share their texts
  return layers.map((a, layer) => {
    const index = counterparts[layer];
    if (index === null) return null;
    const b = others[index];
    return new LayerPair(a, b, unit, (side, byPosition) => {
      const sequences = `${a.header[side]},${b.header[side]}`;
      const header = alignments.find((each) => String(each.sequences) === sequences);
      /** @type {Run[]} */
      const runs = byPosition ? [[0, 0, a[side].length]] : (header?.[unit.isWord ? "words" : "tokens"] ?? []);
      const alignment =
        cache.get(`${sequences} ${byPosition}`) ?? new Alignment(unit.text(a[side]), unit.text(b[side]), runs);
      cache.set(`${sequences} ${byPosition}`, alignment);
      return alignment;
    });
  });
}

/** How much more a head of B gives than one of A, where both have a row and a column; from −1 to 1. */
export class Difference extends BaseHead {
  /** @param {Head} a @param {Head} b @param {LayerPair} pair */
  constructor(a, b, { rows, columns, a: { precision: precisionA }, b: { precision: precisionB } }) {
    super(columns.pairs.length);
    this.isDense = true; // nothing but its blocks is drawn
    this.numHeads = a.numHeads;
    this.a = a;
    this.b = b;
    this.pairs = { rows: rows.pairs, columns: columns.pairs };
    /** How far a block that is not a single cell may be from the exact one. */
    this.blockErrors = { a: a.numHeads * precisionA, b: b.numHeads * precisionB };
    const [blocksA, blocksB] = [a.blocks, b.blocks];
    const { size } = blocksA;
    /** The rows and columns of its blocks, in A and in B. */
    this.blockPairs =
      size === 1 ? this.pairs : { rows: pairsFrom(0, 0, blocksA.rows), columns: pairsFrom(0, 0, blocksA.columns) };
    const width = this.blockPairs.columns.length;
    const values = new Float32Array(this.blockPairs.rows.length * width); // NaN where one is masked or hidden
    for (const [row, [queryA, queryB]] of this.blockPairs.rows.entries()) {
      for (const [column, [keyA, keyB]] of this.blockPairs.columns.entries()) {
        values[row * width + column] = blocksB.at(queryB, keyB) - blocksA.at(queryA, keyA);
      }
    }
    this.values = values;
    const at = (/** @type {number} */ row, /** @type {number} */ column) => values[row * width + column];
    this.differences = { rows: this.blockPairs.rows.length, columns: width, size, at };
  }

  get blocks() {
    return this.differences;
  }

  /** The weights of a block in A and B, with their errors; NaN where masked or hidden. @param {number} row @param {number} column */
  weights(row, column) {
    const [[queryA, queryB], [keyA, keyB]] = [this.blockPairs.rows[row], this.blockPairs.columns[column]];
    if (this.blocks.size === 1) return { a: this.a.cell(queryA, keyA), b: this.b.cell(queryB, keyB) };
    const [a, b] = [this.a.blocks.at(queryA, keyA), this.b.blocks.at(queryB, keyB)];
    return { a: { weight: a, error: this.blockErrors.a }, b: { weight: b, error: this.blockErrors.b } };
  }

  /** @param {number} row @param {number} column */
  isMasked(row, column) {
    const [[queryA, queryB], [keyA, keyB]] = [this.pairs.rows[row], this.pairs.columns[column]];
    return this.a.isMasked(queryA, keyA) || this.b.isMasked(queryB, keyB);
  }

  /** The mean size over all blocks; NaN where there are none. */
  mean() {
    const known = this.values.filter((value) => !Number.isNaN(value));
    return known.reduce((sum, value) => sum + Math.abs(value), 0) / known.length;
  }

  /** The largest size in a row. @param {number} row */
  largest(row) {
    const values = this.values.subarray(row * this.blocks.columns, (row + 1) * this.blocks.columns);
    return values.reduce((largest, value) => Math.max(largest, Math.abs(value) || 0), 0);
  }
}
