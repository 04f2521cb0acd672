// A tensor as a picture: a cell for each number, the names of tokens beside it, and the number that the pointer is at.

import { written } from "#calculation/readings.js";
import { drawPixels, drawSigned } from "#ui/color.js";
import { placeTip } from "#ui/drawing.js";
import { element, svgElement } from "#ui/elements.js";
import { formatNumber, formatWeight } from "#ui/format.js";

/**
 * @import { Operand } from '#calculation/steps.js'
 * @import { Matrix, Place, Trace } from '#calculation/trace.js'
 * @typedef {{theme: "light" | "dark", choose: (query: number) => void, tip: HTMLElement, point: (at: Pointed) => void, hasNames?: boolean}} Drawing  `hasNames`: of rows.
 * @typedef {Record<string, number>} Pointed  The entry of each axis that the pointer is at; none if it is at no cell.
 */

const MAX_NAMED = 24; // tokens of an axis
const CELL = 16; // CSS pixels of a named token
const LONGEST = 12; // letters of the name of a column
const LETTER = 8; // CSS pixels, more or less
const SIZE = 128; // of an axis without names; one pixel for each entry of a longer one, up to twice as many
const SHARES = ["weights", "probabilities"];
const TOKENS = ["query", "key", "token"];
/** One of an axis, and several. @type {Record<string, [string, string]>} */
export const WORDS = {
  query: ["query", "queries"],
  key: ["key", "keys"],
  token: ["token", "tokens"],
  word: ["word", "words"],
  unit: ["unit", "units"],
  "": ["row", "row"],
};

/** @param {string} axis @param {number} count */
export const counted = (axis, count) =>
  `${count.toLocaleString("en")} ${(WORDS[axis] ?? ["feature", "features"])[count === 1 ? 0 : 1]}`;

/** What an entry of an axis is called. @param {Trace} trace @param {string} axis @param {number} index */
export function nameOf(trace, axis, index) {
  return axis in trace.header.labels ? trace.label(axis, index) : `${(WORDS[axis] ?? ["feature"])[0]} ${index}`;
}

/** A number as it is written: of a mask whether a query may attend to a key. @param {string} name @param {Matrix} matrix @param {number} row @param {number} column */
export function textAt(name, matrix, row, column) {
  const number = matrix.at(row, column);
  const error = matrix.errorAt?.(row, column) ?? 0;
  if (error > 0) return name === "weights" ? formatWeight(number, error) : formatNumber(number, error);
  if (name === "mask") return number ? "yes" : "no";
  return name === "ids" ? String(number) : written(number);
}

