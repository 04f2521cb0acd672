// What is known of a head: all of it, a sketch, the mean of several.

import assert from "node:assert/strict";
import { test } from "node:test";
import { headOf } from "../../../src/regard/explore/static/data/combined_heads.js";
import { strongest, written } from "../../../src/regard/explore/static/data/recording.js";
import { sketch, whole } from "./made.js";

const near = (found, expected) =>
  assert.ok(Math.abs(found - expected) <= Math.max(0.01 * expected, 1e-4), `${found} is not near ${expected}`);
const places = (links, end) => links.map((link) => link[end]);

const full = await whole([
  [
    [0.7, 0.2, 0.1],
    [0.3, 0.6, 0.1],
  ],
  [
    [0.5, NaN, 0.5],
    [NaN, NaN, NaN],
  ],
]);

// Six queries, six keys, two named for each row; causal but for the last row, which may see nothing.
const boundaries = [[0, 1], [0, 2], [0, 3], [0, 4], [0, 5], []];
const sketched = await sketch({
  size: 3,
  map: [
    [
      [1, NaN],
      [0.6, 0.2],
    ],
  ],
  keys: [
    [
      [0, 1],
      [1, 0],
      [2, 0],
      [0, 3],
      [4, 0],
      [0, 1],
    ],
  ],
  weights: [
    [
      [1, 0],
      [0.75, 0.25],
      [0.5, 0.3],
      [0.6, 0.2],
      [0.4, 0.1],
      [0, 0],
    ],
  ],
  left: [[0, 0, 0.2, 0.2, 0.5, 0]],
  received: [[2.5, 1.25, 1, 0.75, 0.5, 0]],
  boundaries,
});

test("every cell of a whole head is known or masked", () => {
  const head = full.head([0]);
  assert.equal(head.whole, true);
  assert.equal(head.cell(0, 0).state, "known");
  near(head.cell(1, 1).weight, 0.6);
  assert.equal(full.head([1]).cell(0, 1).state, "masked");
});

test("rows and columns are told strongest first, without what is masked, and leave nothing out", () => {
  const row = full.head([1]).row(0);
  assert.deepEqual(places(row.links, "key"), [0, 2]);
  assert.equal(row.left, 0);
  assert.deepEqual(full.head([1]).row(1), { links: [], left: 0 });
  const column = full.head([0]).column(1);
  assert.deepEqual(places(column.links, "query"), [1, 0]);
  near(column.links[0].weight, 0.6);
});

test("several rows are their mean, several columns their sum", () => {
  const rows = full.head([0]).rows([0, 1]);
  assert.deepEqual(places(rows.links, "key"), [0, 1, 2]);
  near(rows.links[0].weight, 0.5);
  near(rows.links[1].weight, 0.4);
  const columns = full.head([0]).columnsOf([0, 1]);
  near(columns.links[0].weight, 0.9);
  near(columns.links[1].weight, 0.9);
  assert.deepEqual(full.head([0]).rows([1]), full.head([0]).row(1));
});

test("of the levels of a map the smallest squares are drawn that take a pixel", async () => {
  const level = (size, weight) => ({
    size,
    map: [Array.from({ length: 8 / size }, () => Array(8 / size).fill(weight))],
  });
  const made = await sketch({
    ...level(4, 0.5),
    keys: [Array(8).fill([0])],
    weights: [Array(8).fill([0.2])],
    left: [Array(8).fill(0.8)],
    received: [Array(8).fill(1)],
    boundaries: [],
    finer: [level(2, 0.25)],
  });
  const head = made.head([0]);
  assert.deepEqual(head.finer(0.4), []);
  const [{ squares, row, column }] = head.finer(0.5);
  assert.deepEqual([squares.size, squares.rows, row, column], [2, 4, 0, 0]);
  near(squares.at(3, 3), 0.25);
  assert.equal(head.finest, squares);
  assert.equal(sketched.head([0]).finest, sketched.head([0]).squares); // has no other
  const sum = headOf(made, { heads: [0, 0], several: "sum" });
  near(sum.finer(1)[0].squares.at(0, 0), 0.5);
  near(sum.finest.at(0, 0), 0.5);
  assert.equal(sum.finer(1)[0].squares, headOf(made, { heads: [0, 0], several: "sum" }).finer(1)[0].squares); // drawn once
});

test("a cell of a sketch is known if it is named, masked if the mask says so, and else unknown with a bound", () => {
  const head = sketched.head([0]);
  assert.equal(head.whole, false);
  assert.equal(head.cell(3, 0).state, "known");
  near(head.cell(3, 0).weight, 0.6);
  assert.equal(head.cell(0, 1).state, "masked"); // named for want of another, with weight 0
  assert.equal(head.cell(2, 5).state, "masked");
  const unknown = head.cell(3, 1);
  assert.equal(unknown.state, "unknown");
  assert.ok(Number.isNaN(unknown.weight));
  near(unknown.most, 0.2);
  near(head.cell(4, 1).most, 0.1); // not more than the weakest that is named
  for (let key = 0; key < 6; key++) assert.equal(head.cell(5, key).state, "masked");
});

