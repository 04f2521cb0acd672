// One head large: a canvas with a row for each query and a column for each key, and the exact value of the cell pointed at.

import { shade } from "#colour.js";
import { written } from "#data.js";
import { element } from "#elements.js";
import { fitted, hit } from "#layout.js";
import { focusIn } from "#state.js";
import { themeOf } from "#theme.js";
import { label, shown } from "#tokens.js";

export function mountMatrix(place, recording, store) {
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "matrix of weights" });
  const tip = element("div", { class: "tip", hidden: "" });
  const frame = element("div", { class: "matrix-frame" }, canvas, tip);
  place.append(frame);
  let layout = null;
  let cursor = { query: 0, key: 0 }; // the cell that arrow keys set out from

  const paint = () => {
    const state = store.get();
    const layer = recording.layers[state.layer];
    const focus = focusIn(layer, state);
    const style = getComputedStyle(canvas);
    layout = fitted(canvas.getContext("2d"), layer.queries.map(label), layer.keys.map(label), frame.clientWidth, style);
    draw(canvas, layout, layer, state, focus, style);
    Object.assign(canvas.dataset, { left: layout.left, top: layout.top, cell: layout.cell });
    canvas.setAttribute("aria-label", `${layer.name}, head ${state.head}: ${layer.queries.length} rows, ${layer.keys.length} columns. Arrow keys move from cell to cell.`);
    showTip(tip, frame, layout, layer, state, focus);
  };
  const point = (at) => {
    const layer = recording.layers[store.get().layer];
    if (at.query !== null && at.key !== null) {
      cursor = at;
      store.set({ hover: { cell: at } });
    } else {
      const token = tokenAt(layer, at);
      store.set({ hover: token && { token } });
    }
  };
  const at = (event) => hit(layout, event.offsetX, event.offsetY);

  canvas.addEventListener("pointermove", (event) => point(at(event)));
  canvas.addEventListener("pointerdown", (event) => point(at(event)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && store.set({ hover: null }));
  canvas.addEventListener("click", (event) => {
    const token = tokenAt(recording.layers[store.get().layer], at(event));
    if (token) store.set({ token });
  });
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && point(within(cursor, recording.layers[store.get().layer])));
  canvas.addEventListener("blur", () => store.set({ hover: null }));
  canvas.addEventListener("keydown", (event) => {
    const layer = recording.layers[store.get().layer];
    const here = within(cursor, layer);
    if (event.key === "Enter" || event.key === " ") store.set({ token: tokenAt(layer, here) });
    else if (event.key === "Escape") store.set({ token: null, hover: null });
    else if (moved(event.key, here, layer)) {
      point(within(moved(event.key, here, layer), layer));
      reveal(frame, layout, cursor.key);
    } else return;
    event.preventDefault();
  });

  store.subscribe(paint);
  new ResizeObserver(paint).observe(frame);
}

/** The token that a place in the matrix stands for: its row's, or its column's where it is above the rows. */
function tokenAt(layer, { query, key }) {
  if (query !== null) return { sequence: layer.querySequence, index: query };
  return key === null ? null : { sequence: layer.keySequence, index: key };
}

function within({ query, key }, layer) {
  const bound = (index, count) => Math.min(Math.max(index, 0), count - 1);
  return { query: bound(query, layer.queries.length), key: bound(key, layer.keys.length) };
}

function moved(name, { query, key }, layer) {
  switch (name) {
    case "ArrowLeft": return { query, key: key - 1 };
    case "ArrowRight": return { query, key: key + 1 };
    case "ArrowUp": return { query: query - 1, key };
    case "ArrowDown": return { query: query + 1, key };
    case "Home": return { query, key: 0 };
    case "End": return { query, key: layer.keys.length - 1 };
    default: return null;
  }
}

function draw(canvas, layout, layer, state, focus, style) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(layout.width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawCells(context, layout, layer, state);
  drawLabels(context, layout, focus, style);
  drawFocus(context, layout, layer, focus, style);
}

function drawCells(context, { left, top, cell, gap }, layer, state) {
  const theme = themeOf(state);
  layer.queries.forEach((_, query) =>
    layer.keys.forEach((_, key) => {
      context.fillStyle = `rgb(${shade(layer.at(state.head, query, key), theme).join(" ")})`;
      context.fillRect(left + key * cell, top + query * cell, cell - gap, cell - gap);
    }),
  );
}

function drawLabels(context, { left, top, cell, gap, font, angle, rows, columns }, focus, style) {
  const colour = (name) => style.getPropertyValue(name);
  const write = (text, chosen, x, y, turn, align) => {
    context.save();
    context.translate(x, y);
    context.rotate(turn);
    context.font = chosen ? `600 ${font}` : font;
    context.fillStyle = chosen || colour("--label");
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(text, 0, 0);
    context.restore();
  };
  const half = (cell - gap) / 2;
  rows.forEach((text, query) => write(text, query === focus.query && colour("--out"), left - 8, top + query * cell + half, 0, "right"));
  columns.forEach((text, key) => write(text, key === focus.key && colour("--in"), left + key * cell + half, top - 8, -angle, "left"));
}

function drawFocus(context, { left, top, cell, gap }, layer, { query, key, cell: both }, style) {
  const outline = (colour, width, x, y, columns, rows) => {
    context.strokeStyle = style.getPropertyValue(colour);
    context.lineWidth = width;
    context.strokeRect(left + x * cell - gap / 2 - 0.5, top + y * cell - gap / 2 - 0.5, columns * cell + 1 - (gap ? 0 : 1), rows * cell + 1 - (gap ? 0 : 1));
  };
  if (query !== null) outline("--out", 1.5, 0, query, layer.keys.length, 1);
  if (key !== null) outline("--in", 1.5, key, 0, 1, layer.queries.length);
  if (both) outline("--ink", 2, key, query, 1, 1);
}

function showTip(tip, frame, { left, top, cell, height }, layer, state, { query, key, cell: both }) {
  tip.hidden = !both;
  if (!both) return;
  const weight = layer.at(state.head, query, key);
  const rank = 1 + layer.row(state.head, query).filter((other) => other.weight > weight).length;
  tip.replaceChildren(
    element("span", { class: "pair" }, element("b", { class: "out-word", dir: "auto" }, shown(layer.queries[query])), " → ", element("b", { class: "in-word", dir: "auto" }, shown(layer.keys[key]))),
    element("span", { class: "value" }, written(weight)),
    element("span", { class: "rank" }, `rank ${rank} of ${layer.keys.length} in its row`),
  );
  const [x, y] = [left + key * cell, top + query * cell];
  const right = x + cell + 10;
  const room = frame.scrollLeft + frame.clientWidth - tip.offsetWidth;
  tip.style.left = `${right <= room ? right : Math.max(x - tip.offsetWidth - 10, 0)}px`;
  tip.style.top = `${Math.max(Math.min(y + cell / 2, height - tip.offsetHeight / 2) - tip.offsetHeight / 2, 0)}px`;
}

/** Scroll sideways until a column is in sight. */
function reveal(frame, { left, cell }, key) {
  const x = left + key * cell;
  frame.scrollLeft = Math.min(Math.max(frame.scrollLeft, x + 2 * cell - frame.clientWidth), x - left);
}
