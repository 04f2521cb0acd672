// What a reader sees of a token, and where a text is found among tokens.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  beginsWord,
  isSpecial,
  label,
  matches,
  readable,
  shown,
} from "../../../src/regard/explore/static/data/tokens.js";

test("a text is found in tokens, across them and whatever its case", () => {
  const tokens = ["▁The", "▁ti", "red", "▁cat", "▁was", "▁tired", ".", "</s>"];
  assert.deepEqual(matches(tokens, "tired"), [[1, 2], [5]]);
  assert.deepEqual(matches(tokens, "TIRED cat"), [[1, 2, 3]]);
  assert.deepEqual(matches(tokens, "  cat "), [[3]]);
  assert.deepEqual(matches(tokens, "the"), [[0]]);
  assert.deepEqual(matches(tokens, "the cat"), []);
  assert.deepEqual(matches(tokens, ""), []);
  assert.deepEqual(matches(tokens, "   "), []);
  assert.deepEqual(matches(tokens, "</s>"), [[7]]);
});

test("a text is found in every token that holds it, once each", () => {
  assert.deepEqual(matches(["aa", "aa"], "a"), [[0], [0], [1], [1]]);
  assert.deepEqual(matches(["▁a", "b", "a", "b"], "ab"), [
    [0, 1],
    [2, 3],
  ]);
  assert.deepEqual(matches(["", "▁", "▁x"], "x"), [[2]]);
});

test("a search is no pattern", () => {
  assert.deepEqual(matches(["▁a.c", "▁abc"], "a.c"), [[0]]);
  assert.deepEqual(matches(["(", "["], "("), [[0]]);
});

test("letters whose case changes their length move nothing", () => {
  assert.deepEqual(matches(["▁İstanbul", "▁cat"], "cat"), [[1]]);
});

test("pieces that begin a word, and marks of the model's", () => {
  assert.deepEqual(["▁a", "Ġa", " a", "a", ""].map(beginsWord), [true, true, true, false, false]);
  assert.deepEqual(["</s>", "<s>", "[SEP]", "<|end|>", "<", "s", "[a]", "<b c>"].map(isSpecial), [
    true,
    true,
    true,
    true,
    false,
    false,
    false,
    false,
  ]);
});

test("nothing invisible is shown, and nothing without end", () => {
  assert.equal(shown("▁Das"), "Das");
  assert.equal(shown(""), "␣");
  assert.equal(shown("▁"), "␣");
  assert.equal(shown("\x00\x07\x1b[2J\x7f"), "␀␇␛[2J␡");
  assert.equal(shown("\u202eevil\u2066"), "⟨202E⟩evil⟨2066⟩");
  assert.equal(shown("\ud800"), "⟨D800⟩");
  assert.equal(shown("👩‍👩‍👧"), "👩‍👩‍👧");
  const long = shown("x".repeat(10_000));
  assert.equal(long, `${"x".repeat(31)}…`);
  assert.equal(shown("\n\t\r"), "↵⇥␍");
  assert.equal(shown("\u202e".repeat(5)), "⟨202E⟩".repeat(5));
  assert.equal(shown("\u202e".repeat(6)), `${"⟨202E⟩".repeat(5)}…`);
  assert.equal(shown("x".repeat(32)), "x".repeat(32));
  assert.equal(shown(`${"x".repeat(26)}\u202e`), `${"x".repeat(26)}⟨202E⟩`);
  assert.equal(shown(`${"x".repeat(27)}\u202e`), `${"x".repeat(27)}…`);
  assert.equal(shown("</script>"), "</script>"); // a text node: nothing is to be escaped
});

test("a text is as it is, but for what turns it and for controls", () => {
  assert.equal(readable("a \u202egnp.exe\u2066\x1b[2J"), "a ⟨202E⟩gnp.exe⟨2066⟩␛[2J");
  for (const text of ["سلام دنیا", "می\u200cخواهم", "שלום\u200f!", "👩‍👩‍👧", "one\ntwo\tthree", "", "ab"])
    assert.equal(readable(text), text);
});

test("a piece that goes on within a word carries a dot", () => {
  assert.deepEqual(["▁ti", "red", ".", "</s>"].map(label), ["ti", "·red", ".", "</s>"]);
});
