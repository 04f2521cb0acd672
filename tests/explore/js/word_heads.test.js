// Heads between words: the mean over the tokens of the word that attends, the sum over those of the word attended to.

import assert from "node:assert/strict";
import { test } from "node:test";

import { headBetweenWords, tokenRange } from "../../../src/regard/explore/static/data/word_heads.js";
import { checkHead, near, reference } from "./dense_reference.js";
import { denseLayer, exactLayer, PRECISION, planes, randomWeights, sequence, sketchLayer } from "./fixtures.js";

const places = ({ entries }, axis) => entries.map((entry) => entry[axis]);
const words = (numbers) => sequence(numbers.length, { words: numbers }).words;

test("a word that attends has the mean of its rows, a word attended to the sum of its columns", async () => {
  const layer = await exactLayer([
    [
      [0.1, 0.2, 0.7],
      [0.5, 0.3, 0.2],
    ],
  ]);
  const head = headBetweenWords(layer.head([0]), words([0, 0]), words([0, 0, 1]));
  near(head.cell(0, 0).weight, 0.55, 1e-6);
  near(head.cell(0, 1).weight, 0.45, 1e-6);
  assert.deepEqual(places(head.row(0), "key"), [0, 1]);
  near(head.column(1).entries[0].weight, 0.45, 1e-6);
  assert.deepEqual([head.blocks.rows, head.blocks.columns, head.blocks.size], [1, 2, 1]);
  assert.deepEqual(tokenRange(words([0, 0, 1]), [0, 1]), [0, 2]);
});

test("words of one token are tokens", async () => {
  const weights = randomWeights({ queries: 4, keys: 5, allows: (query, key) => key <= query });
  const layer = await exactLayer(weights);
  const rounded = [weights[0].map((row) => row.map(Math.fround))];
  checkHead(headBetweenWords(layer.head([0]), words([0, 1, 2, 3]), words([0, 1, 2, 3, 4])), reference(rounded), 1e-6);
});

test("a word is masked if all of its tokens are, and rows that attend to nothing count in the mean", async () => {
  const layer = await exactLayer([
    [
      [NaN, NaN, NaN],
      [0.4, 0.6, NaN],
      [NaN, NaN, NaN],
    ],
  ]);
  const head = headBetweenWords(layer.head([0]), words([0, 0, 1]), words([0, 1, 2]));
  near(head.cell(0, 1).weight, 0.3, 1e-7);
  assert.deepEqual([head.cell(0, 2).state, head.cell(1, 0).state], ["masked", "masked"]);
  assert.ok(Number.isNaN(head.blocks.at(0, 2)));
  assert.deepEqual([head.row(0).total, head.row(1).total], [0.5, 0]);
});

test("errors add up over the tokens attended to, and are averaged over those that attend", async () => {
  const layer = await denseLayer(randomWeights({ queries: 4, keys: 6 }));
  const head = headBetweenWords(layer.head([0]), words([0, 0, 1, 1]), words([0, 0, 0, 1, 2, 2]));
  near(head.cell(0, 0).error, 3 * PRECISION, 1e-12);
  near(head.cell(1, 1).error, PRECISION, 1e-12);
  for (const { key, error } of head.row(0).entries) near(error, [3, 1, 2][key] * PRECISION, 1e-12);
});

test("words have no stored order: their weights are sums", async () => {
  const tensors = { key_order: planes([1, 1, 3], [1, 1, 0], 1), query_order: planes([1, 3, 1], [0, 0, 0], 1) };
  const layer = await denseLayer([[[0.25, 0.25, 0.5]]], { tensors });
  const row = headBetweenWords(layer.head([0]), words([0]), words([0, 0, 1])).row(0);
  assert.deepEqual([places(row, "key"), row.numOrdered], [[0, 1], 0]);
});

test("what a sketch stores of a word is a part of it, and says how large the rest can be", async () => {
  const weights = [[[0.4, 0.1, 0.3, 0.2]]];
  const layer = await sketchLayer(weights, { levels: [2], k: 2, mask: "none" });
  const head = headBetweenWords(layer.head([0]), words([0]), words([0, 0, 1, 1]));
  assert.equal(head.isDense, false);
  const row = head.row(0);
  assert.deepEqual([places(row, "key"), row.numOrdered], [[0, 1], 0]);
  near(row.entries[0].weight, 0.4, 1e-7);
  near(row.entries[0].error, 0.3, 2 * PRECISION); // the other token has at most what the weakest stored one has
  near(row.rest, 0.3, 1e-7);
  const cell = head.cell(0, 0);
  assert.deepEqual([cell.state, cell.weight], ["unknown", NaN]);
  near(cell.upperBound, 0.7, 2 * PRECISION);
});

test("a column of a sketch between words is divided among the tokens that attend", async () => {
  const weights = [
    [
      [0.9, 0.1],
      [0.7, 0.3],
      [0.2, 0.8],
    ],
  ];
  const layer = await sketchLayer(weights, { levels: [2], k: 2, mask: "none" });
  const column = headBetweenWords(layer.head([0]), words([0, 0, 1]), words([0, 1])).column(0);
  assert.deepEqual(places(column, "query"), [0, 1]);
  near(column.entries[0].weight, 0.8, 1e-6);
  near(column.entries[1].weight, 0.2, 1e-6);
});

test("a region between words is the mean over each row's tokens", async () => {
  const weights = randomWeights({ queries: 6, keys: 7 });
  const numbers = { queries: [0, 0, 1, 2, 2, 2], keys: [0, 1, 1, 1, 2, 3, 3] };
  const head = headBetweenWords((await exactLayer(weights)).head([0]), words(numbers.queries), words(numbers.keys));
  const expected = reference(weights, { queryWords: numbers.queries, keyWords: numbers.keys }).weights;
  const { rows } = head.regionRows([1, 2], [1, 3], []);
  for (const [index, sum] of [1, 2].entries()) {
    near(
      rows[index],
      expected[sum].slice(1).reduce((a, b) => a + b, 0),
      1e-6,
    );
  }
});

test("a row or a column to load is that of all tokens of a word", async () => {
  const calls = [];
  const base = { isDense: false, fetch: (...some) => calls.push(some), prefetch: (query) => calls.push(query) };
  const head = headBetweenWords(/** @type {any} */ (base), words([0, 0, 1]), words([0, 1, 1]));
  head.fetch([0], [1]);
  head.prefetch(0);
  assert.deepEqual(calls, [
    [
      [0, 1],
      [1, 2],
    ],
    0,
    1,
  ]);
});
