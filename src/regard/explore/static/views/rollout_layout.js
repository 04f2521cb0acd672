// Where the nodes of a rollout stand: a column for each token and a row for each layer; on narrow pages the other way round.

import { clamp } from "#data/numbers.js";
import { layerNumbers } from "#data/rollout.js";
import { linkPath } from "#ui/drawing.js";
import { svgElement } from "#ui/elements.js";
import { ACROSS, moveInLine } from "#ui/listbox.js";

/**
 * @import { Edge } from '#data/rollout.js'
 * @typedef {{depth: number, node: number}} NodePosition  Depth 0 is the input, further depths are after a layer.
 */

// CSS pixels for letters of 16, which grow with the letters.
const NARROW = 440; // a page below this has layers as columns
const COLUMN_WIDTH = { min: 26, max: 92 };
const LINE_HEIGHT = 22;
const MAX_LINES = 28;
const LAYER_DISTANCE = { min: 34, max: 62 };
const MIN_NARROW_LAYER_DISTANCE = 24;
const MAX_HEIGHT = 560; // for which layers move closer
const MARGIN = { left: 112, right: 20, top: 20 };
const NARROW_TOP = 34;
const NARROW_FOOT = 124;
const MAX_EDGE_WIDTH = 20; // of an edge with all of the flow
const MIN_EDGE_WIDTH = 0.6;
const MAX_RADIUS = 11; // of a node with all of the flow, and of what a pointer hits
const MIN_RADIUS = 2.5;
const NAME_ANGLE = -50; // degrees
const MAX_LETTERS = 16; // of a name
const LETTER_WIDTH = 7.2; // about

/** Places and shapes of nodes, edges and names. */
export class RolloutLayout {
  /** How many tokens have room. @param {number} width */
  static maxColumns(width) {
    if (width < NARROW) return MAX_LINES;
    return Math.max(1, Math.floor((width - MARGIN.left - MARGIN.right) / COLUMN_WIDTH.min));
  }

  /** @param {{nodes: number[][], names: string[], layers: string[], room: number}} graph  The nodes of each depth; names of all nodes and of the layers; and how wide it may be. */
  constructor({ nodes, names, layers, room }) {
    this.names = names;
    this.layers = layers;
    this.numbers = layerNumbers(layers);
    this.isNarrow = room < NARROW;
    /** The nodes that have a column, or a line. */
    this.columns = [...new Set(nodes.flat())].sort((a, b) => a - b);
    /** @type {Map<number, number>} */
    this.columnOf = new Map(this.columns.map((node, column) => [node, column]));
    const letters = Math.max(...this.columns.map((node) => this.shortName(node).length));
    const graph = { columns: this.columns.length, depth: layers.length, nameWidth: letters * LETTER_WIDTH };
    const fit = this.isNarrow ? fitLines(room, graph) : fitColumns(room, graph);
    this.fit = fit;
    this.turnsNames = !this.isNarrow && graph.nameWidth > fit.columnWidth - 8;
  }

  /** @param {NodePosition} position @returns {[x: number, y: number]} */
  pointOf({ depth, node }) {
    const { start, top, columnWidth, layerDistance } = this.fit;
    const along = start + ((this.columnOf.get(node) ?? 0) + 0.5) * columnWidth;
    const down = top + (this.layers.length - depth) * layerDistance;
    return this.isNarrow ? [down, along] : [along, down];
  }

  /** @param {number} depth */
  depthName(depth) {
    return depth === 0 ? "in the input" : `after layer ${this.numbers[depth - 1]}`;
  }

  /** @param {number} node */
  shortName(node) {
    const letters = Array.from(this.names[node]);
    return letters.length > MAX_LETTERS ? `${letters.slice(0, MAX_LETTERS - 1).join("")}…` : this.names[node];
  }

  /** A circle whose area is a flow. @param {NodePosition} position @param {number} flow @param {"flow" | "share"} kind  A node's flow is always visible. */
  circle(position, flow, kind) {
    const [cx, cy] = this.pointOf(position);
    const r = MAX_RADIUS * Math.sqrt(flow);
    return svgElement("circle", { class: kind, cx, cy, r: kind === "flow" ? Math.max(MIN_RADIUS, r) : r });
  }

  /** What a pointer near a node hits. @param {NodePosition} position */
  target(position) {
    const [cx, cy] = this.pointOf(position);
    return svgElement("circle", { class: "target", cx, cy, r: MAX_RADIUS });
  }

  /** A curve as wide as its flow. @param {Edge} edge */
  edge({ layer, from, to, flow }) {
    const ends = [this.pointOf({ depth: layer + 1, node: from }), this.pointOf({ depth: layer, node: to })];
    const [start, end] = /** @type {[number, number][]} */ (this.isNarrow ? ends.map(([x, y]) => [y, x]) : ends);
    const path = svgElement("path", {
      class: "edge",
      d: linkPath(start, end, this.isNarrow),
      "data-layer": layer,
      "data-from": from,
      "data-to": to,
      "data-flow": flow,
    });
    path.style.setProperty("--width", `${Math.max(MIN_EDGE_WIDTH, MAX_EDGE_WIDTH * flow)}px`);
    return path;
  }

  /** The names of tokens and layers. @param {(depth: number) => string} notDrawn  What is written below the name of a layer. */
  axes(notDrawn) {
    const columns = this.columns.flatMap((node) => [this.guide(node), this.nodeName(node)]);
    const depths = Array.from({ length: this.layers.length + 1 }, (_, depth) =>
      this.depthLabel(depth, notDrawn(depth)),
    );
    const place = { class: "depth", x: this.fit.top - MAX_RADIUS - 6, y: 14, "text-anchor": "end" };
    const heading = this.isNarrow ? [svgElement("text", place, "layer")] : [];
    return svgElement("g", { "aria-hidden": "true" }, ...columns, ...depths, ...heading);
  }

