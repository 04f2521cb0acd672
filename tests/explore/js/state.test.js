// The store, and the URL fragment that is its serialization.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Recording } from "../../../src/regard/explore/static/data/recording.js";
import { createStore, focusedCells, toggleSelection } from "../../../src/regard/explore/static/state/store.js";
import { Units } from "../../../src/regard/explore/static/state/unit.js";
import {
  count,
  defaultState,
  fieldsOf,
  flag,
  fraction,
  fromFragment,
  oneOf,
  someOf,
  toFragment,
} from "../../../src/regard/explore/static/state/url.js";
import { wordStore } from "../../../src/regard/explore/static/state/word_store.js";
import { exactLayer, randomWeights, sequence } from "./fixtures.js";

const source = sequence(8, { words: [0, 1, 1, 2, 3, 3, 3, 4], special: [7] });
const written = sequence(10, { role: "written", words: [0, 0, 1, 2, 3, 4, 5, 6, 7, 7] });

/** A recording, as far as the state reads it. */
const recording = Object.assign(Object.create(Recording.prototype), {
  opening: { layer: 1, head: 0, query: 2, reason: "" },
  compareWith: null,
  sequences: [source, written],
  layers: [
    {
      name: "encoder.0",
      headIndices: [0, 1, 2],
      isDense: true,
      queries: source,
      keys: source,
      querySequence: 0,
      keySequence: 0,
      scores: { entropy: [2, 0.5, 1], first_token: [0, 0, 0] },
    },
    {
      name: "cross.0",
      headIndices: [0, 2, 5],
      isDense: true,
      queries: written,
      keys: source,
      querySequence: 1,
      keySequence: 0,
      scores: { entropy: [0.2, null, 1], first_token: [0, 0, 0] },
    },
  ],
});
const views = [
  { name: "text", urlFields: { alignBy: { ...oneOf(["head", "layer"]), name: "align_by" } } },
  { name: "matrix" },
  { name: "generation", urlFields: { step: count, opacity: fraction(0.5) } },
];
const fields = fieldsOf(/** @type {any} */ (views), () => ["text", "matrix"]);
const read = (/** @type {string} */ fragment) => fromFragment(fragment, /** @type {any} */ (recording), fields);
const write = (/** @type {any} */ state) => toFragment(state, /** @type {any} */ (recording), fields);
const initial = defaultState(/** @type {any} */ (recording), fields);

// The URL.

test("the page opens where Python says", () => {
  assert.deepEqual([initial.layer, initial.heads, initial.views, initial.hover], [1, [0], ["text", "matrix"], null]);
  assert.equal(write(initial), "layer=cross.0&head=0");
  assert.deepEqual(read(""), initial);
});

const CHANGES = {
  layer: { layer: 0, heads: [1] },
  heads: { heads: [0, 2] },
  tokens: {
    tokens: [
      { sequence: 0, index: 3 },
      { sequence: 1, index: 9 },
    ],
  },
  region: { region: { queries: [0, 9], keys: [2, 7] } },
  views: { views: ["matrix"] },
  "no view": { views: [] },
  reduce: { reduce: "sum" },
  scale: { scale: "log" },
  palette: { palette: "oranges" },
  hide: { hide: ["first", "special"] },
  rescale: { rescale: true },
  "in tokens": { unit: "tokens" },
  sort: { sort: "first_token", minScore: 0.35 },
  theme: { theme: "dark" },
  "fields of views": { alignBy: "layer", step: 3, opacity: 0.25 },
};
CHANGES.all = Object.assign({}, ...Object.values(CHANGES), { region: { queries: [0, 7], keys: [2, 7] } }); // in the encoder

for (const [name, change] of Object.entries(CHANGES)) {
  test(`a state is read back from its fragment: ${name}`, () => {
    const state = { ...initial, ...change };
    const fragment = write(state);
    assert.deepEqual(read(`#${fragment}`), state);
    assert.equal(write(read(fragment)), fragment);
  });
}

