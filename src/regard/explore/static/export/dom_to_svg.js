// What is seen of an element, as one SVG that stands alone: texts as text at their places, backgrounds and lines as shapes,
// SVG as it is, canvases drawn again or as images. It knows no view: it reads what the browser laid out.

import { generic, imageOf, readable, redrawn, SvgContext, short } from "#export/canvas_to_svg.js";
import { svgElement } from "#ui/elements.js";

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box  In CSS pixels of the window. */

const XML = "http://www.w3.org/XML/1998/namespace";
const EVERYWHERE = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };
const MARGIN = 12; // CSS pixels around what is seen
const LEFT_OUT =
  ".controls, .timeline, .tools, .tip, .unseen, select, input, textarea, details, script, style, [hidden]";
/** What of an SVG's style is written into it. */
const DRAWN = [
  "fill",
  "fill-opacity",
  "fill-rule",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "stop-color",
  "stop-opacity",
  "marker-end",
  "marker-start",
  "paint-order",
  "visibility",
];
const PLAIN = {
  "fill-opacity": "1",
  "fill-rule": "nonzero",
  "stroke-opacity": "1",
  "stroke-dasharray": "none",
  "stroke-linecap": "butt",
  "stroke-linejoin": "miter",
  opacity: "1",
  "font-weight": "400",
  "font-style": "normal",
  "text-anchor": "start",
  "dominant-baseline": "auto",
  "stop-opacity": "1",
  "marker-end": "none",
  "marker-start": "none",
  "paint-order": "normal",
  visibility: "visible",
};

/**
 * What is seen of an element. Controls are left out.
 * @param {HTMLElement} place @param {string} title @returns {SVGElement} With its width and its height.
 */
export function svgOf(place, title) {
  const drawing = new Drawing();
  drawing.element(place, EVERYWHERE, drawing.node);
  const { left, top, right, bottom } = drawing.bounds ?? place.getBoundingClientRect();
  // Not rounded: so a canvas whose corner begins the picture lies on whole pixels of it.
  const [x, y] = [left, top].map((side) => short(side - MARGIN));
  const [width, height] = [right - left, bottom - top].map((side) => Math.ceil(side) + 2 * MARGIN);
  const ground = svgElement("rect", {
    x,
    y,
    width,
    height,
    fill: colour(getComputedStyle(document.body).backgroundColor).fill,
  });
  return svgElement(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `${x} ${y} ${width} ${height}`, role: "img" },
    svgElement("title", {}, readable(title)),
    ground,
    drawing.node,
  );
}

class Drawing {
  constructor() {
    this.node = svgElement("g");
    /** @type {Box | null} */
    this.bounds = null; // of what is drawn
    this.clips = 0;
  }

  /** Draw an element and what it holds, as far as it is within a box. @param {Element} node @param {Box} seen @param {SVGElement} into */
  element(node, seen, into) {
    if (node.matches(LEFT_OUT)) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return;
    const group = style.opacity === "1" ? into : svgElement("g", { opacity: style.opacity });
    if (group !== into) into.append(group);
    const box = node.getBoundingClientRect();
    if (node instanceof HTMLCanvasElement) this.canvas(node, box, seen, group);
    else if (node instanceof SVGSVGElement) this.svg(node, box, seen, group);
    else if (node instanceof HTMLImageElement) this.image(node.src, box, seen, group);
    else {
      for (const part of node.getClientRects()) if (meet(part, seen)) this.ground(style, plain(part), group, seen);
      const [clipped, holder] = /^(visible|)$/.test(style.overflowX)
        ? [seen, group]
        : this.within(cut(box, seen), group);
      for (const child of ordered(node)) {
        if (child instanceof Element && !(holder !== group && isCutRow(child, clipped)))
          this.element(child, clipped, holder);
        else if (child instanceof Text) this.text(child, style, clipped, holder);
      }
      if (holder !== group && !holder.hasChildNodes()) holder.remove();
      if (style.position !== "static")
        for (const which of ["::before", "::after"]) this.generated(node, which, box, seen, group);
    }
  }

