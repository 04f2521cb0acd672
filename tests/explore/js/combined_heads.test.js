// The mean and the sum of several heads.

import assert from "node:assert/strict";
import { test } from "node:test";

import { combineHeads } from "../../../src/regard/explore/static/data/combined_heads.js";
import { checkHead, near, reference } from "./dense_reference.js";
import { denseLayer, exactLayer, PRECISION, randomWeights, sketchLayer } from "./fixtures.js";

const places = ({ entries }, axis) => entries.map((entry) => entry[axis]);
const full = await denseLayer([
  [
    [0.7, 0.2, 0.1],
    [0.3, 0.6, 0.1],
  ],
  [
    [0.5, NaN, 0.5],
    [NaN, NaN, NaN],
  ],
]);

test("a mean of heads is the mean of their weights; what is masked in one gives nothing there", () => {
  const both = full.head([0, 1]);
  near(both.cell(0, 0).weight, 0.6, 1e-7);
  assert.equal(both.cell(0, 1).state, "known");
  near(both.cell(0, 1).weight, 0.1, 1e-7);
  near(both.blocks.at(0, 1), 0.1, 1e-7);
  assert.deepEqual(places(both.row(0), "key"), [0, 2, 1]);
  near(both.column(0).entries[0].weight, 0.6, 1e-7);
  assert.deepEqual([both.isDense, both.numHeads], [true, 1]);
  near(both.cell(0, 0).error, PRECISION, 1e-12);
  near(both.cell(0, 1).error, PRECISION / 2, 1e-12); // that of the masked head is known to be 0
  assert.equal(both.row(1).total, 0.5); // one of two heads attends to something
});

test("a sum of heads is the sum of their weights", () => {
  const both = full.head([0, 1], "sum");
  near(both.cell(0, 0).weight, 1.2, 1e-6);
  near(both.cell(0, 1).weight, 0.2, 1e-6);
  near(both.cell(0, 0).error, 2 * PRECISION, 1e-12);
  near(both.blocks.at(0, 2), 0.6, 1e-6);
  assert.deepEqual(places(both.row(0), "key"), [0, 2, 1]);
  near(both.rows([0, 1]).entries.find(({ key }) => key === 0).weight, 0.75, 1e-6);
  near(both.columns([0, 2]).entries.find(({ query }) => query === 0).weight, 1.8, 1e-6);
  assert.deepEqual([both.cell(1, 0).state, both.numHeads, both.row(0).total, both.row(1).total], ["known", 2, 2, 1]);
});

test("one head is itself, however it is reduced, and combined maps are the same objects each time", () => {
  for (const reduce of ["mean", "sum"]) {
    assert.equal(full.head([1], reduce), full.heads[1]);
    assert.equal(full.head([0, 1], reduce).blocks, full.head([0, 1], reduce).blocks);
    assert.notEqual(full.head([0, 1], reduce).blocks, full.head([0], reduce).blocks);
  }
  assert.notEqual(full.head([0, 1]).blocks, full.head([0, 1], "sum").blocks);
});

test("a mean is masked where all of its heads are, and unknown where one is", async () => {
  const masked = await exactLayer([[[1, NaN]], [[1, NaN]]]);
  assert.equal(masked.head([0, 1]).cell(0, 1).state, "masked");
  assert.equal(masked.head([0, 1]).isMasked(0, 1), true);
  assert.ok(Number.isNaN(masked.head([0, 1]).blocks.at(0, 1)));
  const weights = [[[0.6, 0.4]], [[0.2, 0.8]]];
  const two = (await sketchLayer(weights, { levels: [2], k: 1, mask: "none" })).head([0, 1]);
  const cell = two.cell(0, 0);
  assert.deepEqual([cell.state, cell.weight], ["unknown", NaN]);
  near(cell.upperBound, (0.6 + 0.2) / 2, PRECISION);
  near(two.row(0).rest, 0.3, 1e-6);
});

