// What is drawn at each step of a calculation, in their order: which tensors, with which signs between them.

import { READINGS } from "#calculation/readings.js";

/**
 * @import { Place, Trace } from '#calculation/trace.js'
 * @typedef {{name: string, term: string, color: string, isTransposed: boolean}} Operand  A tensor, what the formula calls it, and the color of both.
 * @typedef {{slug: string, title: string, where: string, isShort: boolean, lines: (Operand | string)[][], formulas: string[], sentences: string[],
 *   details: string[], reading: (place: Place) => string}} Screen
 *   `where` in the model; `isShort`: part of the calculation in a minute. `lines` are of tensors and signs. `details` are about the other tensors.
 * @typedef {"minute" | "block" | "numbers"} Depth  The main steps; all steps; and every number.
 * @typedef {{slug: string, title: string, where: string, draw: string, isShort?: boolean, needs?: string, lacks?: string}} Definition
 *   `draw`: tensors and signs, and ; between lines. Of names separated by | the first that there is; after @ the term of the formula, and ᵀ
 *   after what is drawn with rows as columns. Tensors that there are not are left out; without the last one there is no step.
 */

const EMBEDDING = "embedding norm|embedding|scaled embedding|token embedding";
const SCORES = "masked scores|biased scores|scaled scores|scores";

/** A norm. @param {string} slug @param {string} title @param {string} where @param {[prefix: string, before: string, after: string]} names @returns {Definition} */
function norm(slug, title, where, [prefix, before, after]) {
  const draw = `${before}@x → ${prefix}normalized ; ${prefix}normalized · ${prefix}norm weight + ${prefix}norm bias = ${after}`;
  return { slug, title, where, draw, needs: `${prefix}normalized` };
}

/** @type {Definition[]} */
const DEFINITIONS = [
  { slug: "subwords", title: "Subwords and ids", where: "embedding", draw: "ids", isShort: true },
  {
    slug: "embedding",
    title: "Token embedding",
    where: "embedding",
    draw: "token embedding → scaled embedding|token embedding",
    isShort: true,
  },
  {
    slug: "position",
    title: "Position",
    where: "embedding",
    draw: "scaled embedding|token embedding + token type embedding + position embedding = embedding",
    isShort: true,
  },
  norm("embedding-norm", "Embedding norm", "embedding", ["embedding ", "embedding|token embedding", "embedding norm"]),
  { slug: "hidden-state", title: "Hidden state", where: "attention", draw: "hidden state", isShort: true },
  norm("norm", "Norm", "attention", ["", `hidden state|${EMBEDDING}`, "input"]),
  {
    slug: "input",
    title: "Input",
    where: "attention",
    draw: "input",
    isShort: true,
    lacks: "token embedding|normalized",
  },
  { slug: "memory", title: "Memory", where: "attention", draw: "memory" },
  { slug: "values", title: "Other memory", where: "attention", draw: "values" },
  { slug: "query", title: "Query", where: "attention", draw: "input × W_Q|W + b_Q = query", isShort: true },
  { slug: "key", title: "Keys", where: "attention", draw: "memory|input × W_K|U + b_K|b = key" },
  { slug: "value", title: "Values", where: "attention", draw: "values|memory|input × W_V + b_V = value" },
  { slug: "rotation", title: "Rotation", where: "attention", draw: "query → rotated query ; key → rotated key" },
  { slug: "hidden-layer", title: "Hidden layer", where: "attention", draw: "hidden layer" },
  {
    slug: "scores",
    title: "Scores",
    where: "attention",
    draw: "hidden layer · v = scores",
    isShort: true,
    needs: "hidden layer",
  },
  {
    slug: "scores",
    title: "Scores",
    where: "attention",
    draw: "rotated query|query × rotated keyᵀ|keyᵀ = scores",
    isShort: true,
    lacks: "hidden layer",
  },
  { slug: "products", title: "Score by feature", where: "attention", draw: "products → scores", needs: "products" },
  { slug: "scale", title: "Scale", where: "attention", draw: "scores → scaled scores" },
  { slug: "bias", title: "Position bias", where: "attention", draw: "scaled scores + position bias = biased scores" },
  {
    slug: "mask",
    title: "Mask",
    where: "attention",
    draw: "biased scores|scaled scores|scores + mask = masked scores",
  },
  {
    slug: "softmax",
    title: "Softmax",
    where: "attention",
    draw: `${SCORES}@S → exponentials → weights`,
    isShort: true,
    needs: "exponentials",
  },
  {
    slug: "weights",
    title: "Weights",
    where: "attention",
    draw: `${SCORES}@S → weights`,
    isShort: true,
    lacks: "exponentials",
  },
  { slug: "distance", title: "Vectors by distance", where: "attention", draw: "b by distance" },
  {
    slug: "weighted-values",
    title: "Weighted values",
    where: "attention",
    draw: "weights × value|memory = sum of weighted values|output ; weighted values",
    isShort: true,
  },
  { slug: "joined", title: "Heads joined", where: "attention", draw: "heads joined" },
  {
    slug: "output",
    title: "Output",
    where: "attention",
    draw: "sum of weighted values × W_O = part of the head ; part of the head + b_O → output",
    needs: "W_O",
  },
  {
    slug: "residual",
    title: "Residual",
    where: "residual",
    draw: `hidden state|${EMBEDDING}|input@x + output = attention sum|attention result`,
    isShort: true,
  },
  norm("attention-norm", "Norm", "residual", ["attention ", "attention sum", "attention result"]),
  norm("feed-forward-norm", "Norm", "feed-forward", ["feed-forward ", "attention result", "feed-forward input"]),
  {
    slug: "hidden-units",
    title: "Hidden units",
    where: "feed-forward",
    draw: "feed-forward input|attention result → hidden units",
    isShort: true,
  },
  { slug: "feed-forward", title: "Feed-forward", where: "feed-forward", draw: "hidden units → feed-forward output" },
  {
    slug: "block",
    title: "Residual",
    where: "feed-forward",
    draw: "attention result@x + feed-forward output = block sum|block output",
    isShort: true,
  },
  norm("block-norm", "Norm", "feed-forward", ["block ", "block sum", "block output"]),
  norm("final-norm", "Last norm", "words", ["final ", "block output", "final output"]),
  { slug: "logits", title: "Logits", where: "words", draw: "final output|block output → logits" },
  { slug: "words", title: "Words", where: "words", draw: "logits → probabilities", isShort: true },
];

