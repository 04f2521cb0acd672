// A head that is computed from others: it is known, remote and loaded as these are.

import { BaseHead } from "#data/heads.js";

/** @abstract */
export class DerivedHead extends BaseHead {
  /** @param {BaseHead[]} heads @param {number} numKeys */
  constructor(heads, numKeys) {
    super(numKeys);
    this.heads = heads;
    this.divisor = 1; // of their sum
    this.numHeads = heads[0].numHeads;
    this.isDense = heads.every(({ isDense }) => isDense);
    this.isPartial = heads.some(({ isPartial }) => isPartial);
    this.isRemote = heads.every(({ isRemote }) => isRemote);
    this.isSigned = heads[0].isSigned;
  }

  get scaleEnd() {
    if (this.isDense || !this.isSigned) return super.scaleEnd;
    return this.heads.reduce((sum, { scaleEnd }) => sum + scaleEnd, 0) / this.divisor;
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
}
