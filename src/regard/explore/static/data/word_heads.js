// A head between words: the sum over the tokens of the word attended to, the mean over those of the word that attends.
// So the weights of a word add up to 1, as those of a token do.

import { DerivedHead } from "#data/derived_head.js";
import { combineCells, withBounds } from "#data/heads.js";
import { rankEntries, sumRanked } from "#data/ranked.js";

/**
 * @import { BaseHead, Blocks, Cell, RegionRows } from '#data/heads.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @import { WordSequence } from '#data/sequence.js'
 */

/** @param {BaseHead} head  Between tokens. @param {WordSequence} queries @param {WordSequence} keys @returns {BaseHead} */
export function headBetweenWords(head, queries, keys) {
  return head.isDense ? new DenseWordHead(head, queries, keys) : new WordHead(head, queries, keys);
}

/** @abstract */
class BaseWordHead extends DerivedHead {
  /** @param {BaseHead} head @param {WordSequence} queries @param {WordSequence} keys */
  constructor(head, queries, keys) {
    super([head], keys.length);
    this.head = head;
    this.queries = queries;
    this.keys = keys;
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return this.cell(query, key).state === "masked";
  }

  /** @param {number[]} queries @param {number[]} keys */
  requestAll(queries, keys) {
    return super.requestAll(tokensOf(this.queries, queries), tokensOf(this.keys, keys));
  }

  /** @param {number[]} queries @param {number[]} keys */
  fetch(queries, keys) {
    return super.fetch(tokensOf(this.queries, queries), tokensOf(this.keys, keys));
  }

  /** @param {number} query */
  prefetch(query) {
    for (const token of this.queries.tokensOf(query)) this.head.prefetch(token);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const rows = this.queries.tokensOf(query);
    const cells = rows.flatMap((row) => this.keys.tokensOf(key).map((column) => this.head.cell(row, column)));
    return combineCells(cells, rows.length, this.limit);
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    const tokens = tokenRange(this.queries, queries);
    const { rows, error, approximate } = this.head.regionRows(tokens, tokenRange(this.keys, keys), hidden);
    if (!rows) return { rows, error, approximate };
    const sums = new Float64Array(queries[1] - queries[0] + 1);
    for (const [index, sum] of rows.entries()) {
      const word = this.queries.of[tokens[0] + index];
      sums[word - queries[0]] += sum / this.queries.size(word);
    }
    return { rows: sums, error, approximate };
  }
}

/** @param {WordSequence} text @param {number[]} words */
function tokensOf(text, words) {
  return words.flatMap((word) => text.tokensOf(word));
}

/** From the first token of the first word to the last of the last. @param {WordSequence} words @param {[number, number]} range @returns {[number, number]} */
export function tokenRange(words, [first, last]) {
  return [words.starts[first], words.starts[last + 1] - 1];
}

/** All weights between words. */
class DenseWordHead extends BaseWordHead {
  /** @param {BaseHead} head @param {WordSequence} queries @param {WordSequence} keys */
  constructor(head, queries, keys) {
    super(head, queries, keys);
    /** @type {Blocks | null} */
    this.cachedBlocks = null;
  }

  get blocks() {
    this.cachedBlocks ??= this.sumBlocksOfWords();
    return this.cachedBlocks;
  }

  /** NaN where the mask excludes all of a cell's tokens. @returns {Blocks} */
  sumBlocksOfWords() {
    const [rows, columns] = [this.queries.length, this.keys.length];
    const sums = new Float64Array(rows * columns).fill(NaN);
    const { blocks } = this.head;
    for (let query = 0; query < this.queries.of.length; query++) {
      const row = this.queries.of[query];
      const share = 1 / this.queries.size(row);
      for (let key = 0; key < this.keys.of.length; key++) {
        const weight = blocks.at(query, key);
        if (Number.isNaN(weight)) continue;
        const place = row * columns + this.keys.of[key];
        sums[place] = (sums[place] || 0) + share * weight;
      }
    }
    return { rows, columns, size: 1, at: (row, column) => sums[row * columns + column] };
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const cells = Array.from({ length: this.keys.length }, (_, key) => ({ query, key, ...this.cell(query, key) }));
    const known = cells.filter(({ state }) => state === "known");
    const { total, notRescaled } = this.head.rows(this.queries.tokensOf(query));
    return { ...rankEntries(known), total, notRescaled };
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    const cells = Array.from({ length: this.queries.length }, (_, query) => ({ query, key, ...this.cell(query, key) }));
    const known = cells.filter(({ state }) => state === "known");
    const { notRescaled } = this.head.columns(this.keys.tokensOf(key));
    return { ...rankEntries(known), notRescaled };
  }
}

/** What a sketch of tokens, or a server, knows of words. There are no blocks between words. */
class WordHead extends BaseWordHead {
  /** @param {number} query @returns {Ranked} */
  row(query) {
    const ranked = this.head.rows(this.queries.tokensOf(query));
    const entries = ranked.entries.map((entry) => ({ ...entry, query, key: this.keys.of[entry.key] }));
    return withBounds({ ...ranked, ...merged(entries, ({ key }) => key) }, ({ key }) => this.cell(query, key));
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    const ranked = this.head.columns(this.keys.tokensOf(key));
    const entries = ranked.entries.map((entry) => {
      const query = this.queries.of[entry.query];
      const size = this.queries.size(query);
      return { query, key, weight: entry.weight / size, error: entry.error / size };
    });
    // The tokens of the rest are not known, nor how many tokens their words have.
    const approximate = ranked.approximate || (ranked.rest > 0 && this.queries.length < this.queries.of.length);
    const sums = { ...ranked, ...merged(entries, ({ query }) => query), approximate };
    return withBounds(sums, ({ query }) => this.cell(query, key));
  }
}

/** Entries of the same place added up. @param {Entry[]} entries @param {(entry: Entry) => number} place */
function merged(entries, place) {
  return { entries: sumRanked([{ entries, rest: 0 }], place, 1).entries, numOrdered: 0 };
}
