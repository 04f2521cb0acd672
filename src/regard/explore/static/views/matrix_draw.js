// Draws a head as a matrix: its blocks and known cells, what is masked or hidden, and the labels of its tokens.

import { canvasPainters } from "#export/canvas_to_svg.js";
import { drawPixels, drawSigned, position, shade } from "#ui/color.js";
import { hatch, resizeCanvas } from "#ui/drawing.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Blocks, BaseHead as Head } from '#data/heads.js'
 * @import { Focus } from '#state/store.js'
 * @import { Layout } from '#views/matrix_layout.js'
 * @typedef {{blocks: Blocks | null, style: string, canvas: HTMLCanvasElement, paint?: typeof drawPixels}} MapCache  A map, one pixel a block.
 * @typedef {{head: Head, state: any, focus: Focus, rows: string[], columns: string[],
 *   hidden: boolean[], style: CSSStyleDeclaration, marks?: (context: any, layout: Layout, drawing: Drawing) => void}} Drawing
 *   `rows` and `columns` are labels, `hidden` says for each key whether it is hidden, `marks` draws something on top.
 */

const MIN_CELL = 2; // CSS pixels of a cell, from which on the cells of a sketch are drawn one by one
const MAX_LABEL = 144; // CSS pixels

/** @param {HTMLCanvasElement} canvas @param {MapCache} map @param {Layout} layout @param {Drawing} drawing */
export function drawMatrix(canvas, map, layout, drawing) {
  const { state, head } = drawing;
  const context = resizeCanvas(canvas, layout.width, layout.height);
  const style = `${state.scale} ${state.palette} ${themeOf(state)}`;
  if (map.blocks !== head.blocks || map.style !== style)
    (map.paint ?? painterOf(head))(map.canvas, head.blocks, state, themeOf(state));
  Object.assign(map, { blocks: head.blocks, style });
  const paint = (/** @type {any} */ other) => drawAll(other, map.canvas, layout, drawing);
  paint(context);
  canvasPainters.set(canvas, paint);
  const { left, top, cell, row, column } = layout;
  Object.assign(canvas.dataset, { left, top, cell, row, column });
}

/** What draws the blocks of a head. @param {Head} head @returns {typeof drawPixels} */
function painterOf(head) {
  const { isSigned, scaleEnd } = head;
  return isSigned ? (canvas, blocks, state, theme) => drawSigned(canvas, blocks, state, theme, scaleEnd) : drawPixels;
}

/** Whether cells are drawn one by one over the blocks that hold them. @param {Head} head @param {number} cell */
function drawsKnownCells({ isPartial }, cell) {
  return isPartial && cell >= MIN_CELL;
}

/** @param {any} context @param {HTMLCanvasElement} map @param {Layout} layout @param {Drawing} drawing */
function drawAll(context, map, layout, drawing) {
  context.save();
  context.beginPath();
  context.rect(layout.left - 1, layout.top - 1, layout.viewport.width + 2, layout.viewport.height + 2);
  context.clip();
  drawBlocks(context, map, layout, drawing);
  drawMasked(context, layout, drawing);
  drawHidden(context, layout, drawing);
  if (drawsKnownCells(drawing.head, layout.cell)) drawKnownCells(context, layout, drawing);
  if (layout.gap) drawGaps(context, layout, drawing.style);
  drawFocus(context, layout, drawing);
  context.restore();
  drawLabels(context, layout, drawing);
  drawing.marks?.(context, layout, drawing);
}

/** @type {WeakMap<Blocks, {style: string, canvas: HTMLCanvasElement}>} */
const tileCanvases = new WeakMap(); // tiles as they were drawn last

/** @param {Head} head @param {Blocks} blocks @param {any} state */
function tileCanvas(head, blocks, state) {
  const style = `${state.scale} ${state.palette} ${themeOf(state)}`;
  const cached = tileCanvases.get(blocks) ?? { style: "", canvas: document.createElement("canvas") };
  if (cached.style !== style) painterOf(head)(cached.canvas, blocks, state, themeOf(state));
  cached.style = style;
  tileCanvases.set(blocks, cached);
  return cached.canvas;
}

