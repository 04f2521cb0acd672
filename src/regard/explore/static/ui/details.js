// The list at the right: what the focused tokens attend to and what attends to them, strongest first; and the sum of a region.

import { restAfter, strongest } from "#data/ranked.js";
import { focusedCells } from "#state/store.js";
import { bar, element, hint } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";
import { colorClass, formatOf, WORDINGS } from "#ui/shown.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Painter, View } from '#ui/view.js'
 */

const LENGTH = 8;
const MAX_ROWS = 300; // of a head whose strongest weights are listed at rest
const MAX_NAMED = 4; // tokens that are named together

/** @param {HTMLElement} place @param {View} view @returns {Painter} */
export function mountDetails(place, view) {
  const lists = element("div", { class: "lists" });
  const spoken = element("p", { class: "visually-hidden", role: "status" });
  place.append(lists, spoken);
  return {
    paint() {
      const { head } = view;
      if (!head) return lists.replaceChildren(hint("Loading …"));
      lists.replaceChildren(...panels(view, head));
      const sentence = describeFocus(view, head);
      if (sentence !== spoken.textContent) spoken.textContent = sentence;
    },
  };
}

/** @param {View} view @param {Head} head */
function panels(view, head) {
  const { state, layer } = view;
  const { queries, keys, cell } = focusedCells(layer, state);
  const made = [];
  if (state.region) made.push(regionPanel(head, state.region, view.unit.name));
  if (queries.length) made.push(rowPanel(view, head, queries, cell ? keys[0] : null));
  if (keys.length) made.push(columnPanel(view, head, keys, cell ? queries[0] : null));
  return made.length ? made : panelsAtRest(view, head);
}

/** @param {View} view @param {Head} head @param {number[]} queries @param {number | null} chosen */
function rowPanel({ unit, queries: texts, keys, shown }, head, queries, chosen) {
  const ranked = head.rows(queries);
  const items = ranked.entries
    .slice(0, LENGTH)
    .map((entry) => item(head, tokenName(keys, entry.key), entry, "out", { isChosen: entry.key === chosen }));
  const { row, rows } = WORDINGS[shown];
  const title = [named(texts, queries, unit.name), queries.length > 1 ? rows : row, ...amongStored(ranked)];
  return panel(title, items, { head, ranked });
}

/** @param {View} view @param {Head} head @param {number[]} keys @param {number | null} chosen */
function columnPanel({ unit, layer, queries, keys: texts, shown }, head, keys, chosen) {
  const ranked = head.columns(keys);
  const items = ranked.entries
    .slice(0, LENGTH)
    .map((entry) => item(head, tokenName(queries, entry.query), entry, "in", { isChosen: entry.query === chosen }));
  const { column, columns } = WORDINGS[shown];
  const title = [named(texts, keys, unit.name), keys.length > 1 ? columns : column, ...amongStored(ranked)];
  const hidden = unit.hidden(layer);
  const isHidden = keys.every((key) => hidden[key]);
  return panel(title, items, {
    head,
    ranked,
    preposition: "from",
    empty: isHidden ? "Hidden: see “Hide” at the color scale." : "",
  });
}

/** Whether a stronger weight may be missing from a list. @param {Ranked} ranked */
function amongStored({ entries, isComplete, loading, numOrdered = 0 }) {
  const mayMiss = !isComplete && !loading && entries.length > numOrdered;
  return mayMiss ? [element("span", { class: "stored" }, " (among the weights in this file)")] : [];
}

