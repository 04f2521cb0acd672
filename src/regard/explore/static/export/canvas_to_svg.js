// What is drawn on a canvas, drawn as SVG: the part of a canvas's context that the views use.

import { svgElement } from "#ui/elements.js";

/** How canvases are drawn again, on another context. @type {WeakMap<HTMLCanvasElement, (context: any) => void>} */
export const redrawn = new WeakMap();

const SHARP = 2; // pixels of an image for each CSS pixel, so that no viewer blurs its cells
const MOST_PIXELS = 4096; // of a side of an image that was made larger

const measuring = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
let clips = 0; // that were made; each has a name of its own

/** A context whose drawing is a group of SVG elements, `node`. */
export class SvgContext {
  constructor() {
    this.node = svgElement("g");
    this.into = this.node;
    this.path = "";
    /** @type {{own: object, now: {transform: string}, into: SVGElement}[]} */
    this.saved = [];
    this.now = { transform: "" };
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
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, imageSmoothingEnabled } =
      this;
    this.saved.push({
      own: { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, imageSmoothingEnabled },
      now: this.now,
      into: this.into,
    });
  }

  restore() {
    const last = this.saved.pop();
    if (last) Object.assign(this, last.own, { now: last.now, into: last.into });
  }

  translate(x, y) {
    this.now = { ...this.now, transform: `${this.now.transform} translate(${short(x)} ${short(y)})` };
  }

  rotate(angle) {
    if (angle) this.now = { ...this.now, transform: `${this.now.transform} rotate(${short((angle * 180) / Math.PI)})` };
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x, y) {
    this.path += `L${short(x)} ${short(y)}`;
  }

  rect(x, y, width, height) {
    this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}z`;
  }

  /** From here to the next restore, draw within the path only. */
  clip() {
    const id = `clip-${++clips}`;
    const group = svgElement("g", { "clip-path": `url(#${id})` });
    this.into.append(svgElement("clipPath", { id }, svgElement("path", { d: this.path || "M0 0" })), group);
    this.into = group;
  }

  stroke() {
    if (this.path) this.add("path", { d: this.path, fill: "none", ...this.pen() });
  }

  fillRect(x, y, width, height) {
    this.add("rect", { ...box(x, y, width, height), fill: this.fillStyle.trim() });
  }

  strokeRect(x, y, width, height) {
    this.add("rect", { ...box(x, y, width, height), fill: "none", ...this.pen() });
  }

  /** What lies below an area is covered by the page. */
  clearRect(x, y, width, height) {
    this.add("rect", { ...box(x, y, width, height), fill: getComputedStyle(document.body).backgroundColor });
  }

  drawImage(image, x, y, width, height) {
    this.add("image", {
      ...box(x, y, width, height),
      href: imageOf(image, width),
      preserveAspectRatio: "none",
      ...(this.imageSmoothingEnabled ? {} : { "image-rendering": "pixelated" }),
    });
  }

  /** A text that is longer than `most` is pressed together. */
  fillText(text, x, y, most = Infinity) {
    measuring.font = this.font;
    const wide = measuring.measureText(text).width;
    const anchor = { left: "start", right: "end", center: "middle" }[this.textAlign] ?? "start";
    const pressed = wide > most ? { textLength: short(most), lengthAdjust: "spacingAndGlyphs" } : {};
    const made = {
      x: short(x),
      y: short(y),
      fill: this.fillStyle.trim(),
      "text-anchor": anchor,
      ...fontOf(this.font),
      ...pressed,
    };
    this.add("text", this.textBaseline === "middle" ? { ...made, dy: "0.35em" } : made, readable(text));
  }

  pen() {
    return { stroke: this.strokeStyle.trim(), "stroke-width": this.lineWidth };
  }

  add(name, attributes, ...children) {
    const own = {
      ...(this.globalAlpha < 1 && { opacity: this.globalAlpha }),
      ...(this.now.transform && { transform: this.now.transform.trim() }),
    };
    this.into.append(svgElement(name, { ...attributes, ...own }, ...children));
  }
}

/** A number as short as a picture needs it. */
export function short(value) {
  return String(Math.round(value * 100) / 100);
}

/** A text without the characters that XML does not know. */
export function readable(text) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/\p{Cs}/gu, "\ufffd");
}

/** The font of a CSS shorthand as attributes; its family by its generic name, for the file is read elsewhere. */
function fontOf(font) {
  const [, weight, size, family] = /^(?:(\d+|bold) )?([\d.]+)px (.*)$/.exec(font) ?? [null, "", "12", font];
  return { "font-size": short(size), "font-family": generic(family), ...(weight && { "font-weight": weight }) };
}

/** The generic name that a list of font families ends with. */
export function generic(families) {
  return /(?:^|[\s,])(serif|monospace)\s*$/.exec(families)?.[1] ?? "sans-serif";
}

function box(x, y, width, height) {
  return { x: short(x), y: short(y), width: short(width), height: short(height) };
}

/** A canvas as a data: address, with whole pixels for each of its own where it is drawn larger. @param {HTMLCanvasElement} canvas @param {number} width */
export function imageOf(canvas, width = canvas.width) {
  const room = Math.floor(MOST_PIXELS / Math.max(canvas.width, canvas.height));
  const times = Math.max(Math.min(Math.round((SHARP * width) / canvas.width), room), 1);
  if (times === 1) return canvas.toDataURL("image/png");
  const large = document.createElement("canvas");
  [large.width, large.height] = [canvas.width * times, canvas.height * times];
  const context = /** @type {CanvasRenderingContext2D} */ (large.getContext("2d"));
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large.toDataURL("image/png");
}