/** @param {any} context @param {HTMLCanvasElement} map @param {Layout} layout @param {Drawing} drawing */
function drawBlocks(context, map, { left, top, cell, row, column, rows, columns, viewport }, { head, state }) {
  const { size } = head.blocks;
  context.imageSmoothingEnabled = size * cell < 1;
  context.globalAlpha = drawsKnownCells(head, cell) ? 0.35 : 1;
  // The last row and column of blocks may stand for fewer cells than the others: they are drawn beyond the matrix, and cut.
  context.save();
  context.beginPath();
  context.rect(left - column * cell, top - row * cell, columns * cell, rows * cell);
  context.clip();
  context.drawImage(map, left - column * cell, top - row * cell, map.width * size * cell, map.height * size * cell);
  const end = { row: row + viewport.height / cell, column: column + viewport.width / cell };
  for (const tile of head.tiles(cell, { row, column }, end)) {
    const side = tile.blocks.size * cell;
    const [x, y] = [left + (tile.column - column) * cell, top + (tile.row - row) * cell];
    context.clearRect(x, y, tile.blocks.columns * side, tile.blocks.rows * side);
    context.imageSmoothingEnabled = side < 1;
    context.drawImage(tileCanvas(head, tile.blocks, state), x, y, tile.blocks.columns * side, tile.blocks.rows * side);
  }
  context.restore();
  context.globalAlpha = 1;
}

/** The strongest cells of a sketch. @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawKnownCells(context, { left, top, cell, row, column, viewport, rows }, { head, state }) {
  const theme = themeOf(state);
  const last = Math.min(Math.ceil(row + viewport.height / cell), rows);
  for (let query = Math.floor(row); query < last; query++) {
    const { entries } = head.row(query);
    for (const { key, weight } of entries) {
      const place = position(weight, state.scale, entries[0].weight);
      context.fillStyle = `rgb(${shade(place, state.palette, theme).join(" ")})`;
      context.fillRect(left + (key - column) * cell, top + (query - row) * cell, cell, cell);
    }
  }
}

/** @param {any} context @param {Layout} layout @param {CSSStyleDeclaration} style */
function drawGaps(context, { left, top, cell, row, column, viewport }, style) {
  context.beginPath();
  for (let y = top - (row % 1) * cell; y <= top + viewport.height + 1; y += cell) {
    context.moveTo(left, y - 0.5);
    context.lineTo(left + viewport.width, y - 0.5);
  }
  for (let x = left - (column % 1) * cell; x <= left + viewport.width + 1; x += cell) {
    context.moveTo(x - 0.5, top);
    context.lineTo(x - 0.5, top + viewport.height);
  }
  context.strokeStyle = style.getPropertyValue("--page");
  context.lineWidth = 1;
  context.stroke();
}

/** Hatch what the mask excludes, across the bounds of cells, so that it looks like one area. @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawMasked(context, layout, { head, style }) {
  const { left, top, cell, row, column, rows, columns, viewport } = layout;
  const single = cell >= MIN_CELL; // else whole blocks
  const { blocks } = head;
  const size = single ? 1 : blocks.size;
  const side = size * cell;
  const isMasked = (/** @type {number} */ y, /** @type {number} */ x) =>
    single ? head.isMasked(y, x) : Number.isNaN(blocks.at(y, x));
  /** @type {(from: number, length: number, count: number) => number} */
  const end = (from, length, count) => Math.min(Math.ceil((from + length / cell) / size), Math.ceil(count / size));
  const [lastRow, lastColumn] = [end(row, viewport.height, rows), end(column, viewport.width, columns)];
  context.save();
  context.beginPath();
  for (let y = Math.floor(row / size); y < lastRow; y++) {
    for (let x = Math.floor(column / size), from = x; x < lastColumn; x = from) {
      const masked = isMasked(y, x);
      for (from = x + 1; from < lastColumn && isMasked(y, from) === masked; ) from++;
      if (masked) context.rect(left - column * cell + x * side, top - row * cell + y * side, (from - x) * side, side);
    }
  }
  context.clip();
  if (drawsKnownCells(head, cell)) context.clearRect(left, top, viewport.width, viewport.height); // blocks are masked in part
  hatch(context, viewportBox(layout), { color: style.getPropertyValue("--hatch") });
  context.restore();
}

/** @param {Layout} layout */
function viewportBox({ left, top, viewport }) {
  return { left, top, right: left + viewport.width, bottom: top + viewport.height };
}

