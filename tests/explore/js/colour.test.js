// Colours: scales, and palettes that tell weights apart by lightness alone.

import assert from "node:assert/strict";
import { test } from "node:test";

import { PALETTES, position, SCALES, shade, shades, weightAt } from "../../../src/regard/explore/static/ui/color.js";

const THEMES = /** @type {const} */ (["light", "dark"]);

/** WCAG 2: relative luminance. */
function luminance(colour) {
  const [red, green, blue] = colour.map((value) =>
    value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

for (const palette of PALETTES) {
  for (const theme of THEMES) {
    test(`${palette}, ${theme}: luminance rises or falls from the page to the strongest, all the way`, () => {
      const seen = shades(palette, theme).map(luminance);
      assert.equal(seen.length, 256);
      const sign = theme === "light" ? -1 : 1;
      for (let index = 8; index < seen.length; index += 8)
        assert.ok(sign * (seen[index] - seen[index - 8]) > 0, String(index));
      const [least, most] = [Math.min(...seen), Math.max(...seen)];
      assert.ok((most + 0.05) / (least + 0.05) > 9, "the strongest stands out from none");
      for (const colour of shades(palette, theme))
        for (const value of colour) assert.ok(Number.isInteger(value) && value >= 0 && value <= 255);
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

test("weights are told apart as their scale says", () => {
  assert.equal(position(0.25), 0.5);
  assert.equal(position(0.25, "linear"), 0.25);
  assert.ok(Math.abs(position(0.01, "log") - 0.5) < 1e-12);
  assert.equal(position(0.2, "rows", 0.4), 0.5);
  assert.equal(position(0.2, "rows", 0), 0);
  assert.equal(position(1.5), 1); // what was rounded beyond 1
  assert.equal(position(-0.1), 0);
});

test("a shade is the colour at a place", () => {
  assert.deepEqual(shade(1, "grey", "dark"), shades("grey", "dark")[255]);
  for (const [red, green, blue] of shades("grey", "light"))
    assert.ok(Math.max(red, green, blue) - Math.min(red, green, blue) <= 1);
});
