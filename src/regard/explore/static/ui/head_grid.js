// All heads as thumbnails: a row for each layer, or sorted by a score. Arrow keys move and select.

import { KIND_TITLES } from "#data/layer.js";
import { clamp } from "#data/numbers.js";
import { drawPixels } from "#ui/color.js";
import { element, hint } from "#ui/elements.js";
import { HeadSorting } from "#ui/head_sorting.js";
import { moveInGrid, setTabStop } from "#ui/listbox.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { State, Store } from '#state/store.js'
 * @typedef {{layer: number, head: number, cell: HTMLDivElement}} Thumbnail
 * @typedef {{text: string, title?: string}} Caption
 */

const MAX_COLUMNS = 6; // of sorted heads

/** @param {HTMLElement} place @param {Recording} recording @param {import("#state/unit.js").Units} units */
export function mountHeadGrid(place, recording, units) {
  const grid = new HeadGrid(recording, units);
  place.append(grid.sorting.node, grid.node);
}

class HeadGrid {
  /** @param {Recording} recording @param {import("#state/unit.js").Units} units */
  constructor(recording, units) {
    this.recording = recording;
    this.store = units.store;
    this.node = element("div", { role: "grid", class: "grid", "aria-label": "Layers (rows) and heads (columns)" });
    this.thumbnails = recording.layers.map((layer, index) =>
      layer.headIndices.map((_, head) => ({ layer: index, head, cell: thumbnailCell(layer, head) })),
    );
    this.sorting = new HeadSorting(recording, units);
    /** @type {Thumbnail[][]} */
    this.rows = []; // as they are shown
    this.arranged = "";
    /** @type {WeakMap<HTMLElement, string>} */
    this.drawn = new WeakMap(); // the style in which each was drawn
    this.node.addEventListener("click", (event) => {
      const at = this.placeOf(event.target);
      if (at) this.select(at.row, at.column, event).focus();
    });
    this.node.addEventListener("keydown", (event) => this.press(event));
    this.store.subscribe((state) => this.update(state));
    recording.thumbnailsLoaded.then(() => this.update(this.store.get()));
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const at = this.placeOf(event.target);
    if (!at) return;
    const stays = event.key === "Enter" || event.key === " ";
    const to = stays ? at : moveInGrid(event.key, at, { columns: this.rows[at.row].length });
    if (!to) return;
    event.preventDefault();
    this.select(to.row, to.column, event).focus();
  }

  /** @param {EventTarget | null} node */
  placeOf(node) {
    for (const [row, line] of this.rows.entries()) {
      const column = line.findIndex(({ cell }) => cell.contains(/** @type {Node} */ (node)));
      if (column >= 0) return { row, column };
    }
    return null;
  }

  /** Select a head alone; with Ctrl, ⌘ or Shift in addition to others of its layer. @param {number} row @param {number} column @param {MouseEvent | KeyboardEvent} event */
  select(row, column, event) {
    const line = this.rows[clamp(row, 0, this.rows.length - 1)];
    const { layer, head, cell } = line[clamp(column, 0, line.length - 1)];
    const state = this.store.get();
    const adds = (event.ctrlKey || event.metaKey || event.shiftKey) && layer === state.layer;
    this.store.set({ layer, heads: adds ? toggled(state.heads, head) : [head], hover: null });
    return cell;
  }

  /** @param {State} state */
  update(state) {
    this.sorting.update(state);
    const { name } = this.sorting;
    if (name !== this.arranged) this.arrange(state);
    this.arranged = name;
    this.draw(state);
    const cells = this.rows.flat().map(({ cell }) => cell);
    const selected = state.heads.map((head) => this.thumbnails[state.layer][head].cell);
    setTabStop(cells, Math.max(cells.indexOf(selected[0]), 0));
    for (const cell of cells) cell.setAttribute("aria-selected", String(selected.includes(cell)));
  }

  /** @param {State} state */
  draw(state) {
    for (const [layer, { thumbnails }] of this.recording.layers.entries()) {
      for (const [head, blocks] of thumbnails.entries()) {
        const { cell } = this.thumbnails[layer][head];
        const strip = this.sorting.stripOf(layer, head);
        const style = [themeOf(state), state.palette, state.scale, strip ? this.sorting.name : ""].join(" ");
        if (this.drawn.get(cell) === style) continue;
        const canvas = /** @type {HTMLCanvasElement} */ (cell.firstChild);
        drawPixels(canvas, strip ?? blocks, state, themeOf(state));
        canvas.classList.add("drawn");
        this.drawn.set(cell, style);
      }
    }
  }

