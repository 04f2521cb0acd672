// How a head is drawn as a matrix: its squares, what is known of its cells, what may not be seen or is left out, its tokens.

import { isMasked as isMaskedIn } from "#data/heads.js";
import { hides } from "#data/links.js";
import { redrawn } from "#export/canvas_to_svg.js";
import { drawPixels, position, shade } from "#ui/color.js";
import { themeOf } from "#ui/theme.js";

const HATCH = 7; // CSS pixels from line to line
const SINGLE = 2; // CSS pixels of a cell, from which on the cells of a sketch are drawn one by one

/** @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

export function draw(canvas, maps, layout, what) {
  const { state, layer, head } = what;
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(layout.width * ratio), Math.round(layout.height * ratio)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
  }
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, layout.width, layout.height);
  const name = [
    layer.name,
    state.heads,
    state.several,
    state.scale,
    state.palette,
    state.hidden,
    state.rescale,
    themeOf(state),
  ].join(" ");
  if (maps.name !== name) (maps.paint ?? drawPixels)(maps.canvas, head.squares, state, themeOf(state));
  maps.name = name;
  drawAll(context, maps.canvas, layout, what);
  redrawn.set(canvas, (other) => drawAll(other, maps.canvas, layout, what));
}

function drawAll(context, map, layout, what) {
  const { head } = what;
  context.save();
  context.beginPath();
  context.rect(layout.left - 1, layout.top - 1, layout.seen.width + 2, layout.seen.height + 2);
  context.clip();
  drawSquares(context, map, layout, what);
  drawMasked(context, layout, what);
  drawHidden(context, layout, what);
  if (!head.whole && !head.exact && layout.cell >= SINGLE) drawKnown(context, layout, what);
  if (layout.gap) drawGaps(context, layout, what.style);
  drawFocus(context, layout, what);
  context.restore();
  drawLabels(context, layout, what);
  what.marks?.(context, layout, what);
}

const canvases = new WeakMap(); // of tiles, as they were drawn last

function canvasOf(squares, state) {
  const name = `${state.scale} ${state.palette} ${themeOf(state)}`;
  const known = canvases.get(squares) ?? { name: "", canvas: document.createElement("canvas") };
  if (known.name !== name) drawPixels(known.canvas, squares, state, themeOf(state));
  known.name = name;
  canvases.set(squares, known);
  return known.canvas;
}

function drawSquares(context, map, { left, top, cell, row, column, rows, columns, seen }, { head, state }) {
  const { size } = head.squares;
  context.imageSmoothingEnabled = size * cell < 1;
  context.globalAlpha = !head.whole && !head.exact && cell >= SINGLE ? 0.35 : 1; // the mean of cells that are not known one by one
  // The last row and column of squares may stand for fewer cells than the others: they are drawn beyond the matrix, and cut.
  context.save();
  context.beginPath();
  context.rect(left - column * cell, top - row * cell, columns * cell, rows * cell);
  context.clip();
  context.drawImage(map, left - column * cell, top - row * cell, map.width * size * cell, map.height * size * cell);
  for (const tile of head.finer?.(
    cell,
    { row, column },
    { row: row + seen.height / cell, column: column + seen.width / cell },
  ) ?? []) {
    const side = tile.squares.size * cell;
    const [x, y] = [left + (tile.column - column) * cell, top + (tile.row - row) * cell];
    context.clearRect(x, y, tile.squares.columns * side, tile.squares.rows * side);
    context.imageSmoothingEnabled = side < 1;
    context.drawImage(canvasOf(tile.squares, state), x, y, tile.squares.columns * side, tile.squares.rows * side);
  }
  context.restore();
  context.globalAlpha = 1;
}

/** The cells of a sketch that are known one by one. */
function drawKnown(context, { left, top, cell, row, column, seen, rows }, { head, state }) {
  const theme = themeOf(state);
  const last = Math.min(Math.ceil(row + seen.height / cell), rows);
  for (let query = Math.floor(row); query < last; query++) {
    const { links } = head.row(query);
    for (const { key, weight } of links) {
      context.fillStyle = `rgb(${shade(position(weight, state.scale, links[0].weight), state.palette, theme).join(" ")})`;
      context.fillRect(left + (key - column) * cell, top + (query - row) * cell, cell, cell);
    }
  }
}

function drawGaps(context, { left, top, cell, row, column, seen }, style) {
  context.beginPath();
  for (let y = top - (row % 1) * cell; y <= top + seen.height + 1; y += cell) {
    context.moveTo(left, y - 0.5);
    context.lineTo(left + seen.width, y - 0.5);
  }
  for (let x = left - (column % 1) * cell; x <= left + seen.width + 1; x += cell) {
    context.moveTo(x - 0.5, top);
    context.lineTo(x - 0.5, top + seen.height);
  }
  context.strokeStyle = style.getPropertyValue("--page");
  context.lineWidth = 1;
  context.stroke();
}

