// What is drawn at each step of a calculation, in their order: which tensors, with which signs between them.

import { READINGS } from "#calculation/readings.js";

/**
 * @import { Place, Trace } from '#calculation/trace.js'
 * @typedef {{name: string, term: string, color: string, isTransposed: boolean}} Operand  A tensor, what the formula calls it, and the color of both.
 * @typedef {{slug: string, title: string, where: string, isShort: boolean, lines: (Operand | string)[][], formulas: string[], sentences: string[],
 *   details: string[], reading: (place: Place) => string}} Screen
 *   `where` in the model; `isShort`: part of the calculation in a minute. `lines` are of tensors and signs. `details` are about those tensors that steps before have explained.
 * @typedef {"minute" | "block" | "numbers"} Depth  The main steps; all steps; and every number.
 * @typedef {[slug: string, title: string, draw: string, options?: {isShort?: boolean, needs?: string, lacks?: string}]} Row
 *   `draw`: tensors and signs, and ; between lines. Of names separated by | the first that there is; after @ the term of the formula, and ᵀ
 *   after what is drawn with rows as columns. Tensors that the trace lacks are left out; without the last one, so is the step.
 */

const EMBEDDING = "embedding norm|embedding|scaled embedding|token embedding";
const TOKENS = "scaled embedding|token embedding";
const SUMS = "sum of weighted values|output";
const PART = "part of the head";
const SCORES = "masked scores|biased scores|scaled scores|scores";

const SHORT = { isShort: true };

/** A norm. @param {string} slug @param {string} title @param {string} prefix @param {string} before @param {string} after @returns {Row} */
function norm(slug, title, prefix, before, after) {
  const scaled = `${prefix}normalized · ${prefix}norm weight + ${prefix}norm bias = ${after}`;
  return [slug, title, `${before}@x → ${prefix}normalized ; ${scaled}`, { needs: `${prefix}normalized` }];
}

/** By their place. @type {Record<string, Row[]>} */
const DEFINITIONS = {
  embedding: [
    ["subwords", "Subwords and ids", "ids", SHORT],
    ["embedding", "Token embedding", "token embedding → scaled embedding|token embedding", SHORT],
    ["position", "Position", `${TOKENS} + token type embedding + position embedding = embedding`, SHORT],
    norm("embedding-norm", "Embedding norm", "embedding ", "embedding|token embedding", "embedding norm"),
  ],
  attention: [
    ["hidden-state", "Hidden state", "hidden state", SHORT],
    norm("norm", "Norm", "", `hidden state|${EMBEDDING}`, "input"),
    ["input", "Input", "input", { ...SHORT, lacks: "token embedding|normalized" }],
    ["memory", "Memory", "memory"],
    ["values", "Other memory", "values"],
    ["query", "Query", "input × W_Q|W + b_Q = query", SHORT],
    ["key", "Keys", "memory|input × W_K|U + b_K|b = key"],
    ["value", "Values", "values|memory|input × W_V + b_V = value"],
    ["rotation", "Rotation", "query → rotated query ; key → rotated key"],
    ["hidden-layer", "Hidden layer", "hidden layer"],
    ["scores", "Scores", "hidden layer · v = scores", { ...SHORT, needs: "hidden layer" }],
    ["scores", "Scores", "rotated query|query × rotated keyᵀ|keyᵀ = scores", { ...SHORT, lacks: "hidden layer" }],
    ["products", "Score by feature", "scores → products"],
    ["scale", "Scale", "scores → scaled scores"],
    ["bias", "Position bias", "scaled scores + position bias = biased scores"],
    ["mask", "Mask", "mask ; biased scores|scaled scores|scores → masked scores"],
    ["softmax", "Softmax", `${SCORES}@S → exponentials → weights`, { ...SHORT, needs: "exponentials" }],
    ["weights", "Weights", `${SCORES}@S → weights`, { ...SHORT, lacks: "exponentials" }],
    ["distance", "Vectors by distance", "b by distance"],
    ["weighted-values", "Weighted values", `weights × value|memory = ${SUMS} ; weighted values`, SHORT],
    ["joined", "Heads joined", "heads joined"],
    ["output", "Output", `${SUMS} × W_O = ${PART} ; ${PART} + b_O → output`, { needs: "W_O" }],
  ],
  residual: [
    ["residual", "Residual", `hidden state|${EMBEDDING}|input@x + output = attention sum|attention result`, SHORT],
    norm("attention-norm", "Norm", "attention ", "attention sum", "attention result"),
  ],
  "feed-forward": [
    norm("feed-forward-norm", "Norm", "feed-forward ", "attention result", "feed-forward input"),
    ["hidden-units", "Hidden units", "feed-forward input|attention result → hidden units", SHORT],
    ["feed-forward", "Feed-forward", "hidden units → feed-forward output"],
    ["block", "Residual", "attention result@x + feed-forward output = block sum|block output", SHORT],
    norm("block-norm", "Norm", "block ", "block sum", "block output"),
  ],
  words: [
    norm("final-norm", "Last norm", "final ", "block output", "final output"),
    ["logits", "Logits", "final output|block output → logits"],
    ["words", "Words", "logits → probabilities", SHORT],
  ],
};

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
  /** @type {Set<string>} */
  const seen = new Set();
  const screens = (/** @type {[string, Row[]]} */ [where, rows]) =>
    rows.flatMap((row) => screenOf(trace, where, seen, row) ?? []);
  return Object.entries(DEFINITIONS).flatMap(screens);
}

/** @param {Trace} trace @param {string} where @param {Set<string>} seen  What steps before have explained. @param {Row} row @returns {Screen | null} */
function screenOf(trace, where, seen, [slug, title, draw, { isShort = false, needs = "", lacks = "" } = {}]) {
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
  const names = [...new Set(operands.map(({ name }) => name))];
  const results = names.filter((name) => operands.some((operand) => operand.name === name && isResult(operand)));
  const isNew = (/** @type {string} */ name) => results.includes(name) || !seen.has(name);
  const explain = (/** @type {string[]} */ some) => some.map((name) => trace.about(name).explanation).filter(Boolean);
  const explained = names
    .filter(isNew)
    .sort((one, other) => Number(one.startsWith("W_")) - Number(other.startsWith("W_")));
  const others = names.filter((name) => !isNew(name));
  for (const name of names) seen.add(name);
  return {
    slug,
    title,
    where,
    isShort,
    lines,
    formulas: results.flatMap((name) => formulaOf(trace, name)),
    sentences: explain(explained),
    details: explain(others),
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
