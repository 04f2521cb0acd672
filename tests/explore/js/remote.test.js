// Heads of a server: every number equals plain sums once it is loaded, and until then it is loading, never zero.

import assert from "node:assert/strict";
import { test } from "node:test";

import { hiddenKeys } from "../../../src/regard/explore/static/data/hidden_keys.js";
import { RemoteRecording } from "../../../src/regard/explore/static/data/remote.js";
import { createStore } from "../../../src/regard/explore/static/state/store.js";
import { Units } from "../../../src/regard/explore/static/state/unit.js";
import { checkHead, reference, regions } from "./dense_reference.js";
import { blockMeans, randomWeights, wordTexts } from "./fixtures.js";

const [QUERIES, KEYS] = [11, 13];
const QUERY_WORDS = [0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 6];
const KEY_WORDS = [0, 1, 1, 2, 3, 4, 4, 4, 5, 6, 7, 7, 8];
const allows = (/** @type {number} */ query, /** @type {number} */ key, /** @type {number} */ head) =>
  key <= query + 2 && query !== 4 && (head !== 1 || query !== 7);
const weights = randomWeights({ heads: 2, queries: QUERIES, keys: KEYS, allows });
const rounded = weights.map((head) => head.map((row) => row.map(Math.fround)));

/** What the server responds to a path; docs/page_format.md. */
function respond(path) {
  const [kind, , head, ...numbers] = path
    .split("?")[0]
    .split("/")
    .map((part, at) => (at ? Number(part) : part));
  const matrix = weights[head];
  const hidden = path.includes("?hidden=") ? path.split("=")[1].split(",").map(Number) : [];
  const [a, b, c, d] = numbers;
  if (kind === "row") return matrix[a];
  if (kind === "column") return matrix.map((row) => row[a]);
  if (kind === "tile") {
    return blockMeans(matrix, a)
      .slice(8 * b, 8 * (b + 1))
      .flatMap((row) => row.slice(8 * c, 8 * (c + 1)));
  }
  if (kind === "region") {
    const rows = matrix.slice(a, b + 1);
    return rows.map((row) =>
      row.reduce((sum, weight, key) => sum + (key >= c && key <= d && !hidden.includes(key) ? weight || 0 : 0), 0),
    );
  }
  if (kind === "thumbnail") return [0.5];
  if (kind === "scores") return { entropy: head };
  throw new Error(path);
}

let requests = [];
let isDown = false;
globalThis.fetch = async (path) => {
  requests.push(path);
  if (isDown) throw new TypeError("fetch failed");
  const response = respond(path);
  return new Response(Array.isArray(response) ? Float32Array.from(response) : JSON.stringify(response));
};

const sequence = (role, length, words, special) => {
  const tokens = Array.from({ length }, (_, index) => `${role}${index}`);
  return { role, tokens, display: tokens, words, word_texts: wordTexts(tokens, words), special, spaces: [] };
};
const header = {
  title: "",
  precision: 0,
  is_served: true,
  max_map_size: 8,
  level_factor: 2,
  opening: { layer: 0, head: 0, query: 0, reason: "" },
  sequences: [sequence("written", QUERIES, QUERY_WORDS, []), sequence("source", KEYS, KEY_WORDS, [0, 3, 7])],
  layers: [
    {
      name: "a",
      kind: "cross",
      heads: [0, 1],
      queries: 0,
      keys: 1,
      scale: 1,
      score: null,
      has_sinks: false,
      scores: { entropy: [] },
      thumbnail: [1, 1],
      storage: "remote",
      levels: [4],
      qkv: [],
    },
  ],
};

