// One head: all of its weights, exact or stored, or a sketch of them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { checkHead, near, reference, regions } from "./dense_reference.js";
import {
  blockMeans,
  computedLayer,
  denseLayer,
  exactLayer,
  floats,
  PRECISION,
  planes,
  randomWeights,
  sketchLayer,
} from "./fixtures.js";

const places = ({ entries }, axis) => entries.map((entry) => entry[axis]);
const causal = (/** @type {number} */ query, /** @type {number} */ key) => key <= query;

const WEIGHTS = [
  [
    [0.7, 0.2, 0.1],
    [0.3, 0.6, 0.1],
  ],
  [
    [0.5, NaN, 0.5],
    [NaN, NaN, NaN],
  ],
];
const dense = await denseLayer(WEIGHTS);

// All weights.

test("every cell of a dense head is known or masked", () => {
  const [head, masked] = [dense.head([0]), dense.head([1])];
  assert.equal(head.isDense, true);
  assert.deepEqual(head.cell(1, 1), {
    state: "known",
    weight: Math.fround(0.6),
    upperBound: Math.fround(0.6),
    error: PRECISION,
  });
  assert.equal(masked.cell(0, 1).state, "masked");
  assert.equal(masked.isMasked(0, 1), true);
  assert.equal(head.blocks, head.finestBlocks);
  assert.deepEqual(head.tiles(20, { row: 0, column: 0 }, { row: 2, column: 3 }), []);
});

test("rows and columns are strongest first, without what is masked, and complete", () => {
  const row = dense.head([1]).row(0);
  assert.deepEqual(places(row, "key"), [0, 2]);
  assert.deepEqual([row.rest, row.total, row.isComplete], [0, 1, true]);
  const empty = dense.head([1]).row(1);
  assert.deepEqual([empty.entries, empty.rest, empty.total], [[], 0, 0]);
  assert.deepEqual(places(dense.head([0]).column(1), "query"), [1, 0]);
});

test("several rows are their mean, several columns their sum, one is itself", () => {
  const head = dense.head([0]);
  const rows = head.rows([0, 1]);
  assert.deepEqual(places(rows, "key"), [0, 1, 2]);
  near(rows.entries[0].weight, 0.5, 1e-7);
  near(rows.entries[1].weight, 0.4, 1e-7);
  near(rows.entries[0].error, PRECISION, 1e-12);
  near(head.columns([0, 1]).entries[0].weight, 0.9, 1e-7);
  near(head.columns([0, 1]).entries[0].error, 2 * PRECISION, 1e-12);
  assert.deepEqual(head.rows([1]), head.row(1));
  assert.deepEqual(head.columns([1]), head.column(1));
});

test("weights that are computed from query and key are exact, cell by cell and in tiles", async () => {
  const weights = randomWeights({ heads: 2, queries: 300, keys: 300, allows: causal });
  const layer = await computedLayer(weights, { size: 7 });
  assert.deepEqual([layer.isDense, layer.isPartial, layer.isRemote], [false, false, false]);
  const head = layer.head([1]);
  for (const query of [0, 150, 299]) {
    for (const key of [0, 149, 150, 299]) {
      if (key > query) assert.equal(head.cell(query, key).state, "masked");
      else near(head.cell(query, key).weight, weights[1][query][key], 1e-6);
    }
    assert.equal(head.row(query).entries.length, query + 1);
    assert.equal(head.column(query).entries.length, 300 - query);
  }
  assert.deepEqual(head.tiles(0.9, { row: 0, column: 0 }, { row: 300, column: 300 }), []);
  const tiles = head.tiles(1, { row: 200, column: 10.5 }, { row: 310, column: 300 });
  const corners = tiles.map(({ row, column, blocks }) => [row, column, blocks.rows, blocks.columns]);
  assert.deepEqual(corners, [
    [0, 0, 256, 256],
    [0, 256, 256, 44],
    [256, 0, 44, 256],
    [256, 256, 44, 44],
  ]);
  near(tiles[2].blocks.at(3, 5), weights[1][259][5], 1e-6);
  assert.ok(Number.isNaN(tiles[1].blocks.at(3, 5)));
  assert.equal(head.tiles(2, { row: 0, column: 0 }, { row: 9, column: 9 })[0].blocks, tiles[0].blocks);
});

test("a row with sinks has no known total", async () => {
  const weights = randomWeights({ queries: 3, keys: 4, sink: 5 });
  const head = (await denseLayer(weights, { hasSinks: true, score: "Sinks" })).head([0]);
  assert.equal(head.row(0).total, null);
  checkHead((await exactLayer(weights, { hasSinks: true })).head([0]), reference(weights), 1e-6);
});

test("a layer that is not loaded has no head", async () => {
  const { Layer } = await import("../../../src/regard/explore/static/data/layer.js");
  const layer = new Layer(dense.header, [dense.queries, dense.keys], PRECISION, async () => new ArrayBuffer(0));
  assert.deepEqual([layer.isLoaded, layer.head([0])], [false, null]);
});

