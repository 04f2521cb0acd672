// A sentence with the numbers of the head and the query, for the steps of which one says more than a formula.

import { formatNumber, formatWeight } from "#ui/format.js";

/** @import { Place, Trace } from '#calculation/trace.js' */

const TERMS = 3; // of a sum that are written

/** A number of any size. @param {number} number */
export function written(number) {
  return Math.abs(number) < 1e5 || !Number.isFinite(number)
    ? formatNumber(number)
    : number.toExponential(1).replace("e+", "e").replace("-", "−");
}

/** @param {number} number */
const factor = (number) => (number < 0 ? `(${written(number)})` : written(number));

/** The first terms of a sum of products. @param {number[]} one @param {number[]} other */
function products(one, other) {
  const count = one.length <= TERMS ? one.length : TERMS - 1;
  const terms = one.slice(0, count).map((number, i) => `${factor(number)} · ${factor(other[i])}`);
  return [...terms, ...(one.length > count ? ["…"] : [])].join(" + ");
}

/** @param {Trace} trace @param {Place} place */
function names(trace, place) {
  const key = trace.strongest(place);
  return {
    key,
    pair: `“${trace.label("query", place.query)}” and “${trace.label("key", key)}”`,
    name: trace.label("key", key),
  };
}

/** @type {(prefix: string) => (trace: Trace, place: Place) => string} */
const norm = (prefix) => (trace, place) => {
  const root = trace.find(`${prefix}root mean square`);
  const number = (/** @type {string} */ name) => written(trace.ofToken(name, place));
  if (root) return `Here r is ${number(root)}.`;
  return `Here μ is ${number(`${prefix}mean`)} and σ is ${number(`${prefix}standard deviation`)}.`;
};

/** By slug. @type {Record<string, (trace: Trace, place: Place) => string>} */
export const READINGS = {
  embedding(trace, place) {
    const [query, token] = ["query", "token"].map((axis) => trace.label(axis, place.query));
    if (!trace.header.isShifted) return "";
    return `At the step that writes “${query}”, the decoder reads “${token}”: its row is marked.`;
  },
  norm: norm(""),
  "embedding-norm": norm("embedding "),
  "attention-norm": norm("attention "),
  "feed-forward-norm": norm("feed-forward "),
  "block-norm": norm("block "),
  "final-norm": norm("final "),
  query(trace, place) {
    if (!trace.find("input")) return "";
    const weight = trace.find("W_Q|W");
    const matrix = trace.matrix(weight, place);
    const first = Array.from({ length: matrix.rows }, (_, row) => matrix.at(row, 0));
    const bias = trace.find("b_Q") ? ` + ${factor(trace.row("b_Q", place)[0])}` : "";
    const sum = written(trace.row("query", place)[0]);
    return `Its first feature is ${products(trace.row("input", place), first)}${bias} = ${sum}.`;
  },
  scores(trace, place) {
    const { key, pair } = names(trace, place);
    const score = written(trace.row("scores", place)[key]);
    if (trace.find("hidden layer")) return `For ${pair} it is ${score}.`;
    const vector = trace.row(trace.find("rotated query|query"), place);
    const keys = trace.matrix(trace.find("rotated key|key"), place);
    const other = vector.map((_, feature) => keys.at(key, feature));
    return `For ${pair}: ${products(vector, other)} = ${score}.`;
  },
  scale(trace, place) {
    const { key, pair } = names(trace, place);
    const [before, after] = ["scores", "scaled scores"].map((name) => written(trace.row(name, place)[key]));
    return `For ${pair}: ${before} ${trace.about("scaled scores").formula.replace(/^S /, "")} = ${after}.`;
  },
  softmax(trace, place) {
    const { key, name } = names(trace, place);
    if (!trace.find("exponentials")) return "";
    const powers = trace.row("exponentials", place);
    const sum = trace.ofToken("sums", place);
    if (sum === 0) return "The mask leaves no key to this query.";
    return `For “${name}”: ${written(powers[key])} / ${written(sum)} = ${written(powers[key] / sum)}.`;
  },
  "weighted-values"(trace, place) {
    const { key, name } = names(trace, place);
    const { rows, at, errorAt } = trace.matrix("weights", place);
    const row = rows === 1 ? 0 : place.query;
    const error = errorAt?.(row, key) ?? 0;
    const weight = error ? formatWeight(at(row, key), error) : written(at(row, key));
    return `“${name}” contributes most: its weight is ${weight}.`;
  },
  output(trace, { head }) {
    const others = trace.header.heads - 1;
    return others ? `Head ${head} adds its part to the output, as the other ${others} heads do.` : "";
  },
  words(trace, place) {
    const row = trace.row("probabilities", place).map((probability, word) => ({ probability, word }));
    const best = row.sort((one, other) => other.probability - one.probability).slice(0, TERMS);
    const words = best.map(({ probability, word }) => `“${trace.label("word", word)}” ${written(probability)}`);
    return `The most probable in the row of “${trace.label("query", place.query)}”: ${words.join(", ")}.`;
  },
};
