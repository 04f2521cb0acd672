// The steps of a calculation, each with its formula, a sentence and a table.

import { scoreByFeature, weightedValues } from "#data/attention_steps.js";
import { element } from "#ui/elements.js";
import { formatNumber, formatWeight } from "#ui/format.js";
import { numberCell, stepTable, textCell } from "#views/calculation_table.js";

/**
 * @import { Measured, Row, Steps } from '#data/attention_steps.js'
 * @import { Cell, Line, RowActions, TableContent } from '#views/calculation_table.js'
 * @typedef {{layer: import("#data/layer.js").Layer, isServed: boolean, steps: Steps, drawn: Row[], queryName: string, numFeatures: number,
 *   nameOf: (key: number) => string, actions: RowActions}} StepInputs
 *   `drawn` are the rows that have a line in each table, `numFeatures` is how many features of a vector are listed.
 * @typedef {{title: string, formula: string, note: string, table?: TableContent}} Step
 */

const MAX_FEATURES = 12; // listed in the split of a score
const LONG_TEXT = 1024; // keys
const MAX_SCORE_ERROR = 0.5; // beyond, only the upper bound of a score is printed

/** @param {StepInputs} inputs @param {number} key  The key whose score is split. @returns {HTMLElement[]} */
export function stepNodes(inputs, key) {
  const { source, query } = inputs.steps;
  const steps = [];
  if (query) steps.push(queryStep(inputs, query));
  if (source !== "weights") steps.push(productStep(inputs), scaleStep(inputs), featureStep(inputs, key));
  if (source !== "qk") steps.push(sourceNote(inputs));
  steps.push(source === "qk" ? softmaxStep(inputs) : weightStep(inputs));
  if (query) steps.push(valueStep(inputs));
  return steps.map((step, index) => stepNode(step, index + 1, inputs.actions));
}

/** The step that splits a score, which is the fourth. @param {StepInputs} inputs @param {number} key */
export function featureNode(inputs, key) {
  return stepNode(featureStep(inputs, key), 4, inputs.actions);
}

/** @param {StepInputs} inputs @param {Float32Array} vector @returns {Step} */
function queryStep({ queryName, numFeatures }, vector) {
  return {
    title: "Query",
    formula: "q",
    note: `The query vector of the token: ${vector.length} features.`,
    table: {
      columns: featureNames(vector.length, numFeatures),
      lines: [{ name: queryName, cells: featureCells(vector, numFeatures) }],
      shadedFrom: 0,
    },
  };
}

/** @param {StepInputs} inputs @returns {Step} */
function productStep(inputs) {
  const { steps, numFeatures } = inputs;
  const columns = ["q · k", ...featureNames(steps.query?.length ?? 0, numFeatures)];
  const lines = linesOf(inputs, ({ product, vector }) => [
    numberCell(product),
    ...featureCells(vector ?? [], numFeatures),
  ]);
  return {
    title: "Products with the keys",
    formula: "q · k_{j} = Σ_{f} q_{f} k_{jf}",
    note: "The keys that the query may attend to, strongest first: their product with the query, then their features.",
    table: { columns, lines, foot: moreLine(inputs, []), shadedFrom: 1 },
  };
}

/** @param {StepInputs} inputs @returns {Step} */
function scaleStep(inputs) {
  const { scale, isRoot, length } = scaleOf(inputs);
  const lines = linesOf(inputs, ({ product, scaled }) => [numberCell(product), numberCell(scaled)]);
  return {
    title: "Scale",
    formula: isRoot ? `s_{j} = q · k_{j} / √d = q · k_{j} / √${length}` : `s_{j} = ${formatNumber(scale)} · q · k_{j}`,
    note: isRoot ? `The same as ${formatNumber(scale)} · q · k_{j}.` : "",
    table: { columns: ["q · k", "s"], lines, foot: moreLine(inputs, []) },
  };
}

/** @param {StepInputs} inputs */
function scaleOf({ layer, steps }) {
  const { scale } = layer.header;
  const length = steps.query?.length ?? 0;
  return { scale, length, isRoot: Math.abs(scale * Math.sqrt(length) - 1) < 1e-6 };
}

