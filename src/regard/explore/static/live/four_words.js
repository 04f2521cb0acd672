// Attention by hand: four words with three numbers each, and all that follows from them, as `regard steps` without a text.

import { element } from "#ui/elements.js";

/** @typedef {number[][]} Matrix */

/** @param {string} digits  Of each row. @returns {Matrix} */
const matrix = (digits) => digits.split(" ").map((row) => [...row].map(Number));
const WORDS = matrix("100 010 110 001");
// After numpy.random.seed(42), each is numpy.random.randint(3, size=(3, 3)).
const W = { Q: matrix("202 200 212"), K: matrix("222 021 011"), V: matrix("110 011 000") };
const NAMES = WORDS.map((_, index) => `word ${index + 1}`);

/** @param {Matrix} rows @returns {Matrix} */
const transposed = (rows) => rows[0].map((_, column) => rows.map((row) => row[column]));
/** @param {Matrix} a @param {Matrix} b @returns {Matrix} */
const product = (a, b) =>
  a.map((row) => transposed(b).map((column) => sum(row.map((value, at) => value * column[at]))));
const sum = (/** @type {number[]} */ values) => values.reduce((total, value) => total + value, 0);
const map = (/** @type {Matrix} */ rows, /** @type {(value: number) => number} */ change) =>
  rows.map((row) => row.map(change));

const LETTERS = /** @type {const} */ (["Q", "K", "V"]);

/** All numbers of it, in tables. */
export function fourWords() {
  const [query, key, value] = LETTERS.map((letter) => product(WORDS, W[letter]));
  const scores = product(query, transposed(key));
  const scaled = map(scores, (score) => score / Math.sqrt(3));
  const powers = map(scaled, Math.exp);
  const sums = powers.map((row) => [sum(row)]);
  const weights = powers.map((row, at) => row.map((power) => power / sums[at][0]));
  const taken = weights.map((row) => row.map((weight, at) => value[at].map((feature) => weight * feature)));
  const projections = [query, key, value].flatMap((result, at) => [
    table(`W_${LETTERS[at]}`, W[LETTERS[at]]),
    table(`${LETTERS[at]} = words · W_${LETTERS[at]}`, result, { rows: NAMES }),
  ]);
  const outputs = taken.map((rows, at) => {
    const output = transposed(rows).map(sum);
    return table(`Output of ${NAMES[at]}`, [...rows, output], { rows: [...NAMES, "sum"], total: true });
  });
  return element(
    "div",
    { class: "four-words" },
    step(
      "Each word has a query, a key and a value: its numbers times a table W, which training finds and which is random here. The first number of Q is 1·2 + 0·2 + 0·2 = 2.",
      [table("Words", WORDS, { rows: NAMES }), ...projections],
    ),
    step(
      "A query times a key, number by number and added up, is a score. Divided by √3, taken as a power of e and divided by the sum of their row, scores become weights: positive, and 1 in all.",
      [
        table("Scores Q · K", scores, { rows: NAMES, columns: NAMES }),
        table("Scores / √3", scaled, { rows: NAMES, columns: NAMES }),
        table("e to the power of it", powers, { rows: NAMES, columns: NAMES }),
        table("Sum", sums, { rows: NAMES }),
        table("Weights", weights, { rows: NAMES, columns: NAMES, tinted: true }),
      ],
    ),
    step("The output of a word is the sum of all values, each times its weight.", outputs),
  );
}

/** @param {string} text @param {HTMLElement[]} tables */
function step(text, tables) {
  return element("section", {}, element("p", {}, text), element("div", { class: "tables" }, ...tables));
}

/** @param {string} name @param {Matrix} values @param {{rows?: string[], columns?: string[], total?: boolean, tinted?: boolean}} options */
function table(name, values, { rows = [], columns = [], total = false, tinted = false } = {}) {
  const heads = columns.map((column) => element("th", { scope: "col" }, column.replace("word ", "")));
  const lines = values.map((row, index) => {
    const cells = row.map((value) => {
      const cell = element("td", {}, Number.isInteger(value) ? String(value) : value.toFixed(2));
      if (tinted) cell.style.setProperty("--attended", String(value));
      return cell;
    });
    const head = rows.length ? [element("th", { scope: "row" }, rows[index])] : [];
    return element("tr", total && index === values.length - 1 ? { class: "total" } : {}, ...head, ...cells);
  });
  const top = heads.length ? [element("tr", {}, element("td"), ...heads)] : [];
  return element("table", {}, element("caption", {}, name), element("tbody", {}, ...top, ...lines));
}
