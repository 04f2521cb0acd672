// The color of a weight: one scale for every map of the page, even to the eye (OKLab) and rising in lightness alone.

/** How the shades are spread: by the square root of a weight, evenly, by its logarithm, or by the strongest of its row. */
export const SCALES = ["sqrt", "linear", "log", "row_max"];
/** What the shades run through. In each, lightness alone distinguishes weights, for the color-blind and in gray. */
export const PALETTES = ["blues", "oranges", "greys"];
export const LOG_MIN = 1e-4; // where the logarithmic scale begins

/** @typedef {[number, number, number]} Triple */
/** @typedef {{rows: number, columns: number, at(row: number, column: number): number}} Blocks */
/** From no weight, which is nearly the page itself, to all of it. @type {Record<string, Record<"light" | "dark", Triple[]>>} */
const STOPS = {
  blues: {
    light: stopsOf("0.962 0.006 245, 0.85 0.062 222, 0.69 0.105 236, 0.49 0.125 256, 0.27 0.095 278"),
    dark: stopsOf("0.235 0.012 262, 0.37 0.085 268, 0.54 0.118 252, 0.74 0.105 226, 0.955 0.045 195"),
  },
  oranges: {
    light: stopsOf("0.965 0.012 90, 0.87 0.085 82, 0.72 0.145 55, 0.51 0.16 28, 0.27 0.09 12"),
    dark: stopsOf("0.235 0.012 20, 0.36 0.11 18, 0.53 0.155 35, 0.75 0.145 65, 0.96 0.07 95"),
  },
  greys: {
    light: stopsOf("0.965 0 0, 0.25 0 0"),
    dark: stopsOf("0.235 0 0, 0.96 0 0"),
  },
};
/** From −1 (more in A, teal) over no difference, which is the page itself, to +1 (more in B, ochre). @type {Record<"light" | "dark", Triple[]>} */
const DIFFERENCE = {
  light: stopsOf(
    "0.32 0.06 205, 0.56 0.095 200, 0.82 0.065 195, 0.99 0.002 100, 0.84 0.09 88, 0.62 0.12 75, 0.38 0.08 65",
  ),
  dark: stopsOf(
    "0.9 0.07 195, 0.7 0.105 200, 0.45 0.075 205, 0.195 0.008 262, 0.45 0.08 75, 0.72 0.125 82, 0.92 0.09 92",
  ),
};
/** From the most negative value over 0, which is the page itself, to the most positive: purple and green. @type {Record<"light" | "dark", Triple[]>} */
const SIGNED = {
  light: stopsOf(
    "0.32 0.13 305, 0.55 0.16 305, 0.8 0.08 305, 0.99 0.002 100, 0.82 0.085 155, 0.58 0.125 155, 0.34 0.08 155",
  ),
  dark: stopsOf(
    "0.89 0.07 305, 0.7 0.14 305, 0.45 0.13 303, 0.195 0.008 262, 0.43 0.085 155, 0.69 0.13 155, 0.91 0.09 152",
  ),
};
const SHADES = 256;
/** @type {Map<Triple[], Triple[]>} */
const tables = new Map(); // of shades, by their stops

/** The position of a weight on a scale, 0 to 1. @param {number} weight @param {string} scale @param {number} largest  The largest weight of its row. */
export function position(weight, scale = "sqrt", largest = 1) {
  const bounded = Math.min(Math.max(scale === "row_max" ? weight / largest || 0 : weight, 0), 1);
  if (scale === "linear" || scale === "row_max") return bounded;
  if (scale === "log") return Math.max(0, 1 - Math.log(Math.max(bounded, LOG_MIN)) / Math.log(LOG_MIN));
  return Math.sqrt(bounded);
}

/** The weight at a place of a scale. @param {number} place @param {string} scale */
export function weightAt(place, scale) {
  if (scale === "log") return place === 0 ? 0 : LOG_MIN ** (1 - place);
  return scale === "sqrt" ? place ** 2 : place;
}

/** The colors from no weight to all of it, [red, green, blue] each. @param {string} palette @param {"light" | "dark"} theme @returns {Triple[]} */
export function shades(palette, theme) {
  return tableOf(STOPS[palette][theme], SHADES);
}

