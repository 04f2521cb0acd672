// Copies an SVG element with the styles that the page gives it, so that it looks the same in a file of its own.

import { round2 } from "#export/boxes.js";
import { fillOf } from "#export/css_values.js";
import { genericFamily, stripInvalidXml } from "#export/text_lines.js";

const PAINTS = ["fill", "stroke", "stop-color"];
/** What an SVG has without a style. */
const SVG_DEFAULTS = {
  "fill-opacity": "1",
  "fill-rule": "nonzero",
  "stroke-width": "",
  "stroke-opacity": "1",
  "stroke-dasharray": "none",
  "stroke-linecap": "butt",
  "stroke-linejoin": "miter",
  opacity: "1",
  "font-size": "",
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
const PAGE_ATTRIBUTES = /^(class|style|tabindex|role|aria-.*|data-.*|on.*)$/;
const REFERENCE = /url\("?[^"#]*(#[^")]+)"?\)/; // to a part of the page, with or without its address
const INVISIBLE = "defs, defs *, clipPath, linearGradient, marker, title"; // needed though it is not displayed

/** @param {SVGElement} node */
export function copySvg(node) {
  const copy = /** @type {SVGElement} */ (node.cloneNode(false));
  const style = getComputedStyle(node);
  for (const { name } of [...copy.attributes]) if (PAGE_ATTRIBUTES.test(name)) copy.removeAttribute(name);
  for (const [name, initial] of Object.entries(SVG_DEFAULTS)) {
    const value = style.getPropertyValue(name);
    if (value !== "" && value !== initial) copy.setAttribute(name, value.replace(REFERENCE, "url($1)"));
  }
  for (const name of PAINTS) setPaint(copy, name, style); // after the opacities, which it may lower
  if (node instanceof SVGTextContentElement) copy.setAttribute("font-family", genericFamily(style.fontFamily));
  for (const child of node.childNodes) {
    if (child instanceof Text) copy.append(stripInvalidXml(child.data));
    else if (child instanceof SVGElement && (child.matches(INVISIBLE) || isDisplayed(child)))
      copy.append(copySvg(child));
  }
  return copy;
}

/** @param {SVGElement} node */
function isDisplayed(node) {
  return !node.matches("[hidden]") && getComputedStyle(node).display !== "none";
}

/** @param {SVGElement} node @param {string} name @param {CSSStyleDeclaration} style */
function setPaint(node, name, style) {
  const value = style.getPropertyValue(name);
  if (value === "") return;
  const [, id] = REFERENCE.exec(value) ?? [];
  if (id || value === "none") return node.setAttribute(name, id ? `url(${id})` : "none");
  const { fill, "fill-opacity": opacity = 1 } = fillOf(value);
  node.setAttribute(name, fill);
  const opacityName = name === "stop-color" ? "stop-opacity" : `${name}-opacity`;
  if (opacity < 1) node.setAttribute(opacityName, round2(opacity * Number(style.getPropertyValue(opacityName) || 1)));
}
