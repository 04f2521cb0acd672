// An image as the model saw it: its patches, shaded by what one of them attends to, or by what attends to it.

import { clamp } from "#data/numbers.js";
import { patchGrid, tokenName } from "#data/patches.js";
import { toggleSelection } from "#state/store.js";
import { fraction, oneOf } from "#state/url.js";
import { placeTip } from "#ui/drawing.js";
import { button, element } from "#ui/elements.js";
import { addsToSelection, moveInGrid } from "#ui/listbox.js";
import { boxOfPatch, drawPatches, fitImage } from "#views/image_draw.js";
import { describeRange, describeShades, describeWeight } from "#views/image_text.js";

/**
 * @import { Cell, BaseHead as Head } from '#data/heads.js'
 * @import { PatchGrid } from '#data/patches.js'
 * @import { State } from '#state/store.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @import { ImageLayout } from '#views/image_draw.js'
 * @typedef {{state: Cell["state"], weight: number, error: number, upperBound: number}} TokenWeight  `weight` is what is known of it.
 * @typedef {{tokens: TokenWeight[], total: number | null}} Weights  `total` is what they add up to, if that is known.
 */

const DIRECTIONS = { from: "what it attends to", to: "what attends to it" };
const OPACITY = 0.7;
const MAX_OTHERS = 60; // buttons

/** @type {ViewDefinition} */
export default {
  name: "image",
  title: "Image",
  help: "The model’s input image, cut into patches. The shade of a patch is the attention that it receives from the selected patch, or gives to it, relative to the largest. If nothing is selected, it is the attention of the class token, or of the last token of a text behind the image. Other tokens are listed above it.",
  unit: "token",
  urlFields: { direction: oneOf(Object.keys(DIRECTIONS)), opacity: fraction(OPACITY) },
  isAvailable: ({ texts, layers }) => "image" in texts && layers.some((layer) => gridOf(layer) !== null),
  mount: (place, view) => new ImageView(place, view),
};

/** The patches that a layer's rows and columns stand for. @param {import("#data/layer.js").Layer} layer */
function gridOf({ queries, keys }) {
  return queries === keys ? patchGrid(queries) : null;
}

