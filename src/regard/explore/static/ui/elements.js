// Makes elements. Text goes in as text nodes only, so that no token is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Record<string, string | number>} Attributes */

/**
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name @param {Attributes} attributes @param {...(Node | string)} children @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/**
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name @param {Attributes} attributes @param {...(Node | string)} children @returns {SVGElementTagNameMap[Name]}
 */
export function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** @template {Element} Made @param {Made} node @param {Attributes} attributes @param {(Node | string)[]} children */
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** A button with a text and, if the text does not say it all, a name. @param {string} text @param {string} name @param {(event: MouseEvent) => void} act */
export function button(text, name, act) {
  const node = element("button", { type: "button", "aria-label": name, title: name }, text);
  node.addEventListener("click", act);
  return node;
}

/** A list of options with a label. @param {string} id @param {string} label @param {[value: string, text: string][]} options @param {(value: string) => void} choose */
export function dropdown(id, label, options, choose) {
  const select = element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", () => choose(select.value));
  return { select, node: element("label", { class: "field", for: id }, label, select) };
}

/** A bar as long as a weight. @param {number} weight @param {"out" | "in"} direction @param {string} color  Class of another color. */
export function bar(weight, direction, color = "") {
  const node = element("span", { class: `bar ${direction} ${color}`.trim(), "aria-hidden": "true" });
  node.style.setProperty("--weight", String(Math.min(weight, 1)));
  return node;
}

/** A sentence in grey. @param {string} text */
export function hint(text) {
  return element("p", { class: "hint" }, text);
}
