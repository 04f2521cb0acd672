// One head large: a canvas with a row for each query and a column for each key, and the value of the focused cell.

import { clamp } from "#data/numbers.js";
import { focusedCells, toggleSelection } from "#state/store.js";
import { contextOf, placeTip } from "#ui/drawing.js";
import { button, element } from "#ui/elements.js";
import { addsToSelection, moveInGrid } from "#ui/listbox.js";
import { drawMatrix } from "#views/matrix_draw.js";
import { boxOfCell, cellAt, fitMatrix, panBy, zoomAt } from "#views/matrix_layout.js";
import { cellTip } from "#views/matrix_tip.js";

/**
 * @import { CellPosition, Focus, Region, State } from '#state/store.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @import { Layout } from '#views/matrix_layout.js'
 * @typedef {{query: number | null, key: number | null}} Spot  A cell, or a label where one is null.
 */

const MAX_HEIGHT = 0.82; // of the window
const ZOOM_STEP = 1.5; // of a button or key
const CLICK_DISTANCE = 4; // CSS pixels that a pointer may move and still click

/** @type {ViewDefinition} */
export default {
  name: "matrix",
  showsGradients: true,
  title: "Matrix",
  help: "A row for each token that attends, a column for each that it may attend to; the darker a cell, the larger the weight. In long texts a block stands for many tokens, until you zoom in.",
  unit: ({ isReduced }) => (isReduced ? "token" : "either"),
  urlFields: {
    zoom: {
      initial: null,
      write: (zoom) => zoom && [zoom.query.toFixed(1), zoom.key.toFixed(1), zoom.cell.toPrecision(3)].join(","),
      read(text) {
        const numbers = text.split(",").map(Number);
        const [query, key, cell] = numbers;
        return numbers.length === 3 && numbers.every(Number.isFinite) && cell > 0 ? { query, key, cell } : undefined;
      },
    },
  },
  mount: (place, view) => new MatrixView(place, view),
};

