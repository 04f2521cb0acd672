// A matrix of the comparison, with its title: A, B or their difference.

import { drawDifferences, drawPixels, position } from "#ui/color.js";
import { contextOf } from "#ui/drawing.js";
import { element } from "#ui/elements.js";
import { addsToSelection } from "#ui/listbox.js";
import { clampCell, neighborCell } from "#views/matrix.js";
import { drawMatrix } from "#views/matrix_draw.js";
import { cellAt, fitMatrix } from "#views/matrix_layout.js";

/**
 * @import { Difference } from '#data/difference.js'
 * @import { Spot } from '#views/matrix.js'
 * @import { Drawing, MapCache } from '#views/matrix_draw.js'
 * @import { Layout } from '#views/matrix_layout.js'
 * @typedef {{point(at: Spot): void, leave(): void, select(at: Spot, more: boolean): void, clear(): void}} PanelActions
 * @typedef {Pick<Drawing, "head" | "focus" | "rows" | "columns" | "hidden"> & {label: string}} PanelContent  `label` names the layer and heads.
 */

const MAX_HEIGHT = 0.7; // of the window
const MIN_SIGNED = 10; // CSS pixels of a block, from which on it has a sign
const MIN_DIFFERENCE = 0.01; // that has a sign
/** @typedef {keyof typeof NAMES} PanelName */
export const NAMES = { a: "A", b: "B", difference: "B − A" };

/** A matrix with its title. */
export class Panel {
  /** @param {PanelName} name @param {Node[]} title @param {PanelActions} actions */
  constructor(name, title, actions) {
    this.name = name;
    this.actions = actions;
    const attributes = {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "matrix",
      "aria-label": NAMES[name],
    };
    this.canvas = element("canvas", attributes);
    this.frame = element("div", { class: "matrix-frame" }, this.canvas);
    const caption = element("figcaption", {}, element("b", {}, NAMES[name]), " ", ...title);
    this.figure = element("figure", { class: `compare-panel ${name}` }, caption, this.frame);
    /** @type {MapCache} */
    this.map = {
      blocks: null,
      style: "",
      canvas: document.createElement("canvas"),
      paint: name === "difference" ? drawDifferences : drawPixels,
    };
    /** @type {Layout | null} */
    this.layout = null; // until it is painted
    this.cursor = { query: 0, key: 0 }; // the cell from which arrow keys move
    this.listen();
  }

  listen() {
    const { canvas, actions } = this;
    canvas.addEventListener("pointermove", (event) => this.pointAt(event));
    canvas.addEventListener("pointerdown", (event) => event.pointerType !== "mouse" && this.pointAt(event));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && actions.leave());
    canvas.addEventListener("click", (event) => {
      if (this.layout) actions.select(cellAt(this.layout, event.offsetX, event.offsetY), addsToSelection(event));
    });
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && this.point(this.cursor));
    canvas.addEventListener("blur", actions.leave);
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /** @param {MouseEvent} event */
  pointAt(event) {
    if (this.layout) this.point(cellAt(this.layout, event.offsetX, event.offsetY));
  }

  /** @param {Spot} at */
  point(at) {
    if (at.query !== null && at.key !== null) this.cursor = { query: at.query, key: at.key };
    this.actions.point(at);
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const to = this.layout && neighborCell(event.key, this.cursor, this.layout);
    if (to) this.point(to);
    else if (event.key === "Enter" || event.key === " ") this.actions.select(this.cursor, addsToSelection(event));
    else if (event.key === "Escape") this.actions.clear();
    else return;
    event.preventDefault();
  }

  /** Lay out a matrix in the room that there is, with cells of a size at most. @param {PanelContent} content @returns {number} the size of its cells */
  fit({ rows, columns }, maxCell = Infinity) {
    const room = {
      height: MAX_HEIGHT * window.innerHeight,
      rem: parseFloat(getComputedStyle(document.documentElement).fontSize),
      family: getComputedStyle(this.canvas).fontFamily,
      zoom: null,
    };
    const fitTo = (/** @type {number} */ width) => fitMatrix(contextOf(this.canvas), rows, columns, { ...room, width });
    const width = this.frame.clientWidth;
    let layout = fitTo(width);
    if (layout.cell > maxCell) layout = fitTo(width - Math.ceil((layout.cell - maxCell) * columns.length));
    this.layout = layout;
    this.cursor = clampCell(this.cursor, layout);
    return layout.cell;
  }

  /** @param {import("#state/store.js").State} state @param {PanelContent} content */
  paint(state, content) {
    const { canvas, layout } = this;
    if (!layout) return;
    const marks = this.name === "difference" ? drawSigns : undefined;
    const style = getComputedStyle(canvas);
    drawMatrix(canvas, this.map, layout, { ...content, state: { ...state, region: null }, style, marks });
    const size = `${content.rows.length} rows, ${content.columns.length} columns`;
    const keys = "Arrow keys move from cell to cell, Enter selects a token.";
    canvas.setAttribute("aria-label", `${NAMES[this.name]}, ${content.label}: ${size}. ${keys}`);
  }
}

/** A sign in every block that has room for it, so that more and less can be told apart without color. @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawSigns(context, { left, top, cell }, { head, state, style }) {
  const difference = /** @type {Difference} */ (head);
  const { blocks } = difference;
  const side = cell * blocks.size;
  if (side < MIN_SIGNED) return;
  const [ink, page] = ["--ink", "--page"].map((name) => style.getPropertyValue(name));
  context.save();
  context.font = `${Math.min(0.7 * side, 18)}px ${style.fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < blocks.rows; row++) {
    const largest = difference.largest(row);
    for (let column = 0; column < blocks.columns; column++) {
      const value = blocks.at(row, column);
      if (!(Math.abs(value) >= MIN_DIFFERENCE)) continue;
      context.fillStyle = position(Math.abs(value), state.scale, largest) > 0.5 ? page : ink;
      context.fillText(value > 0 ? "+" : "−", left + (column + 0.5) * side, top + (row + 0.5) * side);
    }
  }
  context.restore();
}
