// The store, and the URL fragment that is its serialisation.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  createStore,
  firstView,
  focusIn,
  fromFragment,
  hold,
  toFragment,
} from "../../../src/regard/explore/static/state/store.js";
import { recording } from "./made.js";

const first = firstView(recording);

test("what is seen first is the most decided head of the last cross-attention", () => {
  assert.deepEqual([first.layer, first.heads], [1, [0]]);
  assert.equal(toFragment(first, recording), "layer=cross.0&head=0");
  assert.deepEqual(fromFragment("", recording), first);
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
  zoom: { zoom: { query: 4.5, key: 0, cell: 12.5 } },
  views: { views: ["matrix"] },
  "no view": { views: [] },
  step: { step: 3 },
  several: { several: "mean" },
  scale: { scale: "log" },
  palette: { palette: "fire" },
  hidden: { hidden: ["first", "special"] },
  sort: { sort: "first_token", least: 0.35 },
  search: { search: "a, b & c=d #1 ö 👩‍👧 \u202e" },
  theme: { theme: "dark" },
};
CHANGES.all = Object.assign({}, ...Object.values(CHANGES), { region: { queries: [0, 7], keys: [2, 7] } }); // a place in the encoder

for (const [name, change] of Object.entries(CHANGES)) {
  test(`a fragment tells the state again: ${name}`, () => {
    const state = { ...first, ...change };
    const fragment = toFragment(state, recording);
    assert.deepEqual(fromFragment(`#${fragment}`, recording), state);
    assert.equal(toFragment(fromFragment(fragment, recording), recording), fragment);
  });
}

test("a fragment names layers, heads and tokens as the model does", () => {
  const state = { ...first, heads: [1, 2], tokens: [{ sequence: 1, index: 3 }] };
  assert.equal(toFragment(state, recording), "layer=cross.0&head=2,5&token=written.3");
});

for (const fragment of [
  "layer=nowhere",
  "head=1",
  "head=99",
  "head=-1",
  "head=",
  "head=0,99",
  "token=source.8",
  "token=source.-1",
  "token=.",
  "token=nobody.0",
  "region=0.1.2",
  "region=5.1.0.0",
  "region=0.10.0.0",
  "region=0.1.0.8",
  "region=a.b.c.d",
  "zoom=1,2",
  "zoom=1,2,0",
  "zoom=1,2,NaN",
  "zoom=1,Infinity,2",
  "step=-1",
  "step=x",
  "scale=loud",
  "palette=",
  "sort=beauty",
  "sort=constructor",
  "least=2",
  "least=x",
  "theme=pink",
  "several=best",
  "views=foo",
  "views=foo,",
  "hidden=foo",
  "hover=1",
  "__proto__=1",
  "%",
  "#%E0%A4%A",
]) {
  test(`what does not exist is as at first: ${fragment}`, () =>
    assert.deepEqual(fromFragment(fragment, recording), first));
}

test("of several tokens those are held that exist, and views that are known are open", () => {
  assert.deepEqual(fromFragment("token=source.1,source.99,written.2", recording).tokens, [
    { sequence: 0, index: 1 },
    { sequence: 1, index: 2 },
  ]);
  assert.deepEqual(fromFragment("views=matrix,nothing", recording).views, ["matrix"]);
  assert.deepEqual(fromFragment("views=", recording).views, []);
});

test("another layer without a head shows its most decided one", () => {
  assert.deepEqual(fromFragment("layer=encoder.0", recording).heads, [1]);
});

test("listeners are told of each change, and what was before", () => {
  const store = createStore(first);
  const told = [];
  store.subscribe((state, before) => told.push([state.scale, before.scale]));
  store.set({ scale: "log" });
  assert.deepEqual(told, [
    ["root", "root"],
    ["log", "root"],
  ]);
  assert.equal(store.get().palette, first.palette);
});

test("a token is held, let go, and held beside others", () => {
  const store = createStore(first);
  const [one, other] = [
    { sequence: 0, index: 1 },
    { sequence: 0, index: 2 },
  ];
  const held = () => store.get().tokens;
  hold(store, one);
  assert.deepEqual(held(), [one]);
  hold(store, other, true);
  assert.deepEqual(held(), [one, other]);
  hold(store, one, true);
  assert.deepEqual(held(), [other]);
  hold(store, other);
  assert.deepEqual(held(), []);
  hold(store, one);
  hold(store, other);
  assert.deepEqual(held(), [other]);
});

test("what is pointed at comes before what is held", () => {
  const [encoder, cross] = recording.layers;
  const state = {
    ...first,
    tokens: [
      { sequence: 0, index: 1 },
      { sequence: 1, index: 4 },
    ],
  };
  assert.deepEqual(focusIn(cross, state), { queries: [4], keys: [1], cell: false });
  assert.deepEqual(focusIn(encoder, state), { queries: [1], keys: [1], cell: false });
  assert.deepEqual(focusIn(cross, { ...state, hover: { token: { sequence: 0, index: 7 } } }), {
    queries: [],
    keys: [7],
    cell: false,
  });
  assert.deepEqual(focusIn(cross, { ...state, hover: { cell: { query: 2, key: 3 } } }), {
    queries: [2],
    keys: [3],
    cell: true,
  });
});
