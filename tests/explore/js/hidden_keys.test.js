// Heads as the page shows them, in every combination of mean or sum, hidden keys, rescaling and words, from every storage.

import assert from "node:assert/strict";
import { test } from "node:test";

import { HiddenKeysHead, hiddenKeys } from "../../../src/regard/explore/static/data/hidden_keys.js";
import { restAfter } from "../../../src/regard/explore/static/data/ranked.js";
import { createStore } from "../../../src/regard/explore/static/state/store.js";
import { Units } from "../../../src/regard/explore/static/state/unit.js";
import { checkHead, near, reference } from "./dense_reference.js";
import {
  computedLayer,
  denseLayer,
  exactLayer,
  floats,
  PRECISION,
  randomWeights,
  sequence,
  sketchLayer,
} from "./fixtures.js";

const QUERY_WORDS = [0, 0, 1, 2, 2, 2, 3];
const KEY_WORDS = [0, 1, 1, 2, 3, 4, 4, 4, 5];
const queries = sequence(7, { role: "written", words: QUERY_WORDS, special: [6] });
const keys = sequence(9, { words: KEY_WORDS, special: [0, 3, 7] });

const MASKS = {
  none: () => true,
  causal: (/** @type {number} */ query, /** @type {number} */ key) => key <= query,
  "a row without keys": (/** @type {number} */ query) => query !== 2,
  "a row without keys in one head": (/** @type {number} */ query, _key, /** @type {number} */ head) =>
    query !== 2 || head !== 1,
  "hidden keys alone": (/** @type {number} */ query, /** @type {number} */ key) =>
    query !== 4 || key === 0 || key === 3,
};
const HEADS = [[1], [0, 1, 2]];
const CHOICES = HEADS.flatMap((heads) =>
  ["mean", "sum"].flatMap((reduce) =>
    [[], ["first"], ["special"], ["first", "special"]].flatMap((hide) =>
      [false, true].map((rescale) => ({ heads, reduce, hide, rescale })),
    ),
  ),
);

/** The units of a recording of one layer. */
function unitsOf(layer, state) {
  const recording = { layers: [layer], sequences: [queries, keys], compareWith: null };
  const store = createStore({ layer: 0, tokens: [], region: null, hover: null, zoom: null, ...state });
  return new Units(/** @type {any} */ (recording), store);
}

const rounded = (/** @type {number[][][]} */ weights) => weights.map((head) => head.map((row) => row.map(Math.fround)));
const stored = (/** @type {number[][][]} */ weights) =>
  weights.map((head) => head.map((row) => row.map((weight) => Math.round(3000 * weight) / 3000)));

/** A layer from which the page computes exact weights. */
function layerOfVectors(weights) {
  // softmax(scale · q Kᵀ) with one-hot keys is the softmax of the queries, which are the logarithms of the weights.
  const size = keys.length;
  const logits = weights.flat(2).map((weight) => (Number.isNaN(weight) ? -99 : Math.log(weight)));
  const identity = Array.from({ length: size * size }, (_, at) => (at % (size + 1) === 0 ? 1 : 0));
  const tensors = {
    query: floats([weights.length, queries.length, size], logits),
    key: floats([1, size, size], identity),
  };
  return denseLayer(weights, { queries, keys, tensors });
}

const STORAGES = {
  "exact weights": { load: (weights) => exactLayer(weights, { queries, keys }), known: rounded, errors: {} },
  "stored weights": {
    load: (weights) => denseLayer(weights, { queries, keys }),
    known: stored,
    errors: { totals: 0.02 },
  },
  "a map, query and key": {
    load: (weights) => computedLayer(weights, { size: 2, queries, keys }),
    known: (weights) => weights,
    errors: {},
  },
  "query and key": { load: layerOfVectors, known: (weights) => weights, errors: { blocks: 0.01 } },
};

for (const [storage, { load, known, errors }] of Object.entries(STORAGES)) {
  for (const [mask, allows] of Object.entries(MASKS)) {
    if (storage === "a map, query and key" && mask === "a row without keys in one head") continue; // a sketch
    test(`every combination equals plain sums: ${storage}, mask: ${mask}`, async () => {
      const weights = randomWeights({ heads: 3, queries: 7, keys: 9, allows });
      const layer = await load(weights);
      for (const { heads, ...state } of CHOICES) {
        const units = unitsOf(layer, { heads, ...state });
        const hidden = hiddenKeys(keys, state.hide);
        const options = { ...state, hidden, reduce: heads.length > 1 ? state.reduce : "mean" };
        const chosen = known(heads.map((head) => weights[head]));
        checkHead(units.tokens.head(layer), reference(chosen, options), 1e-6, errors);
        const words = { ...options, queryWords: QUERY_WORDS, keyWords: KEY_WORDS };
        checkHead(units.words.head(layer), reference(chosen, words), 1e-6, errors);
      }
    });
  }
}

