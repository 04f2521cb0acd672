// One head large: a canvas with a row for each query and a column for each key, and the value of the cell pointed at.

import { drawPixels, position, shade } from "#colour.js";
import { written } from "#data.js";
import { element } from "#elements.js";
import { bounded, fitted, hit, moved, zoomed } from "#layout.js";
import { hides } from "#links.js";
import { focusIn, hold } from "#state.js";
import { redrawn } from "#svg_context.js";
import { themeOf } from "#theme.js";
import { label } from "#tokens.js";

const HATCH = 7; // CSS pixels from line to line
const APART = 8; // CSS pixels from a cell to what is told of it
const TALLEST = 0.82; // of the window
const STEP = 1.5; // of a key stroke that zooms
const SINGLE = 2; // CSS pixels of a cell, from which on the cells of a sketch are drawn one by one
const DRAWN = 4; // CSS pixels that a pointer may move and still click

/** @param {HTMLElement} place @param {import("#data.js").Recording} recording @param {import("#state.js").Store} store */
export function mountMatrix(place, recording, store) {
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "matrix of weights" });
  const tip = element("div", { class: "tip", hidden: "" });
  const button = (text, name, act) => {
    const made = element("button", { type: "button", "aria-label": name, title: name }, text);
    made.addEventListener("click", act);
    return made;
  };
  /** @returns {[number, number]} */
  const middle = () => [layout.left + layout.seen.width / 2, layout.top + layout.seen.height / 2];
  /** The layout of what is chosen now: of several keys in one frame, each sets out from the one before. */
  const latest = () => {
    if (asked) {
      cancelAnimationFrame(asked);
      paint();
    }
    return layout;
  };
  const zoomBy = (/** @type {number} */ factor) => store.set({ zoom: zoomed(latest(), factor, ...middle()) });
  const tools = element(
    "div",
    { class: "tools", role: "group", "aria-label": "Zoom" },
    button("+", "Zoom in", () => zoomBy(STEP)),
    button("−", "Zoom out", () => zoomBy(1 / STEP)),
    button("Fit", "Fit the whole matrix", () => store.set({ zoom: null })),
    element("span", { class: "hint" }, "drag to move, Shift + drag to mark a region, Ctrl + wheel or pinch to zoom"),
  );
  const frame = element("div", { class: "matrix-frame" }, canvas);
  place.append(tools, frame, tip);
  const labels = new Map(); // of sequences
  const maps = { name: "", canvas: document.createElement("canvas") }; // the squares, a pixel each
  /** @type {any} */
  let layout = null; // until it is painted
  let cursor = { query: 0, key: 0 }; // the cell that arrow keys set out from
  const pointers = new Map(); // that are down
  let drag = null;
  let asked = 0;

  const layerNow = () => recording.layers[store.get().layer];
  const labelsOf = (tokens) => {
    if (!labels.has(tokens)) labels.set(tokens, tokens.map(label));
    return labels.get(tokens);
  };

  const paint = () => {
    asked = 0;
    const state = store.get();
    const layer = layerNow();
    const head = layer.head(state.heads);
    if (!head || !state.views.includes("matrix") || frame.clientWidth === 0) return;
    const style = getComputedStyle(canvas);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const [rows, columns] = [labelsOf(layer.queries), labelsOf(layer.keys)];
    layout = fitted(contextOf(canvas), rows, columns, { width: frame.clientWidth, height: TALLEST * window.innerHeight, rem, family: style.fontFamily, zoom: state.zoom });
    const focus = focusIn(layer, state);
    draw(canvas, maps, layout, { layer, head, state, focus, rows, columns, style });
    Object.assign(canvas.dataset, { left: layout.left, top: layout.top, cell: layout.cell, row: layout.row, column: layout.column });
    canvas.classList.toggle("movable", layout.cell > layout.fit);
    canvas.setAttribute("aria-label", `${layer.name}, head ${state.heads.map((head) => layer.heads[head]).join(" and ")}: ${rows.length} rows, ${columns.length} columns. Arrow keys move from cell to cell, plus and minus zoom, Shift with arrows marks a region.`);
    showTip(tip, frame, layout, layer, head, focus);
  };
  const soon = () => {
    asked ||= requestAnimationFrame(paint);
  };

  const point = (at) => {
    if (at.query !== null && at.key !== null) {
      cursor = at;
      layerNow().head(store.get().heads)?.prepare?.(at.query); // a frame before it is drawn
      store.set({ hover: { cell: at } });
    } else {
      const token = tokenAt(layerNow(), at);
      store.set({ hover: token && { token } });
    }
  };
  const at = (event) => hit(layout, event.offsetX, event.offsetY);
  const cellNear = (event) => ({
    query: bounded(Math.floor(layout.row + (event.offsetY - layout.top) / layout.cell), 0, layout.rows - 1),
    key: bounded(Math.floor(layout.column + (event.offsetX - layout.left) / layout.cell), 0, layout.columns - 1),
  });

  canvas.addEventListener("pointerdown", (event) => {
    if (!layout) return;
    pointers.set(event.pointerId, event);
    drag = { x: event.offsetX, y: event.offsetY, from: cellNear(event), layout, region: event.shiftKey, far: false, pointerType: event.pointerType };
    if (event.pointerType !== "mouse") point(at(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!layout) return;
    const before = pointers.get(event.pointerId);
    if (!before) return point(at(event));
    const others = [...pointers.values()].filter(({ pointerId }) => pointerId !== event.pointerId);
    if (others.length === 1) {
      const spread = (one) => Math.hypot(one.offsetX - others[0].offsetX, one.offsetY - others[0].offsetY);
      drag.far = true;
      store.set({ zoom: zoomed(layout, spread(event) / Math.max(spread(before), 1), (event.offsetX + others[0].offsetX) / 2, (event.offsetY + others[0].offsetY) / 2) });
    } else if (drag.far || Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > DRAWN) {
      if (!drag.far) canvas.setPointerCapture(event.pointerId);
      drag.far = true;
      const move = drag.layout.cell > drag.layout.fit && !drag.region;
      if (move) store.set({ zoom: moved(drag.layout, event.offsetX - drag.x, event.offsetY - drag.y), hover: null });
      else if (event.pointerType === "mouse" || drag.region) store.set({ region: regionOf(drag.from, cellNear(event)), hover: null });
    }
    pointers.set(event.pointerId, event);
  });
  for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !pointers.size && store.set({ hover: null }));
  canvas.addEventListener("click", (event) => {
    if (!layout || drag?.far) return;
    if (drag && drag.pointerType !== "mouse") point(at(event)); // again: what had the focus may have let go of it
    const token = tokenAt(layerNow(), at(event));
    if (store.get().region) store.set({ region: null });
    if (token) hold(store, token, event.ctrlKey || event.metaKey);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!layout || !(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return; // else the page scrolls
    event.preventDefault();
    store.set({ zoom: zoomed(latest(), Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY), hover: null });
  }, { passive: false });

  canvas.addEventListener("focus", () => layout && canvas.matches(":focus-visible") && point(within(cursor, layout)));
  canvas.addEventListener("blur", () => store.set({ hover: null }));
  canvas.addEventListener("keydown", (event) => {
    if (!layout) return;
    const layer = layerNow();
    const here = within(cursor, layout);
    const to = stepped(event.key, here, layout);
    if (event.key === "Enter" || event.key === " ") hold(store, { sequence: layer.querySequence, index: here.query }, event.ctrlKey || event.metaKey);
    else if (event.key === "Escape") store.set({ tokens: [], region: null, hover: null });
    else if (event.key === "+" || event.key === "=") store.set({ zoom: zoomed(latest(), STEP, ...pixels(layout, here)) });
    else if (event.key === "-") store.set({ zoom: zoomed(latest(), 1 / STEP, ...pixels(layout, here)) });
    else if (event.key === "0") store.set({ zoom: null });
    else if (to) {
      const { region } = store.get();
      cursor = within(to, layout);
      if (event.shiftKey) store.set({ region: regionOf(region ? anchorOf(region, here) : here, cursor) });
      point(cursor);
      reveal(store, layout, cursor);
    } else return;
    event.preventDefault();
  });

  store.subscribe((state, before) => {
    const layer = recording.layers[state.layer];
    if (state.views.includes("matrix") && !layer.ready) layer.load().then(() => store.set({}));
    if (layer !== recording.layers[before.layer] && (layer.queries.length !== recording.layers[before.layer].queries.length || layer.keys.length !== recording.layers[before.layer].keys.length) && (state.zoom || state.region)) store.set({ zoom: null, region: null });
    soon();
  });
  new ResizeObserver(soon).observe(frame);
  window.addEventListener("resize", soon);
}

