// Layers made for tests: written as packing.py writes them, read as the page reads them.

import { Layer } from "../../../src/regard/explore/static/data/layer.js";
import { Codes } from "../../../src/regard/explore/static/data/page_format.js";

export const header = { fine: 2e-4, coarse: 0.01, growth: 1.02, linear: 50, last: 283, masked: 511 };

/** The nearest code of a weight; NaN is masked. */
export function code(weight) {
  if (Number.isNaN(weight)) return header.masked;
  if (weight < header.coarse) return Math.round(weight / header.fine);
  return Math.min(header.linear + Math.round(Math.log(weight / header.coarse) / Math.log(header.growth)), header.last);
}

/** Unsigned integers as bytes by rank. */
export function planes(numbers, width) {
  return Array.from({ length: width }, (_, rank) =>
    numbers.map((number) => Math.floor(number / 256 ** rank) % 256),
  ).flat();
}

function halves(numbers) {
  return numbers.flatMap((number) => {
    if (number === 0) return [0, 0];
    const exponent = Math.floor(Math.log2(number));
    const bits = ((exponent + 15) << 10) | Math.round((number / 2 ** exponent - 1) * 1024);
    return [bits & 255, bits >> 8];
  });
}

const tokens = (count, of) => Array.from({ length: count }, (_, index) => `${of}${index}`);

/** A layer of which the file holds all weights, (heads, queries, keys). */
export async function whole(weights) {
  const bytes = planes(weights.flat(2).map(code), 2);
  return loaded(
    { form: "whole", heads: weights.map((_, head) => head) },
    weights[0].length,
    weights[0][0].length,
    bytes,
  );
}

/** A layer of which the file holds a sketch: by head the map, the keys and weights of each row, what they leave, what keys receive. */
export async function sketch({ size, map, keys, weights, left, received, boundaries, finer = [] }) {
  const mask = boundaries === null ? null : boundaries.flat().length;
  let last = 0;
  const steps = (boundaries ?? []).flat().map((place) => {
    const step = (place - last + 2 ** 32) % 2 ** 32;
    last = place;
    return step;
  });
  const bytes = [
    ...planes(map.flat(2).map(code), 2),
    ...planes(keys.flat(2), 2),
    ...planes(weights.flat(2).map(code), 2),
    ...planes(left.flat().map(code), 2),
    ...halves(received.flat()),
    ...(mask
      ? [
          ...planes(
            boundaries.map((row) => row.length),
            4,
          ),
          ...planes(steps, 4),
        ]
      : []),
    ...finer.flatMap((level) => planes(level.map.flat(2).map(code), 2)),
  ];
  const told = {
    form: "sketch",
    size,
    map: [map[0].length, map[0][0].length],
    finer: finer.map((level) => ({ size: level.size, map: [level.map[0].length, level.map[0][0].length] })),
    strongest: keys[0][0].length,
    mask,
    heads: map.map((_, head) => head),
  };
  return loaded(told, keys[0].length, received[0].length, bytes);
}

async function loaded(told, queries, keys, bytes) {
  const sequences = [
    { role: "written", tokens: tokens(queries, "q") },
    { role: "source", tokens: tokens(keys, "k") },
  ];
  const made = {
    name: "a",
    kind: "cross",
    queries: 0,
    keys: 1,
    scale: 1,
    rule: null,
    scores: {},
    thumbnail: [1, 1],
    vectors: [],
    ...told,
  };
  const layer = new Layer(made, sequences, new Codes(header), async () => Uint8Array.from(bytes));
  await layer.load();
  return layer;
}

/** A recording, as far as the state asks for one. */
export const recording = {
  title: "t",
  model: "m",
  texts: {},
  sequences: [
    { role: "source", tokens: tokens(8, "s") },
    { role: "written", tokens: tokens(10, "w") },
  ],
  layers: [
    {
      name: "encoder.0",
      kind: "encoder",
      heads: [0, 1, 2],
      queries: tokens(8, "s"),
      keys: tokens(8, "s"),
      querySequence: 0,
      keySequence: 0,
      scores: { entropy: [2, 0.5, 1], first_token: [0, 0, 0] },
    },
    {
      name: "cross.0",
      kind: "cross",
      heads: [0, 2, 5],
      queries: tokens(10, "w"),
      keys: tokens(8, "s"),
      querySequence: 1,
      keySequence: 0,
      scores: { entropy: [0.2, null, 1], first_token: [0, 0, 0] },
    },
  ],
};
