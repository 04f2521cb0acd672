// The page's data as it is stored: safetensors, byte planes, codes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import {
  BlockMap,
  CODE_WEIGHTS,
  inflate,
  inflateBase64,
  joinBytes,
  readTensors,
  THUMBNAIL_WEIGHTS,
} from "../../../src/regard/explore/static/data/page_format.js";
import { code, floats, PRECISION, planes, random, safetensors } from "./fixtures.js";

test("a code stands for a multiple of 1/3000", () => {
  assert.equal(CODE_WEIGHTS.length, 4096);
  for (const [at, weight] of [
    [0, 0],
    [1, 1 / 3000],
    [750, 0.25],
    [3000, 1],
    [3001, 3001 / 3000],
  ]) {
    assert.equal(CODE_WEIGHTS[at], Math.fround(weight));
  }
  assert.ok(Number.isNaN(CODE_WEIGHTS[4095]));
  assert.ok(CODE_WEIGHTS.subarray(0, 4095).every((weight) => !Number.isNaN(weight)));
});

test("every weight is within the precision of its code, and has its three decimals", () => {
  const next = random(1);
  for (let count = 0; count < 10_000; count++) {
    const weight = next() ** 3;
    const stored = CODE_WEIGHTS[code(weight)];
    assert.ok(Math.abs(stored - weight) <= PRECISION + 1e-7, String(weight));
    assert.equal(stored.toFixed(3), weight.toFixed(3));
  }
});

test("no stored weight is near a half of its third decimal, whatever rounds it", () => {
  for (let at = 0; at <= 3000; at++) {
    assert.equal(CODE_WEIGHTS[at].toFixed(3), (Math.round(at / 3) / 1000).toFixed(3));
    assert.ok(Math.abs(((1000 * CODE_WEIGHTS[at]) % 1) - 0.5) > 0.16);
  }
});

test("a thumbnail has finer steps for small weights", () => {
  assert.equal(THUMBNAIL_WEIGHTS[254], 1);
  assert.equal(THUMBNAIL_WEIGHTS[0], 0);
  assert.ok(Math.abs(THUMBNAIL_WEIGHTS[127] - 0.25) < 1e-7);
  assert.ok(Number.isNaN(THUMBNAIL_WEIGHTS[255]));
});

test("byte planes have the lowest bytes first", () => {
  const read = (numbers, width) => joinBytes(planes([numbers.length], numbers, width));
  const most = [2 ** 32 - 1, 2 ** 32 - 2, 7 + 9 * 256, 0];
  assert.deepEqual([...read([1, 258, 515, 65_535], 2).values], [1, 258, 515, 65_535]);
  assert.deepEqual([...read(most, 4).values], most); // and none is negative
  assert.deepEqual([...read([0, 255], 1).values], [0, 255]);
  assert.deepEqual(joinBytes({ shape: [2, 1, 3], values: Uint8Array.of(1, 2, 3, 0, 1, 2) }), {
    shape: [1, 3],
    values: Uint16Array.of(1, 258, 515),
  });
});

test("tensors of every type are read by name, wherever they begin", () => {
  const tensors = {
    first: { shape: [3], values: Uint8Array.of(1, 2, 3) },
    edges: { shape: [2], values: Uint32Array.of(7, 2 ** 32 - 1) },
    small: { shape: [1], values: Uint16Array.of(65_535) },
    numbers: floats([2, 1], [0.625, -3]),
  };
  assert.deepEqual(readTensors(safetensors(tensors)), tensors);
  assert.deepEqual(readTensors(safetensors({})), {});
});

test("a block is inflated, from base64 or from a server", async () => {
  const bytes = deflateSync(Uint8Array.from([1, 2, 3, 250]));
  assert.deepEqual([...new Uint8Array(await inflateBase64(`\n${bytes.toString("base64")}\n`))], [1, 2, 3, 250]);
  assert.deepEqual([...new Uint8Array(await inflate(Uint8Array.from(bytes)))], [1, 2, 3, 250]);
});

test("a map of several heads is split, and what is masked is NaN", () => {
  const tensor = joinBytes(planes([2, 1, 3], [750, 4095, 0, 3000, 0, 1]));
  const [a, b] = BlockMap.split(tensor, 4, CODE_WEIGHTS);
  assert.deepEqual([a.rows, a.columns, a.size, b.size], [1, 3, 4, 4]);
  const row = (map) => [0, 1, 2].map((column) => map.at(0, column));
  assert.deepEqual(row(a), [0.25, NaN, 0]);
  assert.deepEqual(row(b), [1, 0, 1 / 3000].map(Math.fround));
  const [exact] = BlockMap.split(floats([1, 1, 2], [0.3, NaN]), 1, null);
  assert.deepEqual([exact.at(0, 0), exact.at(0, 1)], [Math.fround(0.3), NaN]);
});
