// An image as the model saw it: its patches over the picture, shaded by what one of them attends to, or what attends to it.

import { headOf } from "#data/combined_heads.js";
import { written } from "#data/recording.js";
import { FACINGS, hold } from "#state/store.js";
import { position, shade } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";

const WIDEST = 540; // CSS pixels
const TALLEST = 0.72; // of the window
const HATCH = 7; // CSS pixels from line to line, as in the matrix
const DOTS = 5; // CSS pixels from dot to dot
const APART = 12; // CSS pixels from a patch to what is told of it
const NAMES = { out: "what it attends to", in: "what attends to it" };

/**
 * @typedef {{first: number, rows: number, columns: number}} Grid  The token of the first patch, and how many there are.
 * @typedef {{state: "known" | "masked" | "unknown", least: number, most: number}} Shown  Between which bounds a weight is known to lie.
 */

export function mountImage(place, recording, store) {
  const grids = new Map(
    recording.layers.map((layer) => [layer, layer.querySequence === layer.keySequence ? gridOf(layer.queries) : null]),
  );
  if (!("image" in recording.texts) || ![...grids.values()].some(Boolean)) return false;
  const canvas = element("canvas", {
    tabindex: "0",
    role: "application",
    "aria-roledescription": "picture of patches",
  });
  const tip = element("div", { class: "tip", hidden: "" });
  const frame = element("div", { class: "picture-frame" }, canvas, tip);
  const marks = element("div", { class: "marks", role: "group", "aria-label": "Tokens that are no patch" });
  const note = element("p", { class: "hint told" });
  const spoken = element("p", { class: "unseen", "aria-live": "polite" });
  const strength = element("input", { type: "range", id: "tint", min: "0", max: "1", step: "0.05" });
  strength.addEventListener("input", () => store.set({ tint: Number(strength.value) }));
  const facings = FACINGS.map((value) => element("input", { type: "radio", name: "facing", value }));
  for (const input of facings) input.addEventListener("change", () => store.set({ facing: input.value }));
  const controls = element(
    "div",
    { class: "controls" },
    element(
      "fieldset",
      { class: "field" },
      element("legend", { class: "unseen" }, "Of the chosen patch"),
      ...facings.map((input) => element("label", {}, input, ` ${NAMES[input.value]}`)),
    ),
    ...(recording.picture === null ? [] : [element("label", { class: "field", for: "tint" }, "Tint ", strength)]),
  );
  place.append(controls, marks, frame, note, spoken);

  const picture = recording.picture === null ? null : new Image();
  let _asked = 0;
  let cursor = null; // the token that arrow keys set out from
  let pointed = null; // the token that pointer or keyboard is at, here
  let layout = null;

  const layerNow = () => recording.layers[store.get().layer];
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };
  if (picture) {
    picture.addEventListener("load", soon);
    picture.src = `data:image/png;base64,${recording.picture}`;
  }

  /** The tokens whose attention is shown: those pointed at in another view, or held; else the class token, else all. */
  const chosen = (state) => {
    const layer = recording.layers[state.layer];
    const { first } = grids.get(layer);
    const { hover } = state;
    if (pointed === null && hover?.cell) return [state.facing === "out" ? hover.cell.query : hover.cell.key];
    if (pointed === null && hover?.token?.sequence === layer.querySequence) return [hover.token.index];
    const held = state.tokens.filter(({ sequence }) => sequence === layer.querySequence).map(({ index }) => index);
    if (held.length) return held;
    return first > 0 ? [0] : layer.queries.map((_, index) => index);
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("image") || place.clientWidth === 0) return;
    const layer = layerNow();
    const grid = grids.get(layer);
    for (const part of [controls, marks, frame]) part.hidden = !grid;
    const say = (text) => {
      note.textContent = text;
    };
    if (!grid) return say(`The tokens of ${layer.name} are not the patches of the picture.`);
    const head = headOf(layer, state);
    if (!head) return say("Reading …");
    const tokens = chosen(state);
    const cells = cellsOf(head, tokens, state.facing, layer);
    if (!cells) return say("Reading …");
    layout = { grid, ...sizes(place.clientWidth, grid, picture) };
    const most = Math.max(0, ...cells.slice(grid.first).map(({ least }) => least));
    const at =
      pointed ?? (state.hover?.cell ? (state.facing === "out" ? state.hover.cell.key : state.hover.cell.query) : null);
    draw(canvas, layout, {
      cells,
      most,
      state,
      tokens,
      at,
      picture: picture?.complete && picture.naturalWidth > 0 ? picture : null,
    });
    Object.assign(canvas.dataset, { rows: grid.rows, columns: grid.columns, first: grid.first });
    const name = nameOf(layer, tokens);
    canvas.setAttribute(
      "aria-label",
      `${grid.rows} × ${grid.columns} patches and ${state.facing === "out" ? `what ${name} attends to` : `what attends to ${name}`}. Arrow keys move from patch to patch, Enter holds one.`,
    );
    showMarks(marks, layer, grid, cells, tokens);
    note.textContent = told(cells.slice(grid.first), most, name, state.facing);
    showTip(tip, frame, layout, at === null ? null : { ...cells[at], name: layer.keys[at], index: at });
    const words = pointed === null ? "" : `${layer.keys[pointed]}: ${worded(cells[pointed])}`;
    if (spoken.textContent !== words) spoken.textContent = words;
  };

  /** Pointing at a patch points at its weight; where several are chosen, at the patch. */
  const point = (index) => {
    pointed = index;
    if (index === null) return store.set({ hover: null });
    const state = store.get();
    const layer = recording.layers[state.layer];
    const tokens = chosen(state);
    const [query, key] = state.facing === "out" ? [tokens[0], index] : [index, tokens[0]];
    store.set({
      hover: tokens.length === 1 ? { cell: { query, key } } : { token: { sequence: layer.querySequence, index } },
    });
  };
  const holdToken = (index, event) =>
    hold(store, { sequence: layerNow().querySequence, index }, event.ctrlKey || event.metaKey);
  const patchAt = (event) => {
    const { grid, width, height } = layout;
    const [row, column] = [
      Math.floor((event.offsetY / height) * grid.rows),
      Math.floor((event.offsetX / width) * grid.columns),
    ];
    return row < 0 || column < 0 || row >= grid.rows || column >= grid.columns
      ? null
      : grid.first + row * grid.columns + column;
  };

  canvas.addEventListener("pointermove", (event) => layout && patchAt(event) !== pointed && point(patchAt(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const index = layout && patchAt(event);
    if (index === null) return;
    cursor = index;
    holdToken(index, event);
    point(index);
  });
  canvas.addEventListener(
    "focus",
    () => layout && canvas.matches(":focus-visible") && point(within(cursor, layout.grid)),
  );
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    if (!layout) return;
    const here = within(cursor, layout.grid);
    const to = stepped(event.key, here, layout.grid);
    if (event.key === "Enter" || event.key === " ") holdToken(here, event);
    else if (event.key === "Escape") store.set({ tokens: [] });
    else if (to === null) return;
    cursor = to ?? here;
    point(cursor);
    event.preventDefault();
  });
  marks.addEventListener("click", (event) => {
    const index = /** @type {HTMLElement} */ (event.target).closest("button")?.dataset.index;
    if (index !== undefined) holdToken(Number(index), event);
  });

  store.subscribe((state) => {
    const layer = recording.layers[state.layer];
    strength.value = String(state.tint);
    for (const input of facings) input.checked = input.value === state.facing;
    if (state.hover === null) pointed = null;
    if (state.views.includes("image") && !layer.ready) layer.load().then(() => store.set({}));
    soon();
  });
  new ResizeObserver(soon).observe(place);
  window.addEventListener("resize", soon);
}

