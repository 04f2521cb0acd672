// Two recordings side by side, and how much more the second gives than the first where their tokens align.

import { headOf } from "#data/combined_heads.js";
import { Difference, paired } from "#data/difference.js";
import { counterpart, headsInBoth } from "#data/pairing.js";
import { written } from "#data/recording.js";
import { label } from "#data/tokens.js";
import { nameOf, unitOf } from "#export/csv.js";
import { focusIn, hold } from "#state/store.js";
import { element } from "#ui/elements.js";
import { Legend, signed } from "#views/compare_legend.js";
import { NAMES, Panel } from "#views/compare_panel.js";
import { Ranking } from "#views/compare_ranking.js";
import { stepped, tokenAt, within } from "#views/matrix.js";

const APART = 8; // CSS pixels from a cell to what is told of it

/**
 * @typedef {{query: number | null, key: number | null}} Spot
 * @typedef {{one: Spot, other: Spot}} Spots  What is pointed at in each recording; null where it is not there.
 * @typedef {import("#data/difference.js").Pair} Pair
 */

export function mountCompare(place, recording, store) {
  const { beside } = recording;
  if (!beside) return false;
  const recordings = { one: recording, other: beside };
  const words = element("p", { class: "note compare-words" });
  const panels = Object.fromEntries(Object.keys(NAMES).map((name) => [name, new Panel(name, recordings[name])]));
  const legend = new Legend();
  const why = element("p", { class: "note compare-why" });
  const tip = element("div", { class: "tip", hidden: "" });
  const spoken = element("p", { class: "unseen", role: "status" });
  const ranking = new Ranking(recording, beside, store);
  place.append(
    words,
    element("div", { class: "compare-panels" }, ...Object.values(panels).map(({ figure }) => figure), legend.node),
    why,
    tip,
    spoken,
    ranking.node,
  );

  const pairs = recording.layers.map((layer) => {
    const against = counterpart(recording, beside, layer);
    return against && { layer, against };
  });
  /** @type {{name: string, made: any}} */
  let last = { name: "", made: null };
  /** @type {{panel: string, spots: Spots} | null} */
  let pointed = null;
  let _asked = 0;

  /** What is compared: two layers and their heads, once they are read. */
  const compared = (state) => {
    const found = pairs[state.layer];
    if (!found) return { layer: recording.layers[state.layer], heads: [state.heads, []] };
    const both = headsInBoth(found.layer, found.against, state.heads);
    const heads = both.length ? [0, 1].map((which) => both.map((each) => each[which])) : [state.heads, []];
    if (!found.layer.ready || !found.against.ready) return null;
    const name = [state.layer, heads[0], state.several, state.hidden, state.rescale].join(" ");
    if (last.name !== name) {
      const pair = paired(found.layer, found.against);
      const [one, other] = [
        headOf(found.layer, { ...state, heads: heads[0] }),
        both.length ? headOf(found.against, { ...state, heads: heads[1] }) : null,
      ];
      last = {
        name,
        made: {
          ...pair,
          heads,
          one,
          other,
          difference: one && other && !pair.why ? new Difference(one, other, pair) : null,
        },
      };
    }
    return last.made;
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("compare") || place.clientWidth === 0) return;
    const now = compared(state);
    if (!now) return;
    words.textContent = told(recording, beside, now, state);
    why.textContent = now.why ?? "";
    why.hidden = !now.why;
    panels.other.figure.hidden = !now.other;
    panels.difference.figure.hidden = !now.difference;
    panels.one.figure.hidden = !now.one;
    legend.node.hidden = !now.difference;
    const focus = focusIn(now.layer, state);
    /** @type {[Panel, object, object][]} */
    const shown = [];
    if (now.one)
      shown.push([
        panels.one,
        { layer: now.layer, head: now.one, heads: now.heads[0], queries: now.layer.queries, keys: now.layer.keys },
        focus,
      ]);
    if (now.other) {
      const there =
        pointed?.panel === "other" ? focusOf(pointed.spots.other) : over(focus, now.rows.there, now.columns.there);
      shown.push([
        panels.other,
        {
          layer: now.against,
          head: now.other,
          heads: now.heads[1],
          queries: now.against.queries,
          keys: now.against.keys,
        },
        there,
      ]);
    }
    if (now.difference) {
      const [rows, columns] = [now.rows, now.columns].map(
        ({ pairs: both }) => new Map(both.map(([here], index) => [here, index])),
      );
      const axis = (tokens, both) => both.map(([here]) => tokens[here]);
      now.difference.axes ??= {
        queries: axis(now.layer.queries, now.rows.pairs),
        keys: axis(now.layer.keys, now.columns.pairs),
      };
      shown.push([
        panels.difference,
        { layer: now.layer, head: now.difference, heads: now.heads[0], ...now.difference.axes },
        over(focus, rows, columns),
      ]);
      legend.paint(state, now);
    }
    const cells = shown.map(([panel, { queries, keys }]) => panel.fit(queries, keys));
    for (const [panel, what, at] of shown) {
      panel.fit(what.queries, what.keys, Math.min(...cells)); // all of one size
      panel.paint(state, what, at);
    }
    showTip(tip, place, pointed && panels[pointed.panel], pointed?.spots, now, spoken);
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  /** Point at what stands at a place of a panel. */
  const point = (panel, at) => {
    const now = compared(store.get());
    if (!now) return;
    const spots = spotsOf(panel.name, at, now);
    pointed = { panel: panel.name, spots };
    panel.point(at);
    const { query, key } = spots.one;
    const token = tokenAt(now.layer, spots.one);
    store.set({
      hover: query !== null && key !== null ? { cell: { query, key } } : token && isLabel(at) ? { token } : null,
    });
  };
  const leave = () => {
    pointed = null;
    store.set({ hover: null });
  };
  const holdAt = (panel, at, more) => {
    const now = compared(store.get());
    const token = now && tokenAt(now.layer, spotsOf(panel.name, at, now).one);
    if (token) hold(store, token, more);
  };
  for (const panel of Object.values(panels)) {
    const { canvas } = panel;
    canvas.addEventListener("pointermove", (event) => point(panel, panel.hit(event)));
    canvas.addEventListener("pointerdown", (event) => event.pointerType !== "mouse" && point(panel, panel.hit(event)));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
    canvas.addEventListener("click", (event) => holdAt(panel, panel.hit(event), event.ctrlKey || event.metaKey));
    canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && point(panel, panel.cursor));
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("keydown", (event) => {
      const to = panel.layout && stepped(event.key, panel.cursor, panel.layout);
      if (to) point(panel, within(to, panel.layout));
      else if (event.key === "Enter" || event.key === " ") holdAt(panel, panel.cursor, event.ctrlKey || event.metaKey);
      else if (event.key === "Escape") store.set({ tokens: [], hover: null });
      else return;
      event.preventDefault();
    });
  }

  store.subscribe((state) => {
    if (!state.views.includes("compare")) return;
    const found = pairs[state.layer];
    const unread = found ? [found.layer, found.against].filter(({ ready }) => !ready) : [];
    if (unread.length) Promise.all(unread.map((layer) => layer.load())).then(() => store.set({}));
    ranking.begin(pairs, state);
    soon();
  });
  new ResizeObserver(soon).observe(place);
  return () => tableOf(compared(store.get()), store.get());
}

