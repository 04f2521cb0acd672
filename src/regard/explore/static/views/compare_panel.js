// One of the matrices that are compared, or their difference, with its title.

import { label, readable } from "#data/tokens.js";
import { differing, position } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { within } from "#views/matrix.js";
import { draw } from "#views/matrix_draw.js";
import { fitted, hit } from "#views/matrix_layout.js";

const TALLEST = 0.7; // of the window
const SIGNED = 10; // CSS pixels of a cell, from which on a sign stands in it
const LEAST = 0.01; // of a difference whose sign is written
export const NAMES = { one: "A", other: "B", difference: "B − A" };

/** A matrix with its title. */
export class Panel {
  constructor(name, recording) {
    this.name = name;
    this.layout = null;
    this.cursor = { query: 0, key: 0 };
    this.canvas = /** @type {HTMLCanvasElement} */ (
      element("canvas", {
        tabindex: "0",
        role: "application",
        "aria-roledescription": "matrix",
        "aria-label": NAMES[name],
      })
    );
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const title = recording
      ? [
          element("b", {}, NAMES[name]),
          " ",
          element("span", { class: "compare-title", dir: "auto" }, readable(recording.title)),
          " ",
          element("span", { class: "compare-model" }, readable(recording.model)),
        ]
      : [element("b", {}, NAMES[name]), " how much more B gives than A"];
    this.frame = element("div", { class: "matrix-frame" }, this.canvas);
    this.figure = element(
      "figure",
      { class: `compare-panel ${name}` },
      element("figcaption", {}, ...title),
      this.frame,
    );
    this.maps = {
      name: "",
      canvas: document.createElement("canvas"),
      paint: name === "difference" ? drawDifference : undefined,
    };
    this.labels = new WeakMap(); // of tokens
  }

  hit(event) {
    return this.layout ? hit(this.layout, event.offsetX, event.offsetY) : { query: null, key: null };
  }

  point({ query, key }) {
    if (query !== null && key !== null) this.cursor = { query, key };
  }

  labelsOf(tokens) {
    if (!this.labels.has(tokens)) this.labels.set(tokens, tokens.map(label));
    return this.labels.get(tokens);
  }

  /** Lay out a matrix of some tokens in the room that there is, with cells of a size at most, and give the size that they have. */
  fit(queries, keys, most = Infinity) {
    const family = getComputedStyle(this.canvas).fontFamily;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const [rows, columns] = [this.labelsOf(queries), this.labelsOf(keys)];
    const lay = (width) =>
      fitted(this.context, rows, columns, { width, height: TALLEST * window.innerHeight, rem, family, zoom: null });
    this.layout = lay(this.frame.clientWidth);
    if (this.layout.cell > most)
      this.layout = lay(this.frame.clientWidth - Math.ceil((this.layout.cell - most) * keys.length));
    return this.layout.cell;
  }

  paint(state, { layer, head, heads, queries, keys }, focus) {
    const style = getComputedStyle(this.canvas);
    const [rows, columns] = [this.labelsOf(queries), this.labelsOf(keys)];
    this.cursor = within(this.cursor, this.layout);
    const marks = this.name === "difference" ? drawSigns : undefined;
    draw(this.canvas, this.maps, this.layout, {
      layer,
      head,
      state: { ...state, heads, region: null },
      focus,
      rows,
      columns,
      style,
      marks,
    });
    const { left, top, cell, row, column } = this.layout;
    Object.assign(this.canvas.dataset, { left, top, cell, row, column });
    const numbers = heads.map((each) => layer.heads[each]).join(" and ");
    this.canvas.setAttribute(
      "aria-label",
      `${NAMES[this.name]}, ${layer.name}, head ${numbers}: ${rows.length} rows, ${columns.length} columns. Arrow keys move from cell to cell, Enter holds a token.`,
    );
  }
}

/** Draw differences, one pixel each; where there is none, the pixel is clear. */
export function drawDifference(canvas, squares, { scale }, theme) {
  const { rows, columns } = squares;
  [canvas.width, canvas.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  for (let row = 0, pixel = 0; row < rows; row++) {
    let most = 1;
    if (scale === "rows")
      for (let column = 0; column < columns; column++) most = Math.max(most, Math.abs(squares.at(row, column)) || 0);
    for (let column = 0; column < columns; column++, pixel += 4) {
      const value = squares.at(row, column);
      if (!Number.isNaN(value))
        image.data.set([...differing(Math.sign(value) * position(Math.abs(value), scale, most), theme), 255], pixel);
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** A sign in every cell that has room for it, so that colour alone need not tell more from less. */
function drawSigns(context, { left, top, cell }, { head: difference, state, style }) {
  const { rows, columns, size, at } = difference.squares;
  const side = cell * size;
  if (side < SIGNED) return;
  const [ink, page] = ["--ink", "--page"].map((name) => style.getPropertyValue(name));
  context.save();
  context.font = `${Math.min(0.7 * side, 18)}px ${style.fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < rows; row++) {
    const most = state.scale === "rows" ? difference.most(row) : 1;
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (!(Math.abs(value) >= LEAST)) continue;
      context.fillStyle = position(Math.abs(value), state.scale, most) > 0.5 ? page : ink;
      context.fillText(value > 0 ? "+" : "−", left + (column + 0.5) * side, top + (row + 0.5) * side);
    }
  }
  context.restore();
}
