// Weights in words: the numbers that are true, and a row that adds up to its total.

import assert from "node:assert/strict";
import { test } from "node:test";
import { listWeights } from "../../../src/regard/explore/static/ui/weight_sentence.js";

const NAMES = ["a", "b", "c", "d"];

function row(weights, error = 0, more = {}) {
  const entries = weights.map((weight, key) => ({ query: 0, key, weight, error }));
  return { entries, rest: 0, total: 1, isComplete: true, ...more };
}

const list = (ranked, count = 2, preposition = "on") =>
  listWeights(ranked, count, ({ key }) => NAMES[key], preposition);

test("a row adds up to 1", () => {
  assert.equal(list(row([0.5, 0.25, 0.2, 0.05])), "a 0.500, b 0.250; 0.250 on 2 more");
  assert.equal(list(row([0.5, 0.25, 0.2, 0.05]), 4), "a 0.500, b 0.250, c 0.200, d 0.0500");
  assert.equal(list(row([0.5, 0.3], 0, { total: 0.9 }), 1), "a 0.500; 0.400 on 1 more");
});

test("numbers have the digits that are true", () => {
  assert.equal(list(row([0.6, 0.3, 0.1], 1 / 6000), 1), "a 0.600; 0.400 on 2 more");
  assert.equal(list(row([0.6, 0.3, 0.1], 2 / 6000), 2), "a 0.600, b 0.300; 0.10 on 1 more");
});

test("weights that would be written as too small are in the rest, but the first is always listed", () => {
  assert.equal(list(row([0.9999, 0.0001, 0])), "a 1.000");
  assert.equal(list(row([0.99, 0.0096, 0.0004], 0), 3), "a 0.990, b 0.0096");
  assert.equal(list(row([0.0002, 0.0001], 0, { total: null }), 1), "a 0.0002");
});

test("what is not stored is in the rest", () => {
  const sketch = { rest: 0.2, isComplete: false };
  assert.equal(
    list(row([0.5, 0.3], 0, sketch)),
    "a 0.500, b 0.300; 0.200 on others, most of them not stored in this file",
  );
  const column = { rest: 0.2, isComplete: false, total: undefined, approximate: true };
  assert.equal(
    list(row([0.5, 0.3], 0, column), 1, "from"),
    "a 0.500; about 0.500 from others, most of them not stored in this file",
  );
  assert.equal(list(row([], 0, column)), "about 0.200 on others, most of them not stored in this file");
});

test("a row without weights, and one that is loading", () => {
  assert.equal(list(row([], 0, { total: 0 })), "nothing");
  assert.equal(list({ entries: [], rest: 0, loading: true }), "loading …");
  assert.equal(list(row([1], 0, { notRescaled: true })), "a 1.000 (some rows are not rescaled)");
});

test("punctuation is in quotation marks", () => {
  const labels = ["weil", ",", "</s>"];
  assert.equal(
    listWeights(row([0.9, 0.06, 0.04]), 3, ({ key }) => labels[key]),
    "weil 0.900, “,” 0.0600, </s> 0.0400",
  );
});
