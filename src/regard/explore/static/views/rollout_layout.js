// Where the nodes of a rollout stand: a column for each token and a row for each layer; on narrow pages the other way round.

import { written } from "#data/recording.js";
import { numbersOf } from "#data/rollout.js";
import { svgElement } from "#ui/elements.js";

// Pixels, which are larger where the page has larger letters.
const NARROW = 440; // below which layers are columns
const SLOT = [26, 92]; // from token to token, at least and at most
const LINE = 22; // from token to token where they are rows
const MOST_LINES = 28;
const BETWEEN = [34, 62]; // from layer to layer, at least and at most
const TALL = 560; // that rows of layers share
const WIDEST = 20; // of an edge with all mass
const LARGEST = 11; // radius of a node with all mass
const SMALLEST = 2.5;
const HIT = 11; // radius in which a node is pointed at
const MARGIN = { left: 112, right: 20, top: 20 };
const TURNED = (-50 * Math.PI) / 180;
const LETTERS = 16; // of a name that are shown
const LETTER = 7.2; // pixels, about

export class Plan {
  /** How many tokens have room. */
  static most(width) {
    return width < NARROW ? MOST_LINES : Math.max(1, Math.floor((width - MARGIN.left - MARGIN.right) / SLOT[0]));
  }

  /** @param {import("#data/rollout.js").Stack} stack @param {number[][]} units  The nodes at each depth. @param {string[]} names @param {number} room  Pixels across. */
  constructor(stack, units, names, room) {
    this.depth = stack.layers.length;
    this.narrow = room < NARROW;
    this.titles = stack.layers.map(({ name }) => name);
    this.numbers = numbersOf(this.titles);
    this.columns = [...new Set(units.flat())].sort((a, b) => a - b);
    this.names = names;
    /** @type {Map<number, number>} */
    this.places = new Map(this.columns.map((unit, place) => [unit, place]));
    const longest = Math.max(...this.columns.map((unit) => this.short(unit).length)) * LETTER;
    this.width = 0;
    this.height = 0;
    this.head = 0; // what the names of lines take
    this.foot = 0; // where nodes end
    this.slot = LINE;
    this.between = 0;
    this.turned = false;
    if (this.narrow) this.layTurned(room, longest);
    else this.lay(room, longest);
  }

  /** Which column a token has, or which line. */
  place(unit) {
    return this.places.get(unit) ?? 0;
  }

  lay(room, longest) {
    const count = this.columns.length;
    this.slot = Math.min(Math.max((room - MARGIN.left - MARGIN.right) / count, SLOT[0]), SLOT[1]);
    this.between = Math.min(Math.max(TALL / this.depth, BETWEEN[0]), BETWEEN[1]);
    this.turned = longest > this.slot - 8;
    this.width = MARGIN.left + MARGIN.right + count * this.slot;
    this.foot = MARGIN.top + this.depth * this.between;
    this.height = this.foot + (this.turned ? longest * Math.abs(Math.sin(TURNED)) + 30 : 40);
  }

  layTurned(room, longest) {
    this.head = Math.min(longest, 0.36 * room) + 14;
    this.between = Math.min(Math.max((room - this.head - 2 * HIT) / this.depth, 24), BETWEEN[1]);
    this.width = this.head + 2 * HIT + this.depth * this.between;
    this.foot = 34 + this.columns.length * LINE;
    this.height = this.foot + 92;
  }

  /** Where a node stands. @returns {[number, number]} */
  at({ depth, unit }) {
    const [along, down] = [this.place(unit) + 0.5, this.depth - depth];
    if (this.narrow) return [this.head + HIT + down * this.between, 34 + along * this.slot];
    return [MARGIN.left + along * this.slot, MARGIN.top + down * this.between];
  }

  /** What a depth is called. */
  depthName(depth) {
    return depth === 0 ? "in the input" : `after layer ${this.numbers[depth - 1]}`;
  }

  short(unit) {
    const letters = Array.from(this.names[unit]);
    return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : this.names[unit];
  }

  circle(node, mass, name) {
    const [x, y] = this.at(node);
    return svgElement("circle", {
      class: name,
      cx: x,
      cy: y,
      r: name === "mass" ? Math.max(SMALLEST, radius(mass)) : radius(mass),
    });
  }

  /** What is hit by a pointer near a node. */
  target(node) {
    const [x, y] = this.at(node);
    return svgElement("circle", { class: "target", cx: x, cy: y, r: HIT });
  }

