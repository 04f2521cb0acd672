// Draws arcs between tokens. Written for texts that run from left to right; for columns, x and y change places.

import { strongest } from "#data/ranked.js";
import { position } from "#ui/color.js";
import { boxOf, linkPath, middleOf } from "#ui/drawing.js";
import { svgElement } from "#ui/elements.js";
import { colorClass } from "#ui/shown.js";

/**
 * @import { Entry } from '#data/ranked.js'
 * @import { Focus } from '#state/store.js'
 * @import { Box } from '#ui/drawing.js'
 * @typedef {{head: {isSigned: boolean, scaleEnd: number}, queries: HTMLElement[], keys: HTMLElement[], focus: Focus, isColumn: boolean, isWrapped: boolean}} Stage
 *   `queries` and `keys` are the same where both are one text.
 */

const HEADROOM = 92; // how far an arc may rise above, or hang below, its line of text
const WRAPPED_HEADROOM = 40; // the same where lines have text above and below
const LOOP = 7; // half the width of the loop of a token that attends to itself
const MIN_WEIGHT = 0.01; // of an arc

/**
 * Draw arcs in place of those that were there.
 * @param {SVGElement} svg  As large as the stage on which the tokens are. @param {Record<string, Entry[]>} entries  By direction: out, in, rest. @param {Stage} stage
 */
export function drawArcs(svg, entries, { head, queries, keys, focus, isColumn, isWrapped }) {
  const frame = svg.getBoundingClientRect();
  /** @type {Map<HTMLElement, Box>} */
  const boxes = new Map();
  const box = (/** @type {HTMLElement} */ node) => {
    const found = boxes.get(node) ?? boxOf(node, frame, isColumn);
    boxes.set(node, found);
    return found;
  };
  const isOneText = queries === keys;
  const headroom = isWrapped ? WRAPPED_HEADROOM : HEADROOM;
  const sizeOf = (/** @type {number} */ weight) => Math.abs(weight) / head.scaleEnd;
  const isDrawn = (/** @type {Entry} */ { key, weight }) =>
    sizeOf(weight) >= MIN_WEIGHT || (focus.cell && key === focus.keys[0]);
  /** @type {(direction: string, entry: Entry) => SVGPathElement} */
  const path = (direction, { query, key, weight }) => {
    const [from, to] = [box(queries[query]), box(keys[key])];
    const kind = !focus.cell ? "" : key === focus.keys[0] ? "chosen" : "other";
    return svgElement("path", {
      d: isOneText
        ? arcPath(from, to, { below: direction === "in", isColumn, headroom })
        : linkPath([middleOf(from), from.top], [middleOf(to), to.bottom], isColumn),
      class: `arc ${direction} ${kind} ${colorClass(head, weight, "")}`,
      "stroke-width": (0.7 + 4.6 * Math.min(sizeOf(weight), 1)).toFixed(2),
      "stroke-opacity": (0.25 + 0.75 * position(sizeOf(weight))).toFixed(3),
      "data-query": query,
      "data-key": key,
    });
  };
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  // The weakest first, so that the strongest are on top.
  const paths = Object.entries(entries).flatMap(([direction, some]) =>
    strongest(some.filter(isDrawn))
      .reverse()
      .map((entry) => path(direction, entry)),
  );
  svg.replaceChildren(...paths);
}

/** An arc within one text: above it for what a token attends to, below it for what attends to it. @param {Box} from @param {Box} to @param {{below: boolean, isColumn: boolean, headroom: number}} options */
function arcPath(from, to, { below, isColumn, headroom }) {
  if (Math.abs(from.top - to.top) > (from.bottom - from.top) / 2) return betweenLines(from, to, isColumn);
  const side = below ? "bottom" : "top";
  const own = from === to ? LOOP : 0;
  const [x1, x2] = [middleOf(from) - own, middleOf(to) + own];
  const rise = own ? 20 : Math.min(headroom, 18 + 0.2 * Math.abs(x2 - x1));
  // A cubic whose handles stand upright reaches three quarters of their height.
  const handle = below ? Math.max(from.bottom, to.bottom) + rise / 0.75 : Math.min(from.top, to.top) - rise / 0.75;
  return linkPath([x1, from[side]], [x2, to[side]], isColumn, handle);
}

/** From a token to one of another line, in the gap between the two. @param {Box} from @param {Box} to @param {boolean} transposed */
function betweenLines(from, to, transposed) {
  const [leaves, arrives] = from.top < to.top ? [from.bottom, to.top] : [from.top, to.bottom];
  const bend = ((from.top + from.bottom) / 2 + (to.top + to.bottom) / 2) / 2;
  return linkPath([middleOf(from), leaves], [middleOf(to), arrives], transposed, bend);
}