/** Where the patches are among tokens: behind what is no patch, row by row as `row,column`; null where they are not. @returns {Grid | null} */
export function gridOf(tokens) {
  const first = tokens.indexOf("0,0");
  const [, rows, columns] = /^(\d+),(\d+)$/.exec(tokens.at(-1))?.map((last) => Number(last) + 1) ?? [];
  if (first < 0 || tokens.length - first !== rows * columns) return null;
  const inOrder = tokens
    .slice(first)
    .every((token, index) => token === `${Math.floor(index / columns)},${index % columns}`);
  return inOrder ? { first, rows, columns } : null;
}

/** What some tokens give to each token (the mean of their rows), or get from it (the sum of their columns). @returns {Shown[] | null} */
function cellsOf(head, tokens, facing, layer) {
  const share = facing === "out" ? 1 / tokens.length : 1;
  const { links, waiting } = facing === "out" ? head.rows(tokens) : head.columnsOf(tokens);
  if (waiting) return null;
  const named = new Map(links.map(({ query, key, weight }) => [facing === "out" ? key : query, weight]));
  return layer.keys.map((_, other) => {
    if (layer.header.form === "remote" && facing === "in") {
      const weight = named.get(other) ?? 0; // a server tells all of a column
      return { state: "known", least: weight, most: weight };
    }
    const cells = tokens.map((token) => (facing === "out" ? head.cell(token, other) : head.cell(other, token)));
    const seen = cells.filter(({ state }) => state !== "masked");
    const most = share * seen.reduce((sum, cell) => sum + cell.most, 0);
    if (!seen.length) return { state: "masked", least: 0, most };
    return seen.every(({ state }) => state === "known")
      ? { state: "known", least: most, most }
      : { state: "unknown", least: named.get(other) ?? 0, most };
  });
}

