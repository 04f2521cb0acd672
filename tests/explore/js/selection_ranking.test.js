// Heads ranked by what the selected words do.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createStore } from "../../../src/regard/explore/static/state/store.js";
import { Units } from "../../../src/regard/explore/static/state/unit.js";
import {
  layerHasWords,
  questionOf,
  rankHead,
  selectedWords,
} from "../../../src/regard/explore/static/ui/selection_ranking.js";
import { exactLayer, sequence, sketchLayer } from "./fixtures.js";

const queries = sequence(3, { role: "written", words: [0, 0, 1] });
const keys = sequence(5, { words: [0, 1, 1, 2, 3], special: [4] });
const WEIGHTS = [
  [
    [0.1, 0.2, 0.3, 0.15, 0.25],
    [0.2, 0.1, 0.1, 0.2, 0.4],
    [NaN, 0.3, NaN, 0.3, 0.4],
  ],
];
const state = { layer: 0, tokens: [], region: null, hover: null, zoom: null, hide: [], rescale: false };
const recording = (layer) => ({ layers: [layer], sequences: [queries, keys], compareWith: null });
const word = (sequence, ...indices) => ({ sequence, indices, name: "" });

/** What the head does with some words. */
function rank(layer, words, change = {}) {
  const units = new Units(recording(layer), createStore({ ...state, ...change }));
  return rankHead(units.tokens, layer, 0, words);
}

test("the selected tokens of a word are one word, and two words are a question", () => {
  const tokens = [2, 1, 0].map((index) => ({ sequence: 1, index }));
  const words = selectedWords(recording(null), { tokens });
  assert.deepEqual(
    words.map(({ indices, name }) => [indices, name]),
    [
      [[1, 2], "source1source2"],
      [[0], "source0"],
    ],
  );
  assert.equal(questionOf(words), "Which heads look from “source1source2” to “source0”?");
  assert.equal(questionOf(words.slice(0, 1)), "Where does “source1source2” look?");
  assert.equal(questionOf([]), "");
  assert.deepEqual(selectedWords(recording(null), { tokens: [...tokens, { sequence: 1, index: 3 }] }), []); // three
});

test("the words must be in the texts of the layer, in this direction", async () => {
  const layer = { querySequence: 0, keySequence: 1 };
  assert.equal(layerHasWords(layer, [word(0, 0)]), true);
  assert.equal(layerHasWords(layer, [word(0, 0), word(1, 0)]), true);
  assert.equal(layerHasWords(layer, [word(1, 0), word(0, 0)]), false);
  assert.equal(layerHasWords(layer, []), false);
});

test("the weight from one word to another is the mean of its rows, summed over the other", async () => {
  const layer = await exactLayer(WEIGHTS, { queries, keys });
  const { score, text, strip } = rank(layer, [word(0, 0, 1), word(1, 1, 2)]);
  assert.ok(Math.abs(score - 0.35) < 1e-6);
  assert.equal(text, "0.350");
  assert.deepEqual([strip.rows, strip.columns], [1, 5]);
  assert.equal(rank(layer, [word(0, 2), word(1, 0)]).text, "masked");
  assert.equal(rank(layer, [word(0, 0), word(1, 0)], { hide: ["first"] }).text, "hidden");
});

test("of one word it is the largest weight on another that is not special", async () => {
  const layer = await exactLayer(WEIGHTS, { queries, keys });
  const { score, text } = rank(layer, [word(0, 1)]);
  assert.ok(Math.abs(score - 0.2) < 1e-6);
  assert.equal(text, "source0\n0.200");
});

test("what a sketch does not store of a word is not taken for zero", async () => {
  const layer = await sketchLayer(WEIGHTS, { levels: [3], k: 2, queries, keys });
  assert.equal(rank(layer, [word(0, 0), word(1, 2)]).text, "0.300");
  const part = rank(layer, [word(0, 0), word(1, 1, 2)]); // 0.5, of which 0.3 is stored and 0.25 may be missing
  assert.ok(Math.abs(part.score - 0.3) < 1e-6);
  assert.equal(part.text, "0.3–0.6");
  assert.equal(rank(layer, [word(0, 0), word(1, 0)]).text, "< 0.3"); // 0.25 may be missing
});
