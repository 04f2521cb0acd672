// What two texts have in common.

import assert from "node:assert/strict";
import { test } from "node:test";
import { commonRuns } from "../../../src/regard/explore/static/live/common_runs.js";

/** The length of a longest common subsequence, by trying all of those of `a`. */
function longest(a, b) {
  let most = 0;
  for (let chosen = 0; chosen < 1 << a.length; chosen++) {
    const part = a.filter((_, index) => chosen & (1 << index));
    let at = 0;
    for (const each of b) if (each === part[at]) at++;
    if (at === part.length) most = Math.max(most, part.length);
  }
  return most;
}

test("runs are what is equal, in order", () => {
  assert.deepEqual(commonRuns([..."the cat"], [..."the fat cat"]), [
    [0, 0, 4],
    [4, 8, 3],
  ]);
  assert.deepEqual(commonRuns([], ["a"]), []);
  assert.deepEqual(commonRuns(["a"], ["b"]), []);
});

test("no common subsequence is longer", () => {
  for (let seed = 1; seed < 60; seed++) {
    const letters = (/** @type {number} */ factor) =>
      Array.from({ length: 8 }, (_, index) => "abc"[((seed * factor * (index + 3)) % 7) % 3]);
    const [a, b] = [letters(5), letters(11)];
    const runs = commonRuns(a, b);
    for (const [startA, startB, length] of runs) {
      assert.deepEqual(a.slice(startA, startA + length), b.slice(startB, startB + length));
    }
    for (const [index, [startA, startB]] of runs.slice(1).entries()) {
      const [beforeA, beforeB, length] = runs[index];
      assert.ok(startA >= beforeA + length && startB >= beforeB + length);
    }
    assert.equal(
      runs.reduce((sum, [, , length]) => sum + length, 0),
      longest(a, b),
    );
  }
});