test("a fragment names layers, heads and tokens as the model does, and fields by their names in the URL", () => {
  assert.equal(
    write({ ...initial, heads: [1, 2], tokens: [{ sequence: 1, index: 3 }] }),
    "layer=cross.0&head=2,5&token=written.3",
  );
  const fragment = "layer=cross.0&head=0&unit=tokens&min_score=0.5&align_by=layer";
  assert.equal(write({ ...initial, unit: "tokens", minScore: 0.5, alignBy: "layer" }), fragment);
});

for (const fragment of [
  "layer=nowhere",
  "head=1",
  "head=99",
  "head=-1",
  "head=",
  "head=0,99",
  "head=0x0",
  "token=source.8",
  "token=source.-1",
  "token=source.1e0",
  "token=.",
  "token=nobody.0",
  "region=0.1.2",
  "region=5.1.0.0",
  "region=0.10.0.0",
  "region=0.1.0.8",
  "region=a.b.c.d",
  "region=0.1.0.1.0",
  "step=-1",
  "step=x",
  "step=1.5",
  "opacity=2",
  "opacity=",
  "opacity=NaN",
  "scale=loud",
  "scale=constructor",
  "palette=",
  "sort=beauty",
  "sort=constructor",
  "min_score=2",
  "min_score=x",
  "minScore=0.5",
  "theme=pink",
  "reduce=best",
  "rescale=true",
  "views=foo",
  "views=foo,",
  "hide=foo",
  "align_by=nothing",
  "hover=1",
  "__proto__=1",
  "%",
  "#%E0%A4%A",
]) {
  test(`what does not exist is as in the default: ${fragment}`, () => assert.deepEqual(read(fragment), initial));
}

test("of several tokens those are selected that exist, and views that exist are open", () => {
  assert.deepEqual(read("token=source.1,source.99,written.2").tokens, [
    { sequence: 0, index: 1 },
    { sequence: 1, index: 2 },
  ]);
  assert.deepEqual(read("views=matrix,nothing").views, ["matrix"]);
  assert.deepEqual(read("views=").views, []);
  assert.deepEqual(read("head=2,0,2").heads, [1, 0]);
});

test("another layer without a head opens on the one with the lowest entropy", () => {
  assert.deepEqual(read("layer=encoder.0").heads, [1]);
  assert.deepEqual(read("layer=encoder.0&head=2").heads, [2]);
  const unmeasured = { ...recording, layers: recording.layers.map((layer) => ({ ...layer, scores: { entropy: [] } })) };
  assert.deepEqual(fromFragment("layer=encoder.0", /** @type {any} */ (unmeasured), fields).heads, [0]); // served: not yet
});

test("kinds of fields read what they write, and nothing else", () => {
  const cases = [
    [oneOf(["a", "b"]), ["a", "b"], ["c", ""]],
    [someOf(["a", "b"]), [[], ["a"], ["b", "a"]], ["c", "c,d"]],
    [flag, [true], ["0", "true", ""]],
    [fraction(0.5), [0, 0.25, 1], ["-0.1", "1.1", "", "x"]],
    [count, [0, 7, 123456], ["-1", "1.5", "", "x", "1e3"]],
  ];
  for (const [field, values, wrong] of cases) {
    for (const value of values) assert.deepEqual(field.read(field.write(value)), value);
    for (const text of wrong) assert.equal(field.read(text), undefined, text);
  }
  assert.equal(flag.write(false), null);
  assert.equal(count.write(null), null);
});

// The store.

test("listeners are called once at first and at each change, with the state before", () => {
  const store = createStore(initial);
  const calls = [];
  store.subscribe((state, before) => calls.push([state.scale, before.scale]));
  store.set({ scale: "log" });
  assert.deepEqual(calls, [
    ["sqrt", "sqrt"],
    ["log", "sqrt"],
  ]);
  assert.equal(store.get().palette, initial.palette);
});