/** What each feature adds to the score of a key. @param {StepInputs} inputs @param {number} key @returns {Step} */
function featureStep(inputs, key) {
  const { steps, nameOf } = inputs;
  const { scale, isRoot, length } = scaleOf(inputs);
  const row = steps.rows.find((each) => each.key === key) ?? steps.rows[0];
  const parts = scoreByFeature(steps, row, scale);
  const order = parts.map((_, feature) => feature).sort((a, b) => Math.abs(parts[b]) - Math.abs(parts[a]));
  const others = order.slice(MAX_FEATURES);
  const rest = others.reduce((sum, feature) => sum + parts[feature], 0);
  const largest = Math.max(Math.abs(parts[order[0]]), others.length ? Math.abs(rest) : 0);
  /** @type {(value: number) => Cell} */
  const bar = (value) => ({ text: "", node: signedBar(value / (largest || 1)) });
  const lines = order.slice(0, MAX_FEATURES).map((feature) => ({
    name: String(feature),
    cells: [
      numberCell(steps.query?.[feature] ?? 0),
      numberCell(row.vector?.[feature] ?? 0),
      numberCell(parts[feature]),
      bar(parts[feature]),
    ],
  }));
  const foot = [{ name: "s", span: 3, cells: [numberCell(row.scaled)] }];
  if (others.length) {
    foot.unshift({ name: `… the other ${others.length} together`, span: 3, cells: [numberCell(rest), bar(rest)] });
  }
  const factor = isRoot ? `/ √${length}` : `· ${formatNumber(scale)}`;
  return {
    title: "Score by feature",
    formula: `s_{j} = Σ_{f} q_{f} k_{jf} ${factor}`,
    note: `What each feature adds to the score of ${nameOf(row.key)}, the largest first. Select another key in a table to split its score.`,
    table: { columns: ["q", "k", `q k ${factor}`, ""], lines, foot },
  };
}

/** A bar from the middle to the right, or to the left if it is negative. @param {number} share  From −1 to 1. */
function signedBar(share) {
  const bar = element("span", { class: share < 0 ? "negative" : "positive" });
  bar.style.setProperty("--share", String(Math.abs(share)));
  return element("span", { class: "signed-bar", "aria-hidden": "true" }, bar);
}

/** Why the weights are not computed from the products. @param {StepInputs} inputs @returns {Step} */
function sourceNote({ layer, isServed, steps }) {
  const { score } = layer.header;
  const then = "The next step starts from the weights, which determine the scores up to a constant.";
  if (score !== null) {
    const what = steps.source === "products" ? "" : ", which is not a product of query and key";
    const missing = isServed ? "Its result is not on this page." : "Its result is not stored in this file.";
    return {
      title: "Score function",
      formula: score,
      note: `The score function of this layer is ${score}${what}. ${missing} ${then}`,
    };
  }
  if (steps.query) {
    const note = "The mask of this head is not stored in this file, so some of these keys may be masked.";
    return { title: "Mask", formula: "", note: `${note} The next step starts from the stored weights.` };
  }
  const reason = layer.keys.length > LONG_TEXT ? "the text is long" : "the recording is large";
  return {
    title: "Query, key and value",
    formula: "q, k, v",
    note: `This file does not contain queries and keys, because ${reason}. The page of a shorter text does, and \`regard serve\` shows them for any text. ${then}`,
  };
}

/** @param {StepInputs} inputs @returns {Step} */
function softmaxStep(inputs) {
  const { steps, drawn } = inputs;
  const { rows, maxScore, sum } = steps;
  const lines = linesOf(inputs, ({ scaled, score, exp, weight }) =>
    [scaled, score.value, exp, weight.value].map((value) => numberCell(value)),
  );
  const others = rows.slice(drawn.length);
  const total = (/** @type {(row: Row) => number} */ read) => others.reduce((sum, row) => sum + read(row), 0);
  const blank = [textCell(""), textCell("")];
  const more = [...blank, numberCell(total(({ exp }) => exp)), numberCell(total(({ weight }) => weight.value))];
  const all = { name: `Σ of ${rows.length}`, cells: [...blank, numberCell(sum), numberCell(1)] };
  return {
    title: "Softmax",
    formula: "w_{j} = exp(s_{j} − max s) / Σ_{i} exp(s_{i} − max s)",
    note: `max s = ${formatNumber(maxScore)}.`,
    table: { columns: ["s", "s − max s", "exp", "weight"], lines, foot: [...moreLine(inputs, more), all] },
  };
}

