// Where the matrix and its labels stand on the canvas, and which part of it is visible.

import { clamp } from "#data/numbers.js";

/** @import { Zoom } from '#state/store.js' */

const MAX_CELL = 2.4; // rem of a cell that is not zoomed
const MAX_ZOOM = 48; // CSS pixels of a cell at most
const MIN_NAMED = 5; // CSS pixels of a cell, below which labels are numbers and not tokens
const LABEL_HEIGHT = 9; // CSS pixels from label to label, at least
const SLANT = (52 * Math.PI) / 180; // of the column labels
const MARGIN = 10;
const MAX_LABEL = 9; // rem

/**
 * @typedef {{left: number, top: number, cell: number, fit: number, gap: number, width: number, height: number, row: number, column: number,
 *   rows: number, columns: number, font: string, angle: number, every: number, named: boolean, viewport: {width: number, height: number}}} Layout
 *   `left` and `top` are where the matrix begins on the canvas; `row` and `column` are the first that is visible, in parts of cells;
 *   `rows` and `columns` are how many there are; of `every` labels one is written, as a token where `named`; `viewport` is the size of its visible part; `fit` is the cell with which all of it is visible.
 */

/**
 * Fit rows × columns of cells and their labels into a width and a height.
 * @param {CanvasRenderingContext2D} context @param {string[]} rows  Labels. @param {string[]} columns
 * @param {{width: number, height: number, rem: number, family: string, zoom: Zoom | null}} room
 * @returns {Layout}
 */
export function fitMatrix(context, rows, columns, { width, height, rem, family, zoom }) {
  let cell = zoom?.cell ?? MAX_CELL * rem;
  let fit = cell;
  /** @type {Layout | undefined} */
  let layout;
  // Labels grow with the cells, and the cells have what the labels leave: a few rounds settle it.
  for (let round = 0; round < 4; round++) {
    const named = cell >= MIN_NAMED;
    const size = Math.min(Math.max(0.72 * cell, 9), 0.95 * rem);
    const angle = cell < 13 ? Math.PI / 2 : SLANT;
    context.font = `${size}px ${family}`;
    const [rowWidth, columnWidth] = [rows, columns].map((labels) =>
      named ? Math.min(maxWidth(context, labels), MAX_LABEL * rem) : 5 * size,
    );
    const left = Math.ceil(rowWidth + MARGIN + 2);
    const top = Math.ceil((named ? columnWidth * Math.sin(angle) : 0) + size + MARGIN);
    const beyond = named ? Math.cos(angle) * columnWidth : 0;
    const room = { width: Math.max(width - left, 40), height: Math.max(height - top, 40) };
    fit = Math.min((room.width - beyond) / columns.length, MAX_CELL * rem);
    if (fit * rows.length > room.height) fit = Math.max(Math.min(fit, room.height / rows.length), Math.min(fit, 6));
    if (fit >= 6) fit = Math.floor(fit);
    cell = zoom ? clamp(zoom.cell, Math.min(fit, MAX_ZOOM), MAX_ZOOM) : fit;
    const viewport = {
      width: Math.min(cell * columns.length, zoom ? room.width : Infinity),
      height: Math.min(cell * rows.length, zoom ? Math.max(room.height, fit * rows.length) : Infinity),
    };
    layout = {
      left,
      top,
      cell,
      fit,
      gap: cell >= 14 ? 1 : 0,
      width: Math.ceil(left + Math.min(viewport.width + beyond + 2, Math.max(room.width, viewport.width))),
      height: Math.ceil(top + viewport.height + 2),
      row: zoom ? clamp(zoom.query + 0.5 - viewport.height / cell / 2, 0, rows.length - viewport.height / cell) : 0,
      column: zoom ? clamp(zoom.key + 0.5 - viewport.width / cell / 2, 0, columns.length - viewport.width / cell) : 0,
      rows: rows.length,
      columns: columns.length,
      font: `${size}px ${family}`,
      angle,
      every: named ? Math.ceil(LABEL_HEIGHT / cell) : labelStep(cell),
      named,
      viewport,
    };
  }
  return /** @type {Layout} */ (layout);
}

/** The row and the column at a point of the canvas; null where there is none. @param {Layout} layout @param {number} x @param {number} y */
export function cellAt({ left, top, cell, row, column, rows, columns, viewport }, x, y) {
  const query = Math.floor(row + (y - top) / cell);
  const key = Math.floor(column + (x - left) / cell);
  return {
    query: y >= top && y < top + viewport.height && query < rows ? query : null,
    key: x >= left && x < left + viewport.width && key < columns ? key : null,
  };
}

/** Where a cell is, in CSS pixels. @param {Layout} layout @param {{query: number, key: number}} cell @param {[x: number, y: number]} origin  Where the canvas begins. */
export function boxOfCell({ left, top, cell, row, column }, { query, key }, [x, y]) {
  const start = { left: x + left + (key - column) * cell, top: y + top + (query - row) * cell };
  return { ...start, right: start.left + cell, bottom: start.top + cell };
}

/** The zoom by a factor that keeps the cell under a point where it is; null where all is visible. @param {Layout} layout @param {number} factor @param {number} x @param {number} y @returns {Zoom | null} */
export function zoomAt(layout, factor, x, y) {
  const cell = clamp(layout.cell * factor, layout.fit, MAX_ZOOM);
  if (cell <= layout.fit) return null;
  const [query, key] = [layout.row + (y - layout.top) / layout.cell, layout.column + (x - layout.left) / layout.cell];
  const room = { width: Math.max(layout.width - layout.left, layout.viewport.width), height: layout.viewport.height };
  return {
    query: query - (y - layout.top) / cell + room.height / cell / 2 - 0.5,
    key: key - (x - layout.left) / cell + room.width / cell / 2 - 0.5,
    cell,
  };
}

/** The zoom after the matrix was drawn aside by some pixels. @param {Layout} layout @param {number} x @param {number} y @returns {Zoom} */
export function panBy(layout, x, y) {
  const [high, wide] = [layout.viewport.height / layout.cell, layout.viewport.width / layout.cell];
  return {
    query: clamp(layout.row - y / layout.cell, 0, layout.rows - high) + high / 2 - 0.5,
    key: clamp(layout.column - x / layout.cell, 0, layout.columns - wide) + wide / 2 - 0.5,
    cell: layout.cell,
  };
}

/** From number to number along an axis: a round one, so that they do not touch. @param {number} cell */
function labelStep(cell) {
  const least = 44 / cell;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power;
}

/** @type {WeakMap<string[], Map<string, number>>} */
const widths = new WeakMap(); // of labels, at one size of letters

/** @param {CanvasRenderingContext2D} context @param {string[]} texts */
function maxWidth(context, texts) {
  const known = widths.get(texts) ?? new Map();
  widths.set(texts, known);
  const width =
    known.get(context.font) ?? texts.reduce((most, text) => Math.max(most, context.measureText(text).width), 0);
  known.set(context.font, width);
  return width;
}
