// The shapes of arcs: paths between the boxes of two tokens. Pure geometry, in CSS pixels.

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box */

export const HEADROOM = 92; // how far an arc may rise above, or hang below, its line of text
const LOOP = 7; // half the width of the loop of a token that attends to itself

/** An arc within one text: over it for what a token attends to, under it for what attends to it. @param {Box} from @param {Box} to */
export function bow(from, to, under = false) {
  const side = under ? "bottom" : "top";
  const own = from === to ? LOOP : 0;
  const [x1, x2] = [middle(from) - own, middle(to) + own];
  const rise = own ? 20 : Math.min(HEADROOM, 18 + 0.2 * Math.abs(x2 - x1));
  // A cubic whose handles stand upright reaches three quarters of their height.
  const handle = under ? Math.max(from.bottom, to.bottom) + rise / 0.75 : Math.min(from.top, to.top) - rise / 0.75;
  return curve(x1, from[side], x2, to[side], handle, handle);
}

/** A line between two texts, from a token of the lower one to a token of the upper one. @param {Box} lower @param {Box} upper */
export function link(lower, upper) {
  const bend = (lower.top + upper.bottom) / 2;
  return curve(middle(lower), lower.top, middle(upper), upper.bottom, bend, bend);
}

/** How thick the arc of a weight is, in pixels. */
export function thickness(weight) {
  return 0.7 + 4.6 * weight;
}

function curve(x1, y1, x2, y2, handle1, handle2) {
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x1.toFixed(1)} ${handle1.toFixed(1)} ${x2.toFixed(1)} ${handle2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

function middle(box) {
  return (box.left + box.right) / 2;
}