test("rows of which little is left, or not exactly known, are not rescaled, and say so", async () => {
  const row = [0.9995, 0.0003, 0.0002];
  const near1 = [0.995, 0.003, 0.002];
  const half = [0.5, 0.3, 0.2];
  const head = async (load) => {
    const layer = await load([[row, near1, half]]);
    return new HiddenKeysHead(layer.head([0]), [true, false, false], { rescale: true, queries: 3 });
  };
  const [exact, coded] = [await head(exactLayer), await head(denseLayer)];
  assert.deepEqual(
    [0, 1, 2].map((query) => exact.row(query).notRescaled),
    [true, false, false],
  );
  assert.deepEqual(
    [0, 1, 2].map((query) => coded.row(query).notRescaled),
    [true, true, false],
  );
  near(exact.row(1).entries[0].weight, 0.6, 1e-4);
  near(coded.row(1).entries[0].weight, 0.003, 1e-9);
  near(exact.row(0).total, 0.0005, 1e-6);
  assert.equal(exact.column(1).notRescaled, true);
  assert.equal(exact.rows([1, 2]).notRescaled, false);
  assert.equal(exact.rows([0, 2]).notRescaled, true);
});

test("the error of a rescaled weight covers the exact one", async () => {
  const weights = randomWeights({ heads: 4, queries: 30, keys: 12, sharpness: 4 });
  const [exact, coded] = [await exactLayer(weights), await denseLayer(weights)];
  const hidden = Array.from({ length: 12 }, (_, key) => key % 5 === 0);
  for (const heads of [[0], [0, 1, 2, 3]]) {
    for (const reduce of ["mean", "sum"]) {
      const [a, b] = [exact, coded].map(
        (layer) => new HiddenKeysHead(layer.head(heads, reduce), hidden, { rescale: true, queries: 30 }),
      );
      for (let query = 0; query < 30; query++) {
        for (const { key, weight, error } of b.row(query).entries) {
          near(weight, a.cell(query, key).weight, error + 1e-6, `${query}, ${key}`);
          assert.equal(b.cell(query, key).error, error);
        }
      }
    }
  }
});

test("the exact order of stored weights remains when keys are hidden", async () => {
  const { planes } = await import("./fixtures.js");
  const row = [0.4, 0.2, 0.2, 0.2];
  const order = { key_order: planes([1, 1, 4], [0, 2, 0, 0], 1), query_order: planes([1, 4, 1], [0, 0, 0, 0], 1) };
  const layer = await denseLayer([[row]], { tensors: order });
  for (const rescale of [false, true]) {
    const head = new HiddenKeysHead(layer.head([0]), [true, false, false, false], { rescale, queries: 1 });
    const ranked = head.row(0);
    assert.deepEqual(
      ranked.entries.map(({ key }) => key),
      [3, 1, 2],
    );
    assert.equal(ranked.numOrdered, 3);
  }
});

// Sketches.

const longKeys = sequence(40, { special: [0, 7, 39], words: Array.from({ length: 40 }, (_, index) => index >> 1) });
const longQueries = sequence(31, {
  role: "written",
  words: Array.from({ length: 31 }, (_, index) => Math.floor(index / 3)),
});

for (const mask of /** @type {const} */ (["none", "runs", "unknown"])) {
  for (const hide of [[], ["first"], ["special"]]) {
    for (const rescale of [false, true]) {
      test(`a sketch, ${mask === "none" ? "without a mask" : `mask: ${mask}`}, ${hide.join() || "nothing"} hidden${rescale ? ", rescaled" : ""}: every number is within its error`, async () => {
        const allows = mask === "none" ? () => true : (query, key) => key <= query + 9 && query !== 5;
        const weights = randomWeights({ heads: 2, queries: 31, keys: 40, allows, sharpness: 8 });
        const options = { levels: [8, 3], k: 6, mask, queries: longQueries, keys: longKeys };
        const layer = await sketchLayer(weights, options);
        for (const { heads, reduce } of [
          { heads: [0], reduce: "mean" },
          { heads: [0, 1], reduce: "mean" },
          { heads: [0, 1], reduce: "sum" },
        ]) {
          const units = unitsOf(layer, { heads, reduce, hide, rescale });
          units.tokens.hidden(layer);
          const chosen = heads.map((head) => weights[head]);
          const hidden = hiddenKeys(longKeys, hide);
          checkSketch(units.tokens.head(layer), chosen, {
            reduce: heads.length > 1 ? reduce : "mean",
            hidden,
            rescale,
          });
          checkSketch(units.words.head(layer), chosen, {
            reduce: heads.length > 1 ? reduce : "mean",
            hidden,
            rescale,
            queryWords: longQueries.wordOf,
            keyWords: longKeys.wordOf,
          });
        }
      });
    }
  }
}

