// Words made of tokens, and how they are aligned.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Alignment } from "../../../src/regard/explore/static/data/alignment.js";
import { wordsOf } from "../../../src/regard/explore/static/data/words.js";

const told = (tokens) => wordsOf(tokens).map(({ text, pieces }) => [text, pieces]);

test("pieces are merged into words, as in Python", () => {
  assert.deepEqual(told(["▁did", "n", "'t", "▁cross", ".", "</s>"]), [
    ["didn't", [0, 1, 2]],
    ["cross", [3]],
    [".", [4]],
    ["</s>", [5]],
  ]);
  assert.deepEqual(told(["▁well", "-", "known", "▁(", "n", ")", "!", "▁"]), [
    ["well-known", [0, 1, 2]],
    ["(", [3]],
    ["n", [4]],
    [")!", [5, 6, 7]],
  ]);
  assert.deepEqual(told(["<s>", "Ġa", "b", "Ġ<", "c"]), [
    ["<s>", [0]],
    ["ab", [1, 2]],
    ["<", [3]],
    ["c", [4]],
  ]);
});

test("every token is in one word, whatever it holds", () => {
  for (const tokens of [
    ["▁"],
    ["▁", "▁", ""],
    ["▁a", "", "\u0000", "\ud800", "<0xC3>", "<0xA4>", "▁हिन्दी", "🙂", "."],
    ["</s>", "▁x"],
    [],
  ]) {
    assert.deepEqual(
      wordsOf(tokens).flatMap(({ pieces }) => pieces),
      tokens.map((_, place) => place),
    );
  }
});

test("tokens that do not say where words begin are words", () => {
  assert.deepEqual(told(["the", "m", "."]), [
    ["the", [0]],
    ["m", [1]],
    [".", [2]],
  ]);
});

test("where the pieces that go on are marked, the others begin words", () => {
  assert.deepEqual(told(["[CLS]", "un", "##related", ".", "[SEP]"]), [
    ["[CLS]", [0]],
    ["unrelated", [1, 2]],
    [".", [3]],
    ["[SEP]", [4]],
  ]);
});

test("the end of a line is a word, and ends one", () => {
  assert.deepEqual(
    told(["▁a", "b", "Ċ", "c", "<0x0A>", "▁"]).map(([, pieces]) => pieces),
    [[0, 1], [2], [3], [4], [5]],
  );
});

test("a word is a token with a mark where a space stands before it", () => {
  const tokens = (some) => wordsOf(some).map(({ token }) => token);
  assert.deepEqual(tokens(["The", "▁an", "imal", ".", "</s>", "It"]), ["▁The", "▁animal", ".", "</s>", "▁It"]);
  assert.deepEqual(tokens(["un", "##related", "[SEP]"]), ["▁unrelated", "[SEP]"]);
  assert.deepEqual(tokens(["a", "b"]), ["▁a", "▁b"]);
});

test("a target word has the mean of its rows, a source word the sum of its columns", () => {
  const weights = [
    [0.1, 0.2, 0.7],
    [0.5, 0.3, 0.2],
  ];
  const squares = { rows: 2, columns: 3, size: 1, at: (row, column) => weights[row][column] };
  const columnsOf = (keys) => ({
    links: weights.map((row, query) => ({ query, key: keys[0], weight: keys.reduce((sum, key) => sum + row[key], 0) })),
    left: 0,
  });
  const target = [{ text: "a", pieces: [0, 1], special: false }];
  const source = [
    { text: "b", pieces: [0, 1], special: false },
    { text: "c", pieces: [2], special: false },
  ];
  const all = new Alignment(/** @type {any} */ ({ whole: true, squares, columnsOf }), target, source, () => false);
  const rounded = (some) => some.aligned.map(({ word, weight }) => [word, Number(weight.toFixed(6))]);
  assert.deepEqual(rounded(all.row(0)), [
    [0, 0.55],
    [1, 0.45],
  ]);
  assert.deepEqual(rounded(all.column(1)), [[0, 0.45]]);
  const some = new Alignment(
    /** @type {any} */ ({ whole: true, squares, columnsOf }),
    target,
    source,
    (key) => key === 2,
  );
  assert.deepEqual(rounded(some.row(0)), [[0, 0.55]]);
  assert.deepEqual(some.column(1).aligned, []);
});