/** @param {View} view @param {Head} head */
function panelsAtRest({ state, queries, keys, shown }, head) {
  const help = hint(
    "Point at a token or a cell, or move to it with Tab and the arrow keys. Click it or press Enter to select it. Ctrl or ⌘ selects several, Shift selects all in between; a double click, or W, selects a whole word.",
  );
  if (queries.length > MAX_ROWS || head.isRemote) return [help];
  const rows = queries.display.map((_, query) => head.row(query).entries);
  const isWord = (/** @type {Entry} */ { query, key }) => !queries.isSpecial[query] && !keys.isSpecial[key];
  const ofWords = rows.flatMap((entries) => entries.filter(isWord).slice(0, LENGTH));
  const some = ofWords.length ? ofWords : rows.flatMap((entries) => entries.slice(0, LENGTH));
  const items = strongest(some, LENGTH).map((entry) => {
    const pair = [tokenName(queries, entry.query), " → ", tokenName(keys, entry.key)];
    return item(head, element("span", {}, ...pair), entry, "out");
  });
  const where = state.heads.length > 1 ? "Strongest in these heads" : "Strongest in this head";
  return [panel([shown === "relevance" ? "Strongest" : where], items), help];
}

/** How much of the attention of a region's rows goes to its columns. @param {Head} head @param {import("#state/store.js").Region} region @param {string} unit */
function regionPanel(head, { queries, keys }, unit) {
  const [rows, columns] = [queries, keys].map(([first, last]) => last - first + 1);
  const title = [
    element("b", {}, "Region"),
    ` of ${rows} × ${columns} ${unit}s: rows ${queries.join(" to ")}, columns ${keys.join(" to ")}`,
  ];
  const { sum, error, approximate } = head.regionSum(queries, keys);
  if (sum === null) return panel(title, [], { ranked: { entries: [], rest: 0, loading: true } });
  if (head.isSigned) return regionOf(panel(title, [item(head, "Sum of its cells", { weight: sum, error }, "out")]));
  const scale = rows * head.numHeads;
  const format = approximate ? (/** @type {number} */ weight) => `≈ ${Number(weight.toPrecision(2))}` : formatWeight;
  const items = [
    item(head, approximate ? "Sum, from block means" : "Sum of its weights", { weight: sum, error }, "out", { format }),
    item(head, "Share of its rows’ attention", { weight: sum / scale, error: error / scale }, "out", { format }),
  ];
  return regionOf(panel(title, items));
}

/** @param {HTMLElement} made */
function regionOf(made) {
  made.classList.add("region");
  return made;
}

/**
 * What is listed under a title, and what is said of the rest.
 * @param {(Node | string)[]} title @param {HTMLElement[]} items @param {{head?: Head | null, ranked?: Ranked, empty?: string, preposition?: string}} options
 */
function panel(title, items, { head = null, ranked = { entries: [], rest: 0 }, empty = "", preposition = "on" } = {}) {
  const heading = element("h3", {}, ...title);
  if (ranked.loading) return element("div", { class: "panel" }, heading, hint("Loading …"));
  const nothing = ranked.rest > 0 ? "Not stored in this file." : "Nothing: the mask excludes every token.";
  const hints = head?.isSigned ? othersHint(ranked, items.length) : restHints(ranked, items.length, preposition);
  const list = items.length ? element("ol", {}, ...items) : hint(empty || nothing);
  return element("div", { class: "panel" }, heading, list, ...hints.map(hint));
}

/** What the cells that are not listed add up to. @param {Ranked} ranked @param {number} count  Of listed entries. */
function othersHint(ranked, count) {
  const others = ranked.entries.length - count;
  const { weight, error } = restAfter(ranked, count);
  return others > 0 ? [`${formatOf({ isSigned: true })(weight, error)} from ${others} more together`] : [];
}

/** @param {Ranked} ranked @param {number} count  Of listed entries. @param {string} preposition */
function restHints(ranked, count, preposition) {
  const { entries, isComplete, approximate, notRescaled } = ranked;
  const hints = [];
  const unknown = isComplete ? { weight: 0, error: 0 } : restAfter(ranked, entries.length);
  const known = isComplete ? restAfter(ranked, count) : restAfter({ entries, rest: 0 }, count);
  if (known.weight >= 0.001)
    hints.push(`${formatWeight(known.weight, known.error)} ${preposition} ${entries.length - count} more`);
  if (unknown.weight >= 0.001) {
    const about = approximate ? "about " : "";
    hints.push(`${about}${formatWeight(unknown.weight, unknown.error)} ${preposition} others, not stored in this file`);
  }
  if (notRescaled)
    hints.push("Some rows are not rescaled: too little weight remains, or the hidden weight is not stored exactly.");
  return hints;
}

