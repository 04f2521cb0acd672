// Rows and columns, strongest first: their order, their sums, and what is left of them.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  rankEntries,
  rankOf,
  restAfter,
  strongest,
  strongestFirst,
  sumRanked,
} from "../../../src/regard/explore/static/data/ranked.js";
import { random } from "./fixtures.js";

const row = (weights, error = 0) => weights.map((weight, key) => ({ query: 0, key, weight, error }));
const keysOf = ({ entries }) => entries.map(({ key }) => key);
const close = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-12, `${found} is not ${expected}`);

test("numbers are sorted as their entries are, without those that are masked", () => {
  const draw = random(3);
  for (const sign of [1, -1]) {
    const numbers = Float32Array.from({ length: 500 }, (_, place) =>
      place % 7 ? sign ** place * Math.round(40 * draw()) : NaN,
    );
    numbers[3] = 1e-45; // the smallest that there is
    const entries = row([...numbers]).filter(({ weight }) => !Number.isNaN(weight));
    assert.deepEqual(strongestFirst(numbers), keysOf(rankEntries(entries)));
  }
});

test("entries of equal weight stay in the order of the text", () => {
  assert.deepEqual(keysOf(rankEntries(row([0.2, 0.5, 0.2, 0.5]))), [1, 3, 0, 2]);
  assert.deepEqual(keysOf({ entries: strongest(row([0.2, 0.5, 0.2, 0.5])) }), [1, 3, 0, 2]);
  assert.deepEqual(keysOf({ entries: strongest(row([0.2, 0.5, 0.2, 0.5]), 1) }), [1]);
});

test("a stored order moves entries of equal weight to their exact places", () => {
  const ranked = rankEntries(row([0.1, 0.3, 0.3, 0.3]), [2, 1, 0, 0]);
  assert.deepEqual(keysOf(ranked), [3, 2, 1, 0]);
  assert.equal(ranked.numOrdered, 4);
  assert.deepEqual(keysOf(rankEntries(row([0.3, 0.3]), [1])), [1, 0]);
});

test("a stored order restores any exact order of rounded weights", () => {
  const next = random(3);
  for (let round = 0; round < 200; round++) {
    const exact = Array.from({ length: 12 }, next);
    const rounded = exact.map((weight) => Math.round(3 * weight) / 3); // four values: many ties
    const expected = exact.map((_, key) => key).sort((a, b) => exact[b] - exact[a]);
    // As docs/page_format.md says: places of the strongest after those before it have been moved to the front.
    const keys = exact.map((_, key) => key).sort((a, b) => rounded[b] - rounded[a]);
    const order = expected.slice(0, 8).map((key, rank) => {
      const place = keys.indexOf(key);
      keys.splice(rank, 0, ...keys.splice(place, 1));
      return place - rank;
    });
    assert.deepEqual(keysOf(rankEntries(row(rounded), order)).slice(0, 8), expected.slice(0, 8));
  }
});

test("sums are added up place by place, with their errors, rests and totals", () => {
  const a = { entries: row([0.5, 0.3], 0.01), rest: 0.2, total: 1 };
  const b = { entries: [{ query: 1, key: 1, weight: 0.6, error: 0.02 }], rest: 0.4, total: 1, approximate: true };
  const mean = sumRanked([a, b], ({ key }) => key, 0.5);
  assert.deepEqual(keysOf(mean), [1, 0]);
  close(mean.entries[0].weight, 0.45);
  close(mean.entries[0].error, 0.015);
  close(mean.entries[1].weight, 0.25);
  close(mean.rest, 0.3);
  assert.deepEqual([mean.total, mean.approximate, mean.loading, mean.isComplete], [1, true, false, false]);
  assert.equal(sumRanked([a, { ...b, total: null }], ({ key }) => key, 0.5).total, null);
  assert.equal(sumRanked([{ ...a, total: 0 }, b], ({ key }) => key, 0.5).total, 0.5);
  assert.equal(sumRanked([a, { entries: [], rest: 0, loading: true }], ({ key }) => key, 1).loading, true);
  assert.deepEqual(a.entries, row([0.5, 0.3], 0.01)); // is not changed
});

test("what is left of a row is its total less what is listed", () => {
  const ranked = { entries: row([0.5, 0.3, 0.1], 0.01), rest: 0.05, total: 1 };
  close(restAfter(ranked, 2).weight, 0.2);
  close(restAfter(ranked, 2).error, 0.02);
  close(restAfter(ranked, 0).weight, 1);
  close(restAfter(ranked, 9).weight, 0.1);
  assert.equal(restAfter({ ...ranked, total: 0.7 }, 2).weight, 0); // stored weights may add up to more
});

test("what is left of a column, or of a row with sinks, is the sum of the others and the rest", () => {
  for (const total of [null, undefined]) {
    const ranked = { entries: row([0.5, 0.3, 0.1], 0.01), rest: 0.05, total };
    close(restAfter(ranked, 1).weight, 0.45);
    close(restAfter(ranked, 1).error, 0.02);
    close(restAfter(ranked, 3).weight, 0.05);
  }
});

test("a rank is a range where stored weights are equal, unless their order is exact", () => {
  const ranked = { entries: rankEntries(row([0.4, 0.2, 0.2, 0.2, 0.1], 0.001)).entries, rest: 0 };
  const ranks = (some) => some.entries.map((_, index) => rankOf(some, index));
  assert.deepEqual(ranks(ranked), ["1", "2–4", "2–4", "2–4", "5"]);
  assert.deepEqual(ranks({ ...ranked, numOrdered: 2 }), ["1", "2", "3–4", "3–4", "5"]);
  assert.deepEqual(ranks({ ...ranked, numOrdered: 3 }), ["1", "2", "3", "4", "5"]);
  assert.deepEqual(ranks({ entries: row([0.4, 0.2, 0.2]), rest: 0 }), ["1", "2", "3"]);
});
