// What is visible of an element as one SVG file: texts as text, backgrounds and lines as shapes, SVG with its styles, canvases
// drawn again or as images. It knows no view: it reads what the browser laid out.

import { grow, intersection, intersects, plainBox, rectAttributes, round2, union } from "#export/boxes.js";
import { canvasPainters, SvgContext, toDataUrl } from "#export/canvas_to_svg.js";
import {
  backgroundsOf,
  bordersOf,
  coveredPart,
  fillOf,
  isTransparent,
  shadowsOf,
  strokeOf,
} from "#export/css_values.js";
import { copySvg } from "#export/svg_copy.js";
import { baselineOf, genericFamily, linesOf, stripInvalidXml, transformCase } from "#export/text_lines.js";
import { svgElement } from "#ui/elements.js";

/**
 * @import { Box } from '#export/boxes.js'
 * @typedef {{box: Box, parent: SVGElement}} Target  What is drawn goes into `parent`, and is visible within `box`.
 */

const XML = "http://www.w3.org/XML/1998/namespace";
const EVERYWHERE = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };
const MARGIN = 12; // CSS pixels around the drawing
const EXCLUDED =
  ".controls, .player, .tools, .turn, nav, .tip, .visually-hidden, select, input, textarea, details, script, style, [hidden]";
const SHAPES = "path, line, rect, circle, ellipse, polyline, polygon, text, image";

/** What is visible of an element, without controls. @param {HTMLElement} node @param {string} title @returns {SVGElement} */
export function elementToSvg(node, title) {
  const drawing = new Drawing();
  drawing.drawElement(node, { box: EVERYWHERE, parent: drawing.node });
  const { left, top, right, bottom } = drawing.bounds ?? node.getBoundingClientRect();
  // The corner is not rounded to whole pixels, so that a canvas that begins there is drawn on whole pixels.
  const [x, y] = [left, top].map((side) => round2(side - MARGIN));
  const [width, height] = [right - left, bottom - top].map((length) => Math.ceil(length) + 2 * MARGIN);
  return svgElement(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `${x} ${y} ${width} ${height}`, role: "img" },
    svgElement("title", {}, stripInvalidXml(title)),
    svgElement("rect", { x, y, width, height, fill: pageColor() }),
    drawing.node,
  );
}

function pageColor() {
  return fillOf(getComputedStyle(document.body).backgroundColor).fill;
}

class Drawing {
  constructor() {
    this.node = svgElement("g");
    /** @type {Box | null} */
    this.bounds = null; // of what is drawn
    this.numClips = 0;
  }

  /** @param {Element} node @param {Target} target */
  drawElement(node, { box: clip, parent }) {
    if (node.matches(EXCLUDED)) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return;
    const group = style.opacity === "1" ? parent : svgElement("g", { opacity: style.opacity });
    if (group !== parent) parent.append(group);
    const box = node.getBoundingClientRect();
    if (style.contentVisibility === "auto" && !intersects(box, clip)) return;
    const target = { box: clip, parent: group };
    if (node instanceof HTMLCanvasElement) this.drawCanvas(node, box, target);
    else if (node instanceof SVGSVGElement) this.drawSvg(node, box, target);
    else if (node instanceof HTMLImageElement) this.drawImage(node.src, box, target);
    else this.drawHtml(node, style, box, target);
  }

  /** @param {Element} node @param {CSSStyleDeclaration} style @param {Box} box @param {Target} target */
  drawHtml(node, style, box, target) {
    for (const part of node.getClientRects()) {
      if (intersects(part, target.box)) this.drawBackground(style, plainBox(part), target);
    }
    const isClipped = !/^(visible|)$/.test(style.overflowX);
    const inner = isClipped ? this.clip(intersection(box, target.box), target.parent) : target;
    for (const child of paintingOrder(node)) {
      if (child instanceof Text) this.drawLines(linesOf(child), style, inner);
      else if (child instanceof Element && !(isClipped && isCutOption(child, inner.box)))
        this.drawElement(child, inner);
    }
    if (isClipped && !inner.parent.hasChildNodes()) inner.parent.remove();
    if (style.position === "static") return;
    for (const name of ["::before", "::after"]) this.drawPseudoElement(node, name, box, target);
  }

