// Tables of the calculation: a row for each key, numbers shaded by their size, and columns that are never cut.

import { element } from "#ui/elements.js";
import { formatNumber } from "#ui/format.js";
import { listen } from "#ui/listbox.js";

/**
 * @typedef {{text: string, value?: number, node?: Node}} Cell  `value` is what the shade represents; `node` is shown instead of the text.
 * @typedef {{name: string, key?: number, cells: Cell[], span?: number}} Line
 *   With a key it can be selected. `span`: how many columns the name of a line of the foot takes.
 * @typedef {{columns: string[], lines: Line[], foot?: Line[], shadedFrom?: number}} TableContent
 *   `shadedFrom`: the first column whose numbers are shaded, on one scale.
 * @typedef {{point(key: number | null): void, select(key: number): void}} RowActions
 */

const MAX_SHADE = 42; // % of color behind the largest number

/** @param {number} value @param {number} error @returns {Cell} */
export function numberCell(value, error = 0) {
  return { text: formatNumber(value, error), value };
}

/** @param {string} text @returns {Cell} */
export function textCell(text) {
  return { text };
}

/** @param {TableContent} content @param {RowActions} actions @returns {HTMLElement} */
export function stepTable({ columns, lines, foot = [], shadedFrom = Infinity }, actions) {
  const shaded = lines.flatMap(({ cells }) => cells.slice(shadedFrom).map(({ value = 0 }) => Math.abs(value)));
  const largest = shaded.reduce((a, b) => Math.max(a, b), 0);
  const names = columns.map((name) => (name ? element("th", { scope: "col" }, name) : element("td")));
  const head = element("thead", {}, element("tr", {}, element("td", {}), ...names));
  const rows = lines.map((line, index) => {
    const cells = line.cells.map((cell, column) => cellNode(cell, column >= shadedFrom ? largest : 0));
    return rowNode(line, index, cells);
  });
  const body = element("tbody", {}, ...rows);
  const last = foot.map(({ name, cells, span = 1 }) => {
    const blank = Array(columns.length + 1 - span - cells.length).fill(textCell(""));
    const nodes = [...cells, ...blank].map((cell) => cellNode(cell, 0));
    return element("tr", {}, element("th", { scope: "row", colspan: span }, name), ...nodes);
  });
  const table = element("table", {}, head, body, ...(last.length ? [element("tfoot", {}, ...last)] : []));
  listenToRows(body, lines, actions);
  return element("div", { class: "sheet" }, table);
}

/** @param {Line} line @param {number} index @param {HTMLElement[]} cells */
function rowNode({ name, key }, index, cells) {
  if (key === undefined) return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
  const button = element("button", { type: "button", dir: "auto", "aria-pressed": "false", "data-index": index }, name);
  for (const cell of cells) cell.dataset.index = String(index);
  return element("tr", { "data-key": key }, element("th", { scope: "row" }, button), ...cells);
}

/** @param {Cell} cell @param {number} largest  Zero if it is not shaded. */
function cellNode({ text, value, node }, largest) {
  const cell = element("td", {}, node ?? text);
  if (value === undefined || !largest) return cell;
  cell.classList.add(value < 0 ? "negative" : "positive");
  cell.style.setProperty("--shade", `${(MAX_SHADE * Math.abs(value)) / largest}%`);
  return cell;
}

/** @param {HTMLElement} body @param {Line[]} lines @param {RowActions} actions */
function listenToRows(body, lines, { point, select }) {
  const buttons = [...body.querySelectorAll("button")];
  if (!buttons.length) return;
  const keyAt = (/** @type {number} */ index) => Number(lines[index].key);
  listen(body, buttons, {
    point: (index) => point(index === null ? null : keyAt(index)),
    select: (index) => select(keyAt(index)),
    clear: () => point(null),
    isVertical: () => true,
  });
}

/** Let a table that is wider than its place end at a column, and scroll from column to column. @param {HTMLElement} sheet @param {number} room  CSS pixels. */
export function fitTable(sheet, room) {
  const table = /** @type {HTMLTableElement} */ (sheet.firstElementChild);
  sheet.classList.remove("scrolls");
  sheet.style.width = "";
  sheet.removeAttribute("tabindex");
  if (table.offsetWidth <= room) return;
  const [, ...columns] = [...table.rows[0].cells];
  const widths = columns.map((column) => column.getBoundingClientRect().width);
  sheet.style.setProperty("--column", `${Math.ceil(Math.max(...widths))}px`); // whole pixels, as scrolling goes by these
  sheet.classList.add("scrolls");
  const { left } = table.getBoundingClientRect();
  const boxes = columns.map((column) => column.getBoundingClientRect());
  sheet.style.setProperty("--names", `${boxes[0].left - left}px`);
  const next = boxes.findIndex(({ right }) => right - left > room - 1); // and the border
  sheet.style.width = `${boxes[Math.max(next, 1)].left - left}px`;
  if (table.querySelector("button")) return;
  sheet.tabIndex = 0; // nothing in it takes the focus, without which the keyboard could not scroll it
  sheet.setAttribute("role", "group");
  sheet.setAttribute("aria-label", "Table");
}