  /** An edge as wide as its mass. */
  edge({ layer, from, to, mass }) {
    const [[a, b], [c, d]] = [this.at({ depth: layer + 1, unit: from }), this.at({ depth: layer, unit: to })];
    const half = this.narrow ? (c - a) / 2 : (d - b) / 2;
    const [near, far] = this.narrow
      ? [`${a + half} ${b}`, `${c - half} ${d}`]
      : [`${a} ${b + half}`, `${c} ${d - half}`];
    const path = svgElement("path", {
      class: "edge",
      d: `M${a} ${b}C${near} ${far} ${c} ${d}`,
      "data-layer": layer,
      "data-from": from,
      "data-to": to,
      "data-mass": mass,
    });
    path.style.setProperty("--width", `${Math.max(0.6, WIDEST * mass)}px`);
    return path;
  }

  /** The names of tokens and layers, and what of each depth is not drawn. @param {(depth: number) => number} left */
  axes(left) {
    const marks = [];
    for (const unit of this.columns) marks.push(this.line(unit), this.unitName(unit));
    for (let depth = this.depth; depth >= 0; depth--) marks.push(this.depthMark(depth, left(depth)));
    return svgElement("g", { "aria-hidden": "true" }, ...marks);
  }

  line(unit) {
    const [[a, b], [c, d]] = [this.at({ depth: this.depth, unit }), this.at({ depth: 0, unit })];
    return svgElement("line", { class: "unit guide", "data-unit": unit, x1: a, y1: b, x2: c, y2: d });
  }

  unitName(unit) {
    const [x, y] = this.at({ depth: this.narrow ? this.depth : 0, unit });
    const title = svgElement("title", {}, this.names[unit]);
    const name = (attributes) =>
      svgElement("text", { class: "unit", "data-unit": unit, ...attributes }, title, this.short(unit));
    if (this.narrow) return name({ x: x - HIT - 6, y: y + 4, "text-anchor": "end" });
    if (!this.turned) return name({ x, y: y + 28, "text-anchor": "middle" });
    return name({ transform: `translate(${x + 4} ${y + 18}) rotate(-50)`, "text-anchor": "end" });
  }

  depthMark(depth, left) {
    const [x, y] = this.narrow
      ? [this.head + HIT + (this.depth - depth) * this.between, 14]
      : [0, MARGIN.top + (this.depth - depth) * this.between];
    const title = svgElement("title", {}, depth ? this.titles[depth - 1] : "the input of the first layer");
    const rest = left < 0.0005 ? "all drawn" : `${written(left)} not drawn`;
    if (this.narrow) {
      const name = svgElement(
        "text",
        { class: "depth", x, y, "text-anchor": "middle" },
        title,
        depth ? this.numbers[depth - 1] : "in",
      );
      const told = svgElement(
        "text",
        {
          class: "rest",
          transform: `translate(${x + 4} ${this.foot + 8}) rotate(-90)`,
          "text-anchor": "end",
          "data-depth": depth,
        },
        rest,
      );
      return svgElement("g", {}, name, told);
    }
    const name = svgElement(
      "text",
      { class: "depth", x, y },
      title,
      depth ? `layer ${this.numbers[depth - 1]}` : "input",
    );
    return svgElement("g", {}, name, svgElement("text", { class: "rest", x, y: y + 13, "data-depth": depth }, rest));
  }

  /** The node that an arrow key leads to. @template {{depth: number, unit: number}} Node @param {Node} from @param {Node[]} nodes @returns {Node | undefined} */
  stepped(key, from, nodes) {
    const turned = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowRight: "ArrowDown" };
    const row = (depth) => nodes.filter((node) => node.depth === depth);
    const nearest = (depth) =>
      row(depth).sort(
        (a, b) =>
          Math.abs(this.place(a.unit) - this.place(from.unit)) - Math.abs(this.place(b.unit) - this.place(from.unit)),
      )[0];
    const here = row(from.depth);
    const to = (step) => here[Math.min(Math.max(here.indexOf(from) + step, 0), here.length - 1)];
    switch (this.narrow ? (turned[key] ?? key) : key) {
      case "ArrowLeft":
        return to(-1);
      case "ArrowRight":
        return to(1);
      case "ArrowUp":
        return nearest(from.depth + 1) ?? from;
      case "ArrowDown":
        return nearest(from.depth - 1) ?? from;
      case "Home":
        return here[0];
      case "End":
        return here.at(-1);
      default:
        return undefined;
    }
  }
}

/** Of a circle whose area is a mass. */
function radius(mass) {
  return LARGEST * Math.sqrt(mass);
}