/** The cells, or squares, that both have: where they stand in each, and what each gives. @returns {import("#export/csv.js").Table} */
function tableOf(now, state) {
  const { layer, difference } = now ?? {};
  const size = difference?.size ?? 1;
  const unit = `${unitOf(state)}${size > 1 ? ` of ${size} × ${size} tokens` : ""}`;
  const columns = [
    "query index A",
    "query index B",
    "query token",
    "key index A",
    "key index B",
    "key token",
    `${unit} A`,
    `${unit} B`,
    NAMES.difference,
  ];
  if (!difference) return { columns, rows: [] };
  const [one, other] = difference.heads.map(({ squares }) => squares);
  const [rows, keys] = difference.places;
  const placesOf = (tokens, [here, there]) => [here * size, there * size, nameOf(tokens[here * size], state)];
  const lines = rows.flatMap((row, index) =>
    keys.flatMap((key, column) => {
      const value = difference.squares.at(index, column);
      if (Number.isNaN(value)) return []; // masked, or left out
      return [
        [
          ...placesOf(layer.queries, row),
          ...placesOf(layer.keys, key),
          one.at(row[0], key[0]),
          other.at(row[1], key[1]),
          value,
        ],
      ];
    }),
  );
  return { columns, rows: lines };
}

/** What is pointed at, in each recording: nothing in the one that does not have it. @returns {Spots} */
function spotsOf(name, { query, key }, { rows, columns }) {
  const place = (index, way) => (index === null || way[index] < 0 ? null : way[index]);
  if (name === "difference") {
    const [row, column] = [query === null ? null : rows.pairs[query], key === null ? null : columns.pairs[key]];
    const spot = (which) => ({ query: row?.[which], key: column?.[which] });
    return { one: spot(0), other: spot(1) };
  }
  if (!rows) return { one: { query, key }, other: { query: null, key: null } };
  if (name === "one")
    return { one: { query, key }, other: { query: place(query, rows.there), key: place(key, columns.there) } };
  return { one: { query: place(query, rows.here), key: place(key, columns.here) }, other: { query, key } };
}