/** What follows from the weights alone. @param {StepInputs} inputs @returns {Step} */
function weightStep(inputs) {
  const { layer, steps, drawn } = inputs;
  const lines = linesOf(inputs, (row) => [scoreCell(row), weightCell(row.weight)]);
  const sum = (/** @type {Row[]} */ rows) => ({
    value: rows.reduce((total, { weight }) => total + weight.value, 0),
    error: rows.reduce((total, { weight }) => total + weight.error, 0),
  });
  const all = sum(steps.rows);
  const precision = steps.rows[0]?.weight.error;
  const stored = precision
    ? ` Weights are stored to within ${precision.toFixed(5)}, and numbers are shown only to the digits that are certain.`
    : "";
  const rest = { value: steps.rest, error: layer.precision };
  const foot = [
    ...moreLine(inputs, [textCell(""), weightCell(sum(steps.rows.slice(drawn.length)))]),
    ...(steps.isComplete ? [] : [{ name: "keys that are not stored", cells: [textCell(""), weightCell(rest)] }]),
    { name: "Σ", cells: [textCell(""), numberCell(all.value + steps.rest, all.error)] },
  ];
  return {
    title: "Scores and weights",
    formula: "s_{j} − max s = ln w_{j} − ln max w",
    note: `Scores up to a constant, as the weights determine them.${stored}`,
    table: { columns: ["s − max s", "weight"], lines, foot },
  };
}

/** @param {Row} row @returns {Cell} */
function scoreCell({ score, maxScore }) {
  if (score.error <= MAX_SCORE_ERROR) return numberCell(score.value, score.error);
  if (!Number.isFinite(maxScore)) return textCell("unknown");
  return textCell(`< ${formatNumber(Math.ceil(10 * maxScore) / 10, 0.05)}`);
}

/** @param {Measured} weight @returns {Cell} */
function weightCell({ value, error }) {
  return error > 0 ? textCell(formatWeight(value, error)) : numberCell(value);
}

/** @param {StepInputs} inputs @returns {Step} */
function valueStep(inputs) {
  const { steps, drawn, numFeatures } = inputs;
  const { rows } = steps;
  const formula = "o = Σ_{j} w_{j} v_{j}";
  if (!rows[0]?.value) {
    return { title: "Values", formula, note: "The recording has no values, so the output is not known." };
  }
  const columns = featureNames(rows[0].value.length, numFeatures);
  const cells = (/** @type {Row[]} */ some) => featureCells(weightedValues(some), numFeatures);
  const foot = [
    ...moreLine(inputs, rows.length > drawn.length ? cells(rows.slice(drawn.length)) : []),
    ...(steps.isComplete ? [{ name: "output", cells: cells(rows) }] : []),
  ];
  const sum = steps.isComplete
    ? "The sum is the output of the head."
    : "Some keys are not stored in this file, so the output is not known.";
  return {
    title: "Values by weight",
    formula,
    note: `The value of each key times its weight. ${sum}`,
    table: { columns, lines: linesOf(inputs, (row) => cells([row])), foot, shadedFrom: 0 },
  };
}

/** A line for each key that is listed. @param {StepInputs} inputs @param {(row: Row) => Cell[]} cellsOf @returns {Line[]} */
function linesOf({ drawn, nameOf }, cellsOf) {
  return drawn.map((row) => ({ key: row.key, name: nameOf(row.key), cells: cellsOf(row) }));
}

/** A line for the keys that have none. @param {StepInputs} inputs @param {Cell[]} cells @returns {Line[]} */
function moreLine({ steps, drawn }, cells) {
  const count = steps.rows.length - drawn.length;
  return count ? [{ name: `${count} more`, cells }] : [];
}

/** @param {number} length @param {number} count */
function featureNames(length, count) {
  const names = Array.from({ length: Math.min(length, count) }, (_, index) => String(index));
  return length > count ? [...names, "…"] : names;
}

/** The first numbers of a vector, and that there are more. @param {ArrayLike<number | {value: number, error: number}>} vector @param {number} count @returns {Cell[]} */
function featureCells(vector, count) {
  const cells = Array.from(vector)
    .slice(0, count)
    .map((each) => (typeof each === "number" ? numberCell(each) : numberCell(each.value, each.error)));
  return vector.length > count ? [...cells, textCell("…")] : cells;
}

/** @param {Step} step @param {number} number @param {RowActions} actions */
function stepNode({ title, formula, note, table }, number, actions) {
  const node = element(
    "section",
    { class: "step", "aria-label": `${number} ${title}` },
    element("h4", {}, element("span", { class: "number" }, String(number)), title),
  );
  if (formula) node.append(element("p", { class: "formula" }, ...withMarkup(formula)));
  if (note) node.append(element("p", { class: "note" }, ...withMarkup(note)));
  if (table) node.append(stepTable(table, actions));
  return node;
}

/** A text with its indices, `_{j}`, as such and `commands` as code. @param {string} text */
function withMarkup(text) {
  return text.split(/(_\{\w+\}|`[^`]+`)/).map((part, index) => {
    if (index % 2 === 0) return part;
    return part.startsWith("`") ? element("code", {}, part.slice(1, -1)) : element("sub", {}, part.slice(2, -1));
  });
}