test("a row of a sketch says what its links leave out", () => {
  const head = sketched.head([0]);
  assert.deepEqual(places(head.row(4).links, "key"), [4, 0]);
  near(head.row(4).left, 0.5);
  assert.deepEqual(places(head.row(0).links, "key"), [0]);
  assert.deepEqual(head.row(5), { links: [], left: 0 });
});

test("a column of a sketch names the rows that name it, and what it receives from others", () => {
  const { links, left } = sketched.head([0]).column(0);
  assert.deepEqual(places(links, "query"), [0, 3, 2, 1, 4]);
  assert.ok(Math.abs(left - (2.5 - 1 - 0.6 - 0.3 - 0.25 - 0.1)) < 0.01 * 2.25); // each that is named is known to 1 %
  assert.deepEqual(sketched.head([0]).column(5), { links: [], left: 0 });
});

test("squares are how much rows give to keys, and NaN where all is masked", () => {
  const { squares } = sketched.head([0]);
  assert.equal(squares.size, 3);
  near(squares.at(1, 0), 0.6);
  assert.ok(Number.isNaN(squares.at(0, 1)));
});

const unmasked = {
  size: 2,
  map: [[[0.5]]],
  keys: [[[0], [1]]],
  weights: [[[0.5], [0]]],
  left: [[0.5, 0]],
  received: [[0.5, 0.5]],
};

test("without a mask no cell is masked", async () => {
  const head = (await sketch({ ...unmasked, boundaries: [] })).head([0]);
  assert.equal(head.cell(0, 1).state, "unknown");
  assert.equal(head.cell(1, 1).state, "known"); // a weight that is so small is known to be
  assert.equal(head.cell(1, 1).weight, 0);
});

test("where the mask is not told, a cell that is not named is unknown", async () => {
  const head = (await sketch({ ...unmasked, boundaries: null })).head([0]);
  assert.equal(head.cell(0, 0).state, "known");
  assert.equal(head.cell(0, 1).state, "unknown");
  assert.equal(head.cell(1, 1).state, "unknown");
});

test("a mean of heads is the mean of their weights; what is masked in one gives nothing there", () => {
  const both = full.head([0, 1]);
  near(both.cell(0, 0).weight, 0.6);
  assert.equal(both.cell(0, 1).state, "known");
  near(both.cell(0, 1).weight, 0.1);
  near(both.squares.at(0, 1), 0.1);
  assert.deepEqual(places(both.row(0).links, "key"), [0, 2, 1]);
  near(both.column(0).links[0].weight, 0.6);
  assert.equal(both.whole, true);
});

test("a mean is masked where all of its heads are, and unknown where one is", async () => {
  const masked = await whole([[[0.5, NaN]], [[1, NaN]]]);
  assert.equal(masked.head([0, 1]).cell(0, 1).state, "masked");
  assert.ok(Number.isNaN(masked.head([0, 1]).squares.at(0, 1)));
  const two = await sketch({
    size: 2,
    map: [[[0.5]], [[0.5]]],
    keys: [[[0]], [[1]]],
    weights: [[[0.6]], [[0.8]]],
    left: [[0.4], [0.2]],
    received: [
      [0.6, 0.4],
      [0.2, 0.8],
    ],
    boundaries: [],
  });
  const cell = two.head([0, 1]).cell(0, 0);
  assert.equal(cell.state, "unknown");
  assert.ok(Number.isNaN(cell.weight));
  near(cell.most, (0.6 + 0.2) / 2);
  near(two.head([0, 1]).row(0).left, 0.3);
});

test("a sum of heads is the sum of their weights, and of what they leave out", () => {
  const both = headOf(full, { heads: [0, 1], several: "sum" });
  near(both.cell(0, 0).weight, 1.2);
  near(both.cell(0, 1).weight, 0.2);
  near(both.squares.at(0, 2), 0.6);
  assert.deepEqual(
    both.row(0).links.map(({ key }) => key),
    [0, 2, 1],
  );
  near(both.rows([0, 1]).links.find(({ key }) => key === 0).weight, 0.75);
  near(both.columnsOf([0, 2]).links.find(({ query }) => query === 0).weight, 1.8);
  assert.equal(both.cell(1, 0).state, "known"); // masked in one of them
  near(both.cell(1, 0).weight, 0.3);
  const sum = headOf(sketched, { heads: [0, 0], several: "sum" });
  near(sum.row(3).left, 2 * sketched.head([0]).row(3).left);
  near(sum.cell(5, 0).most, 2 * sketched.head([0]).cell(5, 0).most);
  assert.equal(headOf(full, { heads: [1], several: "sum" }), full.head([1])); // one is itself
  near(headOf(full, { heads: [0, 1], several: "mean" }).cell(0, 0).weight, 0.6);
});

test("links of equal weight stay in the order of the text", () => {
  const links = [0.2, 0.5, 0.2, 0.5].map((weight, key) => ({ query: 0, key, weight }));
  assert.deepEqual(places(strongest(links), "key"), [1, 3, 0, 2]);
  assert.deepEqual(places(strongest(links, 1), "key"), [1]);
});

test("a weight is written with what its precision carries", () => {
  assert.deepEqual([1, 0.5, 0.1234567, 0.0123456, 0.00005, 0.00004, 0].map(written), [
    "1.000",
    "0.500",
    "0.123",
    "0.0123",
    "0.0001",
    "< 0.0001",
    "< 0.0001",
  ]);
});
