// Reads computed CSS values that an SVG has to spell out: colors, gradients, shadows, sizes of backgrounds.

import { round2 } from "#export/boxes.js";

/**
 * @import { Box } from '#export/boxes.js'
 * @typedef {{fill: string, "fill-opacity"?: number}} Fill
 */

const MAX_CACHED_COLORS = 4096;
/** The opacity at the end of a computed color: `/ 0.5)`, or the fourth number of `rgba(...)`. */
const ALPHA = /(?:\s*\/\s*([\d.e-]+)|(?<=^rgba\([^,]*,[^,]*,[^,]*),\s*([\d.e-]+))\)$/;

const pixel = /** @type {CanvasRenderingContext2D} */ (
  Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  })
);
/** @type {Map<string, Fill>} */
const fills = new Map();

/** A color in any notation as sRGB and opacity. @param {string} value @returns {Fill} */
export function fillOf(value) {
  const cached = fills.get(value);
  if (cached) return cached;
  if (fills.size > MAX_CACHED_COLORS) fills.clear();
  const alpha = Number(ALPHA.exec(value)?.slice(1).find(Boolean) ?? 1);
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = "#000";
  pixel.fillStyle = value.replace(/^rgba/, "rgb").replace(ALPHA, ")"); // opaque: a canvas rounds the color of a faint pixel
  pixel.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pixel.getImageData(0, 0, 1, 1).data;
  const color = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  const fill = alpha === 1 ? { fill: color } : { fill: color, "fill-opacity": Math.round(1000 * alpha) / 1000 };
  fills.set(value, fill);
  return fill;
}

/** A line in a color. @param {string} value @param {number} width */
export function strokeOf(value, width) {
  const { fill, "fill-opacity": opacity = 1 } = fillOf(value);
  const stroke = { fill: "none", stroke: fill, "stroke-width": round2(width) };
  return opacity < 1 ? { ...stroke, "stroke-opacity": opacity } : stroke;
}

/** @param {string} value */
export function isTransparent(value) {
  return fillOf(value)["fill-opacity"] === 0;
}

/** The color and gradients behind an element, the lowest first. @param {CSSStyleDeclaration} style @returns {{stops: string[], size: string}[]} */
export function backgroundsOf({ backgroundColor, backgroundImage, backgroundSize }) {
  const sizes = splitList(backgroundSize);
  const gradients = splitList(backgroundImage).flatMap((layer, index) =>
    layer.startsWith("linear-gradient(") ? [{ stops: stopsOf(layer), size: sizes[index % sizes.length] }] : [],
  );
  return [{ stops: [backgroundColor], size: "auto" }, ...gradients.reverse()];
}

/** The colors of a gradient, without its direction and their places. @param {string} gradient */
function stopsOf(gradient) {
  return splitList(gradient.slice("linear-gradient(".length, -1))
    .filter((stop) => !/^(to |[-\d.]+deg)/.test(stop))
    .map((stop) => stop.replace(/(\s+[\d.]+(%|px))+$/, ""));
}

/** The part of a box that a background of some size covers, from its upper left corner on. @param {Box} box @param {string} size @returns {Box} */
export function coveredPart(box, size) {
  const [width = "auto", height = "auto"] = size.split(" ");
  const length = (/** @type {string} */ text, /** @type {number} */ whole) =>
    text.endsWith("%") ? (parseFloat(text) / 100) * whole : text.endsWith("px") ? parseFloat(text) : whole;
  const [right, bottom] = [length(width, box.right - box.left), length(height, box.bottom - box.top)];
  return { ...box, right: box.left + right, bottom: box.top + bottom };
}

/** @param {CSSStyleDeclaration} style */
export function shadowsOf({ boxShadow }) {
  if (boxShadow === "none") return [];
  return splitList(boxShadow).map((shadow) => {
    const lengths = /(-?[\d.]+px ?){2,4}/;
    const [x, y, , spread] = (lengths.exec(shadow)?.[0] ?? "").split(" ").map(parseFloat);
    const color = shadow.replace(/(-?[\d.]+px ?){2,4}|\binset\b/g, "").trim();
    return { x, y, spread: spread || 0, isInset: /\binset\b/.test(shadow), color };
  });
}

/** The four borders; width 0 where there is none. @param {CSSStyleDeclaration} style */
export function bordersOf(style) {
  const side = (/** @type {string} */ name, /** @type {string} */ part) =>
    style.getPropertyValue(`border-${name}-${part}`);
  const [top, right, bottom, left] = ["top", "right", "bottom", "left"].map((name) => ({
    width: side(name, "style") === "none" ? 0 : parseFloat(side(name, "width")),
    color: side(name, "color"),
  }));
  return { top, right, bottom, left };
}

/** The items of a list, split at the commas outside of brackets. @param {string} list */
function splitList(list) {
  const items = [];
  let [depth, start] = [0, 0];
  for (let at = 0; at <= list.length; at++) {
    if (list[at] === "(") depth++;
    else if (list[at] === ")") depth--;
    else if (at === list.length || (list[at] === "," && depth === 0)) {
      items.push(list.slice(start, at).trim());
      start = at + 1;
    }
  }
  return items;
}
