// What the colors mean, with their unit.

import { drawPixels, position, weightAt } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { State, Store } from '#state/store.js'
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

  /** @param {(canvas: HTMLCanvasElement) => void} paint @param {{text: string, place: number}[]} ticks  `place` is from 0 to 1. */
  draw(paint, ticks) {
    paint(this.canvas);
    const nodes = ticks.map(({ text, place }) => {
      const tick = element("span", {}, text);
      tick.style.left = `${100 * place}%`;
      return tick;
    });
    this.ticks.replaceChildren(...nodes);
  }
}

/** @param {HTMLElement} place @param {Recording} recording @param {Store} store */
export function mountLegend(place, recording, store) {
  const scale = new ColorScale();
  const unit = element("span", { class: "unit" });
  const block = element("p", { class: "hint" });
  const masked = element("span", { class: "masked-word" }, element("i", { class: "masked" }), "masked");
  const out = element("span", { class: "out-word" }, element("i", { class: "stroke out" }), "attends to");
  const into = element("span", { class: "in-word" }, element("i", { class: "stroke in" }), "is attended to by");
  const title = element("p", { class: "legend-title" }, "Attention weight ", unit);
  place.append(title, scale.node, block, element("p", { class: "arc-key" }, out, into, masked));
  let drawn = "";
  const draw = (/** @type {State} */ state) => {
    const layer = recording.layers[state.layer];
    const heads = state.reduce === "sum" ? state.heads.length : 1;
    const thumbnails = layer.thumbnails.length;
    const name = [themeOf(state), state.scale, state.palette, heads, layer.name, thumbnails].join(" ");
    if (name === drawn) return;
    drawn = name;
    drawScale(scale, state);
    unit.textContent = unitOf(state.scale, heads);
    block.textContent = describeBlocks(layer);
    masked.hidden = !layer.isMasked;
  };
  store.subscribe(draw);
  recording.thumbnailsLoaded.then(() => draw(store.get()));
}

/** @param {ColorScale} scale @param {State} state */
function drawScale(scale, state) {
  const line = {
    rows: 1,
    columns: SHADES,
    at: (/** @type {number} */ _, /** @type {number} */ column) => weightAt(column / (SHADES - 1), state.scale),
  };
  const colors = { palette: state.palette, scale: state.scale === "row_max" ? "linear" : state.scale };
  const ticks = TICKS[/** @type {keyof typeof TICKS} */ (state.scale)].map((weight) => ({
    text: String(weight),
    place: position(weight, state.scale),
  }));
  scale.draw((canvas) => drawPixels(canvas, line, colors, themeOf(state)), ticks);
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
