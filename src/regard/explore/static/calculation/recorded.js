// The calculation of one query in one head of a recording, as far as the page has its numbers.

import { Trace } from "#calculation/trace.js";
import { weightedValues } from "#data/attention_steps.js";
import { formatNumber, formatWeight } from "#ui/format.js";

/**
 * @import { StepHeader, Tensor } from '#calculation/trace.js'
 * @import { Measured, Row, Steps } from '#data/attention_steps.js'
 * @import { Layer } from '#data/layer.js'
 * @typedef {{layer: Layer, layers: string[], isServed: boolean, query: number, queryName: string, nameOf: (key: number) => string}} About
 */

/** What steps do and why, by name. @type {Record<string, string>} */
export const SENTENCES = JSON.parse(document.getElementById("sentences")?.textContent ?? "{}");
const MAX_KEYS = 2048; // that are drawn
const LONG_TEXT = 1024; // keys
const SCORES = ["query", "key"];
const VECTORS = ["key", "dim"];

/** @param {Steps} steps @param {About} about @param {Record<string, string>} sentences  What steps do and why, by name. */
export function recordedTrace(steps, about, sentences) {
  const { layer, layers, query, queryName, nameOf } = about;
  const rows = steps.rows.slice(0, MAX_KEYS).sort((one, other) => one.key - other.key);
  const labels = { query: [queryName], key: rows.map(({ key }) => nameOf(key)) };
  const positions = { query: [query], key: rows.map(({ key }) => key) };
  const header = { title: "", heads: 1, onlyHead: 0, isShifted: false, labels, positions, layer: layer.name, layers };
  const made = new Made(sentences);
  if (steps.query) addScores(made, steps, rows, layer.header.scale);
  if (steps.source === "qk") {
    made.add("exponentials", "E = exp(S − max S)", SCORES, [rows.map(({ exp }) => exp)]);
    made.add("sums", "Σⱼ Eⱼ", ["query"], [[steps.sum]]);
    made.add("weights", "P = E / Σⱼ Eⱼ, the softmax", SCORES, [rows.map(({ weight }) => weight.value)]);
  } else made.measured("weights", "P", SCORES, [rows.map(({ weight }) => weight)], whereFrom(steps, about));
  if (rows[0]?.value) addValues(made, steps, rows);
  return new Trace({ ...header, steps: made.steps }, made.tensors);
}

/** Steps and their tensors. */
class Made {
  /** @param {Record<string, string>} sentences */
  constructor(sentences) {
    this.sentences = sentences;
    /** @type {StepHeader[]} */
    this.steps = [];
    /** @type {Record<string, Tensor>} */
    this.tensors = {};
  }

  /** @param {string} name @param {string} formula @param {string[]} axes @param {ArrayLike<number>[]} rows @param {string} [explanation] */
  add(name, formula, axes, rows, explanation = this.sentences[name] ?? "") {
    this.steps.push({ name, formula, explanation, axes });
    const shape = axes.length > 1 ? [rows.length, rows[0].length] : [rows[0].length];
    this.tensors[name] = { shape, values: rows.flatMap((row) => Array.from(row)) };
  }

  /** Numbers that are known up to an error. @param {string} name @param {string} formula @param {string[]} axes @param {Measured[][]} rows @param {string} [explanation] */
  measured(name, formula, axes, rows, explanation) {
    const values = rows.map((row) => row.map(({ value }) => value));
    this.add(name, formula, axes, values, explanation);
    this.tensors[name].errors = rows.flatMap((row) => row.map(({ error }) => error));
  }
}

/** @param {Made} made @param {Steps} steps @param {Row[]} rows @param {number} scale */
function addScores(made, { query, source }, rows, scale) {
  const vector = query ?? new Float32Array();
  made.add("query", "", ["query", "dim"], [vector]);
  if (source === "weights") return;
  const keys = rows.map((row) => row.vector ?? []);
  made.add("key", "", VECTORS, keys);
  made.add("scores", "S = Q Kᵀ", SCORES, [rows.map(({ product }) => product)]);
  const { formula, explanation } = aboutScale(made.sentences, vector.length, scale);
  made.add("scaled scores", formula, SCORES, [rows.map(({ scaled }) => scaled)], explanation);
}

/** @param {Record<string, string>} sentences @param {number} dims @param {number} scale */
export function aboutScale(sentences, dims, scale) {
  const root = Math.sqrt(dims);
  const isRoot = Math.abs(scale * root - 1) < 1e-6;
  const said = sentences[isRoot ? "scaled scores" : "other scale"] ?? "";
  const explanation = said.replaceAll("{dims}", String(dims)).replaceAll("{root}", root.toFixed(3));
  return {
    formula: isRoot ? `S · 1/√${dims}` : `S · ${formatNumber(scale)}`,
    explanation: explanation.replace("{scale}", formatNumber(scale)),
  };
}

/** @param {Made} made @param {Steps} steps @param {Row[]} rows */
function addValues(made, steps, rows) {
  const values = rows.map(({ value }) => value ?? []);
  const weighted = rows.map((row) => weightedValues([row]));
  made.add("value", "", VECTORS, values);
  made.measured("weighted values", "Pⱼ Vⱼ", VECTORS, weighted);
  if (steps.isComplete) made.measured("output", "Σⱼ Pⱼ Vⱼ", ["query", "dim"], [weightedValues(steps.rows)]);
}

/** Where weights come from that are not computed from the products. @param {Steps} steps @param {About} about */
function whereFrom(steps, { layer, isServed }) {
  const { score } = layer.header;
  const precision = steps.rows[0]?.weight.error;
  const others = steps.isComplete
    ? ""
    : ` The keys that are not stored have ${formatWeight(steps.rest, layer.precision)} together.`;
  const stored = precision
    ? ` Weights are stored to within ${precision.toFixed(5)}, and numbers are shown only to the digits that are certain.`
    : "";
  return `${reasonFor(steps, layer, isServed, score)} These are the weights of the recording.${stored}${others}`;
}

/** @param {Steps} steps @param {Layer} layer @param {boolean} isServed @param {string | null} score */
function reasonFor(steps, layer, isServed, score) {
  if (score !== null) {
    const what = steps.source === "products" ? "" : ", which is not a product of query and key";
    const missing = isServed ? "Its result is not on this page." : "Its result is not stored in this file.";
    return `The score function of this layer is ${score}${what}. ${missing}`;
  }
  if (steps.query) return "The mask of this head is not stored in this file, so some of these keys may be masked.";
  const reason = layer.keys.length > LONG_TEXT ? "the text is long" : "the recording is large";
  return `This file does not contain queries and keys, because ${reason}. The page of a shorter text does, and regard serve shows them for any text.`;
}