class ImageView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.place = place;
    this.view = view;
    const attributes = { tabindex: "0", role: "application", "aria-roledescription": "image in patches" };
    this.canvas = element("canvas", attributes);
    this.tip = element("div", { class: "tip", hidden: "" });
    this.frame = element("div", { class: "image-frame" }, this.canvas, this.tip);
    this.others = element("div", { class: "image-tokens", role: "group", "aria-label": "Tokens without a patch" });
    this.note = element("p", { class: "hint image-note" });
    this.spoken = element("p", { class: "visually-hidden", "aria-live": "polite" });
    this.image = imageOf(view);
    this.directions = Object.keys(DIRECTIONS).map((value) =>
      element("input", { type: "radio", name: "direction", value }),
    );
    this.opacity = element("input", { type: "range", id: "opacity", min: "0", max: "1", step: "0.05" });
    this.controls = this.buildControls();
    place.append(this.controls, this.others, this.frame, this.note, this.spoken);
    /** @type {number | null} */
    this.cursor = null; // the token from which arrow keys move
    /** @type {number | null} */
    this.pointed = null; // the token that the pointer or the keyboard is at, in this view
    /** @type {ImageLayout | null} */
    this.layout = null; // until it is painted
    this.listen();
  }

  buildControls() {
    const labels = this.directions.map((input) =>
      element("label", {}, input, ` ${DIRECTIONS[/** @type {keyof typeof DIRECTIONS} */ (input.value)]}`),
    );
    const legend = element("legend", { class: "visually-hidden" }, "Of the selected patch");
    const controls = element("div", { class: "controls" }, element("fieldset", { class: "field" }, legend, ...labels));
    if (this.image) controls.append(element("label", { class: "field", for: "opacity" }, "Opacity ", this.opacity));
    for (const input of this.directions) {
      input.addEventListener("change", () => this.view.set({ direction: input.value }));
    }
    this.opacity.addEventListener("input", () => this.view.set({ opacity: Number(this.opacity.value) }));
    return controls;
  }

  /** @param {State} state */
  update({ direction, opacity, hover }) {
    this.opacity.value = String(opacity);
    for (const input of this.directions) input.checked = input.value === direction;
    if (hover === null) this.pointed = null;
  }

  /** The tokens whose attention is shown: that which another view points at, or those that are selected; else the class token, or all. */
  shownTokens() {
    const { state, layer, queries, head } = this.view;
    const { hover, direction } = state;
    if (this.pointed === null && hover?.cell) return [direction === "from" ? hover.cell.query : hover.cell.key];
    if (this.pointed === null && hover?.token?.sequence === layer.querySequence) return [hover.token.index];
    const selected = state.tokens.filter(({ sequence }) => sequence === layer.querySequence).map(({ index }) => index);
    if (selected.length) return selected;
    const grid = gridOf(layer);
    const last = queries.length - 1;
    if (grid && !grid.patchOf.has(last)) return [last]; // a text behind the image
    if (!grid?.patchOf.has(0)) return [0];
    // A server would send every row of them.
    return head?.isRemote ? [queries.length >> 1] : queries.tokens.map((_, index) => index);
  }

  paint() {
    const { view } = this;
    const grid = gridOf(view.layer);
    for (const part of [this.controls, this.others, this.frame]) part.hidden = !grid;
    if (!grid) return this.explain(`The tokens of ${view.layer.name} are not the patches of the image.`);
    const { head } = view;
    const tokens = this.shownTokens();
    const weights = head && weightsOf(head, tokens, view.state.direction, view.queries.length);
    if (!weights) return this.explain("Loading …");
    const layout = { grid, ...fitImage(this.place.clientWidth, grid, this.image) };
    this.layout = layout;
    const at = this.pointed ?? hoveredToken(view.state);
    const { image, canvas } = this;
    drawPatches(canvas, layout, { weights: weights.tokens, tokens, at, image, state: view.state });
    Object.assign(canvas.dataset, { rows: grid.rows, columns: grid.columns });
    const shades = describeShades(view.queries, tokens, view.state.direction);
    const size = `${grid.rows} × ${grid.columns} patches, shaded by ${shades}`;
    canvas.setAttribute("aria-label", `${size}. Arrow keys move from patch to patch, Enter selects one.`);
    this.explain(`Shades: ${shades}, ${describeRange(weights, grid, view.recording.isServed)}`);
    this.showOthers(weights.tokens, tokens, grid);
    this.showTip(weights.tokens, at, layout);
    const spoken = this.pointed === null ? "" : this.describe(this.pointed, weights.tokens);
    if (this.spoken.textContent !== spoken) this.spoken.textContent = spoken;
  }

  /** @param {string} text */
  explain(text) {
    this.note.textContent = text;
  }

  /** @param {number} index @param {TokenWeight[]} weights */
  describe(index, weights) {
    return `${tokenName(this.view.queries, index)}: ${describeWeight(weights[index])}`;
  }

  /** Buttons for the tokens that are no patches, such as the class token, or a text. @param {TokenWeight[]} weights @param {number[]} tokens @param {PatchGrid} grid */
  showOthers(weights, tokens, grid) {
    const { others, view } = this;
    const rest = weights.flatMap((_, index) => (grid.patchOf.has(index) ? [] : [index])).slice(-MAX_OTHERS);
    while (others.childElementCount > rest.length) others.lastElementChild?.remove();
    while (others.childElementCount < rest.length) {
      const select = (/** @type {MouseEvent} */ event) => this.select(Number(node.dataset.token), event);
      const node = button("", "", select);
      node.append(element("span"), " ", element("span", { class: "value" }));
      others.append(node);
    }
    for (const [place, node] of [...others.children].entries()) {
      const index = rest[place];
      /** @type {HTMLElement} */ (node).dataset.token = String(index);
      const [name, value] = node.children; // they stay: a click is lost if what it began on is removed before it ends
      name.textContent = tokenName(view.queries, index);
      value.textContent = describeWeight(weights[index]);
      node.setAttribute("aria-pressed", String(tokens.includes(index) && tokens.length < weights.length));
    }
  }

  /** @param {TokenWeight[]} weights @param {number | null} at @param {ImageLayout} layout */
  showTip(weights, at, layout) {
    const { tip, view } = this;
    const { grid, width, height } = layout;
    const patch = at === null ? undefined : grid.patchOf.get(at);
    tip.hidden = patch === undefined;
    if (at === null || patch === undefined) return;
    const { state } = weights[at];
    const note = (/** @type {string} */ text) => element("span", { class: "rank" }, text);
    const value = describeWeight(weights[at]);
    tip.replaceChildren(
      element("span", { class: "pair" }, element("b", {}, tokenName(view.queries, at))),
      state === "known" ? element("span", { class: "value" }, value) : note(value),
      ...(state === "unknown" ? [note(view.recording.isServed ? "loading …" : "not fully stored in this file")] : []),
    );
    placeTip(tip, boxOfPatch(patch, layout), { width, height });
  }

  /** Pointing at a patch is pointing at a weight; if several tokens are shown, at the patch. @param {number | null} index */
  point(index) {
    const { view } = this;
    this.pointed = index;
    if (index === null) return view.set({ hover: null });
    const tokens = this.shownTokens();
    const [query, key] = view.state.direction === "from" ? [tokens[0], index] : [index, tokens[0]];
    const token = { sequence: view.layer.querySequence, index };
    view.set({ hover: tokens.length === 1 ? { cell: { query, key } } : { token } });
  }

  /** @param {number} index @param {MouseEvent | KeyboardEvent} event */
  select(index, event) {
    toggleSelection(this.view.store, { sequence: this.view.layer.querySequence, index }, addsToSelection(event));
  }

  /** The token of the patch at a place of the canvas. @param {MouseEvent} event @returns {number | null} */
  patchAt({ offsetX, offsetY }) {
    if (!this.layout) return null;
    const { grid, width, height } = this.layout;
    const [row, column] = [Math.floor((offsetY / height) * grid.rows), Math.floor((offsetX / width) * grid.columns)];
    const isInside = row >= 0 && column >= 0 && row < grid.rows && column < grid.columns;
    return isInside ? grid.tokens[row * grid.columns + column] : null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => {
      const index = this.patchAt(event);
      if (this.layout && index !== this.pointed) this.point(index);
    });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("click", (event) => {
      const index = this.patchAt(event);
      if (index === null) return;
      this.cursor = index;
      this.select(index, event);
      this.point(index);
    });
    canvas.addEventListener("focus", () => {
      if (this.layout && canvas.matches(":focus-visible")) this.point(patchToken(this.cursor, this.layout.grid));
    });
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => {
      if (this.layout && this.press(event, this.layout.grid)) event.preventDefault();
    });
  }

  /** @param {KeyboardEvent} event @param {PatchGrid} grid @returns {boolean} whether the key means something */
  press(event, grid) {
    const from = patchToken(this.cursor, grid);
    const to = neighborPatch(event.key, from, grid);
    if (event.key === "Enter" || event.key === " ") this.select(from, event);
    else if (event.key === "Escape") this.view.set({ tokens: [] });
    else if (to === null) return false;
    this.cursor = to ?? from;
    this.point(this.cursor);
    return true;
  }
}