function sizes(room, { rows, columns }, picture) {
  const shape = picture?.naturalWidth ? picture.naturalHeight / picture.naturalWidth : rows / columns;
  const width = Math.min(room, WIDEST, (TALLEST * window.innerHeight) / shape);
  return { width, height: width * shape };
}

function draw(canvas, { grid, width, height }, { cells, most, state, tokens, at, picture }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (picture) {
    context.filter = `grayscale(${Math.min(1.5 * state.tint, 1)})`; // so that hues are those of the tint
    context.drawImage(picture, 0, 0, width, height);
    context.filter = "none";
  }
  const theme = themeOf(state);
  const style = getComputedStyle(canvas);
  const box = boxes(grid, canvas, ratio);
  const [masked, unknown] = [new Path2D(), new Path2D()];
  context.globalAlpha = picture ? state.tint : 1;
  for (const [patch, cell] of cells.slice(grid.first).entries()) {
    const { x, y, w, h } = box(patch);
    if (cell.state === "masked") {
      masked.rect(x, y, w, h);
      continue;
    }
    if (cell.state === "unknown") unknown.rect(x, y, w, h);
    context.fillStyle = `rgb(${shade(placeOf(cell.least, most, state.scale), state.palette, theme).join(" ")})`;
    context.fillRect(x, y, w, h);
  }
  context.globalAlpha = 1;
  hatch(context, masked, width, height, style.getPropertyValue("--muted"));
  dot(context, unknown, width, height, style);
  const chosen = tokens.length < cells.length ? tokens.filter((token) => token >= grid.first) : [];
  for (const token of chosen) outline(context, box(token - grid.first), style, "--ink");
  if (at !== null && at >= grid.first)
    outline(context, box(at - grid.first), style, state.facing === "out" ? "--out" : "--in");
}

/** Where a weight stands among the shades: by its share of the strongest, as weights of many patches are all small. */
function placeOf(weight, most, scale) {
  return position(most > 0 ? weight / most : 0, scale === "rows" ? "linear" : scale);
}

/** Where patches lie, on whole pixels, so that none overlaps another. */
function boxes({ rows, columns }, canvas, ratio) {
  const edge = (index, count, length) => Math.round((index * length) / count) / ratio;
  return (patch) => {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    const [x, y] = [edge(column, columns, canvas.width), edge(row, rows, canvas.height)];
    return { x, y, w: edge(column + 1, columns, canvas.width) - x, h: edge(row + 1, rows, canvas.height) - y };
  };
}

/** Hatch what the mask forbids. */
function hatch(context, area, width, height, colour) {
  context.save();
  context.clip(area);
  context.beginPath();
  for (let x = -height; x < width; x += HATCH) {
    context.moveTo(x, height);
    context.lineTo(x + height, 0);
  }
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.stroke();
  context.restore();
}

/** Dot what the file knows in part. */
function dot(context, area, width, height, style) {
  context.save();
  context.clip(area);
  for (const [shift, name] of /** @type {[number, string][]} */ ([
    [1, "--page"],
    [0, "--muted"],
  ])) {
    context.fillStyle = style.getPropertyValue(name);
    for (let y = 0; y < height; y += DOTS)
      for (let x = 0; x < width; x += DOTS) context.fillRect(x + shift, y + shift, 1, 1);
  }
  context.restore();
}