  /** A group in which nothing is drawn beyond a box. @returns {[Box, SVGElement]} */
  within(box, into) {
    const id = `seen-${++this.clips}`;
    const group = svgElement("g", { "clip-path": `url(#${id})` });
    into.append(svgElement("clipPath", { id }, svgElement("rect", rectOf(box))), group);
    return [box, group];
  }

  /** Background, shadows of one colour, borders and outline. */
  ground(style, box, into, seen) {
    const radius = Math.min(
      parseFloat(style.borderTopLeftRadius) || 0,
      (box.right - box.left) / 2,
      (box.bottom - box.top) / 2,
    );
    const shape = (part, attributes, round = radius) => {
      this.grow(part, seen);
      into.append(svgElement("rect", { ...rectOf(part), ...(round > 0 && { rx: short(round) }), ...attributes }));
    };
    for (const { stops, size } of [{ stops: [style.backgroundColor], size: "auto" }, ...gradients(style)]) {
      if (stops.every((stop) => stop === stops[0])) {
        if (colour(stops[0])["fill-opacity"] !== 0) shape(sized(box, size), colour(stops[0]));
      } else {
        // From one colour to another at once: each its own part, from top to bottom.
        const parts = (box.bottom - box.top) / stops.length;
        for (const [index, stop] of stops.entries())
          shape({ ...box, top: box.top + index * parts, bottom: box.top + (index + 1) * parts }, colour(stop), 0);
      }
    }
    for (const shadow of shadows(style)) {
      if (shadow.inset && shadow.y < 0)
        shape({ ...box, top: Math.max(box.bottom + shadow.y, box.top) }, colour(shadow.colour), 0);
      else if (!shadow.inset && shadow.spread > 0 && !shadow.x && !shadow.y)
        shape(larger(box, shadow.spread / 2), line(shadow.colour, shadow.spread));
    }
    const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
      width: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
      colour: style[`border${side}Color`],
    }));
    if (sides.every(({ width, colour }) => width > 0 && width === sides[0].width && colour === sides[0].colour)) {
      if (colour(sides[0].colour)["fill-opacity"] !== 0)
        shape(larger(box, -sides[0].width / 2), line(sides[0].colour, sides[0].width));
    } else {
      const [top, right, bottom, left] = sides;
      if (top.width) shape({ ...box, bottom: box.top + top.width }, colour(top.colour), 0);
      if (bottom.width) shape({ ...box, top: box.bottom - bottom.width }, colour(bottom.colour), 0);
      if (left.width) shape({ ...box, right: box.left + left.width }, colour(left.colour), 0);
      if (right.width) shape({ ...box, left: box.right - right.width }, colour(right.colour), 0);
    }
    const outline = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
    if (outline > 0)
      shape(larger(box, parseFloat(style.outlineOffset) + outline / 2), line(style.outlineColor, outline));
  }

  /** What the style sheet puts at a place of an element, beside what it holds. */
  generated(node, which, { left, top }, seen, into) {
    const style = getComputedStyle(node, which);
    if (style.position !== "absolute" || !/^("|attr\()/.test(style.content)) return;
    const { e, f } = new DOMMatrix(style.transform);
    const [x, y] = [left + parseFloat(style.left) + e, top + parseFloat(style.top) + f];
    const box = { left: x, top: y, right: x + parseFloat(style.width), bottom: y + parseFloat(style.height) };
    if (meet(box, seen)) this.ground(style, box, into, seen);
    const inner = {
      ...box,
      left: x + parseFloat(style.paddingLeft),
      right: box.right - parseFloat(style.paddingRight),
    };
    const [, attribute] = /^attr\((.*)\)$/.exec(style.content) ?? []; // as Firefox tells it
    const text = attribute ? node.getAttribute(attribute) : style.content.slice(1, -1);
    if (text) this.lines([{ text, box: inner }], style, seen, into);
  }

  /** A text, a line of it at a time. */
  text(node, style, seen, into) {
    this.lines(linesOf(node), style, seen, into);
  }

  lines(found, style, seen, into) {
    for (const { text, box } of found) {
      if (!meet(box, seen)) continue;
      this.grow(box, seen);
      const size = parseFloat(style.fontSize);
      /** @type {Record<string, string | number>} */
      const halo =
        style.textShadow === "none"
          ? {}
          : {
              stroke: colour(getComputedStyle(document.body).backgroundColor).fill,
              "stroke-width": 3,
              "stroke-linejoin": "round",
              "paint-order": "stroke",
            };
      const made = svgElement(
        "text",
        {
          x: short(box.left),
          y: short(box.top + ascent(style, box.bottom - box.top)),
          textLength: short(box.right - box.left),
          lengthAdjust: "spacingAndGlyphs",
          "font-size": short(size),
          "font-family": generic(style.fontFamily),
          ...(style.fontWeight !== "400" && { "font-weight": style.fontWeight }),
          ...(style.fontStyle !== "normal" && { "font-style": style.fontStyle }),
          ...colour(style.color),
          ...halo,
        },
        readable(cased(text, style)),
      );
      if (text !== text.trim()) made.setAttributeNS(XML, "xml:space", "preserve");
      into.append(made);
    }
  }

  canvas(node, box, seen, into) {
    if (!meet(box, seen) || !node.width || !node.height) return;
    this.grow(box, seen);
    const again = redrawn.get(node);
    if (!again) return this.image(imageOf(node, box.right - box.left), box, seen, into);
    const context = new SvgContext();
    again(context);
    context.node.setAttribute("transform", `translate(${short(box.left)} ${short(box.top)})`);
    into.append(context.node);
  }

  image(href, box, seen, into) {
    if (!meet(box, seen) || !href.startsWith("data:")) return;
    this.grow(box, seen);
    into.append(svgElement("image", { ...rectOf(box), href, preserveAspectRatio: "none" }));
  }

  /** An SVG, with the style that it has here. */
  svg(node, box, seen, into) {
    if (!meet(box, seen)) return;
    const copy = styled(node);
    for (const [name, value] of Object.entries(rectOf(box))) copy.setAttribute(name, value);
    copy.setAttribute("overflow", getComputedStyle(node).overflowX === "visible" ? "visible" : "hidden");
    into.append(copy);
    for (const shape of node.querySelectorAll("path, line, rect, circle, ellipse, polyline, polygon, text, image")) {
      const part = shape.getBoundingClientRect();
      if (getComputedStyle(shape).overflow !== "hidden" && (part.width || part.height)) this.grow(part, seen);
    }
  }

  grow(box, seen) {
    const { left, top, right, bottom } = cut(box, seen);
    if (right < left || bottom < top) return;
    const old = this.bounds ?? { left, top, right, bottom };
    this.bounds = {
      left: Math.min(old.left, left),
      top: Math.min(old.top, top),
      right: Math.max(old.right, right),
      bottom: Math.max(old.bottom, bottom),
    };
  }
}

/** What an element holds, what lies behind the rest first. */
function ordered(node) {
  const behind = (child) => child instanceof Element && Number(getComputedStyle(child).zIndex) < 0;
  const children = [...node.childNodes];
  return [...children.filter(behind), ...children.filter((child) => !behind(child))];
}

/** A copy of an SVG's elements, each with what the style sheet says of it. */
function styled(node) {
  const copy = /** @type {SVGElement} */ (node.cloneNode(false));
  const style = getComputedStyle(node);
  for (const { name } of [...copy.attributes])
    if (/^(class|style|tabindex|role|aria-.*|data-.*|on.*)$/.test(name)) copy.removeAttribute(name);
  for (const name of DRAWN) {
    const value = style.getPropertyValue(name);
    if (value === "" || value === PLAIN[name]) continue;
    if (name === "fill" || name === "stroke" || name === "stop-color") paint(copy, name, value);
    else copy.setAttribute(name, value.replaceAll(/url\("?[^"#]*(#[^")]+)"?\)/g, "url($1)"));
  }
  if (node instanceof SVGTextContentElement) copy.setAttribute("font-family", generic(style.fontFamily));
  for (const child of node.childNodes) {
    if (child instanceof Text) copy.append(readable(child.data));
    else if (child instanceof SVGElement && !child.matches("[hidden]") && getComputedStyle(child).display !== "none")
      copy.append(styled(child));
    else if (child instanceof SVGElement && child.matches("defs, defs *, clipPath, linearGradient, marker, title"))
      copy.append(styled(child));
  }
  return copy;
}

function paint(node, name, value) {
  const url = /url\("?[^"#]*(#[^")]+)"?\)/.exec(value);
  if (url || value === "none") return node.setAttribute(name, url ? `url(${url[1]})` : "none");
  const { fill, "fill-opacity": opacity = 1 } = colour(value);
  node.setAttribute(name, fill);
  const share = name === "stop-color" ? "stop-opacity" : `${name}-opacity`;
  if (opacity < 1)
    node.setAttribute(share, short(opacity * Number(getComputedStyle(node).getPropertyValue(share) || 1)));
}

const probe = /** @type {CanvasRenderingContext2D} */ (
  Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  })
);
const colours = new Map();
const ALPHA = /(?:\s*\/\s*([\d.e-]+)|(?<=^rgba\([^,]*,[^,]*,[^,]*),\s*([\d.e-]+))\)$/; // the end of a colour, as a style tells it

/** A colour of whatever notation, as red, green and blue and how much it covers. @returns {{fill: string, "fill-opacity"?: number}} */
function colour(value) {
  if (!colours.has(value)) {
    if (colours.size > 4096) colours.clear();
    const alpha = Number(ALPHA.exec(value)?.slice(1).find(Boolean) ?? 1);
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = "#000";
    probe.fillStyle = value.replace(/^rgba/, "rgb").replace(ALPHA, ")"); // a canvas keeps the tone of faint colours roughly only
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
    const fill = `#${[red, green, blue].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
    colours.set(value, alpha === 1 ? { fill } : { fill, "fill-opacity": Math.round(1000 * alpha) / 1000 });
  }
  return colours.get(value);
}

function line(value, width) {
  const { fill, "fill-opacity": opacity = 1 } = colour(value);
  return {
    fill: "none",
    stroke: fill,
    "stroke-width": short(width),
    ...(opacity < 1 && { "stroke-opacity": opacity }),
  };
}

/** The gradients behind an element, the last one first, for it lies behind the others. @returns {{stops: string[], size: string}[]} */
function gradients({ backgroundImage, backgroundSize }) {
  const sizes = split(backgroundSize);
  const stopsOf = (layer) =>
    split(layer.slice("linear-gradient(".length, -1))
      .filter((stop) => !/^(to |[-\d.]+deg)/.test(stop))
      .map((stop) => stop.replace(/(\s+[\d.]+(%|px))+$/, ""));
  return split(backgroundImage)
    .flatMap((layer, index) =>
      layer.startsWith("linear-gradient(") ? [{ stops: stopsOf(layer), size: sizes[index % sizes.length] }] : [],
    )
    .reverse();
}

/** The part of a box, from its upper left corner on, that a background of some size takes. */
function sized(box, size) {
  const [width = "auto", height = "auto"] = size.split(" ");
  const part = (length, all) =>
    length.endsWith("%") ? (parseFloat(length) / 100) * all : length.endsWith("px") ? parseFloat(length) : all;
  return {
    ...box,
    right: box.left + part(width, box.right - box.left),
    bottom: box.top + part(height, box.bottom - box.top),
  };
}

/** Whether an element is a row of a list that scrolls, of which only a part is in sight. @param {Element} node @param {Box} seen */
function isCutRow(node, seen) {
  if (!node.parentElement?.matches("[role=listbox]")) return false;
  const { top, bottom } = node.getBoundingClientRect();
  return top < seen.top - 1 || bottom > seen.bottom + 1;
}

function shadows({ boxShadow }) {
  return boxShadow === "none"
    ? []
    : split(boxShadow).map((shadow) => {
        const [x, y, , spread] = (/(-?[\d.]+px ?){2,4}/.exec(shadow)?.[0] ?? "").split(" ").map(parseFloat);
        return {
          x,
          y,
          spread: spread || 0,
          inset: /\binset\b/.test(shadow),
          colour: shadow.replace(/(-?[\d.]+px ?){2,4}|\binset\b/g, "").trim(),
        };
      });
}

/** The parts of a list, at the commas that stand in no brackets. */
function split(list) {
  const parts = [];
  let [depth, from] = [0, 0];
  for (let place = 0; place <= list.length; place++) {
    if (list[place] === "(") depth++;
    else if (list[place] === ")") depth--;
    else if (place === list.length || (list[place] === "," && depth === 0)) {
      parts.push(list.slice(from, place).trim());
      from = place + 1;
    }
  }
  return parts;
}

/** The lines into which a text was broken, and where they stand. @param {Text} node @returns {{text: string, box: Box}[]} */
function linesOf(node) {
  if (node.data.trim() === "") return [];
  const range = document.createRange();
  range.selectNodeContents(node);
  const boxes = [...range.getClientRects()].filter(({ width }) => width > 0);
  if (boxes.length === 1 && node.data === node.data.trim()) return [{ text: spaced(node.data), box: boxes[0] }];
  const found = [];
  for (let from = 0; from < node.data.length; ) {
    const to = from + ((node.data.codePointAt(from) ?? 0) > 0xffff ? 2 : 1);
    range.setStart(node, from);
    range.setEnd(node, to);
    const box = range.getBoundingClientRect();
    const last = found.at(-1);
    const character = node.data.slice(from, to);
    if (last && Math.abs(box.top - last.box.top) < 2) {
      if (box.width > 0 || character.trim()) last.text += character; // and no space that is not laid out
      last.box = {
        left: Math.min(last.box.left, box.left),
        top: last.box.top,
        right: Math.max(last.box.right, box.right),
        bottom: last.box.bottom,
      };
    } else if (box.width > 0)
      found.push({ text: character, box: { left: box.left, top: box.top, right: box.right, bottom: box.bottom } });
    from = to;
  }
  return found.map(({ text, box }) => ({ text: spaced(text), box }));
}

/** A text as it is laid out: a run of spaces is one. */
function spaced(text) {
  return text.replace(/\s+/g, " ");
}

function cased(text, { textTransform }) {
  return textTransform === "uppercase" ? text.toUpperCase() : textTransform === "lowercase" ? text.toLowerCase() : text;
}

/** How far the baseline of a line lies below its top. */
function ascent(style, height) {
  probe.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: above, fontBoundingBoxDescent: below } = probe.measureText("x");
  return (height * above) / (above + below);
}

/** A box that can be spread: the browser's own cannot. @returns {Box} */
function plain({ left, top, right, bottom }) {
  return { left, top, right, bottom };
}

function rectOf({ left, top, right, bottom }) {
  return {
    x: short(left),
    y: short(top),
    width: short(Math.max(right - left, 0)),
    height: short(Math.max(bottom - top, 0)),
  };
}

function larger({ left, top, right, bottom }, by) {
  return { left: left - by, top: top - by, right: right + by, bottom: bottom + by };
}

function cut(one, other) {
  return {
    left: Math.max(one.left, other.left),
    top: Math.max(one.top, other.top),
    right: Math.min(one.right, other.right),
    bottom: Math.min(one.bottom, other.bottom),
  };
}

function meet(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}
