// One head large: a canvas with a row for each query and a column for each key, and the value of the cell pointed at.

import { headOf } from "#data/combined_heads.js";
import { written } from "#data/recording.js";
import { label } from "#data/tokens.js";
import { focusIn, hold } from "#state/store.js";
import { element } from "#ui/elements.js";
import { contextOf, draw } from "#views/matrix_draw.js";
import { bounded, fitted, hit, moved, zoomed } from "#views/matrix_layout.js";

const APART = 8; // CSS pixels from a cell to what is told of it
const TALLEST = 0.82; // of the window
const STEP = 1.5; // of a key stroke that zooms
const DRAWN = 4; // CSS pixels that a pointer may move and still click

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
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
    const head = headOf(layer, state);
    canvas.classList.toggle("coming", !head);
    if (!head || !state.views.includes("matrix") || frame.clientWidth === 0) return;
    const style = getComputedStyle(canvas);
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const [rows, columns] = [labelsOf(layer.queries), labelsOf(layer.keys)];
    layout = fitted(contextOf(canvas), rows, columns, {
      width: frame.clientWidth,
      height: TALLEST * window.innerHeight,
      rem,
      family: style.fontFamily,
      zoom: state.zoom,
    });
    const focus = focusIn(layer, state);
    draw(canvas, maps, layout, { layer, head, state, focus, rows, columns, style });
    Object.assign(canvas.dataset, {
      left: layout.left,
      top: layout.top,
      cell: layout.cell,
      row: layout.row,
      column: layout.column,
    });
    canvas.classList.toggle("movable", layout.cell > layout.fit);
    canvas.setAttribute(
      "aria-label",
      `${layer.name}, head ${state.heads.map((head) => layer.heads[head]).join(" and ")}: ${rows.length} rows, ${columns.length} columns. Arrow keys move from cell to cell, plus and minus zoom, Shift with arrows marks a region.`,
    );
    showTip(tip, frame, layout, layer, head, focus);
  };
  const soon = () => {
    asked ||= requestAnimationFrame(paint);
  };

  const point = (at) => {
    if (at.query !== null && at.key !== null) {
      cursor = at;
      headOf(layerNow(), store.get())?.prepare?.(at.query); // a frame before it is drawn
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
    drag = {
      x: event.offsetX,
      y: event.offsetY,
      from: cellNear(event),
      layout,
      region: event.shiftKey,
      far: false,
      pointerType: event.pointerType,
    };
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
      store.set({
        zoom: zoomed(
          layout,
          spread(event) / Math.max(spread(before), 1),
          (event.offsetX + others[0].offsetX) / 2,
          (event.offsetY + others[0].offsetY) / 2,
        ),
      });
    } else if (drag.far || Math.hypot(event.offsetX - drag.x, event.offsetY - drag.y) > DRAWN) {
      if (!drag.far) canvas.setPointerCapture(event.pointerId);
      drag.far = true;
      const move = drag.layout.cell > drag.layout.fit && !drag.region;
      if (move) store.set({ zoom: moved(drag.layout, event.offsetX - drag.x, event.offsetY - drag.y), hover: null });
      else if (event.pointerType === "mouse" || drag.region)
        store.set({ region: regionOf(drag.from, cellNear(event)), hover: null });
    }
    pointers.set(event.pointerId, event);
  });
  for (const name of /** @type {const} */ (["pointerup", "pointercancel"]))
    canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener(
    "pointerleave",
    (event) => event.pointerType === "mouse" && !pointers.size && store.set({ hover: null }),
  );
  canvas.addEventListener("click", (event) => {
    if (!layout || drag?.far) return;
    if (drag && drag.pointerType !== "mouse") point(at(event)); // again: what had the focus may have let go of it
    const token = tokenAt(layerNow(), at(event));
    if (store.get().region) store.set({ region: null });
    if (token) hold(store, token, event.ctrlKey || event.metaKey);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!layout || !(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return; // else the page scrolls
      event.preventDefault();
      store.set({ zoom: zoomed(latest(), Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY), hover: null });
    },
    { passive: false },
  );

  canvas.addEventListener("focus", () => layout && canvas.matches(":focus-visible") && point(within(cursor, layout)));
  canvas.addEventListener("blur", () => store.set({ hover: null }));
  canvas.addEventListener("keydown", (event) => {
    if (!layout) return;
    const layer = layerNow();
    const here = within(cursor, layout);
    const to = stepped(event.key, here, layout);
    if (event.key === "Enter" || event.key === " ")
      hold(store, { sequence: layer.querySequence, index: here.query }, event.ctrlKey || event.metaKey);
    else if (event.key === "Escape") store.set({ tokens: [], region: null, hover: null });
    else if (event.key === "+" || event.key === "=")
      store.set({ zoom: zoomed(latest(), STEP, ...pixels(layout, here)) });
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
    if (
      layer !== recording.layers[before.layer] &&
      (layer.queries.length !== recording.layers[before.layer].queries.length ||
        layer.keys.length !== recording.layers[before.layer].keys.length) &&
      (state.zoom || state.region)
    )
      store.set({ zoom: null, region: null });
    soon();
  });
  new ResizeObserver(soon).observe(frame);
  window.addEventListener("resize", soon);
}