test("what only one head of a sketch stores is listed with the error that the other leaves", async () => {
  const weights = [[[0.6, 0.4]], [[0.2, 0.8]]];
  const layer = await sketchLayer(weights, { levels: [2], k: 1, mask: "none" });
  for (const reduce of ["mean", "sum"]) {
    const n = reduce === "sum" ? 2 : 1;
    const head = layer.head([0, 1], reduce);
    const exact = [0.4 * n, 0.6 * n];
    for (const { key, weight, error } of head.row(0).entries) {
      assert.ok(weight <= exact[key] + 1e-3 && exact[key] <= weight + error + 1e-3, `${weight} ± ${error}`);
      assert.ok(error >= (n * 0.2) / 2, "it is not as exact as a stored weight");
    }
    for (const { weight, error } of head.column(0).entries)
      assert.ok(weight < 0.4 * n && weight + error >= 0.4 * n - 1e-3);
  }
});

test("rows and columns of a sketch that are added up have such errors too", async () => {
  const weights = randomWeights({ queries: 12, keys: 15, sharpness: 6 });
  const [exact, head] = [
    (await exactLayer(weights)).head([0]),
    (await sketchLayer(weights, { levels: [4], k: 4 })).head([0]),
  ];
  const rows = exact.rows([1, 4, 9]).entries;
  let numPartial = 0;
  for (const { key, weight, error } of head.rows([1, 4, 9]).entries) {
    near(weight, rows.find((entry) => entry.key === key).weight, error + 1e-6);
    const cells = [1, 4, 9].map((query) => head.cell(query, key));
    const unknown = cells.reduce((sum, cell) => sum + (cell.state === "unknown" ? cell.upperBound : 0), 0);
    near(error, Math.max(unknown / 3, PRECISION / 2), PRECISION); // and not more than that
    if (error > PRECISION) numPartial++;
  }
  assert.ok(numPartial > 2);
  const columns = exact.columns([0, 3, 7]).entries;
  for (const { query, weight, error } of head.columns([0, 3, 7]).entries) {
    near(weight, columns.find((entry) => entry.query === query).weight, error + 1e-6);
  }
});

test("any heads of any masks equal plain sums", async () => {
  const allows = (query, key, head) => (key + head) % 3 !== 0 && !(query === 2 && head === 1) && query !== 5;
  const weights = randomWeights({ heads: 4, queries: 6, keys: 8, allows });
  const layer = await exactLayer(weights);
  for (const heads of [
    [0, 1],
    [1, 2, 3],
    [0, 1, 2, 3],
    [3, 0],
  ]) {
    const chosen = heads.map((head) => weights[head].map((row) => row.map(Math.fround)));
    for (const reduce of ["mean", "sum"]) checkHead(layer.head(heads, reduce), reference(chosen, { reduce }), 1e-6);
  }
});

test("tiles are combined where every head has them", async () => {
  const weights = randomWeights({ heads: 2, queries: 20, keys: 20 });
  const layer = await sketchLayer(weights, { levels: [8, 2], k: 3 });
  const sum = layer.head([0, 1], "sum");
  const [tile] = sum.tiles(1, { row: 0, column: 0 }, { row: 20, column: 20 });
  assert.deepEqual([tile.blocks.size, tile.row, tile.column], [2, 0, 0]);
  const [a, b] = layer.heads.map((head) => head.finestBlocks.at(3, 4));
  near(tile.blocks.at(3, 4), a + b, 1e-7);
  near(sum.finestBlocks.at(3, 4), a + b, 1e-7);
  assert.equal(tile.blocks, sum.tiles(1, { row: 0, column: 0 }, { row: 20, column: 20 })[0].blocks); // drawn once
  const tiles = (row) => () => [{ ...tile, row }];
  const [c, d] = layer.heads.map((head, index) => Object.assign(Object.create(head), { tiles: tiles(index) }));
  assert.deepEqual(combineHeads([c, d]).tiles(1, { row: 0, column: 0 }, { row: 1, column: 1 }), []);
});