class MatrixView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.view = view;
    const attributes = { tabindex: "0", role: "application", "aria-roledescription": "matrix of weights" };
    this.canvas = element("canvas", attributes);
    this.tip = element("div", { class: "tip", hidden: "" });
    this.frame = element("div", { class: "matrix-frame" }, this.canvas);
    place.append(this.buildTools(), this.frame, this.tip);
    /** @type {import("#views/matrix_draw.js").MapCache} */
    this.map = { blocks: null, style: "", canvas: document.createElement("canvas") };
    /** @type {Layout | null} */
    this.layout = null; // until it is painted
    this.cursor = { query: 0, key: 0 }; // the cell from which arrow keys move
    /** @type {Map<number, PointerEvent>} */
    this.pointers = new Map(); // that are down
    /** @type {{x: number, y: number, from: CellPosition, layout: Layout, marksRegion: boolean, isFar: boolean, pointerType: string} | null} */
    this.drag = null;
    this.listenToPointer();
    this.listenToKeyboard();
  }

  buildTools() {
    const help = "drag to move, Shift + drag to mark a region, Ctrl + wheel or pinch to zoom";
    return element(
      "div",
      { class: "tools", role: "group", "aria-label": "Zoom" },
      button("+", "Zoom in", () => this.zoomBy(ZOOM_STEP)),
      button("−", "Zoom out", () => this.zoomBy(1 / ZOOM_STEP)),
      button("Fit", "Fit the whole matrix", () => this.view.set({ zoom: null })),
      element("span", { class: "hint" }, help),
    );
  }

  /** A zoom or region of a matrix of another size means nothing. @param {State} state @param {State} before */
  update(state, before) {
    const [layer, old] = [state, before].map((each) => this.view.recording.layers[each.layer]);
    const isOtherSize = layer.queries.length !== old.queries.length || layer.keys.length !== old.keys.length;
    if (isOtherSize && (state.zoom || state.region)) this.view.units.store.set({ zoom: null, region: null });
  }

  paint() {
    const { view, canvas } = this;
    const { head, state, layer } = view;
    canvas.classList.toggle("loading", !head);
    if (!head || this.frame.clientWidth === 0) return;
    const style = getComputedStyle(canvas);
    const [rows, columns] = [view.queries.labels, view.keys.labels];
    const layout = fitMatrix(contextOf(canvas), rows, columns, {
      width: this.frame.clientWidth,
      height: MAX_HEIGHT * window.innerHeight,
      rem: parseFloat(getComputedStyle(document.documentElement).fontSize),
      family: style.fontFamily,
      zoom: state.zoom,
    });
    this.layout = layout;
    const focus = focusedCells(layer, state);
    drawMatrix(canvas, this.map, layout, { head, state, focus, rows, columns, hidden: view.unit.hidden(layer), style });
    canvas.classList.toggle("movable", layout.cell > layout.fit);
    const heads = state.heads.map((each) => layer.headIndices[each]).join(" and ");
    canvas.setAttribute(
      "aria-label",
      `${layer.name}, head ${heads}: ${rows.length} rows, ${columns.length} columns. Arrow keys move from cell to cell, plus and minus zoom, Shift with arrows marks a region.`,
    );
    this.showTip(head, focus, layout);
  }

  /** @param {import("#data/heads.js").BaseHead} head @param {Focus} focus @param {Layout} layout */
  showTip(head, { queries, keys, cell: isCell }, layout) {
    const { tip, frame, view } = this;
    tip.hidden = !isCell;
    if (!isCell) return;
    const [[query], [key]] = [queries, keys];
    tip.replaceChildren(...cellTip(head, view.queries, view.keys, query, key));
    const room = { width: frame.clientWidth, height: frame.offsetTop + layout.height };
    placeTip(tip, boxOfCell(layout, { query, key }, [0, frame.offsetTop]), room);
  }

  /** The layout of the current state: of several keys in one frame, each starts from the one before. */
  latestLayout() {
    this.paint();
    return /** @type {Layout} */ (this.layout);
  }

  /** @param {number} factor @param {[x: number, y: number]} [at]  Default: the middle of the visible part. */
  zoomBy(factor, at) {
    const layout = this.latestLayout();
    const [x, y] = at ?? [layout.left + layout.viewport.width / 2, layout.top + layout.viewport.height / 2];
    this.view.set({ zoom: zoomAt(layout, factor, x, y) });
  }

  /** @param {Spot} at */
  point(at) {
    const { view } = this;
    if (at.query !== null && at.key !== null) {
      this.cursor = { query: at.query, key: at.key };
      view.head?.prefetch(at.query); // a frame before it is drawn
      view.set({ hover: { cell: this.cursor } });
    } else {
      const token = tokenAt(view.layer, at);
      view.set({ hover: token && { token } });
    }
  }

  listenToPointer() {
    const { canvas, view, pointers } = this;
    canvas.addEventListener("pointerdown", (event) => this.startDrag(event));
    canvas.addEventListener("pointermove", (event) => this.movePointer(event));
    for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) {
      canvas.addEventListener(name, (event) => pointers.delete(event.pointerId));
    }
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !pointers.size) view.set({ hover: null });
    });
    canvas.addEventListener("click", (event) => this.click(event));
    const isZoom = (/** @type {WheelEvent} */ event) =>
      event.ctrlKey || event.metaKey || document.activeElement === canvas;
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!this.layout || !isZoom(event)) return; // else the page scrolls
        event.preventDefault();
        this.zoomBy(Math.exp(-event.deltaY / 300), [event.offsetX, event.offsetY]);
        view.set({ hover: null });
      },
      { passive: false },
    );
  }

  /** @param {MouseEvent} event @returns {Spot} */
  spotAt(event) {
    return cellAt(/** @type {Layout} */ (this.layout), event.offsetX, event.offsetY);
  }

  /** @param {MouseEvent} event @returns {CellPosition} */
  nearestCell({ offsetX, offsetY }) {
    const { row, column, top, left, cell, rows, columns } = /** @type {Layout} */ (this.layout);
    return {
      query: clamp(Math.floor(row + (offsetY - top) / cell), 0, rows - 1),
      key: clamp(Math.floor(column + (offsetX - left) / cell), 0, columns - 1),
    };
  }

  /** @param {PointerEvent} event */
  startDrag(event) {
    if (!this.layout) return;
    const { offsetX: x, offsetY: y, pointerType, shiftKey } = event;
    this.pointers.set(event.pointerId, event);
    const from = this.nearestCell(event);
    this.drag = { x, y, from, layout: this.layout, marksRegion: shiftKey, isFar: false, pointerType };
    if (pointerType !== "mouse") this.point(this.spotAt(event));
  }

  /** @param {PointerEvent} event */
  movePointer(event) {
    if (!this.layout) return;
    const before = this.pointers.get(event.pointerId);
    if (!before || !this.drag) return this.point(this.spotAt(event));
    const others = [...this.pointers.values()].filter(({ pointerId }) => pointerId !== event.pointerId);
    if (others.length === 1) this.pinch(event, before, others[0]);
    else this.dragTo(event);
    this.pointers.set(event.pointerId, event);
  }

  /** @param {PointerEvent} event @param {PointerEvent} before @param {PointerEvent} other  The other finger. */
  pinch(event, before, other) {
    const { layout, drag } = this;
    if (!layout || !drag) return;
    const distance = (/** @type {PointerEvent} */ { offsetX, offsetY }) =>
      Math.hypot(offsetX - other.offsetX, offsetY - other.offsetY);
    drag.isFar = true;
    const factor = distance(event) / Math.max(distance(before), 1);
    const [x, y] = [(event.offsetX + other.offsetX) / 2, (event.offsetY + other.offsetY) / 2];
    this.view.set({ zoom: zoomAt(layout, factor, x, y) });
  }

  /** @param {PointerEvent} event */
  dragTo(event) {
    const { drag, view } = this;
    if (!drag) return;
    const [x, y] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.isFar && Math.hypot(x, y) <= CLICK_DISTANCE) return;
    if (!drag.isFar) this.canvas.setPointerCapture(event.pointerId);
    drag.isFar = true;
    if (drag.layout.cell > drag.layout.fit && !drag.marksRegion) {
      view.set({ zoom: panBy(drag.layout, x, y), hover: null });
    } else if (event.pointerType === "mouse" || drag.marksRegion) {
      view.set({ region: regionBetween(drag.from, this.nearestCell(event)), hover: null });
    }
  }

  /** @param {MouseEvent} event */
  click(event) {
    const { view, drag } = this;
    if (!this.layout || drag?.isFar) return;
    if (drag && drag.pointerType !== "mouse") this.point(this.spotAt(event)); // what lost the focus may have cleared it
    const token = tokenAt(view.layer, this.spotAt(event));
    if (view.state.region) view.set({ region: null });
    if (token) toggleSelection(view.store, token, addsToSelection(event));
  }

  listenToKeyboard() {
    const { canvas, view } = this;
    canvas.addEventListener("focus", () => {
      if (this.layout && canvas.matches(":focus-visible")) this.point(clampCell(this.cursor, this.layout));
    });
    canvas.addEventListener("blur", () => view.set({ hover: null }));
    canvas.addEventListener("keydown", (event) => {
      if (this.layout && this.press(event, clampCell(this.cursor, this.layout), this.layout)) event.preventDefault();
    });
  }

  /** @param {KeyboardEvent} event @param {CellPosition} at @param {Layout} layout @returns {boolean} whether the key means something */
  press(event, at, layout) {
    const { view } = this;
    const { key } = event;
    if (key === "Enter" || key === " ") {
      toggleSelection(view.store, { sequence: view.layer.querySequence, index: at.query }, addsToSelection(event));
    } else if (key === "Escape") view.set({ tokens: [], region: null, hover: null });
    else if (key === "+" || key === "=") this.zoomBy(ZOOM_STEP, middleOf(layout, at));
    else if (key === "-") this.zoomBy(1 / ZOOM_STEP, middleOf(layout, at));
    else if (key === "0") view.set({ zoom: null });
    else return this.moveCursor(event, at, layout);
    return true;
  }

  /** @param {KeyboardEvent} event @param {CellPosition} at @param {Layout} layout */
  moveCursor(event, at, layout) {
    const { view } = this;
    const to = neighborCell(event.key, at, layout);
    if (!to) return false;
    const { region } = view.state;
    this.cursor = to;
    if (event.shiftKey) view.set({ region: regionBetween(region ? oppositeCorner(region, at) : at, to) });
    this.point(to);
    this.scrollTo(to, layout);
    return true;
  }

  /** Move a zoomed matrix until a cell is in sight. @param {CellPosition} cell @param {Layout} layout */
  scrollTo({ query, key }, layout) {
    const [high, wide] = [layout.viewport.height / layout.cell, layout.viewport.width / layout.cell];
    const row = clamp(layout.row, query + 1 - high, query);
    const column = clamp(layout.column, key + 1 - wide, key);
    if (row === layout.row && column === layout.column) return;
    this.view.set({ zoom: { query: row + high / 2 - 0.5, key: column + wide / 2 - 0.5, cell: layout.cell } });
  }
}