  /** A group that is clipped to a box. @param {Box} box @param {SVGElement} parent @returns {Target} */
  clip(box, parent) {
    const id = `view-${++this.numClips}`;
    const group = svgElement("g", { "clip-path": `url(#${id})` });
    parent.append(svgElement("clipPath", { id }, svgElement("rect", rectAttributes(box))), group);
    return { box, parent: group };
  }

  /** Background, shadows, borders and outline of a box. @param {CSSStyleDeclaration} style @param {Box} box @param {Target} target */
  drawBackground(style, box, target) {
    const [width, height] = [box.right - box.left, box.bottom - box.top];
    const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, width / 2, height / 2);
    /** @type {AddShape} */
    const add = (part, attributes, rounded = true) => {
      this.extendBounds(part, target.box);
      const corners = rounded && radius > 0 && { rx: round2(radius) };
      target.parent.append(svgElement("rect", { ...rectAttributes(part), ...corners, ...attributes }));
    };
    addBackgrounds(style, box, add);
    addShadows(style, box, add);
    addBorders(style, box, add);
    const outline = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    const distance = parseFloat(style.outlineOffset) + outline / 2;
    if (outline > 0) add(grow(box, distance), strokeOf(style.outlineColor, outline));
  }

  /** A `::before` or `::after` with a position of its own. @param {Element} node @param {string} name @param {Box} origin @param {Target} target */
  drawPseudoElement(node, name, { left, top }, target) {
    const style = getComputedStyle(node, name);
    if (style.position !== "absolute" || !/^("|attr\()/.test(style.content)) return;
    const { e, f } = new DOMMatrix(style.transform);
    const [x, y] = [left + parseFloat(style.left) + e, top + parseFloat(style.top) + f];
    const box = { left: x, top: y, right: x + parseFloat(style.width), bottom: y + parseFloat(style.height) };
    if (intersects(box, target.box)) this.drawBackground(style, box, target);
    const [, attribute] = /^attr\((.*)\)$/.exec(style.content) ?? []; // as Firefox reports it
    const text = attribute ? node.getAttribute(attribute) : style.content.slice(1, -1);
    const [paddingLeft, paddingRight] = [parseFloat(style.paddingLeft), parseFloat(style.paddingRight)];
    const inner = { ...box, left: x + paddingLeft, right: box.right - paddingRight };
    if (text) this.drawLines([{ text, box: inner }], style, target);
  }

  /** @param {import("#export/text_lines.js").Line[]} lines @param {CSSStyleDeclaration} style @param {Target} target */
  drawLines(lines, style, target) {
    for (const { text, box } of lines) {
      if (!intersects(box, target.box)) continue;
      this.extendBounds(box, target.box);
      target.parent.append(textNode(text, box, style));
    }
  }

  /** @param {HTMLCanvasElement} node @param {Box} box @param {Target} target */
  drawCanvas(node, box, target) {
    if (!intersects(box, target.box) || !node.width || !node.height) return;
    const paint = canvasPainters.get(node);
    if (!paint) return this.drawImage(toDataUrl(node, box.right - box.left), box, target);
    this.extendBounds(box, target.box);
    const context = new SvgContext();
    paint(context);
    context.node.setAttribute("transform", `translate(${round2(box.left)} ${round2(box.top)})`);
    target.parent.append(context.node);
  }

  /** @param {string} href @param {Box} box @param {Target} target */
  drawImage(href, box, target) {
    if (!intersects(box, target.box) || !href.startsWith("data:")) return;
    this.extendBounds(box, target.box);
    target.parent.append(svgElement("image", { ...rectAttributes(box), href, preserveAspectRatio: "none" }));
  }

  /** @param {SVGSVGElement} node @param {Box} box @param {Target} target */
  drawSvg(node, box, target) {
    if (!intersects(box, target.box)) return;
    const copy = copySvg(node);
    for (const [name, value] of Object.entries(rectAttributes(box))) copy.setAttribute(name, value);
    copy.setAttribute("overflow", getComputedStyle(node).overflowX === "visible" ? "visible" : "hidden");
    target.parent.append(copy);
    for (const shape of node.querySelectorAll(SHAPES)) {
      const part = shape.getBoundingClientRect();
      const isVisible = getComputedStyle(shape).overflow !== "hidden" && (part.width || part.height);
      if (isVisible) this.extendBounds(part, target.box);
    }
  }

  /** @param {Box} box @param {Box} clip */
  extendBounds(box, clip) {
    const part = intersection(box, clip);
    if (part.right < part.left || part.bottom < part.top) return;
    this.bounds = this.bounds ? union(this.bounds, part) : part;
  }
}

/** @typedef {(part: Box, attributes: Record<string, string | number>, rounded?: boolean) => void} AddShape */

/** @param {CSSStyleDeclaration} style @param {Box} box @param {AddShape} add */
function addBackgrounds(style, box, add) {
  for (const { stops, size } of backgroundsOf(style)) {
    if (stops.every((stop) => stop === stops[0])) {
      if (!isTransparent(stops[0])) add(coveredPart(box, size), fillOf(stops[0]));
      continue;
    }
    // A gradient of several colors draws stripes, from top to bottom.
    const height = (box.bottom - box.top) / stops.length;
    for (const [index, stop] of stops.entries()) {
      const top = box.top + index * height;
      add({ ...box, top, bottom: top + height }, fillOf(stop), false);
    }
  }
}

/** Shadows of one color: a line inside at the bottom, or a line around. @param {CSSStyleDeclaration} style @param {Box} box @param {AddShape} add */
function addShadows(style, box, add) {
  for (const { x, y, spread, isInset, color } of shadowsOf(style)) {
    if (isInset && y < 0) add({ ...box, top: Math.max(box.bottom + y, box.top) }, fillOf(color), false);
    else if (!isInset && spread > 0 && !x && !y) add(grow(box, spread / 2), strokeOf(color, spread));
  }
}

/** @param {CSSStyleDeclaration} style @param {Box} box @param {AddShape} add */
function addBorders(style, box, add) {
  const { top, right, bottom, left } = bordersOf(style);
  const { width, color } = top;
  if ([top, right, bottom, left].every((side) => side.width > 0 && side.width === width && side.color === color)) {
    if (!isTransparent(color)) add(grow(box, -width / 2), strokeOf(color, width));
    return;
  }
  if (top.width) add({ ...box, bottom: box.top + top.width }, fillOf(top.color), false);
  if (bottom.width) add({ ...box, top: box.bottom - bottom.width }, fillOf(bottom.color), false);
  if (left.width) add({ ...box, right: box.left + left.width }, fillOf(left.color), false);
  if (right.width) add({ ...box, left: box.right - right.width }, fillOf(right.color), false);
}

/** @param {string} text @param {Box} box @param {CSSStyleDeclaration} style */
function textNode(text, box, style) {
  const halo = { stroke: pageColor(), "stroke-width": 3, "stroke-linejoin": "round", "paint-order": "stroke" };
  const attributes = {
    x: round2(box.left),
    y: round2(box.top + baselineOf(style, box.bottom - box.top)),
    textLength: round2(box.right - box.left),
    lengthAdjust: "spacingAndGlyphs",
    "font-size": round2(parseFloat(style.fontSize)),
    "font-family": genericFamily(style.fontFamily),
    ...(style.fontWeight !== "400" && { "font-weight": style.fontWeight }),
    ...(style.fontStyle !== "normal" && { "font-style": style.fontStyle }),
    ...fillOf(style.color),
    ...(style.textShadow !== "none" && halo),
  };
  const node = svgElement("text", attributes, stripInvalidXml(transformCase(text, style)));
  if (text !== text.trim()) node.setAttributeNS(XML, "xml:space", "preserve");
  return node;
}

/** What an element contains, in drawing order. @param {Element} node */
function paintingOrder(node) {
  const isBehind = (/** @type {Node} */ child) =>
    child instanceof Element && Number(getComputedStyle(child).zIndex) < 0;
  const children = [...node.childNodes];
  return [...children.filter(isBehind), ...children.filter((child) => !isBehind(child))];
}

/** Whether an element is an option of a list that scrolls, and not visible as a whole. @param {Element} node @param {Box} clip */
function isCutOption(node, clip) {
  if (!node.matches("[role=listbox] [role=option]")) return false;
  const { top, bottom } = node.getBoundingClientRect();
  return top < clip.top - 1 || bottom > clip.bottom + 1;
}