/** @type {Record<string, string>} */
const TERMS = {
  ...{ input: "X", memory: "Y", values: "Z", query: "Q", key: "K", value: "V", scores: "S", "position bias": "B" },
  ...{ exponentials: "E", weights: "P", "heads joined": "joined", "hidden state": "x" },
};
/** Of additive attention. @type {Record<string, string>} */
const ADDITIVE = { ...TERMS, input: "s", memory: "h", query: "query", key: "key" };
/** @type {Record<string, string>} */
const COLORS = {
  query: "query",
  key: "key",
  value: "value",
  scores: "score",
  exponentials: "score",
  weights: "weight",
};
const LETTERS = /** @type {Record<string, string>} */ ({ Q: "query", K: "key", V: "value" });

/** @type {[Depth, string][]} */
export const DEPTHS = [
  ["minute", "A minute"],
  ["block", "One block"],
  ["numbers", "Every number"],
];

/** The steps that a calculation has. @param {Trace} trace @returns {Screen[]} */
export function screensOf(trace) {
  return DEFINITIONS.flatMap((definition) => screenOf(trace, definition) ?? []);
}

/** @param {Trace} trace @param {Definition} definition @returns {Screen | null} */
function screenOf(trace, { slug, title, where, draw, isShort = false, needs = "", lacks = "" }) {
  if ((needs && !trace.find(needs)) || trace.find(lacks)) return null;
  const lines = draw
    .split(" ; ")
    .map((line) => lineOf(trace, line))
    .filter((line) => line !== null);
  if (lines.length === 0) return null;
  const operands = lines.flatMap((line) => line.filter((part) => typeof part !== "string"));
  const isResult = (/** @type {Operand} */ operand) =>
    lines.some((line) =>
      line.length === 1 ? line[0] === operand : ["=", "→"].includes(String(line[line.indexOf(operand) - 1])),
    );
  const results = new Set(operands.filter(isResult).map(({ name }) => name));
  const others = new Set(operands.map(({ name }) => name).filter((name) => !results.has(name)));
  const explain = (/** @type {Set<string>} */ some) => [...some].map((name) => trace.about(name).explanation);
  return {
    slug,
    title,
    where,
    isShort,
    lines,
    formulas: [...results].flatMap((name) => formulaOf(trace, name)),
    sentences: explain(results).filter(Boolean),
    details: explain(others).filter(Boolean),
    reading: (place) => READINGS[slug]?.(trace, place) ?? "",
  };
}

/** The tensors and signs of a line; null if there is not its last one. @param {Trace} trace @param {string} line */
function lineOf(trace, line) {
  /** @type {(Operand | string)[]} */
  const parts = [];
  /** @type {Operand | null} */
  let operand = null;
  let sign = "";
  for (const part of line.split(/ ([×·+=→]) /)) {
    if ("×·+=→".includes(part)) {
      sign = part;
      continue;
    }
    operand = operandOf(trace, part);
    if (!operand || parts.some((other) => typeof other !== "string" && other.name === operand?.name)) continue;
    parts.push(...(parts.length ? [sign, operand] : [operand]));
  }
  return operand ? parts : null;
}

/** @param {Trace} trace @param {string} text @returns {Operand | null} */
function operandOf(trace, text) {
  const [names, own] = text.split("@");
  const name = trace.find(names.replaceAll("ᵀ", ""));
  if (!name) return null;
  const isTransposed = names.includes("ᵀ");
  const term = own ?? (trace.find("hidden layer") ? ADDITIVE : TERMS)[name] ?? name;
  return { name, term: isTransposed ? `${term}ᵀ` : term, color: colorOf(name), isTransposed };
}

/** @param {string} name */
function colorOf(name) {
  const last = name.split(" ").at(-1) ?? "";
  return COLORS[last] ?? LETTERS[/^[Wb]_([QKV])$/.exec(name)?.[1] ?? ""] ?? "other";
}

/** @param {Trace} trace @param {string} name */
function formulaOf(trace, name) {
  const { formula } = trace.about(name);
  if (formula.length < 2) return [];
  return [formula.includes("=") ? formula : `${operandOf(trace, name)?.term} = ${formula}`];
}
