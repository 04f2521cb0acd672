// One head large: a canvas with a row for each query and a column for each key, and the exact value of the cell pointed at.

import { shade } from "#colour.js";
import { written } from "#data.js";
import { element } from "#elements.js";
import { fitted, hit } from "#layout.js";
import { focusIn } from "#state.js";
import { themeOf } from "#theme.js";
import { label } from "#tokens.js";

const HATCH = 7; // CSS pixels from line to line
const APART = 8; // CSS pixels from a cell to what is told of it

export function mountMatrix(place, recording, store) {
  const canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "matrix of weights" });
  const tip = element("div", { class: "tip", hidden: "" });
  const frame = element("div", { class: "matrix-frame" }, canvas);
  place.append(frame, tip);
  let layout = null;
  let arranged = ""; // for which layer and width the matrix was last given its place
  let cursor = { query: 0, key: 0 }; // the cell that arrow keys set out from

  const paint = () => {
    const state = store.get();
    const layer = recording.layers[state.layer];
    const focus = focusIn(layer, state);
    const style = getComputedStyle(canvas);
    const fit = () => fitted(canvas.getContext("2d"), layer.queries.map(label), layer.keys.map(label), frame.clientWidth, style);
    const asked = `${state.layer} ${place.parentElement.clientWidth}`;
    if (asked !== arranged) {
      // Beside the numbers if it fits there, else over the whole width.
      place.parentElement.classList.remove("roomy");
      place.parentElement.classList.toggle("roomy", fit().width > frame.clientWidth);
      arranged = asked;
    }
    layout = fit();
    draw(canvas, layout, layer, state, focus, style);
    Object.assign(canvas.dataset, { left: layout.left, top: layout.top, cell: layout.cell });
    canvas.setAttribute("aria-label", `${layer.name}, head ${state.head}: ${layer.queries.length} rows, ${layer.keys.length} columns. Arrow keys move from cell to cell.`);
    follow();
  };
  /** What depends on how far the frame is scrolled. */
  const follow = () => {
    const state = store.get();
    const layer = recording.layers[state.layer];
    showTip(tip, frame, layout, layer, state, focusIn(layer, state));
    place.classList.toggle("more-before", frame.scrollLeft > 1);
    place.classList.toggle("more-after", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 1);
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

  frame.addEventListener("scroll", follow, { passive: true });
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
  drawMasked(context, layout, layer, state.head, style);
  drawCells(context, layout, layer, state);
  drawLabels(context, layout, focus, style);
  drawFocus(context, layout, layer, focus, style);
}

function drawCells(context, { left, top, cell, gap }, layer, state) {
  const theme = themeOf(state);
  layer.queries.forEach((_, query) =>
    layer.keys.forEach((_, key) => {
      const weight = layer.at(state.head, query, key);
      if (Number.isNaN(weight)) return;
      context.fillStyle = `rgb(${shade(weight, theme).join(" ")})`;
      context.fillRect(left + key * cell, top + query * cell, cell - gap, cell - gap);
    }),
  );
}

/** Hatch what the mask forbids, over the bounds of cells, so that it reads as one area and not as weights. */
function drawMasked(context, { left, top, cell, width, height }, layer, head, style) {
  const area = new Path2D();
  layer.queries.forEach((_, query) => {
    for (let key = 0, from = 0; key < layer.keys.length; key = from) {
      const masked = Number.isNaN(layer.at(head, query, key));
      for (from = key + 1; from < layer.keys.length && Number.isNaN(layer.at(head, query, from)) === masked; ) from++;
      if (masked) area.rect(left + key * cell, top + query * cell, (from - key) * cell, cell);
    }
  });
  context.save();
  context.clip(area);
  context.beginPath();
  for (let x = left - height; x < width; x += HATCH) {
    context.moveTo(x, top + height);
    context.lineTo(x + height, top);
  }
  context.strokeStyle = style.getPropertyValue("--hatch");
  context.lineWidth = 1;
  context.stroke();
  context.restore();
}

function drawLabels(context, { left, top, cell, gap, every, font, angle, rows, columns }, focus, style) {
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
  // Where not every label has room, the chosen one has, and those that would touch it make way.
  const fits = (index, chosen) => every === 1 || index === chosen || (index % every === 0 && (chosen === null || Math.abs(index - chosen) >= every));
  rows.forEach((text, query) => fits(query, focus.query) && write(text, query === focus.query && colour("--out"), left - 8, top + query * cell + half, 0, "right"));
  columns.forEach((text, key) => fits(key, focus.key) && write(text, key === focus.key && colour("--in"), left + key * cell + half, top - 8, -angle, "left"));
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

/** Tell of a cell beside both its row and its column, so that neither is covered. */
function showTip(tip, frame, { left, top, cell, height }, layer, state, { query, key, cell: both }) {
  tip.hidden = !both;
  if (!both) return;
  tip.replaceChildren(
    element("span", { class: "pair" }, element("b", { class: "out-word", dir: "auto" }, label(layer.queries[query])), " → ", element("b", { class: "in-word", dir: "auto" }, label(layer.keys[key]))),
    ...told(layer, state.head, query, key),
  );
  const [x, y] = [left + key * cell - frame.scrollLeft, top + query * cell];
  const [after, before] = [x + cell + APART, x - tip.offsetWidth - APART];
  const [below, above] = [y + cell + APART, y - tip.offsetHeight - APART];
  const fits = after + tip.offsetWidth <= frame.clientWidth;
  tip.style.left = `${fits ? after : Math.max(before, 0)}px`;
  tip.style.top = `${above >= 0 && below + tip.offsetHeight > height ? above : below}px`;
}

/** The weight of a cell and its rank, or that there is none. */
function told(layer, head, query, key) {
  const weight = layer.at(head, query, key);
  if (Number.isNaN(weight)) return [element("span", { class: "rank" }, "masked: may not be seen")];
  const row = layer.row(head, query);
  const rank = 1 + row.filter((other) => other.weight > weight).length;
  return [element("span", { class: "value" }, written(weight)), element("span", { class: "rank" }, `rank ${rank} of ${row.length} in its row`)];
}

/** Scroll sideways until a column is in sight. */
function reveal(frame, { left, cell }, key) {
  const x = left + key * cell;
  frame.scrollLeft = Math.min(Math.max(frame.scrollLeft, x + 2 * cell - frame.clientWidth), x - left);
}
