// Making elements. Text goes in as text nodes only, so that no token is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** @param {Record<string, string | number>} attributes @param {...(Node | string)} children @returns {HTMLElement} */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** @param {Record<string, string | number>} attributes @returns {SVGElement} */
export function svgElement(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Of several elements that arrow keys move through, let Tab reach the one that is current. */
export function rove(elements, current) {
  elements.forEach((node, index) => (node.tabIndex = index === current ? 0 : -1));
}
