// Boxes in CSS pixels of the window, and how numbers of an SVG are written.

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */

/** A number with two decimals at most. @param {number} value */
export function round2(value) {
  return String(Math.round(value * 100) / 100);
}

/** @param {Box} a @param {Box} b @returns {Box} */
export function intersection(a, b) {
  return {
    left: Math.max(a.left, b.left),
    top: Math.max(a.top, b.top),
    right: Math.min(a.right, b.right),
    bottom: Math.min(a.bottom, b.bottom),
  };
}

/** The smallest box around two boxes. @param {Box} a @param {Box} b @returns {Box} */
export function union(a, b) {
  return {
    left: Math.min(a.left, b.left),
    top: Math.min(a.top, b.top),
    right: Math.max(a.right, b.right),
    bottom: Math.max(a.bottom, b.bottom),
  };
}

/** @param {Box} a @param {Box} b */
export function intersects(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/** A box with each side moved outward. @param {Box} box @param {number} distance @returns {Box} */
export function grow({ left, top, right, bottom }, distance) {
  return { left: left - distance, top: top - distance, right: right + distance, bottom: bottom + distance };
}

/** A plain object, which can be spread: a DOMRect cannot. @param {Box} rectangle @returns {Box} */
export function plainBox({ left, top, right, bottom }) {
  return { left, top, right, bottom };
}

/** The attributes of an SVG rectangle or image. @param {Box} box */
export function rectAttributes({ left, top, right, bottom }) {
  return {
    x: round2(left),
    y: round2(top),
    width: round2(Math.max(right - left, 0)),
    height: round2(Math.max(bottom - top, 0)),
  };
}