  /** The line on which the nodes of a token stand. @param {number} node */
  guide(node) {
    const [[x1, y1], [x2, y2]] = [this.pointOf({ depth: this.layers.length, node }), this.pointOf({ depth: 0, node })];
    return svgElement("line", { class: "guide", "data-node": node, x1, y1, x2, y2 });
  }

  /** @param {number} node */
  nodeName(node) {
    const [x, y] = this.pointOf({ depth: this.isNarrow ? this.layers.length : 0, node });
    /** @type {import("#ui/elements.js").Attributes} */
    let place = { x, y: y + 28, "text-anchor": "middle" };
    if (this.isNarrow) place = { x: x - MAX_RADIUS - 6, y: y + 4, "text-anchor": "end" };
    else if (this.turnsNames) {
      place = { transform: `translate(${x + 4} ${y + 18}) rotate(${NAME_ANGLE})`, "text-anchor": "end" };
    }
    const title = svgElement("title", {}, this.names[node]);
    return svgElement("text", { class: "node-name", "data-node": node, ...place }, title, this.shortName(node));
  }

  /** @param {number} depth @param {string} notDrawn */
  depthLabel(depth, notDrawn) {
    const { top, end, layerDistance } = this.fit;
    const at = top + (this.layers.length - depth) * layerDistance;
    const short = depth ? this.numbers[depth - 1] : "in";
    const [name, below] = this.isNarrow
      ? [
          { x: at, y: 14, "text-anchor": "middle" },
          { transform: `translate(${at + 4} ${end + 8}) rotate(-90)`, "text-anchor": "end" },
        ]
      : [
          { x: 0, y: at },
          { x: 0, y: at + 13 },
        ];
    const text = this.isNarrow ? short : depth ? `layer ${short}` : "input";
    const title = svgElement("title", {}, depth ? this.layers[depth - 1] : "the input of the first layer");
    return svgElement(
      "g",
      {},
      svgElement("text", { class: "depth", ...name }, title, text),
      svgElement("text", { class: "not-drawn", "data-depth": depth, ...below }, notDrawn),
    );
  }

  /** The node to which a key leads, if any. @template {NodePosition} Node @param {string} pressed @param {Node} from @param {Node[]} nodes  In order. @returns {Node | undefined} */
  neighbor(pressed, from, nodes) {
    const key = this.isNarrow ? (ACROSS[/** @type {keyof typeof ACROSS} */ (pressed)] ?? pressed) : pressed;
    const atDepth = (/** @type {number} */ depth) => nodes.filter((node) => node.depth === depth);
    if (key === "ArrowUp" || key === "ArrowDown") {
      return this.nearest(from, atDepth(from.depth + (key === "ArrowUp" ? 1 : -1))) ?? from;
    }
    const line = atDepth(from.depth);
    const to = moveInLine(key, line.indexOf(from), line.length);
    return to === null ? undefined : line[to];
  }

  /** @template {NodePosition} Node @param {Node} from @param {Node[]} nodes @returns {Node | undefined} */
  nearest(from, nodes) {
    const distance = (/** @type {Node} */ { node }) =>
      Math.abs((this.columnOf.get(node) ?? 0) - (this.columnOf.get(from.node) ?? 0));
    return nodes.toSorted((a, b) => distance(a) - distance(b))[0];
  }
}

/**
 * @typedef {{columnWidth: number, layerDistance: number, start: number, top: number, end: number, width: number, height: number}} Fit
 *   `start` is where columns start, `top` the depth after the last layer, `end` where nodes end.
 */

/** @param {number} room @param {{columns: number, depth: number, nameWidth: number}} graph @returns {Fit} */
function fitColumns(room, { columns, depth, nameWidth }) {
  const columnWidth = clamp((room - MARGIN.left - MARGIN.right) / columns, COLUMN_WIDTH.min, COLUMN_WIDTH.max);
  const layerDistance = clamp(MAX_HEIGHT / depth, LAYER_DISTANCE.min, LAYER_DISTANCE.max);
  const width = MARGIN.left + MARGIN.right + columns * columnWidth;
  const end = MARGIN.top + depth * layerDistance;
  const turned = nameWidth * Math.abs(Math.sin((NAME_ANGLE * Math.PI) / 180)) + 30;
  const height = end + (nameWidth > columnWidth - 8 ? turned : 40);
  return { columnWidth, layerDistance, start: MARGIN.left, top: MARGIN.top, end, width, height };
}

/** Columns become lines, and layers columns. @param {number} room @param {{columns: number, depth: number, nameWidth: number}} graph @returns {Fit} */
function fitLines(room, { columns, depth, nameWidth }) {
  const names = Math.min(nameWidth, 0.36 * room) + 14;
  const layerDistance = clamp((room - names - 2 * MAX_RADIUS) / depth, MIN_NARROW_LAYER_DISTANCE, LAYER_DISTANCE.max);
  const width = names + 2 * MAX_RADIUS + depth * layerDistance;
  const end = NARROW_TOP + columns * LINE_HEIGHT;
  const [top, height] = [names + MAX_RADIUS, end + NARROW_FOOT];
  return { columnWidth: LINE_HEIGHT, layerDistance, start: NARROW_TOP, top, end, width, height };
}