function isLabel({ query, key }) {
  return query === null || key === null;
}

function focusOf({ query, key }) {
  const some = (index) => (index === null ? [] : [index]);
  return { queries: some(query), keys: some(key), cell: query !== null && key !== null };
}

/** A focus in the other's places. @param {{queries: number[], keys: number[], cell: boolean}} focus @param {Int32Array | Map<number, number>} rows @param {Int32Array | Map<number, number>} columns */
function over({ queries, keys, cell }, rows, columns) {
  const at = (way, index) => (way instanceof Map ? (way.get(index) ?? -1) : way[index]);
  const found = {
    queries: queries.map((query) => at(rows, query)).filter((query) => query >= 0),
    keys: keys.map((key) => at(columns, key)).filter((key) => key >= 0),
  };
  return { ...found, cell: cell && found.queries.length > 0 && found.keys.length > 0 };
}

/** What is compared, in words: the layers, the heads and how many tokens are in both. */
function told(_recording, _beside, now, state) {
  const { layer, against, rows, columns, heads } = now;
  const named = (of) => of.map((head) => layer.heads[head]).join(", ");
  if (!against)
    return `B has no layer that belongs to ${layer.name} of A: none of that name, and not as many of its kind.`;
  const sentences = [];
  if (against.name !== layer.name) sentences.push(`${layer.name} of A is compared with ${against.name} of B.`);
  const missing = state.heads.filter((head) => !heads[0].includes(head));
  if (heads[1].length === 0) return [...sentences, `B has no head ${named(state.heads)} in that layer.`].join(" ");
  if (missing.length) sentences.push(`Head ${named(missing)} is only in A and left out.`);
  const one = layer.querySequence === layer.keySequence && against.querySequence === against.keySequence;
  if (now.one.squares.size > 1 && !now.why) {
    const same = (tokens, others) =>
      `${tokens.filter((token, index) => token === others[index]).length} of ${tokens.length} tokens are the same in both`;
    sentences.push(
      one
        ? `${same(layer.queries, against.queries)}; squares are compared by place.`
        : `Of the rows ${same(layer.queries, against.queries)}, of the columns ${same(layer.keys, against.keys)}; squares are compared by place.`,
    );
    return sentences.join(" ");
  }
  if (one) sentences.push(`${inBoth(rows)}.`);
  else sentences.push(`Rows: ${inBoth(rows)}.`, `Columns: ${inBoth(columns)}.`);
  if (!rows.all || !columns.all)
    sentences.push("The texts are long and differ, so only what they begin and end with is aligned.");
  return sentences.join(" ");
}