/** The name of a token, with its position where the text has another with the same name. @param {Sequence} text @param {number} index */
function tokenName(text, index) {
  const name = element("span", {}, text.labels[index]);
  if (text.repeated.has(text.labels[index])) name.dataset.position = String(index);
  return name;
}

/** @param {Head} head @param {string | Node} title @param {{weight: number, error: number}} weight @param {"out" | "in"} direction @param {{isChosen?: boolean, format?: typeof formatWeight}} options */
function item(head, title, { weight, error }, direction, { isChosen = false, format = formatOf(head) } = {}) {
  const name = element("span", { class: "name", dir: "auto" }, title);
  const value = element("span", { class: "value" }, format(weight, error));
  const [size, color] = [Math.abs(weight) / head.scaleEnd, colorClass(head, weight, "")];
  return element("li", { class: isChosen ? "chosen" : "" }, name, bar(size, direction, color), value);
}

/** @param {Sequence} text @param {number[]} chosen @param {string} unit */
function named(text, chosen, unit) {
  return element("b", { dir: "auto" }, nameOf(text, chosen, unit));
}

/** @param {Sequence} text @param {number[]} chosen @param {string} unit  "token" or "word". */
function nameOf({ labels }, chosen, unit) {
  const names = chosen.slice(0, MAX_NAMED).map((index) => labels[index]);
  return names.join(" ") + (chosen.length > MAX_NAMED ? ` … (${chosen.length} ${unit}s)` : "");
}

/** What a screen reader says of the focus. @param {View} view @param {Head} head */
function describeFocus({ state, layer, unit, queries: texts, keys: keyTexts, shown }, head) {
  const { queries, keys, cell } = focusedCells(layer, state);
  if (cell) return describeCell(head, texts, keyTexts, queries[0], keys[0], shown);
  const sentences = [];
  /** @type {(entries: Entry[], name: (entry: Entry) => string) => string} */
  const list = (entries, name) =>
    entries
      .slice(0, 3)
      .map((entry) => `${name(entry)} ${formatOf(head)(entry.weight, entry.error)}`)
      .join(", ") || "nothing";
  const [row, column] = [queries.length ? head.rows(queries) : null, keys.length ? head.columns(keys) : null];
  if (row && !row.loading) {
    sentences.push(
      `${nameOf(texts, queries, unit.name)}${WORDINGS[shown].row} ${list(row.entries, ({ key }) => keyTexts.labels[key])}.`,
    );
  }
  if (column && !column.loading) {
    const by = list(column.entries, ({ query }) => texts.labels[query]);
    sentences.push(`${nameOf(keyTexts, keys, unit.name)}${WORDINGS[shown].column} ${by}.`);
  }
  return sentences.join(" ");
}

/** @param {Head} head @param {Sequence} queries @param {Sequence} keys @param {number} query @param {number} key @param {string} shown */
function describeCell(head, queries, keys, query, key, shown) {
  const [from, to] = [queries.labels[query], keys.labels[key]];
  const { state, weight, error, upperBound } = head.cell(query, key);
  if (state === "masked") return `${to} is masked for ${from}.`;
  if (state === "hidden") return `${to} is hidden.`;
  if (state === "unknown" && head.isRemote) return ""; // until it is loaded
  if (state === "unknown")
    return `${from} attends to ${to} with at most ${formatWeight(upperBound)}; the exact weight is not stored in this file.`;
  if (head.isSigned) return `${WORDINGS[shown].title}, ${from} to ${to}: ${formatOf(head)(weight, error)}.`;
  return `${from} attends to ${to} with ${formatWeight(weight, error)}.`;
}