/** Hatch what the mask forbids, over the bounds of cells, so that it reads as one area and not as weights. */
function drawMasked(context, { left, top, cell, row, column, rows, columns, seen }, { head, style }) {
  const { squares } = head;
  const single = cell >= SINGLE; // else whole squares
  const size = single ? 1 : squares.size;
  const isMasked = single ? (y, x) => isMaskedIn(head, y, x) : (y, x) => Number.isNaN(squares.at(y, x));
  const side = size * cell;
  context.save();
  context.beginPath();
  const last = (from, length, count) => Math.min(Math.ceil((from + length / cell) / size), Math.ceil(count / size));
  const [lastRow, lastColumn] = [last(row, seen.height, rows), last(column, seen.width, columns)];
  for (let y = Math.floor(row / size); y < lastRow; y++) {
    for (let x = Math.floor(column / size), from = x; x < lastColumn; x = from) {
      const masked = isMasked(y, x);
      for (from = x + 1; from < lastColumn && isMasked(y, from) === masked; ) from++;
      if (masked) context.rect(left - column * cell + x * side, top - row * cell + y * side, (from - x) * side, side);
    }
  }
  context.clip();
  if (single && !head.whole && !head.exact) context.clearRect(left, top, seen.width, seen.height); // squares are masked in part
  context.beginPath();
  for (let x = left - seen.height; x < left + seen.width; x += HATCH) {
    context.moveTo(x, top + seen.height);
    context.lineTo(x + seen.height, top);
  }
  context.strokeStyle = style.getPropertyValue("--hatch");
  context.lineWidth = 1;
  context.stroke();
  context.restore();
}

/** Blank the columns of keys that are left out, and hatch them faintly, the other way round than what the mask forbids. */
function drawHidden(context, { left, top, cell, column, columns, seen }, { layer, head, state, style }) {
  if (!state.hidden.length) return;
  const size = cell >= SINGLE ? 1 : head.squares.size;
  const isHidden = hides(layer, state);
  const all = (square) =>
    Array.from({ length: Math.min(size, columns - square * size) }, (_, index) => square * size + index).every(
      isHidden,
    );
  context.save();
  context.beginPath();
  const last = Math.min(Math.ceil((column + seen.width / cell) / size), Math.ceil(columns / size));
  for (let square = Math.floor(column / size); square < last; square++) {
    if (all(square)) context.rect(left + (square * size - column) * cell, top, size * cell, seen.height);
  }
  context.clip();
  context.clearRect(left, top, seen.width, seen.height);
  context.beginPath();
  for (let x = left - seen.height; x < left + seen.width; x += HATCH) {
    context.moveTo(x, top);
    context.lineTo(x + seen.height, top + seen.height);
  }
  context.strokeStyle = style.getPropertyValue("--hairline");
  context.lineWidth = 1;
  context.stroke();
  context.restore();
}

function drawLabels(
  context,
  { left, top, cell, row, column, gap, every, named, font, angle, seen },
  { focus, rows, columns, style },
) {
  const colour = (name) => style.getPropertyValue(name);
  const write = (text, chosen, x, y, turn, align) => {
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.font = chosen ? `600 ${font}` : font;
    context.fillStyle = chosen || colour("--label");
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(text, 0, 0, 9 * 16);
    context.restore();
  };
  const half = (cell - gap) / 2;
  const axis = (labels, chosen, from, length, draw) => {
    const last = Math.min(Math.ceil(from + length / cell), labels.length);
    // Where not every label has room, the chosen ones have, and those that would touch them make way.
    const apart = (index) => chosen.every((other) => Math.abs(index - other) >= every);
    for (let index = Math.ceil(Math.max(from - 0.5, 0) / every) * every; index < last; index += every) {
      if (every === 1 ? !chosen.includes(index) : apart(index))
        draw(named ? labels[index] : String(index), false, index);
    }
    for (const index of chosen) if (index >= from - 0.5 && index < last) draw(labels[index], true, index);
  };
  axis(rows, focus.queries, row, seen.height, (text, chosen, query) =>
    write(text, chosen && colour("--out"), left - 8, top + (query - row) * cell + half, 0, "right"),
  );
  axis(columns, focus.keys, column, seen.width, (text, chosen, key) =>
    write(
      text,
      chosen && colour("--in"),
      left + (key - column) * cell + half,
      top - 8,
      named ? -angle : 0,
      named ? "left" : "center",
    ),
  );
}

function drawFocus(context, { left, top, cell, row, column, gap, rows, columns }, { state, focus, style }) {
  const outline = (colour, width, x, y, across, down) => {
    context.strokeStyle = style.getPropertyValue(colour);
    context.lineWidth = width;
    context.strokeRect(
      left + (x - column) * cell - gap / 2 - 0.5,
      top + (y - row) * cell - gap / 2 - 0.5,
      across * cell + 1 - (gap ? 0 : 1),
      down * cell + 1 - (gap ? 0 : 1),
    );
  };
  for (const query of focus.queries) outline("--out", 1.5, 0, query, columns, 1);
  for (const key of focus.keys) outline("--in", 1.5, key, 0, 1, rows);
  if (focus.cell) outline("--ink", 2, focus.keys[0], focus.queries[0], 1, 1);
  if (state.region) {
    const { queries, keys } = state.region;
    outline("--ink", 2, keys[0], queries[0], keys[1] - keys[0] + 1, queries[1] - queries[0] + 1);
  }
}