/** The recording's image; null if it has none. @param {View} view */
function imageOf(view) {
  if (view.recording.image === null) return null;
  const image = new Image();
  image.addEventListener("load", () => view.schedulePaint());
  image.src = `data:image/png;base64,${view.recording.image}`;
  return image;
}

/** Of the cell that another view points at, the token whose attention is not shown. @param {State} state */
function hoveredToken({ hover, direction }) {
  if (!hover?.cell) return null;
  return direction === "from" ? hover.cell.key : hover.cell.query;
}

/**
 * What some tokens attend to (the mean of their rows), or what attends to them (the sum of their columns); null while it is loading.
 * @param {Head} head @param {number[]} tokens @param {string} direction @param {number} count  Of all tokens. @returns {Weights | null}
 */
function weightsOf(head, tokens, direction, count) {
  const isFrom = direction === "from";
  const { loading, total } = isFrom ? head.rows(tokens) : head.columns(tokens);
  if (loading) return null;
  const share = isFrom ? 1 / tokens.length : 1;
  const all = Array.from({ length: count }, (_, other) => {
    const cells = tokens.map((token) => (isFrom ? head.cell(token, other) : head.cell(other, token)));
    return addCells(cells, share);
  });
  return { tokens: all, total: (isFrom && total) || null };
}

/** @param {Cell[]} cells @param {number} share @returns {TokenWeight} */
function addCells(cells, share) {
  const visible = cells.filter(({ state }) => state !== "masked" && state !== "hidden");
  const known = visible.filter(({ state }) => state === "known");
  /** @type {(some: Cell[], field: "weight" | "error" | "upperBound") => number} */
  const sum = (some, field) => share * some.reduce((total, cell) => total + cell[field], 0);
  const state = known.length < visible.length ? "unknown" : (visible[0] ?? cells[0]).state;
  return { state, weight: sum(known, "weight"), error: sum(known, "error"), upperBound: sum(visible, "upperBound") };
}

/** The token itself if it is a patch, otherwise the first patch. @param {number | null} token @param {PatchGrid} grid */
function patchToken(token, { tokens, patchOf }) {
  return token !== null && patchOf.has(token) ? token : tokens[0];
}

/** The patch to which a key leads; null if it leads nowhere. @param {string} key @param {number} token @param {PatchGrid} grid */
function neighborPatch(key, token, { rows, columns, tokens, patchOf }) {
  const patch = patchOf.get(token) ?? 0;
  const to = moveInGrid(key, { row: Math.floor(patch / columns), column: patch % columns }, { columns, page: rows });
  if (!to) return null;
  return tokens[clamp(to.row, 0, rows - 1) * columns + clamp(to.column, 0, columns - 1)];
}