/** Blank the columns of hidden keys, and hatch them faintly, the other way from masked cells. @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawHidden(context, layout, { head, hidden, style }) {
  const { left, top, cell, column, columns, viewport } = layout;
  if (!hidden.includes(true)) return;
  const size = cell >= MIN_CELL ? 1 : head.blocks.size;
  const isHidden = (/** @type {number} */ block) => hidden.slice(block * size, (block + 1) * size).every(Boolean);
  context.save();
  context.beginPath();
  const last = Math.min(Math.ceil((column + viewport.width / cell) / size), Math.ceil(columns / size));
  for (let block = Math.floor(column / size); block < last; block++) {
    if (isHidden(block)) context.rect(left + (block * size - column) * cell, top, size * cell, viewport.height);
  }
  context.clip();
  context.clearRect(left, top, viewport.width, viewport.height);
  hatch(context, viewportBox(layout), { color: style.getPropertyValue("--hairline"), rising: false });
  context.restore();
}

/** @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawLabels(context, layout, { focus, rows, columns, style }) {
  const { left, top, cell, row, column, gap, named, angle, viewport } = layout;
  const half = (cell - gap) / 2;
  const [out, into] = ["--out", "--in"].map((name) => style.getPropertyValue(name));
  for (const { text, chosen, index } of labelsToDraw(rows, focus.queries, row, viewport.height, layout)) {
    const color = chosen ? out : style.getPropertyValue("--label");
    drawLabel(context, text, layout, {
      x: left - 8,
      y: top + (index - row) * cell + half,
      color,
      chosen,
      align: "right",
    });
  }
  for (const { text, chosen, index } of labelsToDraw(columns, focus.keys, column, viewport.width, layout)) {
    const color = chosen ? into : style.getPropertyValue("--label");
    const place = { x: left + (index - column) * cell + half, y: top - 8, turn: named ? -angle : 0 };
    drawLabel(context, text, layout, { ...place, color, chosen, align: named ? "left" : "center" });
  }
}

/**
 * Where not every label has room, those of the focus have, and those that would touch them make way.
 * @param {string[]} labels @param {number[]} focused @param {number} from @param {number} length @param {Layout} layout
 */
function labelsToDraw(labels, focused, from, length, { cell, every, named }) {
  const last = Math.min(Math.ceil(from + length / cell), labels.length);
  const isFree = (/** @type {number} */ index) =>
    every === 1 ? !focused.includes(index) : focused.every((other) => Math.abs(index - other) >= every);
  const found = [];
  for (let index = Math.ceil(Math.max(from - 0.5, 0) / every) * every; index < last; index += every) {
    if (isFree(index)) found.push({ text: named ? labels[index] : String(index), chosen: false, index });
  }
  for (const index of focused) {
    if (index >= from - 0.5 && index < last) found.push({ text: labels[index], chosen: true, index });
  }
  return found;
}

/** @param {any} context @param {string} text @param {Layout} layout @param {{x: number, y: number, turn?: number, color: string, chosen: boolean, align: string}} place */
function drawLabel(context, text, { font }, { x, y, turn = 0, color, chosen, align }) {
  context.save();
  context.translate(x, y);
  context.rotate(turn);
  context.font = chosen ? `600 ${font}` : font;
  context.fillStyle = color;
  context.textAlign = align;
  context.textBaseline = "middle";
  context.fillText(text, 0, 0, MAX_LABEL);
  context.restore();
}

/** @param {any} context @param {Layout} layout @param {Drawing} drawing */
function drawFocus(context, { left, top, cell, row, column, gap, rows, columns }, { state, focus, style }) {
  /** @type {(color: string, width: number, x: number, y: number, across: number, down: number) => void} */
  const outline = (color, width, x, y, across, down) => {
    context.strokeStyle = style.getPropertyValue(color);
    context.lineWidth = width;
    const inset = 1 - (gap ? 0 : 1);
    const [startX, startY] = [left + (x - column) * cell - gap / 2 - 0.5, top + (y - row) * cell - gap / 2 - 0.5];
    context.strokeRect(startX, startY, across * cell + inset, down * cell + inset);
  };
  for (const query of focus.queries) outline("--out", 1.5, 0, query, columns, 1);
  for (const key of focus.keys) outline("--in", 1.5, key, 0, 1, rows);
  if (focus.cell) outline("--ink", 2, focus.keys[0], focus.queries[0], 1, 1);
  if (state.region) {
    const { queries, keys } = state.region;
    outline("--ink", 2, keys[0], queries[0], keys[1] - keys[0] + 1, queries[1] - queries[0] + 1);
  }
}