test("weights are computed from query and key if they are there, and ranked exactly", async () => {
  const stored = [[[0.2501, 0.25, 0.2499, 0.25]]];
  const [query, key] = [
    [1, 2],
    [Math.log(0.2501), 0, Math.log(0.25), 0, Math.log(0.2499), 0, Math.log(0.25), 1e-6],
  ];
  const tensors = { query: floats([1, 1, 2], query), key: floats([1, 4, 2], key) };
  const exact = (await denseLayer(stored, { tensors })).head([0]);
  assert.deepEqual(places(exact.row(0), "key"), [0, 3, 1, 2]);
  assert.equal(exact.cell(0, 0).error, 0);
  near(exact.cell(0, 2).weight, 0.2499, 1e-6);
  const other = (await denseLayer(stored, { tensors, score: "Sinks of ScaledDotProduct" })).head([0]);
  assert.equal(other.cell(0, 0).error, PRECISION); // by another score
  near(other.cell(0, 2).weight, 750 / 3000, 1e-7);
});

test("heads that share keys compute their weights from them", async () => {
  const weights = randomWeights({ heads: 4, queries: 3, keys: 5 });
  const log = weights.flat(2).map(Math.log);
  const eye = (/** @type {number} */ sign) => Array.from({ length: 25 }, (_, at) => (at % 6 === 0 ? sign : 0));
  const query = [...log.slice(0, 30), ...log.slice(30).map((number) => -number)]; // the last two heads, for the second keys
  const tensors = { query: floats([4, 3, 5], query), key: floats([2, 5, 5], [...eye(1), ...eye(-1)]) };
  const layer = await denseLayer(weights, { tensors });
  for (const head of [0, 1, 2, 3])
    checkHead(layer.head([head]), reference([weights[head]]), 1e-6, { blocks: PRECISION });
});

test("the exact order that a file holds is that of rows and columns", async () => {
  const row = [[0.25, 0.25, 0.25, 0.25]];
  const tensors = { key_order: planes([1, 1, 4], [2, 0, 1, 0], 1), query_order: planes([1, 4, 1], [0, 0, 0, 0], 1) };
  const ranked = (await denseLayer([row], { tensors })).head([0]).row(0);
  assert.deepEqual([places(ranked, "key"), ranked.numOrdered], [[2, 0, 3, 1], 4]);
  const column = { key_order: planes([1, 2, 1], [0, 0], 1), query_order: planes([1, 1, 2], [1, 0], 2) };
  const head = (await denseLayer([[[1], [1]]], { tensors: column })).head([0]);
  assert.deepEqual(places(head.column(0), "query"), [1, 0]);
});

// Sketches. Six queries, six keys, two stored for each row; causal, but the last row may attend to nothing.

const sketchWeights = [
  [
    [1, NaN, NaN, NaN, NaN, NaN],
    [0.25, 0.75, NaN, NaN, NaN, NaN],
    [0.3, 0.2, 0.5, NaN, NaN, NaN],
    [0.6, 0.15, 0.05, 0.2, NaN, NaN],
    [0.2, 0.15, 0.1, 0.15, 0.4, NaN],
    [NaN, NaN, NaN, NaN, NaN, NaN],
  ],
];
const sketch = (await sketchLayer(sketchWeights, { levels: [3], k: 2 })).head([0]);

test("a cell of a sketch is known if it is stored, masked if the mask says so, and else unknown with a bound", () => {
  assert.equal(sketch.isDense, false);
  near(sketch.cell(3, 0).weight, 0.6, 1e-7);
  assert.deepEqual([sketch.cell(3, 0).state, sketch.cell(3, 0).error], ["known", PRECISION]);
  assert.equal(sketch.cell(0, 1).state, "masked"); // stored for want of another, with weight 0
  assert.equal(sketch.cell(2, 5).state, "masked");
  const unknown = sketch.cell(3, 1);
  assert.deepEqual([unknown.state, unknown.weight], ["unknown", NaN]);
  near(unknown.upperBound, 0.2, PRECISION + 1e-7); // what the stored keys leave
  near(sketch.cell(4, 1).upperBound, 0.2, PRECISION + 1e-7); // not more than the weakest that is stored
  for (let key = 0; key < 6; key++) assert.equal(sketch.cell(5, key).state, "masked");
});

test("a row of a sketch says what its entries leave", () => {
  const row = sketch.row(4);
  assert.deepEqual(places(row, "key"), [4, 0]);
  near(row.rest, 0.4, 1e-7);
  assert.deepEqual([row.total, row.isComplete, row.numOrdered], [1, false, 2]);
  assert.deepEqual(places(sketch.row(0), "key"), [0]);
  assert.equal(sketch.row(0).isComplete, true);
  const empty = sketch.row(5);
  assert.deepEqual([empty.entries, empty.rest, empty.total], [[], 0, 0]);
});