test("a token is selected, deselected, and selected in addition to others", () => {
  const store = createStore(initial);
  const [a, b] = [
    { sequence: 0, index: 1 },
    { sequence: 0, index: 2 },
  ];
  const selected = () => store.get().tokens;
  toggleSelection(store, a);
  assert.deepEqual(selected(), [a]);
  toggleSelection(store, b, true);
  assert.deepEqual(selected(), [a, b]);
  toggleSelection(store, a, true);
  assert.deepEqual(selected(), [b]);
  toggleSelection(store, b);
  assert.deepEqual(selected(), []);
  toggleSelection(store, a);
  toggleSelection(store, b);
  assert.deepEqual(selected(), [b]);
  toggleSelection(store, a, true);
  toggleSelection(store, a);
  assert.deepEqual(selected(), [a]); // of several, one alone
});

test("what is pointed at comes before what is selected", () => {
  const [encoder, cross] = recording.layers;
  const tokens = [
    { sequence: 0, index: 1 },
    { sequence: 1, index: 4 },
  ];
  const state = { ...initial, tokens };
  assert.deepEqual(focusedCells(cross, state), { queries: [4], keys: [1], cell: false });
  assert.deepEqual(focusedCells(encoder, state), { queries: [1], keys: [1], cell: false });
  const onToken = { ...state, hover: { token: { sequence: 0, index: 7 } } };
  assert.deepEqual(focusedCells(cross, onToken), { queries: [], keys: [7], cell: false });
  const onCell = { ...state, hover: { cell: { query: 2, key: 3 } } };
  assert.deepEqual(focusedCells(cross, onCell), { queries: [2], keys: [3], cell: true });
});

// Words.

const wordsOf = (/** @type {any} */ store) => wordStore(store, /** @type {any} */ (recording));

test("views between words see the words of what is selected in tokens", () => {
  const store = createStore({
    ...initial,
    tokens: [
      { sequence: 0, index: 1 },
      { sequence: 0, index: 2 },
      { sequence: 1, index: 9 },
    ],
    hover: { cell: { query: 1, key: 5 } },
    region: { queries: [1, 2], keys: [2, 4] },
  });
  const { tokens, hover, region, scale } = wordsOf(store).get();
  assert.deepEqual(tokens, [
    { sequence: 0, index: 1 },
    { sequence: 1, index: 7 },
  ]);
  assert.deepEqual(hover, { cell: { query: 0, key: 3 } });
  assert.deepEqual(region, { queries: [0, 1], keys: [1, 3] });
  assert.equal(scale, initial.scale);
  store.set({ hover: { token: { sequence: 0, index: 6 } } });
  assert.deepEqual(wordsOf(store).get().hover, { token: { sequence: 0, index: 3 } });
});

test("to select a word is to select all of its tokens, and to select it again is to deselect them", () => {
  const store = createStore(initial);
  const words = wordsOf(store);
  toggleSelection(words, { sequence: 0, index: 3 });
  assert.deepEqual(
    store.get().tokens.map(({ index }) => index),
    [4, 5, 6],
  );
  toggleSelection(words, { sequence: 1, index: 0 }, true);
  assert.deepEqual(
    store.get().tokens.map(({ index }) => index),
    [4, 5, 6, 0, 1],
  );
  toggleSelection(words, { sequence: 0, index: 3 }, true);
  assert.deepEqual(
    store.get().tokens.map(({ index }) => index),
    [0, 1],
  );
  toggleSelection(words, { sequence: 1, index: 0 });
  assert.deepEqual(store.get().tokens, []);
});

test("what is set in words is set in tokens, of the layer that is set", () => {
  const store = createStore(initial);
  const words = wordsOf(store);
  words.set({ region: { queries: [0, 7], keys: [1, 3] }, hover: { cell: { query: 7, key: 4 } } });
  assert.deepEqual(store.get().region, { queries: [0, 9], keys: [1, 6] });
  assert.deepEqual(store.get().hover, { cell: { query: 8, key: 7 } });
  words.set({ layer: 0, region: { queries: [0, 1], keys: [0, 0] }, hover: null });
  assert.deepEqual([store.get().region, store.get().hover], [{ queries: [0, 2], keys: [0, 0] }, null]);
  words.set({ region: null, palette: "greys" });
  assert.deepEqual([store.get().region, store.get().palette], [null, "greys"]);
});

