// Texts in tokens and in words, and where a text is found in them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Sequence, WordSequence } from "../../../src/regard/explore/static/data/sequence.js";
import { wordTexts } from "./fixtures.js";

/** A text of SentencePiece tokens, as Python describes it. */
function text(tokens, { words = tokens.map((_, index) => index), special = [] } = {}) {
  const display = tokens.map((token) => token.replace("▁", ""));
  const spaces = tokens.flatMap((token, index) =>
    index && (token.startsWith("▁") || special.includes(index)) ? [index] : [],
  );
  return new Sequence({
    role: "source",
    tokens,
    display,
    words,
    word_texts: wordTexts(display, words),
    special,
    spaces,
  });
}

const tired = text(["<s>", "▁The", "▁ti", "red", "▁cat", "▁was", "▁tired", ".", "</s>"], {
  words: [0, 1, 2, 2, 3, 4, 5, 6, 7],
  special: [0, 8],
});

test("a sequence knows special tokens, spaces and words", () => {
  assert.equal(tired.length, 9);
  assert.deepEqual(tired.isSpecial, [true, ...Array(7).fill(false), true]);
  assert.deepEqual(tired.hasSpace, [false, true, true, false, true, true, true, false, true]);
  assert.deepEqual([...tired.wordOf], [0, 1, 2, 2, 3, 4, 5, 6, 7]);
});

test("a subword that continues a word has a dot before its label, and long labels are cut", () => {
  assert.deepEqual(tired.labels, ["<s>", "The", "ti", "·red", "cat", "was", "tired", ".", "</s>"]);
  const [cut, whole, emoji] = text(["x".repeat(33), "x".repeat(32), "👩".repeat(33)]).labels;
  assert.equal(cut, `${"x".repeat(31)}…`);
  assert.equal(whole, "x".repeat(32));
  assert.equal(emoji, `${"👩".repeat(31)}…`);
});

test("words are runs of tokens, and every token is in one", () => {
  const { words } = tired;
  assert.ok(words instanceof WordSequence);
  assert.equal(words, tired.words); // views compare by identity
  assert.deepEqual(words.display, ["<s>", "The", "tired", "cat", "was", "tired", ".", "</s>"]);
  assert.deepEqual(words.tokens[2], "▁tired");
  assert.deepEqual(words.starts, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
  assert.deepEqual([...words.of], [0, 1, 2, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(words.tokensOf(2), [2, 3]);
  assert.deepEqual([words.size(2), words.size(7)], [2, 1]);
  assert.deepEqual(words.labels, words.display);
  assert.deepEqual(words.isSpecial, [true, ...Array(6).fill(false), true]);
  assert.deepEqual(words.hasSpace, [false, true, true, true, true, true, false, true]);
  assert.equal(words.words.length, words.length); // words of words are words
  const all = Array.from({ length: words.length }, (_, word) => words.tokensOf(word)).flat();
  assert.deepEqual(
    all,
    Array.from({ length: 9 }, (_, index) => index),
  );
});

test("a text without words or without tokens is its own words", () => {
  assert.deepEqual(text(["a", "b"]).words.display, ["a", "b"]);
  assert.equal(text([]).words.length, 0);
  assert.deepEqual(text([]).find("a"), []);
});

test("a text is found in tokens and across them, ignoring case", () => {
  assert.deepEqual(tired.find("tired"), [[2, 3], [6]]);
  assert.deepEqual(tired.find("TIRED cat"), [[2, 3, 4]]);
  assert.deepEqual(tired.find("  cat "), [[4]]);
  assert.deepEqual(tired.find("the"), [[1]]);
  assert.deepEqual(tired.find("the cat"), []);
  assert.deepEqual(tired.find(""), []);
  assert.deepEqual(tired.find("   "), []);
  assert.deepEqual(tired.find("</s>"), [[8]]);
  assert.deepEqual(tired.words.find("tired cat"), [[2, 3]]);
});

test("a text is found in every token that holds it, once each", () => {
  assert.deepEqual(text(["aa", "aa"]).find("a"), [[0], [0], [1], [1]]);
  assert.deepEqual(text(["▁a", "b", "a", "b"]).find("ab"), [
    [0, 1],
    [2, 3],
  ]);
  assert.deepEqual(text(["", "▁", "▁x"]).find("x"), [[2]]);
  assert.deepEqual(text(["▁a.c", "▁abc"]).find("a.c"), [[0]]); // not a pattern
  assert.deepEqual(text(["(", "["]).find("("), [[0]]);
  assert.deepEqual(text(["▁İstanbul", "▁cat"]).find("cat"), [[1]]); // lower case is longer
});
