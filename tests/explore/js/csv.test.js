// Numbers as CSV: six significant digits, no digits that the error of a number makes meaningless, and no formulas.

import assert from "node:assert/strict";
import { test } from "node:test";
import { toCsv, WeightColumn } from "../../../src/regard/explore/static/export/csv.js";

const options = { heads: [0], reduce: "mean", hide: [], rescale: false };

test("numbers have six significant digits, and an unknown one is empty", () => {
  const rows = [[1 / 3, 123456789, 0.000012345678, 0, null, NaN, -2.5]];
  assert.equal(toCsv({ columns: ["a"], rows }), "\ufeffa\r\n0.333333,123456789,0.0000123457,0,,,-2.5\r\n");
});

test("texts are quoted, and those that begin a formula are marked", () => {
  const rows = [["=1+1", "-1", 'a "b", c', "two\nlines", "plain"]];
  assert.equal(toCsv({ columns: [], rows }), `\ufeff\r\n'=1+1,'-1,"a ""b"", c","two\nlines",plain\r\n`);
});

test("a stored weight is rounded, and the column says how far it may be from the exact one", () => {
  const column = new WeightColumn(options);
  for (let code = 0; code <= 3000; code++) {
    const stored = code / 3000;
    const written = column.round({ weight: stored, error: 1 / 6000 });
    assert.ok(String(written).length <= 6, String(written));
    // The exact weight is anywhere within 1/6000 of the stored one.
    assert.ok(Math.abs(written - stored) + 1 / 6000 <= 0.0002 + 1e-12);
  }
  assert.equal(column.name, "weight (± 0.0002)");
});

test("larger errors leave fewer digits, and the largest is named", () => {
  const column = new WeightColumn({ ...options, heads: [0, 1, 2], reduce: "sum" });
  assert.equal(column.round({ weight: 0.123456, error: 0.0005 }), 0.1235);
  assert.equal(column.round({ weight: 0.123456, error: 0.02 }), 0.12);
  assert.equal(column.round({ weight: 0.123456, error: 0 }), 0.123456);
  assert.equal(column.name, "weight, sum of 3 heads (± 0.024)");
});

test("the column says what was done to the weights", () => {
  const name = (changes, notRescaled = false) => {
    const column = new WeightColumn({ ...options, ...changes });
    column.someNotRescaled = notRescaled;
    return column.name;
  };
  assert.equal(name({}), "weight");
  assert.equal(name({ heads: [3, 4] }), "weight, mean of 2 heads");
  assert.equal(name({ hide: ["first"] }), "weight");
  assert.equal(name({ rescale: true }), "weight");
  assert.equal(name({ hide: ["first"], rescale: true }), "weight, rescaled");
  assert.equal(name({ hide: ["first"], rescale: true }, true), "weight, rescaled where possible");
});
