// The numbers of a tensor as a table, of which some rows and columns are shown before all are.

import { nameOf, textAt, withIndices } from "#calculation/picture.js";
import { element } from "#ui/elements.js";

/**
 * @import { Pointed } from '#calculation/picture.js'
 * @import { Operand } from '#calculation/steps.js'
 * @import { Matrix, Place, Trace } from '#calculation/trace.js'
 */

const ROWS = 12;
const COLUMNS = 32;
const SLACK = 2; // rows that are shown rather than counted

/** @param {Trace} trace @param {Operand} operand @param {Matrix} matrix @param {Place} place @param {(at: Pointed) => void} point */
export function numberTable(trace, { name, term, color }, matrix, place, point) {
  const caption = element("b", { class: `term ${color}` }, ...withIndices(term));
  const sheet = element("div", { class: "sheet", tabindex: 0, role: "group", "aria-label": `Numbers of ${term}` });
  const button = element("button", { type: "button" });
  const some = rowsOf(trace, matrix, place);
  const isCut = some.length < matrix.rows || matrix.columns > COLUMNS;
  let isOpen = false;
  const draw = () => {
    const rows = isOpen ? [...Array(matrix.rows).keys()] : some;
    const columns = isOpen ? matrix.columns : Math.min(matrix.columns, COLUMNS);
    sheet.replaceChildren(tableOf(trace, name, matrix, { rows, columns, place, point }));
    const all = `Show all ${matrix.rows.toLocaleString("en")} × ${matrix.columns.toLocaleString("en")}`;
    button.textContent = isOpen ? "Show less" : all;
  };
  button.addEventListener("click", () => {
    isOpen = !isOpen;
    draw();
  });
  draw();
  sheet.addEventListener("pointerleave", () => point({}));
  return element(
    "figure",
    { class: "numbers", "data-name": name },
    element("figcaption", {}, caption, term === name ? "" : ` ${name}`),
    sheet,
    ...(isCut ? [button] : []),
  );
}

/** The rows that are shown at first: the keys with the largest weights, or the first, and that of the query. @param {Trace} trace @param {Matrix} matrix @param {Place} place */
function rowsOf(trace, { rowAxis, rows }, place) {
  const all = [...Array(rows).keys()];
  if (rows <= ROWS + SLACK) return all;
  const isOwn = rowAxis === "query" || rowAxis === "token";
  const weights =
    rowAxis === "key" ? trace.row("weights", place) : all.map((row) => (isOwn && row === place.query ? 1 : 0));
  const largest = all.sort((one, other) => weights[other] - weights[one]).slice(0, ROWS);
  return largest.sort((one, other) => one - other);
}

/** @param {Trace} trace @param {string} name @param {Matrix} matrix @param {{rows: number[], columns: number, place: Place, point: (at: Pointed) => void}} shown */
function tableOf(trace, name, matrix, { rows, columns, place, point }) {
  const { rowAxis, columnAxis } = matrix;
  const short = (/** @type {string} */ axis, /** @type {number} */ index) =>
    axis in trace.header.labels ? nameOf(trace, axis, index) : String(index);
  const numbers = Array.from({ length: columns }, (_, column) => column);
  const head = numbers.map((column) => element("th", { scope: "col", dir: "auto" }, short(columnAxis, column)));
  const body = rows.map((row) => {
    const isOwn = (rowAxis === "query" || rowAxis === "token") && row === place.query;
    const cells = numbers.map((column) => element("td", {}, textAt(name, matrix, row, column)));
    const heading = element("th", { scope: "row", dir: "auto" }, rowAxis ? short(rowAxis, row) : "");
    const line = element("tr", isOwn ? { class: "own" } : {}, heading, ...cells);
    line.addEventListener("pointerenter", () => point({ [rowAxis]: row }));
    return line;
  });
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, element("td"), ...head)),
    element("tbody", {}, ...body),
  );
}
