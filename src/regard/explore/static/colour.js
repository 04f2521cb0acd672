// The colour of a weight: one scale for every map of the page, even to the eye (OKLab) and rising in lightness alone.

// [lightness, chroma, hue in degrees]: from no weight, which is nearly the page itself, to all of it.
const STOPS = {
  light: [[0.962, 0.006, 245], [0.85, 0.062, 222], [0.69, 0.105, 236], [0.49, 0.125, 256], [0.27, 0.095, 278]],
  dark: [[0.235, 0.012, 262], [0.37, 0.085, 268], [0.54, 0.118, 252], [0.74, 0.105, 226], [0.955, 0.045, 195]],
};
const SHADES = 256;
const tables = new Map(); // made once for each theme

/** Where a weight stands on the scale, 0 to 1: its square root, so that small weights can be told apart too. */
export function position(weight) {
  return Math.sqrt(weight);
}

/** The colour of a weight as [red, green, blue], 0 to 255. @param {"light" | "dark"} theme */
export function shade(weight, theme) {
  if (!tables.has(theme)) tables.set(theme, Array.from({ length: SHADES }, (_, index) => mixed(STOPS[theme], index / (SHADES - 1))));
  return tables.get(theme)[Math.round(position(Math.min(Math.max(weight, 0), 1)) * (SHADES - 1))];
}

/** Draw rows × columns of weights, one pixel each; a weight that is NaN leaves its pixel clear. @param {(row: number, column: number) => number} weightAt */
export function drawPixels(canvas, rows, columns, weightAt, theme) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const weight = weightAt(row, column);
      if (!Number.isNaN(weight)) image.data.set([...shade(weight, theme), 255], 4 * (row * columns + column));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function mixed(stops, position) {
  const place = position * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [lab(stops[low]), lab(stops[low + 1])];
  return rgb(from.map((value, axis) => value + (to[axis] - value) * (place - low)));
}

function lab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

/** OKLab to sRGB. Reference: B. Ottosson, "A perceptual color space for image processing" (2020). */
function rgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((linear) => {
    const light = Math.min(Math.max(linear, 0), 1);
    return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
  });
}
