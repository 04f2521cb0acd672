// Numbers out of bytes: codes, planes of bytes, floats.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { Codes, inflated, Reader, Squares } from "../../../src/regard/explore/static/data/page_format.js";
import { header } from "./made.js";

const codes = new Codes(header);

test("a code stands for a step below 0.01 and for a power of 1.02 from there, up to 1", () => {
  const close = (code, weight) =>
    assert.ok(Math.abs(codes.weights[code] - weight) < 1e-7 + 1e-6 * weight, `${code}: ${codes.weights[code]}`);
  close(0, 0);
  close(1, 0.0002);
  close(49, 0.0098);
  close(50, 0.01);
  close(51, 0.0102);
  close(120, 0.01 * 1.02 ** 70);
  close(283, 1);
  assert.ok(Number.isNaN(codes.weights[511]));
  assert.ok(Number.isNaN(codes.weights[284]));
});

test("every weight lies within 1 % of a code's, or within 0.0001", () => {
  const known = [...codes.weights.subarray(0, 284)];
  for (let weight = 0; weight <= 1; weight += 0.00037) {
    const distance = Math.min(...known.map((each) => Math.abs(each - weight)));
    assert.ok(distance <= Math.max(0.01 * weight, 1e-4) + 1e-7, String(weight));
  }
});

test("integers lie by rank, the lowest bytes of all first", () => {
  const reader = new Reader(Uint8Array.from([1, 2, 3, 0, 1, 2, 7, 8, 9, 0, 0, 1, 0, 0, 255, 255]));
  assert.deepEqual([...reader.integers(3, 2)], [1, 258, 515]);
  assert.deepEqual([...reader.integers(2, 4)], [7 + 9 * 256, 8 + 65_536]);
  assert.deepEqual([...reader.integers(1, 2)], [65_535]);
});

test("what has four bytes does not turn negative", () => {
  assert.deepEqual(
    [...new Reader(Uint8Array.from([255, 254, 255, 255, 255, 255, 255, 255])).integers(2, 4)],
    [2 ** 32 - 1, 2 ** 32 - 2],
  );
});

test("floats of two bytes are read as IEEE 754 has them", () => {
  const bits = [0x0000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0x3555, 0x4248, 0x7bff, 0xc000];
  const bytes = Uint8Array.from(bits.flatMap((each) => [each & 255, each >> 8]));
  const expected = [0, 2 ** -24, 1023 * 2 ** -24, 2 ** -14, 1, 0.333251953125, 3.140625, 65504, -2];
  assert.deepEqual([...new Reader(bytes).halves(bits.length)], expected);
});

test("kinds of numbers follow one another, wherever the block begins", () => {
  const buffer = new ArrayBuffer(32);
  const bytes = new Uint8Array(buffer, 5, 16); // not at a multiple of four
  bytes.set([1, 0]);
  new DataView(buffer).setFloat32(5 + 2, 0.625, true);
  new DataView(buffer).setFloat32(5 + 6, -3, true);
  const reader = new Reader(bytes);
  assert.deepEqual([...reader.integers(1, 2)], [1]);
  assert.deepEqual([...reader.floats(2)], [0.625, -3]);
});

test("squares of several heads are read apart, and what is masked is NaN", () => {
  const stored = [50, 511 & 255, 1, 0, 283 & 255, 0, 0, 511 >> 8, 0, 0, 1, 0]; // two heads, one row, three columns
  const [one, other] = new Reader(Uint8Array.from(stored)).codes(codes, 2, [1, 3], 4);
  assert.ok(one instanceof Squares);
  assert.deepEqual([one.rows, one.columns, one.size], [1, 3, 4]);
  assert.deepEqual(
    [0, 1, 2].map((column) => one.at(0, column)),
    [0.01, NaN, 0.0002].map(Math.fround),
  );
  assert.deepEqual(
    [0, 1, 2].map((column) => other.at(0, column)),
    [0, 1, 0],
  );
});

test("a block is inflated", async () => {
  const block = deflateSync(Uint8Array.from([1, 2, 3, 250])).toString("base64");
  assert.deepEqual([...(await inflated(`\n${block}\n`))], [1, 2, 3, 250]);
});