/** The token that a place in the matrix stands for: its row's, or its column's where it is above the rows. @returns {import("#state.js").Token | null} */
export function tokenAt(layer, { query, key }) {
  if (query !== null) return { sequence: layer.querySequence, index: query };
  return key === null ? null : { sequence: layer.keySequence, index: key };
}

export function within({ query, key }, { rows, columns }) {
  return { query: bounded(query, 0, rows - 1), key: bounded(key, 0, columns - 1) };
}

/** The middle of a cell on the canvas. @returns {[number, number]} */
function pixels({ left, top, cell, row, column }, { query, key }) {
  return [left + (key + 0.5 - column) * cell, top + (query + 0.5 - row) * cell];
}

export function stepped(name, { query, key }, { rows, columns, seen, cell }) {
  const page = Math.max(Math.floor(seen.height / cell) - 1, 1);
  switch (name) {
    case "ArrowLeft": return { query, key: key - 1 };
    case "ArrowRight": return { query, key: key + 1 };
    case "ArrowUp": return { query: query - 1, key };
    case "ArrowDown": return { query: query + 1, key };
    case "PageUp": return { query: query - page, key };
    case "PageDown": return { query: query + page, key };
    case "Home": return { query, key: 0 };
    case "End": return { query, key: columns - 1 };
    default: return null;
  }
}