/** The token of a place in the matrix: its row's, or its column's above the rows. @param {{querySequence: number, keySequence: number}} layer @param {Spot} spot */
export function tokenAt(layer, { query, key }) {
  if (query !== null) return { sequence: layer.querySequence, index: query };
  return key === null ? null : { sequence: layer.keySequence, index: key };
}

/** @param {CellPosition} cell @param {{rows: number, columns: number}} layout @returns {CellPosition} */
export function clampCell({ query, key }, { rows, columns }) {
  return { query: clamp(query, 0, rows - 1), key: clamp(key, 0, columns - 1) };
}

/** The cell to which a key leads; null if it leads nowhere. @param {string} key @param {CellPosition} at @param {Layout} layout */
export function neighborCell(key, at, layout) {
  const page = Math.max(Math.floor(layout.viewport.height / layout.cell) - 1, 1);
  const to = moveInGrid(key, { row: at.query, column: at.key }, { columns: layout.columns, page });
  return to && clampCell({ query: to.row, key: to.column }, layout);
}

/** The middle of a cell on the canvas. @param {Layout} layout @param {CellPosition} cell @returns {[number, number]} */
function middleOf({ left, top, cell, row, column }, { query, key }) {
  return [left + (key + 0.5 - column) * cell, top + (query + 0.5 - row) * cell];
}

/** @param {CellPosition} a @param {CellPosition} b */
function regionBetween(a, b) {
  /** @type {(x: number, y: number) => [number, number]} */
  const sorted = (x, y) => (x < y ? [x, y] : [y, x]);
  return { queries: sorted(a.query, b.query), keys: sorted(a.key, b.key) };
}

/** @param {Region} region @param {CellPosition} cell  A corner. */
function oppositeCorner({ queries, keys }, { query, key }) {
  return { query: query === queries[0] ? queries[1] : queries[0], key: key === keys[0] ? keys[1] : keys[0] };
}