function inBoth({ pairs, there, here }) {
  const count = pairs.length;
  /** @type {[number, string][]} */
  const lefts = [
    [there.length - count, "A"],
    [here.length - count, "B"],
  ];
  const only = lefts.filter(([left]) => left > 0).map(([left, name]) => `${left} only in ${name}`);
  return `${count} of ${there.length} tokens are in both${only.length ? ` (${only.join(", ")})` : ""}`;
}

/** Tell of a cell what A gives, what B gives, and the difference. */
function showTip(tip, place, panel, spots, now, spoken) {
  const { one, other } = spots ?? {};
  const [inA, inB] = [one, other].map((spot) => spot && spot.query !== null && spot.key !== null);
  tip.hidden = !(panel?.layout && (inA || inB));
  if (tip.hidden) return;
  const [layer, at] = inA ? [now.layer, one] : [now.against, other];
  const cells = { A: inA && now.one.cell(one.query, one.key), B: inB && now.other?.cell(other.query, other.key) };
  const [from, to] = [label(layer.queries[at.query]), label(layer.keys[at.key])];
  const lines = Object.entries(cells).map(([name, cell]) => [name, cellText(cell)]);
  if (inA && inB && now.difference) lines.push(["B − A", differenceOf(cells, now, one, other)]);
  tip.replaceChildren(
    element(
      "span",
      { class: "pair" },
      element("b", { class: "out-word", dir: "auto" }, from),
      " → ",
      element("b", { class: "in-word", dir: "auto" }, to),
    ),
    ...lines.map(([name, text]) =>
      element(
        "span",
        { class: "compare-line" },
        element("span", { class: "rank" }, name),
        " ",
        element("span", { class: "value" }, text),
      ),
    ),
  );
  const sentence = `${from} to ${to}: ${lines.map(([name, text]) => `${name} ${text}`).join(", ")}.`;
  if (spoken.textContent !== sentence) spoken.textContent = sentence;
  beside(tip, place, panel);
}

function cellText(cell) {
  if (!cell) return "not there";
  if (cell.state === "masked") return "masked";
  if (cell.state === "hidden") return "left out";
  return cell.state === "known" ? written(cell.weight) : `not in this file: at most ${written(cell.most)}`;
}

/** A difference with its sign, where it is large enough to have one. @param {number} value */
function gap(value) {
  const size = written(Math.abs(value));
  if (value === 0) return "0";
  return size.startsWith("<") ? size : signed(value, size);
}

function differenceOf({ A, B }, { difference }, { query, key }, other) {
  if (A.state === "known" && B.state === "known") return gap(B.weight - A.weight);
  if (A.state === "masked" || B.state === "masked") return "none: masked";
  if (A.state === "hidden" || B.state === "hidden") return "none: left out";
  const { size } = difference;
  const share = difference.squares.at(Math.floor(query / size), Math.floor(key / size));
  return other.query === query && other.key === key && size > 1
    ? `${gap(share)} to the ${size} keys around it, on the mean of ${size} rows`
    : "not in this file";
}

/** Put a tip beside the cell that a panel's pointer or cursor is at. */
function beside(tip, place, { canvas, layout, cursor }) {
  const [outer, inner] = [place.getBoundingClientRect(), canvas.getBoundingClientRect()];
  const x = inner.left - outer.left + layout.left + cursor.key * layout.cell;
  const y = inner.top - outer.top + layout.top + cursor.query * layout.cell;
  const after = x + layout.cell + APART;
  tip.style.left = `${after + tip.offsetWidth <= place.clientWidth ? after : Math.max(x - tip.offsetWidth - APART, 0)}px`;
  const below = y + layout.cell + APART;
  const fits = outer.top + below + tip.offsetHeight <= window.innerHeight;
  tip.style.top = `${fits ? below : y - tip.offsetHeight - APART}px`;
}
