// What the page shows of a layer, computed from all of its weights by plain sums: the reference for every kind of head.

import assert from "node:assert/strict";

import { restAfter } from "../../../src/regard/explore/static/data/ranked.js";

/** @typedef {{weights: number[][], masked: boolean[][], hidden: boolean[], numHeads: number}} Reference */

const add = (/** @type {number[]} */ numbers) => numbers.reduce((sum, number) => sum + (number || 0), 0);

/** The mean or sum of heads, without hidden keys, rescaled on request, between words. @param {number[][][]} heads @param {{reduce?: string, hidden?: boolean[], rescale?: boolean, queryWords?: number[], keyWords?: number[]}} options @returns {Reference} */
export function reference(heads, { reduce = "mean", hidden, rescale = false, queryWords, keyWords } = {}) {
  const numHeads = reduce === "sum" ? heads.length : 1;
  const keys = heads[0][0].map((_, key) => key);
  const isHidden = hidden ?? keys.map(() => false);
  const combined = heads[0].map((row, query) =>
    row.map((_, key) => (add(heads.map((head) => head[query][key])) * numHeads) / heads.length),
  );
  const tokens = combined.map((row) => {
    const share = 1 - add(row.filter((_, key) => isHidden[key])) / numHeads;
    return row.map((weight, key) => (isHidden[key] ? 0 : rescale && share >= 0.001 ? weight / share : weight));
  });
  const masked = heads[0].map((row, query) =>
    row.map((_, key) => heads.every((head) => Number.isNaN(head[query][key]))),
  );
  const rows = groups(queryWords ?? tokens.map((_, query) => query));
  const columns = groups(keyWords ?? keys);
  return {
    weights: rows.map((queries) =>
      columns.map((some) => add(queries.flatMap((query) => some.map((key) => tokens[query][key]))) / queries.length),
    ),
    masked: rows.map((queries) =>
      columns.map((some) => queries.every((query) => some.every((key) => masked[query][key] || isHidden[key]))),
    ),
    hidden: columns.map((some) => some.every((key) => isHidden[key])),
    numHeads,
  };
}

/** The indices of each word. @param {number[]} words */
function groups(words) {
  const numbers = [...new Set(words)];
  return numbers.map((word) => words.flatMap((each, index) => (each === word ? [index] : [])));
}

/** @param {number} found @param {number} expected @param {number} tolerance @param {string} place */
export function near(found, expected, tolerance, place = "") {
  assert.ok(Math.abs(found - expected) <= tolerance, `${place}: ${found} is not within ${tolerance} of ${expected}`);
}

/**
 * Check all that a head says against the reference; every weight is known up to `tolerance`.
 * @param {import("../../../src/regard/explore/static/data/heads.js").BaseHead} head @param {Reference} expected @param {number} tolerance
 * @param {{blocks?: number, totals?: number}} errors  How far blocks and totals are off the weights that a file stores.
 */
export function checkHead(head, expected, tolerance, { blocks = 0, totals = 0 } = {}) {
  const { weights, masked, hidden, numHeads } = expected;
  assert.equal(head.numHeads, numHeads);
  for (const [query, row] of weights.entries()) {
    for (const [key, weight] of row.entries()) {
      const cell = head.cell(query, key);
      assert.equal(cell.state, masked[query][key] ? cell.state : "known", `${query}, ${key}`);
      if (masked[query][key]) assert.match(cell.state, hidden[key] ? /masked|hidden/ : /masked/);
      else near(cell.weight, weight, tolerance, `cell ${query}, ${key}`);
      if (head.isDense && !masked[query][key]) near(head.blocks.at(query, key), weight, tolerance + blocks, "block");
      if (head.isDense && masked[query][key]) assert.ok(Number.isNaN(head.blocks.at(query, key)));
    }
    checkRow(head.row(query), row, masked[query], tolerance, totals);
  }
  for (const key of weights[0].keys()) checkColumn(head.column(key), expected, [key], tolerance);
  checkSeveral(head, expected, tolerance, totals);
}

/** Means of rows, sums of columns and regions. @param {import("../../../src/regard/explore/static/data/heads.js").BaseHead} head @param {Reference} expected @param {number} tolerance @param {number} totals */
export function checkSeveral(head, expected, tolerance, totals = 0) {
  const { weights, masked } = expected;
  const [queries, keys] = [weights.length, weights[0].length];
  for (const some of [[0, queries - 1], [1, 2, 3].slice(0, queries - 1), [...weights.keys()]]) {
    const mean = weights[0].map((_, key) => add(some.map((query) => weights[query][key])) / some.length);
    const all = mean.map((_, key) => some.every((query) => masked[query][key]));
    checkRow(head.rows(some), mean, all, tolerance, totals);
  }
  for (const some of [[0, keys - 1], [...weights[0].keys()]])
    checkColumn(head.columns(some), expected, some, tolerance);
  for (const [top, bottom, left, right] of regions(queries, keys)) {
    const sum = add(weights.slice(top, bottom + 1).flatMap((row) => row.slice(left, right + 1)));
    const cells = (bottom - top + 1) * (right - left + 1);
    const region = head.regionSum([top, bottom], [left, right]);
    assert.equal(region.approximate, false);
    near(Number(region.sum), sum, tolerance * cells, `region ${[top, bottom, left, right]}`);
  }
}

/** @param {number} queries @param {number} keys @returns {number[][]} */
export function regions(queries, keys) {
  return [
    [0, queries - 1, 0, keys - 1],
    [0, 0, 0, 0],
    [queries - 1, queries - 1, keys - 1, keys - 1],
    [1, queries - 1, 1, Math.min(4, keys - 1)],
    [0, 2, keys - 2, keys - 1],
  ];
}

/** @param {import("../../../src/regard/explore/static/data/ranked.js").Ranked} ranked @param {number[]} weights @param {boolean[]} masked @param {number} tolerance @param {number} totals */
function checkRow(ranked, weights, masked, tolerance, totals) {
  const sum = add(weights);
  const keys = masked.flatMap((isMasked, key) => (isMasked ? [] : [key]));
  assert.deepEqual(
    ranked.entries.map(({ key }) => key).sort((a, b) => a - b),
    keys,
  );
  for (const { key, weight } of ranked.entries) near(weight, weights[key], tolerance, `row, ${key}`);
  checkOrder(ranked.entries);
  assert.equal(ranked.rest, 0);
  const total = ranked.total ?? sum;
  near(total, sum, tolerance * weights.length + totals, "total");
  for (const count of [0, 1, 3, keys.length]) {
    const listed = add(ranked.entries.slice(0, count).map(({ weight }) => weight));
    near(restAfter(ranked, count).weight, Math.max(0, total - listed), tolerance, `rest after ${count}`);
  }
}

/** @param {import("../../../src/regard/explore/static/data/ranked.js").Ranked} ranked @param {Reference} expected @param {number[]} keys @param {number} tolerance */
function checkColumn(ranked, { weights, masked }, keys, tolerance) {
  const queries = masked.flatMap((row, query) => (keys.every((key) => row[key]) ? [] : [query]));
  assert.deepEqual(
    ranked.entries.map(({ query }) => query).sort((a, b) => a - b),
    queries,
  );
  for (const { query, weight } of ranked.entries) {
    near(weight, add(keys.map((key) => weights[query][key])), tolerance * keys.length, `column, ${query}`);
  }
  checkOrder(ranked.entries);
  assert.equal(ranked.rest, 0);
}

/** @param {{weight: number}[]} entries */
export function checkOrder(entries) {
  for (let at = 1; at < entries.length; at++) assert.ok(entries[at - 1].weight >= entries[at].weight);
}
