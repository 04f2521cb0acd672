// Making elements. Text goes in as text nodes only, so that no token is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Record<string, string | number>} Attributes */

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Attributes} attributes @param {...(Node | string)} children @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name @param {Attributes} attributes @param {...(Node | string)} children @returns {SVGElementTagNameMap[Name]}
 */
export function svgElement(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** @template {Element} Made @param {Made} node @param {Attributes} attributes @param {(Node | string)[]} children */
function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Of several elements that arrow keys move through, let Tab reach the one that is current. @param {(HTMLElement | SVGElement)[]} elements @param {number} current */
export function rove(elements, current) {
  for (const [index, node] of elements.entries()) node.tabIndex = index === current ? 0 : -1;
}