test("a column of a sketch has the rows that store it, and what it receives from others", () => {
  const { entries, rest, approximate, isComplete } = sketch.column(0);
  assert.deepEqual(places({ entries }, "query"), [0, 3, 2, 1, 4]);
  near(rest, 0, 1e-3);
  assert.equal(approximate, rest > 0);
  assert.equal(isComplete, rest === 0);
  near(sketch.column(1).rest, 0.5, 1e-3);
  const none = sketch.column(5);
  assert.deepEqual([none.entries, none.rest, none.isComplete], [[], 0, true]);
});

test("blocks are means of rows, and NaN where all is masked", () => {
  const { blocks } = sketch;
  assert.equal(blocks.size, 3);
  for (const [row, means] of blockMeans(sketchWeights[0], 3).entries()) {
    for (const [column, mean] of means.entries()) {
      if (Number.isNaN(mean)) assert.ok(Number.isNaN(blocks.at(row, column)));
      else near(blocks.at(row, column), mean, PRECISION + 1e-7);
    }
  }
});

test("of several levels the smallest blocks are drawn that take a pixel", async () => {
  const weights = randomWeights({ queries: 20, keys: 20 });
  const head = (await sketchLayer(weights, { levels: [8, 4, 2], k: 3 })).head([0]);
  const sizeAt = (/** @type {number} */ cell) => head.tiles(cell).map(({ blocks }) => blocks.size);
  assert.deepEqual([0.2, 0.25, 0.49, 0.5, 10].map(sizeAt), [[], [4], [4], [2], [2]]);
  const [{ blocks, row, column }] = head.tiles(1);
  assert.deepEqual([blocks.rows, row, column], [10, 0, 0]);
  assert.equal(head.finestBlocks, blocks);
  assert.equal(sketch.finestBlocks, sketch.blocks); // has no other
});

test("without a mask no cell is masked, and where it is not stored, cells are unknown", async () => {
  const weights = [
    [
      [0.5, 0.5],
      [1, 0],
    ],
  ];
  const [none, unknown] = await Promise.all(
    ["none", "unknown"].map((mask) => sketchLayer(weights, { levels: [2], k: 1, mask })),
  );
  const states = (layer) => [0, 1].flatMap((query) => [0, 1].map((key) => layer.head([0]).cell(query, key).state));
  assert.deepEqual(states(none), ["known", "unknown", "known", "unknown"]);
  assert.deepEqual(states(unknown), ["known", "unknown", "known", "unknown"]);
  const zero = [[[0, 0, 0, 1]]];
  const all = await sketchLayer(zero, { levels: [2], k: 2, mask: "none" });
  assert.deepEqual([all.head([0]).cell(0, 0).state, all.head([0]).cell(0, 0).weight], ["known", 0]); // it may be that small
  const may = await sketchLayer(zero, { levels: [2], k: 2, mask: "unknown" });
  assert.equal(may.head([0]).cell(0, 0).state, "unknown"); // or masked
});

test("a row of weights too small to store is not empty", async () => {
  const weights = [[Array(8000).fill(1 / 8000)]];
  const head = (await sketchLayer(weights, { levels: [100], k: 2, mask: "unknown" })).head([0]);
  assert.deepEqual([head.row(0).total, head.row(0).entries.length], [1, 0]);
  near(head.row(0).rest, 1, 1e-3);
});

// Regions.

test("a region whose cells are known is their sum; of others the blocks are", async () => {
  const weights = randomWeights({ queries: 20, keys: 23, allows: causal });
  const [exact, all] = [
    (await exactLayer(weights)).head([0]),
    weights[0].flat().reduce((sum, weight) => sum + (weight || 0), 0),
  ];
  const head = (await sketchLayer(weights, { levels: [5], k: 4 })).head([0]);
  assert.deepEqual(exact.regionSum([0, 19], [0, 22]).approximate, false);
  near(exact.regionSum([0, 19], [0, 22]).sum, all, 1e-5);
  for (const [top, bottom, left, right] of [...regions(20, 23), [0, 19, 20, 22], [0, 19, 22, 22], [3, 11, 4, 13]]) {
    const { sum, approximate } = head.regionSum([top, bottom], [left, right]);
    const expected = exact.regionSum([top, bottom], [left, right]).sum;
    near(sum, expected, approximate ? 0.35 * expected + 0.1 : 0.01, [top, bottom, left, right].join());
  }
  const whole = head.regionSum([0, 19], [0, 22]);
  assert.equal(whole.approximate, true);
  near(whole.sum, all, 25 * 5 * PRECISION); // each block is stored once
  assert.equal(head.regionSum([0, 0], [0, 0]).approximate, false); // its cell is stored
});

test("the blocks of a region at the edge count in full", async () => {
  const weights = [[...Array(4)].map(() => [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4])]; // the last block has one key
  const head = (await sketchLayer(weights, { levels: [3], k: 1 })).head([0]);
  head.topKeys = head.topKeys.map(() => 0); // so that the last column is not known
  near(head.regionSum([0, 3], [6, 6]).sum, 1.6, 0.01);
  near(head.regionSum([0, 3], [5, 6]).sum, 2, 0.01);
  near(head.regionSum([0, 3], [0, 6]).sum, 4, 0.01);
});
