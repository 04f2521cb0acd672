// Colors: scales, and palettes in which lightness alone distinguishes weights.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  drawDifferences,
  drawPixels,
  PALETTES,
  position,
  SCALES,
  shade,
  shades,
  weightAt,
} from "../../../src/regard/explore/static/ui/color.js";

const THEMES = /** @type {const} */ (["light", "dark"]);

/** WCAG 2: relative luminance. */
function luminance(color) {
  const [red, green, blue] = color.map((value) =>
    value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

for (const palette of PALETTES) {
  for (const theme of THEMES) {
    test(`${palette}, ${theme}: luminance rises or falls from the page to the strongest, all the way`, () => {
      const luminances = shades(palette, theme).map(luminance);
      assert.equal(luminances.length, 256);
      const sign = theme === "light" ? -1 : 1;
      for (let index = 8; index < luminances.length; index += 8)
        assert.ok(sign * (luminances[index] - luminances[index - 8]) > 0, String(index));
      const [least, most] = [Math.min(...luminances), Math.max(...luminances)];
      assert.ok((most + 0.05) / (least + 0.05) > 9, "the strongest stands out from none");
      for (const color of shades(palette, theme))
        for (const value of color) assert.ok(Number.isInteger(value) && value >= 0 && value <= 255);
    });
  }
}

test("a scale goes from 0 to 1, and a place on it leads back to its weight", () => {
  for (const scale of SCALES) {
    assert.equal(position(1, scale), 1, scale);
    assert.equal(position(0, scale), 0, scale);
    for (const weight of [0.0003, 0.02, 0.4, 0.9])
      assert.ok(Math.abs(weightAt(position(weight, scale), scale) - weight) < 1e-9, scale);
  }
});

test("each scale spreads weights in its own way", () => {
  assert.equal(position(0.25), 0.5);
  assert.equal(position(0.25, "linear"), 0.25);
  assert.ok(Math.abs(position(0.01, "log") - 0.5) < 1e-12);
  assert.equal(position(0.2, "row_max", 0.4), 0.5);
  assert.equal(position(0, "row_max", 0), 0); // a row that is masked
  assert.equal(position(1.5, "row_max", 3), 0.5); // a sum of heads
  assert.equal(position(1.5), 1); // what was rounded beyond 1
  assert.equal(position(-0.1), 0);
});

test("a shade is the color at a place, and greys have no hue", () => {
  assert.deepEqual(shade(1, "greys", "dark"), shades("greys", "dark")[255]);
  for (const [red, green, blue] of shades("greys", "light"))
    assert.ok(Math.max(red, green, blue) - Math.min(red, green, blue) <= 1);
});

/** The pixels that are drawn of a row of weights, [red, green, blue, opacity] each. */
function drawn(draw, weights, state) {
  globalThis.ImageData = class {
    constructor(width, height) {
      this.data = new Uint8ClampedArray(4 * width * height);
    }
  };
  const pixels = [];
  const canvas = { getContext: () => ({ putImageData: ({ data }) => pixels.push(...data) }) };
  const blocks = { rows: 1, columns: weights.length, at: (_, column) => weights[column] };
  draw(canvas, blocks, { palette: "blues", ...state }, "light");
  assert.deepEqual([canvas.width, canvas.height], [weights.length, 1]);
  return weights.map((_, column) => pixels.slice(4 * column, 4 * column + 4));
}

test("a weight is drawn in the shade of its place, and none where it is masked", () => {
  const expected = [0, 0.5, 1].map((place) => [...shade(place, "blues", "light"), 255]);
  assert.deepEqual(drawn(drawPixels, [0, 0.25, 1, NaN], { scale: "sqrt" }), [...expected, [0, 0, 0, 0]]);
  assert.deepEqual(drawn(drawPixels, [0, 0.1, 0.2, NaN], { scale: "row_max" }), [...expected, [0, 0, 0, 0]]);
});

test("differences of the same size are as dark, in two hues", () => {
  const [less, none, more, masked] = drawn(drawDifferences, [-0.4, 0, 0.4, NaN], { scale: "row_max" });
  assert.ok(less[2] > less[0] && more[0] > more[2]); // blue and orange
  assert.ok(Math.abs(luminance(less) - luminance(more)) < 0.05);
  assert.ok(luminance(none) > 0.9);
  assert.deepEqual(masked, [0, 0, 0, 0]);
});
