// Draws an image and, over it, the shades of its patches.

import { position, shade } from "#ui/color.js";
import { hatch, resizeCanvas } from "#ui/drawing.js";
import { themeOf } from "#ui/theme.js";

/**
 * @import { Box } from '#ui/drawing.js'
 * @import { TokenWeight } from '#views/image.js'
 * @typedef {{grid: import("#data/patches.js").PatchGrid, width: number, height: number}} ImageLayout  In CSS pixels.
 * @typedef {{weights: TokenWeight[], tokens: number[], at: number | null, image: HTMLImageElement | null, state: import("#state/store.js").State}} Drawing
 *   `tokens` are those whose attention is shown, `at` is the one that is pointed at.
 */

const MAX_WIDTH = 540; // CSS pixels
const MAX_HEIGHT = 0.72; // of the window
const DOT_STEP = 5; // CSS pixels
const DOTS = /** @type {[shift: number, color: string][]} */ ([
  [1, "--page"],
  [0, "--muted"],
]); // visible on light and dark
const OUTLINE = { width: 2.5, halo: 5 }; // CSS pixels

/** @param {number} room @param {import("#data/patches.js").PatchGrid} grid @param {HTMLImageElement | null} image */
export function fitImage(room, { rows, columns }, image) {
  const ratio = image?.naturalWidth ? image.naturalHeight / image.naturalWidth : rows / columns;
  const width = Math.min(room, MAX_WIDTH, (MAX_HEIGHT * window.innerHeight) / ratio);
  return { width, height: width * ratio };
}

/** Where a patch is, on whole pixels of the screen, so that none overlaps another. @param {number} patch @param {ImageLayout} layout @returns {Box} */
export function boxOfPatch(patch, { grid: { rows, columns }, width, height }) {
  const ratio = window.devicePixelRatio || 1;
  /** @type {(index: number, count: number, length: number) => number} */
  const edge = (index, count, length) => Math.round((index * Math.round(length * ratio)) / count) / ratio;
  const [row, column] = [Math.floor(patch / columns), patch % columns];
  return {
    left: edge(column, columns, width),
    right: edge(column + 1, columns, width),
    top: edge(row, rows, height),
    bottom: edge(row + 1, rows, height),
  };
}

/** @param {HTMLCanvasElement} canvas @param {ImageLayout} layout @param {Drawing} drawing */
export function drawPatches(canvas, layout, drawing) {
  const { grid, width, height } = layout;
  const { weights, tokens, at, state } = drawing;
  const context = resizeCanvas(canvas, width, height);
  const style = getComputedStyle(canvas);
  const image = drawing.image?.naturalWidth ? drawing.image : null; // once it is loaded, if it can be read
  if (image) {
    context.filter = `grayscale(${Math.min(1.5 * state.opacity, 1)})`; // so that all hues are those of the shades
    context.drawImage(image, 0, 0, width, height);
    context.filter = "none";
  }
  context.globalAlpha = image ? state.opacity : 1;
  const patches = grid.tokens.map((token) => weights[token]);
  drawShades(context, layout, patches, state, style);
  context.globalAlpha = 1;
  drawMarks(context, layout, patches, style);
  /** @type {(token: number | null, color: string) => void} */
  const outline = (token, color) => {
    const patch = token === null ? undefined : grid.patchOf.get(token);
    if (patch !== undefined) drawOutline(context, boxOfPatch(patch, layout), style, color);
  };
  for (const token of tokens.length < weights.length ? tokens : []) outline(token, "--ink");
  outline(at, state.direction === "from" ? "--out" : "--in");
}

/** Shades are relative to the largest weight, as the weights of many patches are all small. @param {CanvasRenderingContext2D} context @param {ImageLayout} layout @param {TokenWeight[]} patches @param {import("#state/store.js").State} state @param {CSSStyleDeclaration} style */
function drawShades(context, layout, patches, state, style) {
  const largest = Math.max(0, ...patches.map(({ weight }) => weight));
  const scale = state.scale === "row_max" ? "linear" : state.scale;
  for (const [patch, { state: kind, weight }] of patches.entries()) {
    const place = position(largest > 0 ? weight / largest : 0, scale);
    const color = `rgb(${shade(place, state.palette, themeOf(state)).join(" ")})`;
    context.fillStyle = kind === "masked" || kind === "hidden" ? style.getPropertyValue("--page") : color;
    const { left, right, top, bottom } = boxOfPatch(patch, layout);
    context.fillRect(left, top, right - left, bottom - top);
  }
}

/** Hatch masked patches, and hidden ones the other way; dot those that are known in part. @param {CanvasRenderingContext2D} context @param {ImageLayout} layout @param {TokenWeight[]} patches @param {CSSStyleDeclaration} style */
function drawMarks(context, layout, patches, style) {
  const all = { left: 0, top: 0, right: layout.width, bottom: layout.height };
  const color = style.getPropertyValue("--muted");
  const marks = {
    masked: () => hatch(context, all, { color }),
    hidden: () => hatch(context, all, { color, rising: false }),
    unknown: () => drawDots(context, all, style),
  };
  for (const [kind, draw] of Object.entries(marks)) {
    context.save();
    context.beginPath();
    for (const [patch, { state }] of patches.entries()) {
      if (state !== kind) continue;
      const { left, right, top, bottom } = boxOfPatch(patch, layout);
      context.rect(left, top, right - left, bottom - top);
    }
    context.clip();
    draw();
    context.restore();
  }
}

/** @param {CanvasRenderingContext2D} context @param {Box} box @param {CSSStyleDeclaration} style */
function drawDots(context, { right, bottom }, style) {
  for (const [shift, color] of DOTS) {
    context.fillStyle = style.getPropertyValue(color);
    for (let y = 0; y < bottom; y += DOT_STEP) {
      for (let x = 0; x < right; x += DOT_STEP) context.fillRect(x + shift, y + shift, 1, 1);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {Box} box @param {CSSStyleDeclaration} style @param {string} color */
function drawOutline(context, { left, right, top, bottom }, style, color) {
  const inset = OUTLINE.width / 2;
  for (const [lineWidth, name] of /** @type {[number, string][]} */ ([
    [OUTLINE.halo, "--page"],
    [OUTLINE.width, color],
  ])) {
    context.lineWidth = lineWidth;
    context.strokeStyle = style.getPropertyValue(name);
    context.strokeRect(left + inset, top + inset, right - left - 2 * inset, bottom - top - 2 * inset);
  }
}
