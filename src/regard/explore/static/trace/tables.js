// The tables of a trace's page for a head and a query, as trace_view.py and trace_figures.py make them.

import { currentIndex, filled, format, page, sizeOf, state, values } from "#trace/numbers.js";
import { element, svgElement } from "#ui/elements.js";

/** @import { Index } from '#trace/numbers.js' */

/** @typedef {{title: string, source: string, bar: boolean}} Column */
/** @typedef {{label: string, source: string, columns: string[], is_result: boolean}} Row */
/** @typedef {{axis: string, columns: Column[], rows: Row[], each: string, source: string, limit: number, tail: Row[], follows_key: boolean, is_sum: boolean}} Table */
/** @typedef {{label: string, sources: string[], columns: (number | null)[], scale: string, features: number[], kind: string, isEntry: boolean, isShown: boolean}} Line */
/** @typedef {{largest: number, hasNegative: boolean}} Scale */

const MAX_STRIP = 1024;
const MIN_STRIP = 17;
const STRIP_POWER = 0.5;
const SLACK = 2; // rows that are shown rather than counted
const MAX_SHOWN = 64; // columns that no window has room for

/** @param {Table} table @returns {Line[]} */
function linesOf(table) {
  const index = currentIndex();
  if (table.follows_key) index.token = index.key;
  const own = table.columns.map(({ source }) => source);
  /** @param {string} label @param {string[]} sources @param {string} source @param {Index} at */
  const evaluated = (label, sources, source, at) => ({
    label,
    sources,
    columns: sources.map((each) => (each === "" ? null : values(each, at)[0])),
    scale: table.is_sum ? "sum" : source,
    features: source === "" ? [] : values(source, at, table.axis),
  });
  /** @param {Row} row */
  const fixed = (row) => ({
    ...evaluated(
      row.label.replace(/\{([^{}]+)\}/g, (_, name) => filled(name)),
      row.columns.length ? row.columns : own.map(() => ""),
      row.source,
      index,
    ),
    kind: row.is_result ? "result" : "",
    isEntry: false,
    isShown: true,
  });
  const count = table.each === "" ? 0 : sizeOf(table.source || own[0], table.each);
  const entries = shownEntries(table, count);
  const each = Array.from({ length: count }, (_, at) => ({
    ...evaluated(String(page.labels[table.each]?.[at] ?? at), own, table.source, { ...index, [table.each]: at }),
    kind: table.each === "token" && at === state.query ? "own" : "",
    isEntry: true,
    isShown: entries.has(at),
  }));
  return [...table.rows.map(fixed), ...each, ...table.tail.map(fixed)];
}

/** The rows that are shown before a table is opened: the first features, or the keys with the largest weights. @param {Table} table @param {number} count */
function shownEntries(table, count) {
  if (count <= table.limit + SLACK) return new Set(Array(count).keys());
  if (!["key", "token"].includes(table.each)) return new Set(Array(table.limit).keys());
  const weights = values("weights", currentIndex(), "key");
  const largest = [...weights.keys()].sort((one, other) => weights[other] - weights[one]).slice(0, table.limit);
  if (table.each === "token" && !largest.includes(state.query)) largest[largest.length - 1] = state.query;
  return new Set(largest);
}

/** The range of each source of a table. @param {Line[]} lines @returns {Map<string, Scale>} */
function scalesOf(lines) {
  /** @type {Map<string, Scale>} */
  const scales = new Map();
  /** @param {string} name @param {(number | null)[]} numbers */
  const extend = (name, numbers) => {
    const scale = scales.get(name) ?? { largest: 0, hasNegative: false };
    for (const number of numbers) {
      if (number === null || !Number.isFinite(number)) continue;
      scale.largest = Math.max(scale.largest, Math.abs(number));
      scale.hasNegative ||= number < 0;
    }
    scales.set(name, scale);
  };
  for (const line of lines) {
    for (const [i, source] of line.sources.entries()) extend(source, [line.columns[i]]);
    extend(line.scale, line.features);
  }
  return scales;
}

/** @param {number} number @param {Scale} scale @param {number} [power] */
function shade(number, scale, power = 1) {
  if (!Number.isFinite(number)) return "none";
  const level = scale.largest ? Math.floor(9 * (Math.abs(number) / scale.largest) ** power + 0.5) : 0;
  return level ? `${number < 0 ? "down" : "up"}${level}` : "";
}

