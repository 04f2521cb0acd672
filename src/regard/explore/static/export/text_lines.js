// Texts as an SVG needs them: in lines where the browser broke them, in fonts and characters that every viewer has.

import { plainBox, union } from "#export/boxes.js";

/** @typedef {{text: string, box: import("#export/boxes.js").Box}} Line */

const SAME_LINE = 2; // CSS pixels between the tops of characters of a line

/** The lines of a text node. @param {Text} node @returns {Line[]} */
export function linesOf(node) {
  if (node.data.trim() === "") return [];
  const range = document.createRange();
  range.selectNodeContents(node);
  const boxes = [...range.getClientRects()].filter(({ width }) => width > 0);
  if (boxes.length === 1 && node.data === node.data.trim()) return [{ text: collapseSpaces(node.data), box: boxes[0] }];
  return brokenLines(node, range);
}

/** Lines, found by the place of every character. @param {Text} node @param {Range} range @returns {Line[]} */
function brokenLines(node, range) {
  /** @type {Line[]} */
  const lines = [];
  let start = 0;
  for (const character of node.data) {
    range.setStart(node, start);
    range.setEnd(node, start + character.length);
    start += character.length;
    const box = range.getBoundingClientRect();
    const line = lines.at(-1);
    if (line && Math.abs(box.top - line.box.top) < SAME_LINE) {
      if (box.width > 0 || character.trim()) line.text += character; // a space at the end of a line has no width
      line.box = { ...union(line.box, box), top: line.box.top };
    } else if (box.width > 0) lines.push({ text: character, box: plainBox(box) });
  }
  return lines.map(({ text, box }) => ({ text: collapseSpaces(text), box }));
}

/** As a browser lays it out: a run of spaces is one. @param {string} text */
function collapseSpaces(text) {
  return text.replace(/\s+/g, " ");
}

/** @param {string} text @param {CSSStyleDeclaration} style */
export function transformCase(text, { textTransform }) {
  return textTransform === "uppercase" ? text.toUpperCase() : textTransform === "lowercase" ? text.toLowerCase() : text;
}

/** A text without what is not allowed in XML. @param {string} text */
export function stripInvalidXml(text) {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/\p{Cs}/gu, "\ufffd");
}

/** The generic family at the end of a list of fonts, for the file is read where these may be missing. @param {string} families */
export function genericFamily(families) {
  return /(?:^|[\s,])(serif|monospace)\s*$/.exec(families)?.[1] ?? "sans-serif";
}

const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));

/** @param {string} text @param {string} font */
export function textWidth(text, font) {
  context.font = font;
  return context.measureText(text).width;
}

/** How far the baseline of a line is below its top. @param {CSSStyleDeclaration} style @param {number} height */
export function baselineOf({ fontStyle, fontWeight, fontSize, fontFamily }, height) {
  context.font = `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = context.measureText("x");
  return (height * ascent) / (ascent + descent);
}
