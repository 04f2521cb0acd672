// Numbers as they are printed: with the digits that are true of them.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  escapeInvisible,
  formatNumber,
  formatValue,
  formatWeight,
  isVisible,
  signed,
} from "../../../src/regard/explore/static/ui/format.js";
import { code, PRECISION, random } from "./fixtures.js";

const printStored = (/** @type {number} */ weight) => formatWeight(Math.fround(code(weight) / 3000), PRECISION);

test("an exact weight has three decimals, or four below 0.1", () => {
  const weights = [1, 0.5, 0.1234567, 0.0123456, 0.00005, 0.00004, 0];
  const printed = ["1.000", "0.500", "0.123", "0.0123", "0.0001", "< 0.0001", "< 0.0001"];
  assert.deepEqual(
    weights.map((weight) => formatWeight(weight)),
    printed,
  );
  assert.equal(formatWeight(0.099996), "0.1000");
});

test("a stored weight has three decimals, and small ones are not zero", () => {
  const printed = [1, 0.0123456, 0.0006, 0.0004, 0].map(printStored);
  assert.deepEqual(printed, ["1.000", "0.012", "0.001", "< 0.001", "< 0.001"]);
});

test("a weight has the decimals that its error leaves certain, or is marked", () => {
  for (const [weight, error, text] of [
    [0.3456, 0.00005, "0.346"],
    [0.3456, 0.0005, "0.35"],
    [0.3456, 0.004, "≈ 0.35"],
    [0.3456, 0.04, "≈ 0.3"],
    [0.3456, 0.06, "0.2–0.5"],
    [0.3456, 0.4, "< 0.8"],
    [0.0142, 0.003, "≈ 0.01"],
    [0.0148, 0.0004, "≈ 0.015"],
    [0.9997, 0.0004, "1.00"],
    [0.004, 0.004, "< 0.01"],
    [0.02, 0.03, "< 0.1"],
    [0.02, 0.13, "< 0.2"],
  ]) {
    assert.equal(formatWeight(Number(weight), Number(error)), text, `${weight} ± ${error}`);
  }
  assert.equal(formatNumber(-2.3456, 0.004), "≈ −2.35");
  assert.equal(formatNumber(-2.3456, 0.00005), "−2.346");
  assert.equal(formatNumber(-0.0142, 0.003), "≈ −0.01");
});

test("what is printed is the rounded exact number, or is marked and off by one at most", () => {
  const next = random(5);
  for (let count = 0; count < 5000; count++) {
    const [exact, error] = [next() ** 3, 0.2 * next() ** 4];
    const text = formatWeight(Math.max(0, exact + error * (2 * next() - 1)), error);
    const [first, last] = text.replace(/[<≈] /, "").split("–").map(Number);
    const unit = 10 ** -text.split(".")[1].match(/^\d+/)[0].length;
    const message = `${text} for ${exact} ± ${error}`;
    if (text.startsWith("<")) assert.ok(exact <= first, message);
    else if (last !== undefined) assert.ok(first <= exact && exact <= last, message);
    else assert.ok(Math.abs(first - exact) <= (text.startsWith("≈") ? unit : unit / 2) + 2e-7, message);
  }
});

test("a half is rounded to the even digit, as in Python", () => {
  // f"{k / 16:.3f}" and f"{k / 32:.4f}", computed by Python
  const sixteenths = "0.062 0.125 0.188 0.250 0.312 0.375 0.438 0.500 0.562 0.625 0.688 0.750 0.812 0.875 0.938 1.000";
  const printed = Array.from({ length: 16 }, (_, index) => printStored((index + 1) / 16)).join(" ");
  assert.equal(printed, sixteenths);
  assert.deepEqual(
    [1, 2, 3].map((count) => formatWeight(count / 32)),
    ["0.0312", "0.0625", "0.0938"],
  );
  assert.equal(formatWeight(0.1875), "0.188");
  assert.equal(formatWeight(0.3125), "0.312");
});

test("a weight is visible if it is more than nothing and than its error", () => {
  assert.equal(isVisible({ weight: 0.0005, error: PRECISION }), true);
  assert.equal(isVisible({ weight: 0.0004, error: 0 }), false);
  assert.equal(isVisible({ weight: 0.01, error: 0.01 }), false);
});

test("a difference has its sign", () => {
  assert.deepEqual(
    [0.5, -0.5, 0].map((value) => signed(value, "0.500")),
    ["+0.500", "−0.500", "0.500"],
  );
});

test("a text is as it is, except for what reverses it and for controls", () => {
  assert.equal(escapeInvisible("a \u202egnp.exe\u2066\x1b[2J\x7f\x00"), "a ⟨202E⟩gnp.exe⟨2066⟩␛[2J␡␀");
  for (const text of ["سلام دنیا", "می\u200cخواهم", "שלום\u200f!", "👩‍👩‍👧", "one\ntwo\tthree", "", "ab"]) {
    assert.equal(escapeInvisible(text), text);
  }
});

test("a value of any size has the digits to which everything within its error rounds", () => {
  for (const [value, error, text] of /** @type {[number, number, string][]} */ ([
    [0, 0, "0"],
    [0.0231, 0, "0.0231"],
    [-12.345, 0, "−12.3"],
    [-2.3456e-5, 0, "−2.35·10⁻⁵"],
    [-2.3456e-5, 1e-6, "−2·10⁻⁵"],
    [0.15, 0.001, "0.15"],
    [0.1, 0.3, "0 ± 0.4"],
    [4200, 0, "4.20·10³"],
  ])) {
    assert.equal(formatValue(value, error), text);
  }
});