/** The color at a place from 0 to 1. @param {number} place @param {string} palette @param {"light" | "dark"} theme */
export function shade(place, palette, theme) {
  return shades(palette, theme)[Math.round(place * (SHADES - 1))];
}

/**
 * Draw rows × columns of weights, one pixel each; a weight that is NaN leaves its pixel clear.
 * @param {HTMLCanvasElement} canvas @param {Blocks} blocks @param {{scale: string, palette: string}} state @param {"light" | "dark"} theme
 */
export function drawPixels(canvas, blocks, { scale, palette }, theme) {
  const table = shades(palette, theme);
  fillPixels(canvas, blocks, scale, (place) => table[Math.round(place * (SHADES - 1))]);
}

/** The same of differences. @param {HTMLCanvasElement} canvas @param {Blocks} blocks @param {{scale: string}} state @param {"light" | "dark"} theme */
export function drawDifferences(canvas, blocks, { scale }, theme) {
  fillDiverging(canvas, blocks, scale, DIFFERENCE[theme]);
}

/** The same of signed values, as shares of the largest. @param {HTMLCanvasElement} canvas @param {Blocks} blocks @param {{scale: string}} state @param {"light" | "dark"} theme @param {number} largest */
export function drawSigned(canvas, blocks, { scale }, theme, largest) {
  const { rows, columns } = blocks;
  const at = (/** @type {number} */ row, /** @type {number} */ column) => blocks.at(row, column) / largest;
  fillDiverging(canvas, { rows, columns, at }, scale, SIGNED[theme]);
}

/** @param {HTMLCanvasElement} canvas @param {Blocks} blocks @param {string} scale @param {Triple[]} stops */
function fillDiverging(canvas, blocks, scale, stops) {
  const table = tableOf(stops, 2 * SHADES - 1);
  fillPixels(canvas, blocks, scale, (place, value) => table[Math.round((1 + Math.sign(value) * place) * (SHADES - 1))]);
}

/** @param {HTMLCanvasElement} canvas @param {Blocks} blocks @param {string} scale @param {(place: number, value: number) => Triple} colorOf  `place` of the value's size on the scale, 0 to 1. */
function fillPixels(canvas, blocks, scale, colorOf) {
  const { rows, columns } = blocks;
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  const data = image.data;
  for (let row = 0, pixel = 0; row < rows; row++) {
    let largest = 0;
    if (scale === "row_max") {
      for (let column = 0; column < columns; column++)
        largest = Math.max(largest, Math.abs(blocks.at(row, column)) || 0);
    }
    for (let column = 0; column < columns; column++, pixel += 4) {
      const value = blocks.at(row, column);
      if (Number.isNaN(value)) continue;
      const color = colorOf(position(Math.abs(value), scale, largest), value);
      data[pixel] = color[0];
      data[pixel + 1] = color[1];
      data[pixel + 2] = color[2];
      data[pixel + 3] = 255;
    }
  }
  canvas.getContext("2d")?.putImageData(image, 0, 0);
}

/** Lightness, chroma, and hue in degrees of each color. @param {string} text @returns {Triple[]} */
function stopsOf(text) {
  return text.split(", ").map((stop) => /** @type {Triple} */ (stop.split(" ").map(Number)));
}

/** Some shades from the first stop to the last, computed once. @param {Triple[]} stops @param {number} length @returns {Triple[]} */
function tableOf(stops, length) {
  const table = tables.get(stops) ?? Array.from({ length }, (_, index) => interpolate(stops, index / (length - 1)));
  tables.set(stops, table);
  return table;
}

/** @param {Triple[]} stops @param {number} position @returns {Triple} */
function interpolate(stops, position) {
  const place = position * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [toLab(stops[low]), toLab(stops[low + 1])];
  return toRgb(/** @type {Triple} */ (from.map((value, axis) => value + (to[axis] - value) * (place - low))));
}

/** Lightness, and chroma and hue as two axes. @param {Triple} stop @returns {Triple} */
function toLab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

/** OKLab to sRGB. Reference: B. Ottosson, "A perceptual color space for image processing" (2020). @param {Triple} color @returns {Triple} */
function toRgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return /** @type {Triple} */ (
    [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ].map((linear) => {
      const light = Math.min(Math.max(linear, 0), 1);
      return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
    })
  );
}