/** @param {number} width @param {{kind: string, x: number, width: number}[]} parts */
function drawing(width, parts) {
  const rects = parts.map((part) => svgElement("rect", { class: part.kind, x: part.x, width: part.width, height: 1 }));
  return svgElement("svg", { viewBox: `0 0 ${width} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...rects);
}

/** @param {number} number @param {Scale} scale @param {string} [source] */
function cell(number, scale, source) {
  if (source === "mask") return element("td", {}, number ? "yes" : "no");
  return element("td", { class: shade(number, scale) }, format(number));
}

/** @param {number} number */
const rounded = (number) => Math.round(number * 100) / 100;

/** @param {number} number @param {string} source @param {Scale} scale */
function bar(number, source, scale) {
  const share = !Number.isFinite(number) || !scale.largest ? 0 : source === "weights" ? number : number / scale.largest;
  const width = Math.abs(share) * (scale.hasNegative ? 50 : 100);
  const x = scale.hasNegative ? (number < 0 ? 50 - width : 50) : 0;
  const part = { kind: number < 0 ? "down" : "up", x: rounded(x), width: rounded(width) };
  return element("td", { class: "bar" }, drawing(100, [part]));
}

/** The rows of a table with some of its features. @param {Table} table @param {Line[]} lines some of its rows @param {number} total number of all rows @param {Map<string, Scale>} scales @param {number} from @param {number} to */
function block(table, lines, total, scales, from, to) {
  const head = element("tr", {}, element("td"));
  for (const column of table.columns) {
    head.append(element("th", { scope: "col" }, column.title));
    if (column.bar) head.append(element("td", { class: "bar" }));
  }
  for (let i = from; i < to; i++) head.append(element("th", { scope: "col" }, String(i)));
  const body = lines.map((line) => {
    const row = element("tr", { class: line.kind }, element("th", { scope: "row", title: line.label }, line.label));
    table.columns.forEach((column, i) => {
      const [source, number] = [line.sources[i], line.columns[i]];
      const scale = /** @type {Scale} */ (scales.get(source));
      row.append(number === null ? element("td") : cell(number, scale, source));
      const hasBar = number !== null && source === column.source;
      if (column.bar) row.append(hasBar ? bar(number, source, scale) : element("td", { class: "bar" }));
    });
    const scale = /** @type {Scale} */ (scales.get(line.scale));
    row.append(...line.features.slice(from, to).map((number) => cell(number, scale)));
    return row;
  });
  const last = lines.findLastIndex(({ isEntry }) => isEntry);
  if (lines.length < total && ["dim", "feature"].includes(table.each))
    body.splice(last + 1, 0, element("tr", { class: "gap" }, element("td", {}, "⋮")));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

/** Draw a table for the head and the query; one that is open has all rows, and its features below one another. @param {HTMLElement} figure */
export function draw(figure) {
  const number = Number(figure.dataset.table);
  /** @type {Table} */
  const table = page.tables[number];
  const lines = linesOf(table);
  const scales = scalesOf(lines);
  const initial = lines.filter(({ isShown }) => isShown);
  const count = Math.max(...lines.map(({ features }) => features.length));
  const isOpen = state.opened.has(number);
  const fit = /** @type {HTMLElement} */ (figure.querySelector(".fit"));
  fit.replaceChildren(block(table, isOpen ? lines : initial, lines.length, scales, 0, Math.min(count, MAX_SHOWN)));
  const visible = Math.min(count, columnsIn(fit));
  if (isOpen && visible > 0) {
    const starts = Array.from({ length: Math.ceil(count / visible) }, (_, i) => i * visible);
    fit.replaceChildren(
      ...starts.map((start) => block(table, lines, lines.length, scales, start, Math.min(count, start + visible))),
    );
  }
  const vectors = lines.filter((line) => line.features.length >= MIN_STRIP && (!line.isEntry || line.kind === "own"));
  const strips =
    table.axis === "feature" ? vectors.map((line) => strip(line, /** @type {Scale} */ (scales.get(line.scale)))) : [];
  figure.querySelector(".strips")?.replaceChildren(...strips);
  const rest = [counted(count - visible, "feature"), hiddenRows(table, lines)].filter(Boolean);
  const button = element("button", { type: "button" }, isOpen ? "Show less" : "Show all");
  button.addEventListener("click", () => {
    isOpen ? state.opened.delete(number) : state.opened.add(number);
    draw(figure);
    /** @type {HTMLElement | null} */ (figure.querySelector(".more button"))?.focus({ preventScroll: true });
  });
  const more = /** @type {HTMLElement} */ (figure.querySelector(".more"));
  more.replaceChildren(...(rest.length ? [isOpen ? "" : `… ${rest.join(" and ")} `, button] : []));
}

/** How many whole columns of features an element has room for. @param {HTMLElement} fit */
function columnsIn(fit) {
  const first = [...fit.querySelectorAll("thead th")]
    .find((heading) => heading.textContent === "0")
    ?.getBoundingClientRect();
  if (first === undefined || first.width === 0) return 1;
  return Math.max(1, Math.floor((fit.getBoundingClientRect().right - first.left) / first.width + 0.05));
}

/** @param {number} count @param {string} name of one */
function counted(count, name) {
  return count === 0 ? "" : `${count} more ${name}${count === 1 ? "" : "s"}`;
}

/** What is said of the rows that are not shown. @param {Table} table @param {Line[]} lines */
function hiddenRows(table, lines) {
  const hidden = lines.filter(({ isShown }) => !isShown).length;
  if (hidden === 0 || table.each !== "key") return counted(hidden, table.each === "token" ? "token" : "row");
  const weights = values("weights", currentIndex(), "key");
  const entries = lines.filter(({ isEntry }) => isEntry);
  const share = entries.reduce((sum, { isShown }, i) => sum + (isShown ? 0 : weights[i]), 0);
  return `${counted(hidden, "key")} with ${format(share)} of the attention`;
}

/** @param {Line} line @param {Scale} scale */
function strip(line, scale) {
  const numbers = line.features.slice(0, MAX_STRIP);
  const parts = numbers
    .map((number, x) => ({ kind: shade(number, scale, STRIP_POWER), x, width: 1 }))
    .filter(({ kind }) => kind !== "");
  const label = element("span", { title: line.label }, line.label);
  return element("div", { class: "strip" }, label, drawing(numbers.length, parts));
}
