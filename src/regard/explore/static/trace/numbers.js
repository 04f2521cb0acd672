// The numbers of a trace's page: what a step is at a head and a query, and how it is written.
// trace_numbers.py packs them, and trace_view.py computes the same for the page as it is written.

/** @typedef {{axes: string[], shape: number[], numbers: ArrayLike<number>, unit: number}} Step */
/** @typedef {{[axis: string]: number}} Index the entry of each axis */

const LARGE = 99999; // numbers from here on are powers of ten

export const page = JSON.parse(document.getElementById("trace")?.textContent ?? "");
export const state = { step: 0, head: page.head, query: page.query, /** @type {Set<number>} */ opened: new Set() };
/** @type {Map<string, Step>} */
const steps = new Map(Object.entries(page.steps).map(([name, packed]) => [name, unpack(packed)]));
/** @param {{axes: string[], shape: number[], type: string, data: string}} packed @returns {Step} */
function unpack({ axes, shape, type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const isWeight = type === "int16"; // in ten-thousandths
  return {
    axes,
    shape,
    numbers: isWeight ? new Int16Array(bytes.buffer) : new Float32Array(bytes.buffer),
    unit: isWeight ? 1e-4 : 1,
  };
}

/** The entry of each axis; of the axis "key" the one with the largest weight. @returns {Index} */
export function currentIndex() {
  const index = { head: state.head, query: state.query, token: state.query, dim: 0, feature: 0 };
  const weights = values("weights", index, "key");
  return { ...index, key: weights.indexOf(Math.max(...weights)) };
}

/** All entries of an axis, or one number, of a step, a product of steps or a sum of products. @param {string} source @param {Index} index @param {string} [axis] @returns {number[]} */
export function values(source, index, axis = "") {
  const terms = source.split("+").map((term) => term.split("*").map((name) => lookUp(name, index, axis)));
  const products = terms.map((factors) => factors.reduce((one, other) => combine(one, other, (a, b) => a * b)));
  return products.reduce((one, other) => combine(one, other, (a, b) => a + b));
}

/** Two arrays element by element; one number is combined with all. @param {number[]} one @param {number[]} other @param {(a: number, b: number) => number} operation */
function combine(one, other, operation) {
  const length = Math.max(one.length, other.length);
  return Array.from({ length }, (_, i) => operation(one[one.length === 1 ? 0 : i], other[other.length === 1 ? 0 : i]));
}

/** @param {string} name @param {Index} index @param {string} axis @returns {number[]} */
function lookUp(name, index, axis) {
  const step = /** @type {Step} */ (steps.get(name));
  let start = 0;
  let stride = 1;
  let [count, between] = [1, 0];
  for (let i = step.axes.length - 1; i >= 0; i--) {
    const [own, size] = [step.axes[i], step.shape[i]];
    if (own === axis) [count, between] = [size, stride];
    else start += stride * entry(own, index[own], size);
    stride *= size;
  }
  return Array.from({ length: count }, (_, i) => step.numbers[start + i * between] * step.unit);
}

/** The entry of an axis that several heads may share, or of which there is only the chosen one. @param {string} axis @param {number} at @param {number} size */
function entry(axis, at, size) {
  if (axis === "head") return Math.floor((at * size) / page.heads);
  return size === 1 ? 0 : at;
}

/** Number of entries of an axis. @param {string} source @param {string} axis */
export function sizeOf(source, axis) {
  const step = source
    .split(/[+*]/)
    .map((name) => steps.get(name))
    .find((each) => each?.axes.includes(axis));
  return step === undefined ? 0 : step.shape[step.axes.indexOf(axis)];
}

/** @param {number} number */
export function format(number) {
  const size = Math.abs(number);
  if (!Number.isFinite(number)) return number < 0 ? "−∞" : "–";
  if (size >= LARGE) return number.toExponential(1).replace("e+", "e").replaceAll("-", "−");
  const text = size.toFixed(size < 10 ? 4 : size < 100 ? 3 : size < 1000 ? 2 : 1);
  return number < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** What is filled in for a name in braces. @param {string} name */
export function filled(name) {
  const index = currentIndex();
  if (name.startsWith("#")) {
    const [source, entries] = name.replace(/^#\(?/, "").split("|");
    for (const pair of entries ? entries.split(",") : []) index[pair.split("=")[0]] = Number(pair.split("=")[1]);
    const text = format(values(source, index)[0]);
    return name.startsWith("#(") && text.startsWith("−") ? `(${text})` : text;
  }
  if (name === "head" || name === "position") return String(name === "head" ? state.head : state.query);
  return page.labels[name in page.labels ? name : "query"][index[name]];
}