test("every word, range and place is the same after a round trip", () => {
  const store = createStore(initial);
  const words = wordsOf(store);
  for (let query = 0; query < written.words.length; query++) {
    for (let key = 0; key < source.words.length; key++) {
      const change = {
        tokens: [{ sequence: 0, index: key }],
        hover: { cell: { query, key } },
        region: { queries: [0, query], keys: [0, key] },
        zoom: { query, key, cell: 20 },
      };
      words.set(change);
      const { tokens, hover, region, zoom } = words.get();
      assert.deepEqual(
        { tokens, hover, region },
        { tokens: change.tokens, hover: change.hover, region: change.region },
      );
      for (const axis of ["query", "key", "cell"]) assert.ok(Math.abs(zoom[axis] - change.zoom[axis]) < 1e-9);
    }
  }
  for (const place of [-0.5, 0.25, 1.7, 4.5, 7.4]) {
    words.set({ zoom: { query: place, key: Math.min(place, 4.4), cell: 9 } });
    assert.ok(Math.abs(words.get().zoom.query - place) < 1e-9);
  }
});

test("listeners of words get the words of the state and of the one before, as the same object while nothing changes", () => {
  const store = createStore(initial);
  const words = wordsOf(store);
  const calls = [];
  words.subscribe((state, before) => calls.push([state, before]));
  assert.equal(calls[0][0], calls[0][1]);
  assert.equal(words.get(), words.get());
  store.set({ tokens: [{ sequence: 0, index: 2 }] });
  assert.deepEqual(calls[1][0].tokens, [{ sequence: 0, index: 1 }]);
  assert.deepEqual(calls[1][1].tokens, []);
  assert.equal(calls[1][0], words.get());
});

// Tokens or words.

test("a unit has the heads that the state chooses, each once", async () => {
  const layer = await exactLayer(randomWeights({ heads: 2, queries: 10, keys: 8 }), { queries: written, keys: source });
  const store = createStore({ ...initial, layer: 0, heads: [0, 1], unit: "tokens" });
  const units = new Units(/** @type {any} */ ({ ...recording, layers: [layer] }), store);
  assert.equal(units.current(), units.tokens);
  store.set({ unit: "words" });
  assert.equal(units.current(), units.words);
  assert.deepEqual(units.words.texts(layer), { queries: written.words, keys: source.words });
  const mean = units.words.head(layer);
  assert.equal(units.words.head(layer), mean);
  store.set({ reduce: "sum" });
  assert.notEqual(units.words.head(layer), mean);
  assert.equal(units.words.head(layer).numHeads, 2);
  store.set({ rescale: true }); // which nothing hidden makes no difference to
  const sum = units.words.head(layer);
  store.set({ hide: ["special"] });
  assert.notEqual(units.words.head(layer), sum);
  const rescaled = units.words.head(layer);
  store.set({ rescale: false });
  assert.notEqual(units.words.head(layer), rescaled);
  assert.deepEqual(units.tokens.hidden(layer), source.isSpecial);
  assert.deepEqual(units.words.hidden(layer), [false, false, false, false, true]);
  store.set({ hide: ["first"] });
  assert.deepEqual(units.words.hidden(layer), [true, false, false, false, false]);
});

test("texts without subwords have no words of their own", () => {
  const text = sequence(3);
  const plain = Object.assign(Object.create(recording), { sequences: [text], compareWith: null });
  const pair = Object.assign(Object.create(plain), { compareWith: recording });
  const unit = (/** @type {Recording} */ of) => fromFragment("#unit=words", of, fields).unit;
  assert.deepEqual([recording, plain, pair].map(unit), ["words", "tokens", "words"]);
  assert.equal(defaultState(recording, fields).unit, "words");
});
