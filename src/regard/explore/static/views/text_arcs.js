// Arcs between tokens: their shapes, and how a set of weights is drawn as arcs.
// All is thought for texts that run from left to right; for texts that stand as columns it is transposed.

import { strongest } from "#data/recording.js";
import { position } from "#ui/color.js";
import { svgElement } from "#ui/elements.js";

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box  In CSS pixels. */

const HEADROOM = 92; // how far an arc may rise above, or hang below, its line of text
const LOOP = 7; // half the width of the loop of a token that attends to itself
const FAR = 160; // CSS pixels between lines, beyond which an arc goes straight across
const FAINTEST = 0.01; // an arc below this weight is not drawn

/**
 * Draw arcs in place of those that were there.
 * @param {SVGElement} svg  As large as the stage on which the tokens stand.
 * @param {Record<string, import("#data/recording.js").Link[]>} links  By direction: out, in, rest.
 * @param {HTMLElement[]} queries @param {HTMLElement[]} keys  The same where both are one text.
 * @param {{queries: number[], keys: number[], cell: boolean}} focus
 * @param {boolean} columns  Whether the texts stand as columns.
 */
export function drawArcs(svg, links, queries, keys, focus, columns) {
  const frame = svg.getBoundingClientRect();
  const boxes = new Map();
  const box = (node) => {
    if (!boxes.has(node)) boxes.set(node, boxOf(node, frame, columns));
    return boxes.get(node);
  };
  const one = queries === keys;
  const drawn = ({ key, weight }) => weight >= FAINTEST || (focus.cell && key === focus.keys[0]);
  const path = (direction, { query, key, weight }) => {
    const [from, to] = [box(queries[query]), box(keys[key])];
    const kind = !focus.cell ? "" : key === focus.keys[0] ? "chosen" : "beside";
    return svgElement("path", {
      d: written(one ? bow(from, to, direction === "in") : link(from, to), columns),
      class: `arc ${direction} ${kind}`,
      "stroke-width": (0.7 + 4.6 * Math.min(weight, 1)).toFixed(2),
      "stroke-opacity": (0.25 + 0.75 * position(weight)).toFixed(3),
      "data-query": query,
      "data-key": key,
    });
  };
  // The weakest first, so that the strongest lie on top.
  const ordered = ([direction, some]) =>
    strongest(some.filter(drawn))
      .reverse()
      .map((one) => path(direction, one));
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  svg.replaceChildren(...Object.entries(links).flatMap(ordered));
}

/** An arc within one text: over it for what a token attends to, under it for what attends to it. @param {Box} from @param {Box} to */
function bow(from, to, under) {
  if (Math.abs(from.top - to.top) > FAR) {
    const [start, end] = [middle(from), middle(to)]; // of lines that lie apart
    const bend = ((from.top + from.bottom) / 2 + (to.top + to.bottom) / 2) / 2;
    const [leaves, arrives] = from.top < to.top ? [from.bottom, to.top] : [from.top, to.bottom];
    return [
      [start, leaves],
      [start, bend],
      [end, bend],
      [end, arrives],
    ];
  }
  const side = under ? "bottom" : "top";
  const own = from === to ? LOOP : 0;
  const [x1, x2] = [middle(from) - own, middle(to) + own];
  const rise = own ? 20 : Math.min(HEADROOM, 18 + 0.2 * Math.abs(x2 - x1));
  // A cubic whose handles stand upright reaches three quarters of their height.
  const handle = under ? Math.max(from.bottom, to.bottom) + rise / 0.75 : Math.min(from.top, to.top) - rise / 0.75;
  return [
    [x1, from[side]],
    [x1, handle],
    [x2, handle],
    [x2, to[side]],
  ];
}

/** A line between two texts, from a token of the lower one to a token of the upper one. @param {Box} lower @param {Box} upper */
function link(lower, upper) {
  const bend = (lower.top + upper.bottom) / 2;
  return [
    [middle(lower), lower.top],
    [middle(lower), bend],
    [middle(upper), bend],
    [middle(upper), upper.bottom],
  ];
}

/** A cubic of four points as an SVG path. */
function written(points, transposed) {
  const [start, ...rest] = points.map(([x, y]) =>
    (transposed ? [y, x] : [x, y]).map((value) => value.toFixed(1)).join(" "),
  );
  return `M${start}C${rest.join(" ")}`;
}

/** @returns {Box} */
function boxOf(node, frame, transposed) {
  const { left, right, top, bottom } = node.getBoundingClientRect();
  const box = { left: left - frame.left, right: right - frame.left, top: top - frame.top, bottom: bottom - frame.top };
  return transposed ? { left: box.top, right: box.bottom, top: box.left, bottom: box.right } : box;
}

function middle(box) {
  return (box.left + box.right) / 2;
}