/** @param {Trace} trace @param {Operand} operand @param {Matrix} matrix @param {Place} place @param {Drawing} drawing */
export function pictureOf(trace, operand, matrix, place, drawing) {
  const { name, term, color } = operand;
  const size = `${counted(matrix.rowAxis, matrix.rows)} × ${counted(matrix.columnAxis, matrix.columns)}`;
  const canvas = element("canvas", { role: "img", "aria-label": `${term}: ${size}` });
  const [width, height] = [sizeOf(matrix.columnAxis, matrix.columns), sizeOf(matrix.rowAxis, matrix.rows)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  paint(canvas, name, matrix, drawing.theme);
  const frame = element("div", { class: "cells" }, canvas);
  if (TOKENS.includes(matrix.rowAxis) && matrix.rowAxis !== "key" && matrix.rows > 1) {
    const mark = element("div", { class: "mark" });
    mark.style.top = `${(place.query * height) / matrix.rows}px`;
    mark.style.height = `${height / matrix.rows}px`;
    frame.append(mark);
    canvas.addEventListener("click", (event) => drawing.choose(cellAt(event, canvas, matrix).row));
  }
  canvas.addEventListener("pointermove", (event) => {
    const { row, column } = cellAt(event, canvas, matrix);
    drawing.point({ [matrix.rowAxis]: row, [matrix.columnAxis]: column });
    showTip(event, drawing.tip, { trace, name, matrix, row, column });
  });
  canvas.addEventListener("pointerleave", () => {
    drawing.point({});
    drawing.tip.hidden = true;
  });
  const label = element("b", { class: `term ${color}` }, ...withIndices(term));
  const caption = element("figcaption", {}, label, term === name ? "" : ` ${name}`);
  const grid = element(
    "div",
    { class: "grid" },
    ...columnNames(trace, matrix),
    ...(drawing.hasNames ? rowNames(trace, matrix) : []),
    frame,
  );
  return element(
    "figure",
    { class: `picture ${color}`, "data-name": name },
    caption,
    grid,
    element("p", { class: "shape" }, size),
  );
}

/** CSS pixels of an axis. @param {string} axis @param {number} count */
function sizeOf(axis, count) {
  const isNamed = count <= MAX_NAMED && axis in WORDS;
  return isNamed || count * CELL <= SIZE ? count * CELL : Math.max(SIZE, Math.min(count, 2 * SIZE));
}

/** The names of the rows, if they are tokens and there is room. @param {Trace} trace @param {Matrix} matrix */
function rowNames(trace, { rowAxis: axis, rows }) {
  if (!(axis in trace.header.labels) || rows > MAX_NAMED) return [];
  const names = Array.from({ length: rows }, (_, index) => element("span", { dir: "auto" }, trace.label(axis, index)));
  return [element("div", { class: "row-names", "aria-hidden": "true" }, ...names)];
}

/** Those of the columns, from below. @param {Trace} trace @param {Matrix} matrix */
function columnNames(trace, { columnAxis: axis, columns }) {
  if (!(axis in trace.header.labels) || columns > MAX_NAMED) return [];
  const names = Array.from({ length: columns }, (_, index) => {
    const name = [...trace.label(axis, index)];
    return name.length > LONGEST ? `${name.slice(0, LONGEST - 1).join("")}…` : name.join("");
  });
  const height = 4 + LETTER * Math.max(...names.map((name) => name.length));
  const texts = names.map((name, index) => {
    const place = `translate(${(index + 0.75) * CELL} ${height - 4}) rotate(-90)`;
    return svgElement("text", { transform: place }, name);
  });
  const size = { width: columns * CELL, height };
  return [svgElement("svg", { class: "column-names", "aria-hidden": "true", ...size }, ...texts)];
}

/** @param {HTMLCanvasElement} canvas @param {string} name @param {Matrix} matrix @param {"light" | "dark"} theme */
function paint(canvas, name, matrix, theme) {
  const at = (/** @type {number} */ row, /** @type {number} */ column) => {
    const number = matrix.at(row, column);
    return Number.isFinite(number) ? number : NaN;
  };
  const blocks = { rows: matrix.rows, columns: matrix.columns, at };
  if (SHARES.includes(name)) return drawPixels(canvas, blocks, { scale: "sqrt", palette: "blues" }, theme);
  if (name === "mask") return drawPixels(canvas, blocks, { scale: "linear", palette: "greys" }, theme);
  let largest = 0;
  for (let row = 0; row < matrix.rows; row++)
    for (let column = 0; column < matrix.columns; column++) largest = Math.max(largest, Math.abs(at(row, column)) || 0);
  drawSigned(canvas, blocks, { scale: "sqrt" }, theme, largest || 1);
}

/** @param {MouseEvent} event @param {HTMLCanvasElement} canvas @param {Matrix} matrix */
function cellAt({ offsetX, offsetY }, canvas, { rows, columns }) {
  const row = Math.min(rows - 1, Math.max(0, Math.floor((offsetY / canvas.clientHeight) * rows)));
  const column = Math.min(columns - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * columns)));
  return { row, column };
}

/** The number that the pointer is at. @param {PointerEvent} event @param {HTMLElement} tip @param {{trace: Trace, name: string, matrix: Matrix, row: number, column: number}} cell */
function showTip(event, tip, { trace, name, matrix, row, column }) {
  const places = [
    ...(matrix.rowAxis ? [nameOf(trace, matrix.rowAxis, row)] : []),
    nameOf(trace, matrix.columnAxis, column),
  ];
  tip.replaceChildren(`${places.join(" · ")}: `, element("b", {}, textAt(name, matrix, row, column)));
  tip.hidden = false;
  const frame = /** @type {HTMLElement} */ (tip.parentElement).getBoundingClientRect();
  const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
  placeTip(tip, { left: x, right: x, top: y, bottom: y }, frame);
}

/** A formula with its indices, `_Q`, and exponents, `^(2i)`, as such. @param {string} text @returns {(Node | string)[]} */
export function withIndices(text) {
  return text.split(/(_[A-Z]\b|\^\([^()]*\))/).map((part, i) => {
    if (i % 2 === 0) return part;
    return part.startsWith("_") ? element("sub", {}, part.slice(1)) : element("sup", {}, part.slice(2, -1));
  });
}