function regionOf(one, other) {
  const sorted = (a, b) => /** @type {[number, number]} */ (a < b ? [a, b] : [b, a]);
  return { queries: sorted(one.query, other.query), keys: sorted(one.key, other.key) };
}

/** The corner of a region that lies across from a cell. */
function anchorOf({ queries, keys }, { query, key }) {
  return { query: query === queries[0] ? queries[1] : queries[0], key: key === keys[0] ? keys[1] : keys[0] };
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
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
  const name = [layer.name, state.heads, state.scale, state.palette, state.hidden, state.rescale, themeOf(state)].join(" ");
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
  for (const tile of head.finer?.(cell, { row, column }, { row: row + seen.height / cell, column: column + seen.width / cell }) ?? []) {
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
  const known = head.isMasked ? (y, x) => head.isMasked(y, x) : (y, x) => head.cell(y, x).state === "masked";
  const isMasked = single ? known : (y, x) => Number.isNaN(squares.at(y, x));
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
  const all = (square) => Array.from({ length: Math.min(size, columns - square * size) }, (_, index) => square * size + index).every(isHidden);
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

function drawLabels(context, { left, top, cell, row, column, gap, every, named, font, angle, seen }, { layer, focus, rows, columns, style }) {
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
      if (every === 1 ? !chosen.includes(index) : apart(index)) draw(named ? labels[index] : String(index), false, index);
    }
    for (const index of chosen) if (index >= from - 0.5 && index < last) draw(labels[index], true, index);
  };
  axis(rows, focus.queries, row, seen.height, (text, chosen, query) => write(text, chosen && colour("--out"), left - 8, top + (query - row) * cell + half, 0, "right"));
  axis(columns, focus.keys, column, seen.width, (text, chosen, key) => write(text, chosen && colour("--in"), left + (key - column) * cell + half, top - 8, named ? -angle : 0, named ? "left" : "center"));
}

