// What the colors mean, with their unit.

import { drawPixels, drawSigned, position, weightAt } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { formatValue } from "#ui/format.js";
import { WORDINGS } from "#ui/shown.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { State } from '#state/store.js'
 * @import { Blocks } from '#ui/color.js'
 */

const TICKS = {
  sqrt: [0, 0.01, 0.1, 0.25, 0.5, 1],
  linear: [0, 0.25, 0.5, 0.75, 1],
  log: [0.0001, 0.001, 0.01, 0.1, 1],
  row_max: [0, 0.5, 1],
};
const SHADES = 256;

/** A strip of colors with ticks below it. */
export class ColorScale {
  constructor() {
    this.canvas = element("canvas", { class: "scale", "aria-hidden": "true" });
    this.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
    this.node = element("div", { class: "scale-frame" }, this.canvas, this.ticks);
  }

  /**
   * From 0 to 1 or, of signed values, from −1. @param {string} name  Of the scale. @param {{value: number, text: string}[]} ticks
   * @param {(canvas: HTMLCanvasElement, line: Blocks, scale: string) => void} paint @param {boolean} isSigned
   */
  draw(name, ticks, paint, isSigned = false) {
    const scale = name === "row_max" ? "linear" : name;
    const start = isSigned ? -1 : 0;
    const columns = (1 - start) * (SHADES - 1) + 1;
    const at = (/** @type {number} */ _, /** @type {number} */ column) => {
      const place = start + column / (SHADES - 1);
      return Math.sign(place) * weightAt(Math.abs(place), scale);
    };
    paint(this.canvas, { rows: 1, columns, at }, scale);
    const nodes = ticks.map(({ value, text }) => {
      const tick = element("span", {}, text);
      const place = Math.sign(value) * position(Math.abs(value), scale);
      tick.style.left = `${(100 * (place - start)) / (1 - start)}%`;
      return tick;
    });
    this.ticks.replaceChildren(...nodes);
  }
}

/** @param {HTMLElement} place @param {Recording} recording @param {import("#state/unit.js").Units} units */
export function mountLegend(place, recording, units) {
  const { store } = units;
  const scale = new ColorScale();
  const unit = element("span", { class: "unit" });
  const block = element("p", { class: "hint" });
  const masked = element("span", { class: "masked-word" }, element("i", { class: "masked" }), "masked");
  const out = element("span", { class: "out-word" }, element("i", { class: "stroke out" }), "attends to");
  const into = element("span", { class: "in-word" }, element("i", { class: "stroke in" }), "is attended to by");
  const name = element("span");
  const title = element("p", { class: "legend-title" }, name, unit);
  const above = element("span", {}, element("i", { class: "stroke" }), "row, above");
  const below = element("span", {}, element("i", { class: "stroke in" }), "column, below");
  place.append(title, scale.node, block, element("p", { class: "arc-key" }, out, into, above, below, masked));
  let drawn = "";
  const draw = (/** @type {State} */ state) => {
    const layer = recording.layers[state.layer];
    const heads = state.reduce === "sum" ? state.heads.length : 1;
    const thumbnails = layer.thumbnails.length;
    const shown = layer.shown(state.show);
    const largest = shown === "weights" ? 1 : (units.current().head(layer, state.heads, shown)?.scaleEnd ?? null);
    const style = [themeOf(state), state.scale, state.palette, heads, layer.name, thumbnails, shown, largest].join(" ");
    if (style === drawn) return;
    drawn = style;
    name.textContent = WORDINGS[shown].title;
    if (shown === "weights") drawScale(scale, state);
    else drawSignedScale(scale, state, largest);
    unit.textContent = shown === "weights" ? unitOf(state.scale, heads) : WORDINGS[shown].unit;
    for (const key of [out, into]) key.hidden = shown !== "weights";
    for (const key of [above, below]) key.hidden = shown === "weights" || layer.querySequence !== layer.keySequence;
    block.textContent = describeBlocks(layer);
    masked.hidden = !layer.isMasked;
  };
  store.subscribe(draw);
  recording.thumbnailsLoaded.then(() => draw(store.get()));
}

/** @param {ColorScale} scale @param {State} state */
function drawScale(scale, state) {
  const { palette, scale: name } = state;
  const ticks = TICKS[/** @type {keyof typeof TICKS} */ (name)].map((value) => ({ value, text: String(value) }));
  scale.draw(name, ticks, (canvas, line, scale) => drawPixels(canvas, line, { palette, scale }, themeOf(state)));
}

/** @param {ColorScale} scale @param {State} state @param {number | null} largest  Null while it is loading. */
function drawSignedScale(scale, state, largest) {
  const isRelative = state.scale === "row_max";
  const ticks = (largest === null ? [] : [-1, 0, 1]).map((value) => ({
    value,
    text: isRelative ? String(value).replace("-", "−") : formatValue(value * Number(largest), 0, 2),
  }));
  scale.draw(state.scale, ticks, (canvas, line, scale) => drawSigned(canvas, line, { scale }, themeOf(state), 1), true);
}

/** @param {string} scale @param {number} heads  That are added up. */
function unitOf(scale, heads) {
  if (scale === "row_max") return "relative to the largest of the row";
  return heads > 1
    ? `share of a row, summed over ${heads} heads: 0 to ${heads}; the last color from 1 on`
    : "share of a row, 0 to 1";
}

/** @param {import("#data/layer.js").Layer} layer */
function describeBlocks({ blockSize: size, header: { levels } }) {
  if (size === 1) return "";
  const finest = levels[levels.length - 1];
  const zoomed = finest < size ? `, or down to ${finest} × ${finest} as you zoom in` : "";
  return `A block is ${size} × ${size} tokens${zoomed}: the attention of its rows to its columns, averaged over the rows.`;
}
