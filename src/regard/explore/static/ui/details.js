// The numbers: for what is pointed at or held, where it looks and what looks at it, strongest first; and what a region sums up to.

import { headOf } from "#data/combined_heads.js";
import { hides, links } from "#data/links.js";
import { strongest, written } from "#data/recording.js";
import { label } from "#data/tokens.js";
import { focusIn } from "#state/store.js";
import { element } from "#ui/elements.js";

const LENGTH = 8;
const MOST_CELLS = 10_000; // of a region that are added up one by one
const MOST_ROWS = 300; // of which the strongest links of a head are looked for

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountReadout(place, recording, store) {
  const lists = element("div", { class: "lists" });
  const spoken = element("p", { class: "unseen", role: "status" });
  place.append(lists, spoken);
  let _asked = 0;
  const paint = () => {
    _asked = 0;
    const state = store.get();
    const layer = recording.layers[state.layer];
    const head = headOf(layer, state);
    if (!head) return lists.replaceChildren(element("p", { class: "hint" }, "Reading …"));
    const focus = focusIn(layer, state);
    lists.replaceChildren(...panels(layer, head, state, focus));
    const sentence = spokenOf(layer, head, focus);
    if (sentence !== spoken.textContent) spoken.textContent = sentence;
  };
  store.subscribe((state) => {
    const layer = recording.layers[state.layer];
    if (!layer.ready) layer.load().then(() => store.set({}));
    _asked ||= requestAnimationFrame(paint);
  });
}

function panels(layer, head, state, { queries, keys, cell }) {
  const made = [];
  if (state.region) made.push(regionPanel(head.inTokens?.(state.region) ?? { head, ...state.region }));
  if (queries.length) {
    const found = head.rows(queries);
    const kept = links(layer, found, state);
    const entries = kept
      .slice(0, LENGTH)
      .map((link) => entry(label(layer.keys[link.key]), link.weight, "out", cell && link.key === keys[0]));
    made.push(
      panel([named(layer.queries, queries), queries.length > 1 ? " attend to, on the mean" : " attends to"], entries, {
        ...found,
        links: kept,
      }),
    );
  }
  if (keys.length) {
    const found = head.columnsOf(keys);
    const entries = found.links
      .slice(0, LENGTH)
      .map((link) => entry(label(layer.queries[link.query]), link.weight, "in", cell && link.query === queries[0]));
    const title = [named(layer.keys, keys), keys.length > 1 ? " together are attended by" : " is attended by"];
    made.push(
      panel(title, entries, found, keys.every(hides(layer, state)) ? "Left out, as the legend says." : undefined),
    );
  }
  if (made.length === 0) {
    if (layer.queries.length <= MOST_ROWS && layer.header.form !== "remote") {
      const all = layer.queries.flatMap((_, query) => links(layer, head.row(query), state).slice(0, LENGTH));
      const entries = strongest(all, LENGTH).map((link) =>
        entry(`${label(layer.queries[link.query])} → ${label(layer.keys[link.key])}`, link.weight, "out", false),
      );
      made.push(panel([state.heads.length > 1 ? "Strongest in these heads" : "Strongest in this head"], entries));
    }
    made.push(
      element(
        "p",
        { class: "hint" },
        "Point at a word or a cell, or go there with Tab and the arrow keys. Click or press Enter to hold it; with Ctrl or ⌘ hold several, with Shift all between; a double click, or W, holds a whole word.",
      ),
    );
  }
  return made;
}

/** How much of the attention of a region's rows goes to its columns. */
function regionPanel({ head, queries, keys }) {
  const [rows, columns] = [queries, keys].map(([first, last]) => last - first + 1);
  const name = `${rows} × ${columns} cells: rows ${queries.join(" to ")}, columns ${keys.join(" to ")}`;
  const { sum, exact } = regionSum(head, queries, keys);
  if (sum === null) return panel([element("b", {}, "Region"), ` of ${name}`], [], { waiting: true });
  const title = [element("b", {}, "Region"), ` of ${name}`];
  const entries = [
    entry(exact ? "Sum of its weights" : "Sum, from the means of squares", sum, "out", false),
    entry("Share of its rows’ attention", sum / rows / (head.times ?? 1), "out", false),
  ];
  const made = panel(title, entries);
  made.classList.add("region");
  return made;
}

/**
 * The sum of a region's weights: as a server tells it, or of its cells; of a sketch that does not know them all by its squares,
 * each by as much of it as lies within. Null while it is on its way.
 */
