// Draws on SVG what a view draws on a canvas: the part of a canvas's context that the views use.

import { round2 } from "#export/boxes.js";
import { genericFamily, stripInvalidXml, textWidth } from "#export/text_lines.js";
import { svgElement } from "#ui/elements.js";

/** @import { Attributes } from '#ui/elements.js' */

/** What draws each canvas again, on another context. @type {WeakMap<HTMLCanvasElement, (context: any) => void>} */
export const canvasPainters = new WeakMap();

const PIXELS = 2; // of an image for each CSS pixel, so that viewers do not blur its cells
const MAX_IMAGE_SIZE = 4096; // pixels of a side of an enlarged image
const ANCHORS = { left: "start", right: "end", center: "middle" };
const STATE = /** @type {const} */ ([
  "fillStyle",
  "strokeStyle",
  "lineWidth",
  "globalAlpha",
  "font",
  "textAlign",
  "textBaseline",
  "imageSmoothingEnabled",
  "transform",
  "parent",
]);

let numClips = 0; // each has an id of its own

/** A context that draws into a group of SVG elements, `node`. */
export class SvgContext {
  constructor() {
    this.node = svgElement("g");
    /** @type {SVGElement} */
    this.parent = this.node;
    this.path = "";
    this.transform = "";
    /** @type {object[]} */
    this.saved = [];
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
  }

  save() {
    this.saved.push(Object.fromEntries(STATE.map((name) => [name, this[name]])));
  }

  restore() {
    Object.assign(this, this.saved.pop());
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.transform += ` translate(${round2(x)} ${round2(y)})`;
  }

  /** @param {number} angle  In radians. */
  rotate(angle) {
    if (angle) this.transform += ` rotate(${round2((angle * 180) / Math.PI)})`;
  }

  beginPath() {
    this.path = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path += `M${round2(x)} ${round2(y)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path += `L${round2(x)} ${round2(y)}`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.path += `M${round2(x)} ${round2(y)}h${round2(width)}v${round2(height)}h${round2(-width)}z`;
  }

  /** Draw within the path only, until the state is restored. */
  clip() {
    const id = `clip-${++numClips}`;
    const group = svgElement("g", { "clip-path": `url(#${id})` });
    this.parent.append(svgElement("clipPath", { id }, svgElement("path", { d: this.path || "M0 0" })), group);
    this.parent = group;
  }

  stroke() {
    if (this.path) this.add("path", { d: this.path, fill: "none", ...this.pen() });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.add("rect", { ...rectangle(x, y, width, height), fill: this.fillStyle.trim() });
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  strokeRect(x, y, width, height) {
    this.add("rect", { ...rectangle(x, y, width, height), fill: "none", ...this.pen() });
  }

  /** Cover an area with the color of the page. @param {number} x @param {number} y @param {number} width @param {number} height */
  clearRect(x, y, width, height) {
    this.add("rect", { ...rectangle(x, y, width, height), fill: getComputedStyle(document.body).backgroundColor });
  }

  /** @param {HTMLCanvasElement} image @param {number} x @param {number} y @param {number} width @param {number} height */
  drawImage(image, x, y, width, height) {
    this.add("image", {
      ...rectangle(x, y, width, height),
      href: toDataUrl(image, width),
      preserveAspectRatio: "none",
      ...(this.imageSmoothingEnabled ? {} : { "image-rendering": "pixelated" }),
    });
  }

  /** @param {string} text @param {number} x @param {number} y @param {number} maxWidth  A longer text is condensed. */
  fillText(text, x, y, maxWidth = Infinity) {
    const isLong = textWidth(text, this.font) > maxWidth;
    const attributes = {
      x: round2(x),
      y: round2(y),
      fill: this.fillStyle.trim(),
      "text-anchor": ANCHORS[/** @type {keyof typeof ANCHORS} */ (this.textAlign)] ?? "start",
      ...fontAttributes(this.font),
      ...(isLong && { textLength: round2(maxWidth), lengthAdjust: "spacingAndGlyphs" }),
      ...(this.textBaseline === "middle" && { dy: "0.35em" }),
    };
    this.add("text", attributes, stripInvalidXml(text));
  }

  pen() {
    return { stroke: this.strokeStyle.trim(), "stroke-width": this.lineWidth };
  }

  /** @param {"path" | "rect" | "image" | "text"} name @param {Attributes} attributes @param {...string} children */
  add(name, attributes, ...children) {
    const state = {
      ...(this.globalAlpha < 1 && { opacity: this.globalAlpha }),
      ...(this.transform && { transform: this.transform.trim() }),
    };
    this.parent.append(svgElement(name, { ...attributes, ...state }, ...children));
  }
}

/** The attributes of a CSS `font` such as `600 12px serif`. @param {string} font @returns {Attributes} */
function fontAttributes(font) {
  const [, weight, size, family] = /^(?:(\d+|bold) )?([\d.]+)px (.*)$/.exec(font) ?? [null, "", "12", font];
  return {
    "font-size": round2(Number(size)),
    "font-family": genericFamily(family),
    ...(weight && { "font-weight": weight }),
  };
}

/** @param {number} x @param {number} y @param {number} width @param {number} height */
function rectangle(x, y, width, height) {
  return { x: round2(x), y: round2(y), width: round2(width), height: round2(height) };
}

/** A canvas as a data: URL; where it is drawn larger, with whole pixels for each of its own. @param {HTMLCanvasElement} canvas @param {number} width  CSS pixels. */
export function toDataUrl(canvas, width) {
  const limit = Math.floor(MAX_IMAGE_SIZE / Math.max(canvas.width, canvas.height));
  const factor = Math.max(Math.min(Math.round((PIXELS * width) / canvas.width), limit), 1);
  if (factor === 1) return canvas.toDataURL("image/png");
  const large = document.createElement("canvas");
  [large.width, large.height] = [canvas.width * factor, canvas.height * factor];
  const context = /** @type {CanvasRenderingContext2D} */ (large.getContext("2d"));
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large.toDataURL("image/png");
}