/** The token that a place in the matrix stands for: its row's, or its column's where it is above the rows. @returns {import("#state/store.js").Token | null} */
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

export function stepped(name, { query, key }, { columns, seen, cell }) {
  const page = Math.max(Math.floor(seen.height / cell) - 1, 1);
  switch (name) {
    case "ArrowLeft":
      return { query, key: key - 1 };
    case "ArrowRight":
      return { query, key: key + 1 };
    case "ArrowUp":
      return { query: query - 1, key };
    case "ArrowDown":
      return { query: query + 1, key };
    case "PageUp":
      return { query: query - page, key };
    case "PageDown":
      return { query: query + page, key };
    case "Home":
      return { query, key: 0 };
    case "End":
      return { query, key: columns - 1 };
    default:
      return null;
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

/** Tell of a cell beside both its row and its column, so that neither is covered. */
function showTip(tip, frame, layout, layer, head, { queries, keys, cell: both }) {
  tip.hidden = !both;
  if (!both) return;
  const { left, top, cell, row, column, height } = layout;
  const [[query], [key]] = [queries, keys];
  tip.replaceChildren(
    element(
      "span",
      { class: "pair" },
      element("b", { class: "out-word", dir: "auto" }, label(layer.queries[query])),
      " → ",
      element("b", { class: "in-word", dir: "auto" }, label(layer.keys[key])),
    ),
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
  const squares = head.finest ?? head.squares;
  if (state === "unknown" && head.exact) return [element("span", { class: "rank" }, "asking …")];
  if (state === "unknown") {
    const { size } = squares;
    const share = squares.at(Math.floor(query / size), Math.floor(key / size));
    return [
      element("span", { class: "rank" }, `not in this file: at most ${written(most)}`),
      element(
        "span",
        { class: "rank" },
        `${written(share)} to the ${size} keys around it, on the mean of ${size} rows`,
      ),
    ];
  }
  const { links, left, waiting } = head.row(query);
  if (waiting) return [element("span", { class: "value" }, written(weight))];
  const weaker = links.findIndex((other) => other.weight <= weight); // the strongest come first
  const rank = 1 + (weaker < 0 ? links.length : weaker);
  return [
    element("span", { class: "value" }, written(weight)),
    element("span", { class: "rank" }, `rank ${rank}${left > 0 ? "" : ` of ${links.length}`} in its row`),
  ];
}

/** Move a zoomed matrix until a cell is in sight. */
function reveal(store, layout, { query, key }) {
  const [high, wide] = [layout.seen.height / layout.cell, layout.seen.width / layout.cell];
  const row = bounded(layout.row, query + 1 - high, query);
  const column = bounded(layout.column, key + 1 - wide, key);
  if (row !== layout.row || column !== layout.column)
    store.set({ zoom: { query: row + high / 2 - 0.5, key: column + wide / 2 - 0.5, cell: layout.cell } });
}