  /** @param {State} state */
  arrange(state) {
    if (state.sort === "order") return this.arrangeByLayer();
    const ranked = this.sorting.rank(this.thumbnails.flat(), state);
    const most = Math.max(...this.recording.layers.map(({ headIndices }) => headIndices.length));
    const columns = Math.min(most, MAX_COLUMNS);
    const lines = Array.from({ length: Math.ceil(ranked.length / columns) }, (_, row) =>
      ranked.slice(row * columns, (row + 1) * columns),
    );
    this.rows = lines.map((line) => line.map(({ thumbnail }) => thumbnail));
    this.node.style.setProperty("--heads", String(columns));
    const nodes = lines.map((line) =>
      element(
        "div",
        { role: "row", class: "row sorted" },
        ...line.map(({ thumbnail, caption }) => captioned(thumbnail.cell, this.shortName(thumbnail), caption)),
      ),
    );
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    this.node.replaceChildren(...(nodes.length ? nodes : [hint(this.sorting.emptyNote(state))]));
    if (focused !== document.activeElement) focused?.focus(); // which thumbnails that move take from it
  }

  /** The layer and the head, such as `3·4`, or `E3·4` where there are several kinds. @param {Thumbnail} thumbnail */
  shortName({ layer, head }) {
    const { layers } = this.recording;
    const { name, kind, headIndices } = layers[layer];
    const letter = layers.every((each) => each.kind === kind) ? "" : KIND_TITLES[kind][0];
    return `${letter}${layerNumber(name) ?? layer}·${headIndices[head]}`;
  }

  /** A row for each layer, in groups by kind. */
  arrangeByLayer() {
    const { layers } = this.recording;
    const groups = Object.entries(KIND_TITLES)
      .map(([kind, title]) => ({
        title,
        own: [...layers.keys()].filter((index) => layers[index].kind === kind),
      }))
      .filter(({ own }) => own.length);
    this.rows = groups.flatMap(({ own }) => own.map((index) => this.thumbnails[index]));
    const largest = (/** @type {number[]} */ counts) => String(Math.max(...counts));
    this.node.style.setProperty("--heads", largest(layers.map(({ headIndices }) => headIndices.length)));
    this.node.style.setProperty("--rows", largest(groups.map(({ own }) => own.length)));
    this.node.style.setProperty("--groups", String(groups.length));
    this.node.replaceChildren(...groups.map(({ title, own }) => this.layerGroup(title, own)));
  }

  /** @param {string} title @param {number[]} own  Indices of layers. */
  layerGroup(title, own) {
    const lines = own.map((index, ordinal) => {
      const { name } = this.recording.layers[index];
      const header = { role: "rowheader", class: "layer-name", title: name, "aria-label": name };
      const cells = this.thumbnails[index].map(({ cell }) => cell);
      return element(
        "div",
        { role: "row", class: "row" },
        element("span", header, layerNumber(name) ?? String(ordinal)),
        ...cells,
      );
    });
    const heading = element("h3", { role: "presentation" }, title);
    const heads = own.map((index) => this.recording.layers[index].headIndices);
    const longest = heads.reduce((a, b) => (b.length > a.length ? b : a));
    const agree = heads.every((each) => each.every((head, place) => head === longest[place]));
    const numbers = headNumbers(agree ? longest : longest.map(() => ""));
    return element("div", { role: "rowgroup", class: "group", "aria-label": title }, heading, numbers, ...lines);
  }
}

/** The heads with one more, or without it, but never none. @param {number[]} heads @param {number} head */
export function toggled(heads, head) {
  const others = heads.filter((other) => other !== head);
  if (others.length === heads.length) return [...heads, head].sort((a, b) => a - b);
  return others.length ? others : [head];
}

/** @param {HTMLDivElement} cell @param {string} name @param {Caption} caption */
function captioned(cell, name, { text, title = "" }) {
  const label = element("span", { class: "caption", "aria-hidden": "true", title }, text);
  const head = element("span", { class: "caption-head", "aria-hidden": "true" }, name);
  return element("div", { role: "presentation", class: "captioned" }, head, cell, label);
}

/** The number in a layer's name, such as 3 in `encoder.3` and `encoder.layer.3.attention.self`. @param {string} name */
function layerNumber(name) {
  return /\d+/.exec(name)?.[0];
}

/** @param {(number | "")[]} heads  Numbers of heads; empty where layers have different ones in a column. */
function headNumbers(heads) {
  const numbers = heads.map((head) =>
    element("span", { role: "columnheader", "aria-label": `head ${head}`.trim() }, String(head)),
  );
  const corner = element("span", { role: "columnheader", "aria-label": "layer" });
  return element("div", { role: "row", class: "row numbers" }, corner, ...numbers);
}

/** @param {Layer} layer @param {number} head */
function thumbnailCell(layer, head) {
  const name = `${layer.name}, head ${layer.headIndices[head]}`;
  const attributes = { role: "gridcell", class: "thumbnail", "aria-label": name, title: name };
  return element("div", attributes, element("canvas", { "aria-hidden": "true" }));
}