/** What a sketch says is true: known weights and bounds, sums, and that nothing is lost. */
function checkSketch(head, weights, options) {
  const plain = reference(weights, { ...options, rescale: false });
  const rescaled = reference(weights, options);
  for (const query of plain.weights.keys()) {
    const ranked = head.row(query);
    const expected = ranked.notRescaled ? plain : rescaled;
    if (ranked.notRescaled && options.queryWords) continue; // some rows of a word are rescaled, others are not
    for (const { key, weight, error } of ranked.entries) {
      near(weight, expected.weights[query][key], error + 1e-6, `row ${query}, ${key}`);
    }
    for (const [key, weight] of expected.weights[query].entries()) {
      const cell = head.cell(query, key);
      if (expected.masked[query][key]) assert.ok(cell.state !== "known" || cell.weight < 1e-9, cell.state);
      if (cell.state === "known") near(cell.weight, weight, cell.error + 1e-6, `cell ${query}, ${key}`);
      else if (cell.state === "unknown")
        assert.ok(weight <= cell.upperBound + PRECISION + 1e-6, `${weight} ${cell.upperBound}`);
      else near(weight, 0, 0);
    }
    const sum = expected.weights[query].reduce((a, b) => a + b, 0);
    const listed = ranked.entries.reduce((total, { weight }) => total + weight, 0);
    const error =
      ranked.entries.reduce((total, each) => total + Math.min(each.error, 1), 0) + 2 * PRECISION * plain.numHeads;
    if (!ranked.approximate) near(listed + ranked.rest, sum, error + 1e-6, `sum of row ${query}`);
    if (typeof ranked.total === "number") near(ranked.total, sum, error, `total of row ${query}`);
    for (const count of [0, 2, 100]) {
      const rest = restAfter(ranked, count);
      const first = ranked.entries.slice(0, count).reduce((total, { weight }) => total + weight, 0);
      if (!ranked.approximate) near(first + rest.weight, sum, error + 1e-6, `rest after ${count}`);
    }
  }
}

const SINK = [Array.from({ length: 4 }, () => [0.5, 0.1, 0.1, 0.1, 0.1, 0.1])]; // only the first key is stored
const hideKeys = (layer, keys, rescale = false) => {
  const hidden = layer.keys.tokens.map((_, key) => keys.includes(key));
  return new HiddenKeysHead(layer.head([0]), hidden, { rescale, queries: layer.queries.length });
};

test("blocks of a sketch leave out what is known of hidden keys", async () => {
  const layer = await sketchLayer(SINK, { levels: [3], k: 1 });
  const { blocks } = hideKeys(layer, [0]);
  near(blocks.at(0, 0), 0.2, 2 * PRECISION);
  near(blocks.at(0, 1), 0.3, 2 * PRECISION);
  near(blocks.at(1, 0), 0.2, 2 * PRECISION); // a block of one row
  assert.equal(hideKeys(layer, []).blocks.at(0, 0), layer.head([0]).blocks.at(0, 0));
  assert.ok(Number.isNaN(hideKeys(layer, [0, 1, 2]).blocks.at(0, 0))); // all of its keys
  const all = await sketchLayer([[[0.9997, 0.0003, 0, 0]]], { levels: [2], k: 1 });
  assert.equal(hideKeys(all, [0]).blocks.at(0, 0), 0); // what rounding leaves is nothing
});

test("a region of a sketch counts visible keys, rescaled if they are", async () => {
  const layer = await sketchLayer(SINK, { levels: [3], k: 1 });
  for (const [keys, sum] of /** @type {[[number, number], number][]} */ ([
    [[0, 2], 0.8],
    [[1, 1], 0.4],
    [[0, 5], 2],
    [[4, 5], 0.8],
  ])) {
    const region = hideKeys(layer, [0]).regionSum([0, 3], keys);
    assert.equal(region.approximate, true);
    near(region.sum, sum, 0.01, keys.join());
    near(hideKeys(layer, [0], true).regionSum([0, 3], keys).sum, 2 * sum, 0.02, keys.join());
  }
  assert.deepEqual(hideKeys(layer, [0]).regionSum([0, 3], [0, 0]), { sum: 0, error: 0, approximate: false });
});