function outline(context, { x, y, w, h }, style, name) {
  for (const [lineWidth, colour] of /** @type {[number, string][]} */ ([
    [5, "--page"],
    [2.5, name],
  ])) {
    context.lineWidth = lineWidth;
    context.strokeStyle = style.getPropertyValue(colour);
    context.strokeRect(x + 1.25, y + 1.25, w - 2.5, h - 2.5);
  }
}

function showMarks(place, layer, { first }, cells, tokens) {
  while (place.childElementCount > first) place.lastChild.remove();
  while (place.childElementCount < first)
    place.append(element("button", { type: "button", "data-index": place.childElementCount }));
  [...place.children].forEach((button, index) => {
    button.replaceChildren(layer.keys[index], " ", element("span", { class: "value" }, worded(cells[index])));
    button.setAttribute("aria-pressed", String(tokens.includes(index) && tokens.length < cells.length));
  });
}

/** A weight in words, or why there is none. @param {Shown} cell */
function worded({ state, least, most }) {
  if (state === "masked") return "may not be seen";
  if (state === "known") return written(most);
  return least > 0 ? `${written(least)} to ${written(most)}` : `at most ${written(most)}`;
}

function nameOf(layer, tokens) {
  if (tokens.length === layer.queries.length && tokens.length > 1) return "a patch, on the mean of all,";
  return tokens.length > 3 ? `${tokens.length} tokens` : tokens.map((index) => layer.queries[index]).join(" and ");
}

/** What the shades stand for. */
function told(patches, most, name, facing) {
  const known = patches.reduce((sum, { least }) => sum + least, 0);
  const unknown = patches.some(({ state }) => state === "unknown");
  const what =
    facing === "out" ? `Shades: what ${name} gives to each patch` : `Shades: what each patch gives to ${name}`;
  const dots = unknown
    ? " Where a patch is dotted, this file does not know all that it has: point at it for the bounds."
    : "";
  return `${what}, from 0 to the strongest, ${written(most)}; all ${unknown ? "that is known" : "patches"} together ${written(facing === "out" ? Math.min(known, 1) : known)}.${dots}`;
}

function showTip(tip, frame, { grid, width, height }, cell) {
  tip.hidden = cell === null || cell.index < grid.first;
  if (tip.hidden) return;
  const patch = cell.index - grid.first;
  const known = cell.state === "known";
  const unknown = cell.state === "unknown" ? [element("span", { class: "rank" }, "not all of it is in this file")] : [];
  tip.replaceChildren(
    element("span", { class: "pair" }, element("b", {}, cell.name)),
    element("span", { class: known ? "value" : "rank" }, worded(cell)),
    ...unknown,
  );
  const [x, y] = [
    ((patch % grid.columns) + 1) * (width / grid.columns),
    Math.floor(patch / grid.columns) * (height / grid.rows),
  ];
  const left =
    x + APART + tip.offsetWidth <= frame.clientWidth ? x + APART : x - width / grid.columns - APART - tip.offsetWidth;
  tip.style.left = `${Math.max(left, 0)}px`;
  tip.style.top = `${Math.max(Math.min(y, height - tip.offsetHeight), 0)}px`;
}

function within(token, { first, rows, columns }) {
  return Math.min(Math.max(token ?? first, first), first + rows * columns - 1);
}

/** The patch that a key leads to; null where the key leads nowhere. */
function stepped(key, token, { first, rows, columns }) {
  const [row, column] = [Math.floor((token - first) / columns), (token - first) % columns];
  const at = (y, x) => first + Math.min(Math.max(y, 0), rows - 1) * columns + Math.min(Math.max(x, 0), columns - 1);
  switch (key) {
    case "ArrowLeft":
      return at(row, column - 1);
    case "ArrowRight":
      return at(row, column + 1);
    case "ArrowUp":
      return at(row - 1, column);
    case "ArrowDown":
      return at(row + 1, column);
    case "Home":
      return at(row, 0);
    case "End":
      return at(row, columns - 1);
    case "PageUp":
      return at(0, column);
    case "PageDown":
      return at(rows - 1, column);
    default:
      return null;
  }
}