function drawFocus(context, { left, top, cell, row, column, gap, rows, columns }, { state, focus, style }) {
  const outline = (colour, width, x, y, across, down) => {
    context.strokeStyle = style.getPropertyValue(colour);
    context.lineWidth = width;
    context.strokeRect(left + (x - column) * cell - gap / 2 - 0.5, top + (y - row) * cell - gap / 2 - 0.5, across * cell + 1 - (gap ? 0 : 1), down * cell + 1 - (gap ? 0 : 1));
  };
  for (const query of focus.queries) outline("--out", 1.5, 0, query, columns, 1);
  for (const key of focus.keys) outline("--in", 1.5, key, 0, 1, rows);
  if (focus.cell) outline("--ink", 2, focus.keys[0], focus.queries[0], 1, 1);
  if (state.region) {
    const { queries, keys } = state.region;
    outline("--ink", 2, keys[0], queries[0], keys[1] - keys[0] + 1, queries[1] - queries[0] + 1);
  }
}

/** Tell of a cell beside both its row and its column, so that neither is covered. */
function showTip(tip, frame, layout, layer, head, { queries, keys, cell: both }) {
  tip.hidden = !both;
  if (!both) return;
  const { left, top, cell, row, column, height } = layout;
  const [[query], [key]] = [queries, keys];
  tip.replaceChildren(
    element("span", { class: "pair" }, element("b", { class: "out-word", dir: "auto" }, label(layer.queries[query])), " → ", element("b", { class: "in-word", dir: "auto" }, label(layer.keys[key]))),
    element("span", { class: "places" }, `${query} → ${key}`),
    ...told(head, query, key),
  );
  const [x, y] = [left + (key - column) * cell, top + (query - row) * cell];
  const [after, before] = [x + cell + APART, x - tip.offsetWidth - APART];
  const [below, above] = [y + cell + APART, y - tip.offsetHeight - APART];
  const fits = after + tip.offsetWidth <= frame.clientWidth;
  tip.style.left = `${fits ? after : Math.max(before, 0)}px`;
  tip.style.top = `${frame.offsetTop + (above >= 0 && below + tip.offsetHeight > height ? above : below)}px`;
}

/** The weight of a cell and its rank, or why there is none. */
function told(head, query, key) {
  const { state, weight, most } = head.cell(query, key);
  if (state === "masked") return [element("span", { class: "rank" }, "masked: may not be seen")];
  if (state === "hidden") return [element("span", { class: "rank" }, "left out")];
  const { squares } = head;
  if (state === "unknown" && head.exact) return [element("span", { class: "rank" }, "asking …")];
  if (state === "unknown") {
    const { size } = squares;
    const share = squares.at(Math.floor(query / size), Math.floor(key / size));
    return [
      element("span", { class: "rank" }, `not in this file: at most ${written(most)}`),
      element("span", { class: "rank" }, `${written(share)} to the ${size} keys around it, on the mean of ${size} rows`),
    ];
  }
  const { links, left, waiting } = head.row(query);
  if (waiting) return [element("span", { class: "value" }, written(weight))];
  const rank = 1 + links.filter((other) => other.weight > weight).length;
  return [element("span", { class: "value" }, written(weight)), element("span", { class: "rank" }, `rank ${rank}${left > 0 ? "" : ` of ${links.length}`} in its row`)];
}

/** Move a zoomed matrix until a cell is in sight. */
function reveal(store, layout, { query, key }) {
  const [high, wide] = [layout.seen.height / layout.cell, layout.seen.width / layout.cell];
  const row = bounded(layout.row, query + 1 - high, query);
  const column = bounded(layout.column, key + 1 - wide, key);
  if (row !== layout.row || column !== layout.column) store.set({ zoom: { query: row + high / 2 - 0.5, key: column + wide / 2 - 0.5, cell: layout.cell } });
}