/** Call until it returns something that is not null, as a page does at each update. */
async function loaded(get) {
  for (let round = 0; round < 2000; round++) {
    const value = get();
    if (value !== null) return value;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  throw new Error("it is not loaded");
}

const makeRecording = () => new RemoteRecording(/** @type {any} */ (structuredClone(header)));
const recording = makeRecording();
const layer = recording.layers[0];
const unitsOf = (/** @type {any} */ state) =>
  new Units(recording, createStore({ layer: 0, tokens: [], region: null, hover: null, zoom: null, ...state }));

for (const heads of [[0], [0, 1]]) {
  for (const reduce of heads.length > 1 ? ["mean", "sum"] : ["mean"]) {
    for (const hide of [[], ["first"], ["special"]]) {
      for (const rescale of hide.length ? [false, true] : [false]) {
        const name = `${heads.length > 1 ? reduce : "one head"}, ${hide.join() || "nothing"} hidden${rescale ? ", rescaled" : ""}`;
        test(`a head of a server equals plain sums: ${name}`, async () => {
          const units = unitsOf({ heads, reduce, hide, rescale });
          const chosen = heads.map((head) => rounded[head]);
          const options = { reduce, rescale, hidden: hiddenKeys(layer.keys, hide) };
          await check(units.tokens.head.bind(units.tokens, layer), reference(chosen, options));
          const words = { ...options, queryWords: QUERY_WORDS, keyWords: KEY_WORDS };
          await check(units.words.head.bind(units.words, layer), reference(chosen, words));
        });
      }
    }
  }
}

async function check(get, expected) {
  const head = await loaded(get);
  const [queries, keys] = [expected.weights.length, expected.weights[0].length];
  await head.fetch([...Array(queries).keys()], [...Array(keys).keys()]);
  await loaded(() => (head.row(0).loading || head.column(0).loading ? null : true));
  for (const [top, bottom, left, right] of regions(queries, keys)) {
    await loaded(() => head.regionSum([top, bottom], [left, right]).sum);
  }
  assert.deepEqual([head.isRemote, head.isDense], [true, false]);
  checkHead(head, expected, 1e-6);
}

test("what is not loaded is loading", async () => {
  const fresh = makeRecording().layers[0];
  assert.equal(fresh.head([0]), null);
  const head = await loaded(() => fresh.head([0]));
  assert.equal(head.row(3).loading, true);
  assert.equal(head.column(2).loading, true);
  assert.equal(head.regionSum([0, 3], [0, 3]).sum, null);
  const cell = head.cell(9, 5);
  assert.deepEqual([cell.state, cell.upperBound], ["unknown", 1]);
  assert.equal((await loaded(() => (head.row(3).loading ? null : head.row(3)))).isComplete, true);
});

test("of the requests of one kind only the latest waits", async () => {
  const fresh = makeRecording().layers[0];
  const head = await loaded(() => fresh.head([0]));
  requests = [];
  for (let query = 0; query < 9; query++) head.row(query);
  await loaded(() => (head.row(8).loading ? null : true));
  assert.deepEqual(
    requests.filter((path) => path.startsWith("row")),
    ["row/0/0/0", "row/0/0/8"],
  );
});

test("several rows or columns are requested together, and views are notified once", async () => {
  const fresh = makeRecording();
  const head = await loaded(() => fresh.layers[0].head([0]));
  let updates = 0;
  fresh.onUpdate = () => updates++;
  requests = [];
  const all = [0, 1, 2, 3, 5, 6, 7, 8];
  const rows = () => (head.rows(all).loading ? null : head.rows(all));
  const columns = () => (head.columns(all).loading ? null : head.columns(all));
  const mean = await loaded(() => rows());
  for (const { key, weight } of mean.entries) {
    const expected = all.reduce((sum, query) => sum + (rounded[0][query][key] || 0), 0) / all.length;
    assert.ok(Math.abs(weight - expected) < 1e-6);
  }
  const sum = await loaded(() => columns());
  for (const { query, weight } of sum.entries) {
    const expected = all.reduce((total, key) => total + (rounded[0][query][key] || 0), 0);
    assert.ok(Math.abs(weight - expected) < 1e-6);
  }
  assert.equal(rows(), mean); // the same object, not added up again
  assert.deepEqual(
    requests.filter((path) => !path.startsWith("thumbnail")), // which are requested when nothing else is
    [...all.map((query) => `row/0/0/${query}`), ...all.map((key) => `column/0/0/${key}`)],
  );
  await loaded(() => (updates ? true : null));
  assert.ok(updates <= 2); // once for the rows, once for the columns
});

test("what is fetched stays until it is read, however little is kept", async () => {
  const fresh = makeRecording().layers[0];
  const head = await loaded(() => fresh.head([0]));
  head.maxCached = 2;
  const all = [0, 1, 2, 3, 5, 6, 7, 8];
  await head.fetch([0, 1], []); // in the cache already, and the oldest there
  await head.fetch(all, all);
  requests = [];
  for (const index of all) assert.ok(!head.row(index).loading && !head.column(index).loading);
  assert.deepEqual(requests, []);
  await head.fetch([9, 10], []);
  assert.equal(head.requestAll(all, []), false); // more than can be kept is not loaded again and again
  assert.deepEqual(requests, ["row/0/0/9", "row/0/0/10"]);
});

test("tiles of hidden keys are clear and the others rescaled, wherever they begin", async () => {
  const units = unitsOf({ heads: [0], reduce: "mean", hide: ["special"], rescale: true });
  const head = await loaded(() => units.tokens.head(layer));
  await loaded(() => (head.row(5).loading ? null : true));
  const [from, to] = [
    { row: 0, column: 0 },
    { row: QUERIES, column: KEYS },
  ];
  const tiles = await loaded(() => (head.tiles(1, from, to).length === 4 ? head.tiles(1, from, to) : null));
  const expected = reference([rounded[0]], { rescale: true, hidden: hiddenKeys(layer.keys, ["special"]) });
  for (const { blocks, row, column } of tiles) {
    assert.equal(blocks.size, 1);
    for (let y = 0; y < blocks.rows; y++) {
      for (let x = 0; x < blocks.columns; x++) {
        const weight = blocks.at(y, x);
        if (expected.masked[row + y][column + x]) assert.ok(Number.isNaN(weight));
        else assert.ok(Math.abs(weight - expected.weights[row + y][column + x]) < 1e-6);
      }
    }
  }
  const coarse = await loaded(() => (head.tiles(0.5, from, to).length ? head.tiles(0.5, from, to) : null));
  assert.deepEqual(
    coarse.map(({ blocks }) => blocks.size),
    [2],
  );
});

test("what was drawn before the hidden weights were there is drawn again", async () => {
  const fresh = makeRecording();
  const state = { layer: 0, heads: [0], reduce: "mean", hide: ["first"], rescale: true, tokens: [] };
  const units = new Units(fresh, createStore({ region: null, hover: null, zoom: null, ...state }));
  const head = await loaded(() => units.tokens.head(fresh.layers[0]));
  assert.equal(head.isLoading, true);
  const before = head.blocks;
  await loaded(() => (head.isLoading ? null : true));
  assert.notEqual(head.blocks, before); // canvases are kept by this object
  assert.equal(head.blocks, head.blocks);
});

test("thumbnails and head scores come after the first picture", async () => {
  await recording.thumbnailsLoaded;
  assert.deepEqual(
    layer.thumbnails.map((map) => map.at(0, 0)),
    [0.5, 0.5],
  );
  assert.deepEqual(layer.scores.entropy, [0, 1]);
});

test("a server that does not respond leaves what is loaded, and the page is notified", async () => {
  const fresh = makeRecording();
  const head = await loaded(() => fresh.layers[0].head([0]));
  await loaded(() => (head.row(1).loading ? null : true));
  let updates = 0;
  fresh.onUpdate = () => updates++;
  isDown = true;
  assert.equal(head.row(2).loading, true);
  await loaded(() => (fresh.disconnected ? true : null));
  assert.equal(head.row(1).isComplete, true);
  assert.equal(head.row(2).loading, true);
  assert.ok(updates > 0);
  isDown = false;
});