export function regionSum(head, queries, keys) {
  if (head.sum) return { sum: head.sum(queries, keys), exact: true };
  const squares = head.finest ?? head.squares;
  const known = squares.size === 1 ? null : cellsSum(head, queries, keys);
  if (known !== null) return { sum: known, exact: true };
  const { size } = squares;
  const within = (index, [first, last]) =>
    Math.max(0, Math.min((index + 1) * size - 1, last) - Math.max(index * size, first) + 1);
  let sum = 0;
  for (let row = Math.floor(queries[0] / size); row <= Math.floor(queries[1] / size); row++) {
    for (let column = Math.floor(keys[0] / size); column <= Math.floor(keys[1] / size); column++) {
      sum += ((squares.at(row, column) || 0) * within(row, queries) * within(column, keys)) / size;
    }
  }
  return { sum, exact: size === 1 };
}

/** The sum of a few cells; null where one is not known, or they are many. */
function cellsSum(head, [top, bottom], [left, right]) {
  if ((bottom - top + 1) * (right - left + 1) > MOST_CELLS) return null;
  let sum = 0;
  for (let query = top; query <= bottom; query++) {
    for (let key = left; key <= right; key++) {
      const { state, weight } = head.cell(query, key);
      if (state === "unknown") return null;
      if (state === "known") sum += weight;
    }
  }
  return sum;
}

/** What is listed under a title, and what of the links is said beside them. */
function panel(
  title,
  entries,
  {
    links = /** @type {import("#data/heads.js").Link[]} */ ([]),
    left = 0,
    rough = false,
    unscaled = false,
    waiting = false,
  } = {},
  none = left > 0 ? "None that this file names." : "Nothing: the mask leaves it no token.",
) {
  if (waiting)
    return element("div", { class: "panel" }, element("h3", {}, ...title), element("p", { class: "hint" }, "Asking …"));
  const [rest, more] = [
    links.slice(entries.length).reduce((sum, { weight }) => sum + weight, 0),
    links.length - entries.length,
  ];
  const list = entries.length ? element("ol", {}, ...entries) : element("p", { class: "hint" }, none);
  const hints = [
    ...(rest >= 0.001 ? [`${written(rest)} on ${more} more`] : []),
    ...(left >= 0.001 ? [`${rough ? "about " : ""}${written(left)} on others, which this file does not name`] : []),
    ...(unscaled ? ["Not all is rescaled: of some rows this file does not tell exactly what is left out."] : []),
  ];
  return element(
    "div",
    { class: "panel" },
    element("h3", {}, ...title),
    list,
    ...hints.map((hint) => element("p", { class: "hint" }, hint)),
  );
}

function entry(title, weight, direction, chosen) {
  const bar = element("span", { class: `bar ${direction}`, "aria-hidden": "true" });
  bar.style.setProperty("--weight", String(Math.min(weight, 1)));
  const name = element("span", { class: "name", dir: "auto" }, title);
  return element(
    "li",
    { class: chosen ? "chosen" : "" },
    name,
    bar,
    element("span", { class: "value" }, written(weight)),
  );
}

function named(tokens, chosen) {
  return element("b", { dir: "auto" }, words(tokens, chosen));
}

/** What some tokens are called together. */
function words(tokens, chosen) {
  const names = chosen.slice(0, 4).map((index) => label(tokens[index]));
  return names.join(" ") + (chosen.length > 4 ? ` … (${chosen.length} tokens)` : "");
}

function spokenOf(layer, head, { queries, keys, cell }) {
  if (cell) {
    const [[query], [key]] = [queries, keys];
    const { state, weight, most } = head.cell(query, key);
    const [from, to] = [label(layer.queries[query]), label(layer.keys[key])];
    if (state === "masked") return `${from} may not see ${to}.`;
    if (state === "unknown" && head.exact) return ""; // until it has come
    if (state === "hidden") return `${to} is left out.`;
    return state === "known"
      ? `${from} attends to ${to} with ${written(weight)}.`
      : `${from} attends to ${to} with at most ${written(most)}; this file does not know more.`;
  }
  const told = [];
  if (queries.length) {
    const { links: all, waiting } = head.rows(queries);
    const some = all.slice(0, 3).map((link) => `${label(layer.keys[link.key])} ${written(link.weight)}`);
    if (!waiting) told.push(`${words(layer.queries, queries)} attends to ${some.join(", ") || "nothing"}.`);
  }
  if (keys.length) {
    const { links: all, waiting } = head.columnsOf(keys);
    const some = all.slice(0, 3).map((link) => `${label(layer.queries[link.query])} ${written(link.weight)}`);
    if (!waiting) told.push(`${words(layer.keys, keys)} is attended by ${some.join(", ") || "nothing"}.`);
  }
  return told.join(" ");
}
