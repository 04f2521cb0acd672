// Two recordings side by side, and how much more the second gives than the first where their tokens align.

import { counterpart, headsInBoth } from "#pairing.js";
import { differing, position, weightAt } from "#colour.js";
import { written } from "#data.js";
import { Difference, paired } from "#differences.js";
import { element, rove } from "#elements.js";
import { fitted, hit } from "#layout.js";
import { draw, stepped, tokenAt, within } from "#matrix.js";
import { focusIn, hold } from "#state.js";
import { themeOf } from "#theme.js";
import { label } from "#tokens.js";

const TALLEST = 0.7; // of the window
const SIGNED = 10; // CSS pixels of a cell, from which on a sign stands in it
const LEAST = 0.01; // of a difference whose sign is written
const APART = 8; // CSS pixels from a cell to what is told of it
const TICKS = { root: [0.1, 0.4, 1], linear: [0.5, 1], log: [0.01, 0.1, 1], rows: [0.5, 1] };
const NAMES = { one: "A", other: "B", difference: "B − A" };
const ORDERS = { most: "the most different first", model: "the order of the model" };

/**
 * @typedef {{query: number | null, key: number | null}} Spot
 * @typedef {{one: Spot, other: Spot}} Spots  What is pointed at in each recording; null where it is not there.
 * @typedef {import("#differences.js").Pair} Pair
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
  place.append(words, element("div", { class: "compare-panels" }, ...Object.values(panels).map(({ figure }) => figure), legend.node), why, tip, spoken, ranking.node);

  const pairs = recording.layers.map((layer) => {
    const against = counterpart(recording, beside, layer);
    return against && { layer, against };
  });
  /** @type {{name: string, made: any}} */
  let last = { name: "", made: null };
  /** @type {{panel: string, spots: Spots} | null} */
  let pointed = null;
  let asked = 0;

  /** What is compared: two layers and their heads, once they are read. */
  const compared = (state) => {
    const found = pairs[state.layer];
    if (!found) return { layer: recording.layers[state.layer], heads: [state.heads, []] };
    const both = headsInBoth(found.layer, found.against, state.heads);
    const heads = both.length ? [0, 1].map((which) => both.map((each) => each[which])) : [state.heads, []];
    if (!found.layer.ready || !found.against.ready) return null;
    const name = `${state.layer} ${heads[0]}`;
    if (last.name !== name) {
      const pair = paired(found.layer, found.against);
      const [one, other] = [found.layer.head(heads[0]), both.length ? found.against.head(heads[1]) : null];
      last = { name, made: { ...pair, heads, one, other, difference: other && !pair.why ? new Difference(one, other, pair) : null } };
    }
    return last.made;
  };

  const paint = () => {
    asked = 0;
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
    if (now.one) shown.push([panels.one, { layer: now.layer, head: now.one, heads: now.heads[0], queries: now.layer.queries, keys: now.layer.keys }, focus]);
    if (now.other) {
      const there = pointed?.panel === "other" ? focusOf(pointed.spots.other) : over(focus, now.rows.there, now.columns.there);
      shown.push([panels.other, { layer: now.against, head: now.other, heads: now.heads[1], queries: now.against.queries, keys: now.against.keys }, there]);
    }
    if (now.difference) {
      const [rows, columns] = [now.rows, now.columns].map(({ pairs: both }) => new Map(both.map(([here], index) => [here, index])));
      const axis = (tokens, both) => both.map(([here]) => tokens[here]);
      now.difference.axes ??= { queries: axis(now.layer.queries, now.rows.pairs), keys: axis(now.layer.keys, now.columns.pairs) };
      shown.push([panels.difference, { layer: now.layer, head: now.difference, heads: now.heads[0], ...now.difference.axes }, over(focus, rows, columns)]);
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
    asked ||= requestAnimationFrame(paint);
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
    store.set({ hover: query !== null && key !== null ? { cell: { query, key } } : token && isLabel(at) ? { token } : null });
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
    ranking.begin(pairs);
    soon();
  });
  new ResizeObserver(soon).observe(place);
}

/** What is pointed at, in each recording: nothing in the one that does not have it. @returns {Spots} */
function spotsOf(name, { query, key }, { rows, columns }) {
  const place = (index, way) => (index === null || way[index] < 0 ? null : way[index]);
  if (name === "difference") {
    const [row, column] = [query === null ? null : rows.pairs[query], key === null ? null : columns.pairs[key]];
    const spot = (which) => ({ query: row && row[which], key: column && column[which] });
    return { one: spot(0), other: spot(1) };
  }
  if (!rows) return { one: { query, key }, other: { query: null, key: null } };
  if (name === "one") return { one: { query, key }, other: { query: place(query, rows.there), key: place(key, columns.there) } };
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
  const found = { queries: queries.map((query) => at(rows, query)).filter((query) => query >= 0), keys: keys.map((key) => at(columns, key)).filter((key) => key >= 0) };
  return { ...found, cell: cell && found.queries.length > 0 && found.keys.length > 0 };
}

/** What is compared, in words: the layers, the heads and how many tokens are in both. */
function told(recording, beside, now, state) {
  const { layer, against, rows, columns, heads } = now;
  const named = (of) => of.map((head) => layer.heads[head]).join(", ");
  if (!against) return `B has no layer that belongs to ${layer.name} of A: none of that name, and not as many of its kind.`;
  const sentences = [];
  if (against.name !== layer.name) sentences.push(`${layer.name} of A is compared with ${against.name} of B.`);
  const missing = state.heads.filter((head) => !heads[0].includes(head));
  if (heads[1].length === 0) return [...sentences, `B has no head ${named(state.heads)} in that layer.`].join(" ");
  if (missing.length) sentences.push(`Head ${named(missing)} is only in A and left out.`);
  const one = layer.querySequence === layer.keySequence && against.querySequence === against.keySequence;
  if (now.one.squares.size > 1 && !now.why) {
    const same = (tokens, others) => `${tokens.filter((token, index) => token === others[index]).length} of ${tokens.length} tokens are the same in both`;
    sentences.push(one ? `${same(layer.queries, against.queries)}; squares are compared by place.` : `Of the rows ${same(layer.queries, against.queries)}, of the columns ${same(layer.keys, against.keys)}; squares are compared by place.`);
    return sentences.join(" ");
  }
  if (one) sentences.push(`${inBoth(rows)}.`);
  else sentences.push(`Rows: ${inBoth(rows)}.`, `Columns: ${inBoth(columns)}.`);
  if (!rows.all || !columns.all) sentences.push("The texts are long and differ, so only what they begin and end with is aligned.");
  return sentences.join(" ");
}

function inBoth({ pairs, there, here }) {
  const count = pairs.length;
  /** @type {[number, string][]} */
  const lefts = [[there.length - count, "A"], [here.length - count, "B"]];
  const only = lefts.filter(([left]) => left > 0).map(([left, name]) => `${left} only in ${name}`);
  return `${count} of ${there.length} tokens are in both${only.length ? ` (${only.join(", ")})` : ""}`;
}

/** A matrix with its title. */
class Panel {
  constructor(name, recording) {
    this.name = name;
    this.layout = null;
    this.cursor = { query: 0, key: 0 };
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "matrix", "aria-label": NAMES[name] }));
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const title = recording ? [element("b", {}, NAMES[name]), " ", element("span", { class: "compare-title", dir: "auto" }, recording.title), " ", element("span", { class: "compare-model" }, recording.model)] : [element("b", {}, NAMES[name]), " how much more B gives than A"];
    this.frame = element("div", { class: "matrix-frame" }, this.canvas);
    this.figure = element("figure", { class: `compare-panel ${name}` }, element("figcaption", {}, ...title), this.frame);
    this.maps = { name: "", canvas: document.createElement("canvas"), paint: name === "difference" ? drawDifference : undefined };
    this.labels = new WeakMap(); // of tokens
  }

  hit(event) {
    return this.layout ? hit(this.layout, event.offsetX, event.offsetY) : { query: null, key: null };
  }

  point({ query, key }) {
    if (query !== null && key !== null) this.cursor = { query, key };
  }

  labelsOf(tokens) {
    if (!this.labels.has(tokens)) this.labels.set(tokens, tokens.map(label));
    return this.labels.get(tokens);
  }

  /** Lay out a matrix of some tokens in the room that there is, with cells of a size at most, and give the size that they have. */
  fit(queries, keys, most = Infinity) {
    const family = getComputedStyle(this.canvas).fontFamily;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const [rows, columns] = [this.labelsOf(queries), this.labelsOf(keys)];
    const lay = (width) => fitted(this.context, rows, columns, { width, height: TALLEST * window.innerHeight, rem, family, zoom: null });
    this.layout = lay(this.frame.clientWidth);
    if (this.layout.cell > most) this.layout = lay(this.frame.clientWidth - Math.ceil((this.layout.cell - most) * keys.length));
    return this.layout.cell;
  }

  paint(state, { layer, head, heads, queries, keys }, focus) {
    const style = getComputedStyle(this.canvas);
    const [rows, columns] = [this.labelsOf(queries), this.labelsOf(keys)];
    this.cursor = within(this.cursor, this.layout);
    draw(this.canvas, this.maps, this.layout, { layer, head, state: { ...state, heads, region: null }, focus, rows, columns, style });
    if (this.name === "difference") drawSigns(this.context, this.layout, head, state, style);
    const { left, top, cell, row, column } = this.layout;
    Object.assign(this.canvas.dataset, { left, top, cell, row, column });
    const numbers = heads.map((each) => layer.heads[each]).join(" and ");
    this.canvas.setAttribute("aria-label", `${NAMES[this.name]}, ${layer.name}, head ${numbers}: ${rows.length} rows, ${columns.length} columns. Arrow keys move from cell to cell, Enter holds a token.`);
  }
}

/** Draw differences, one pixel each; where there is none, the pixel is clear. */
function drawDifference(canvas, squares, { scale }, theme) {
  const { rows, columns } = squares;
  [canvas.width, canvas.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  for (let row = 0, pixel = 0; row < rows; row++) {
    let most = 1;
    if (scale === "rows") for (let column = (most = 0); column < columns; column++) most = Math.max(most, Math.abs(squares.at(row, column)) || 0);
    for (let column = 0; column < columns; column++, pixel += 4) {
      const value = squares.at(row, column);
      if (value === value) image.data.set([...differing(Math.sign(value) * position(Math.abs(value), scale, most), theme), 255], pixel); // not NaN
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** A sign in every cell that has room for it, so that colour alone need not tell more from less. */
function drawSigns(context, { left, top, cell }, difference, state, style) {
  const { rows, columns, size, at } = difference.squares;
  const side = cell * size;
  if (side < SIGNED) return;
  const [ink, page] = ["--ink", "--page"].map((name) => style.getPropertyValue(name));
  context.save();
  context.font = `${Math.min(0.7 * side, 18)}px ${style.fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = 0; row < rows; row++) {
    const most = state.scale === "rows" ? difference.most(row) : 1;
    for (let column = 0; column < columns; column++) {
      const value = at(row, column);
      if (!(Math.abs(value) >= LEAST)) continue;
      context.fillStyle = position(Math.abs(value), state.scale, most) > 0.5 ? page : ink;
      context.fillText(value > 0 ? "+" : "−", left + (column + 0.5) * side, top + (row + 0.5) * side);
    }
  }
  context.restore();
}

/** What the colours of a difference mean, with their unit. */
class Legend {
  constructor() {
    this.scale = element("canvas", { class: "scale", "aria-hidden": "true" });
    this.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
    this.unit = element("span", { class: "unit" });
    const ends = element("p", { class: "compare-ends" }, element("span", { class: "out-word" }, "− more in A"), element("span", { class: "in-word" }, "+ more in B"));
    this.masked = element("p", { class: "hint" }, element("i", { class: "masked" }), "may not be seen in A or in B");
    this.node = element("div", { class: "compare-legend" }, element("p", { class: "legend-title" }, "Difference ", this.unit), element("div", { class: "scale-frame" }, this.scale, this.ticks), ends, this.masked);
    this.drawn = "";
  }

  paint(state, { difference }) {
    const theme = themeOf(state);
    const { size } = difference.squares;
    this.unit.textContent = state.scale === "rows" ? "B − A, times the largest of its row" : `B − A, in shares of a row, −1 to +1${size > 1 ? `; a square is ${size} × ${size} tokens` : ""}`;
    this.masked.hidden = !difference.values.some((value) => value !== value); // NaN
    const name = `${theme} ${state.scale}`;
    if (name === this.drawn) return;
    this.drawn = name;
    const half = 128;
    const scale = state.scale === "rows" ? "linear" : state.scale;
    const line = { rows: 1, columns: 2 * half + 1, at: (_, column) => Math.sign(column - half) * weightAt(Math.abs(column - half) / half, scale) };
    drawDifference(this.scale, line, { scale }, theme);
    const known = TICKS[state.scale];
    this.ticks.replaceChildren(...[...known.map((value) => -value).reverse(), 0, ...known].map((value) => {
      const tick = element("span", {}, signed(value, String(Math.abs(value))));
      tick.style.left = `${50 + 50 * Math.sign(value) * position(Math.abs(value), scale)}%`;
      return tick;
    }));
  }
}

function signed(value, text) {
  return value > 0 ? `+${text}` : value < 0 ? `−${text}` : text;
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
  const lines = Object.entries(cells).map(([name, cell]) => [name, valueOf(cell)]);
  if (inA && inB && now.difference) lines.push(["B − A", differenceOf(cells, now, one, other)]);
  tip.replaceChildren(
    element("span", { class: "pair" }, element("b", { class: "out-word", dir: "auto" }, from), " → ", element("b", { class: "in-word", dir: "auto" }, to)),
    ...lines.map(([name, text]) => element("span", { class: "compare-line" }, element("span", { class: "rank" }, name), " ", element("span", { class: "value" }, text))),
  );
  const sentence = `${from} to ${to}: ${lines.map(([name, text]) => `${name} ${text}`).join(", ")}.`;
  if (spoken.textContent !== sentence) spoken.textContent = sentence;
  beside(tip, place, panel);
}

function valueOf(cell) {
  if (!cell) return "not there";
  if (cell.state === "masked") return "masked";
  return cell.state === "known" ? written(cell.weight) : `not in this file: at most ${written(cell.most)}`;
}

function differenceOf({ A, B }, { difference }, { query, key }, other) {
  if (A.state === "known" && B.state === "known") return signed(B.weight - A.weight, written(Math.abs(B.weight - A.weight)));
  if (A.state === "masked" || B.state === "masked") return "none: masked";
  const { size } = difference;
  const share = difference.squares.at(Math.floor(query / size), Math.floor(key / size));
  return other.query === query && other.key === key && size > 1 ? `${signed(share, written(Math.abs(share)))} to the ${size} keys around it, on the mean of ${size} rows` : "not in this file";
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

/** Heads by how much they differ, to choose from; what is read grows layer by layer. */
class Ranking {
  constructor(recording, beside, store) {
    this.recording = recording;
    this.store = store;
    this.entries = []; // {layer, head, mean, node}
    this.begun = false;
    this.left = [];
    this.choice = element("select", { id: "compare-order" }, ...Object.entries(ORDERS).map(([value, text]) => element("option", { value }, text)));
    this.list = element("div", { class: "compare-list", role: "listbox", "aria-label": "Heads, by how much they differ" });
    this.note = element("p", { class: "hint", role: "status" });
    this.node = element(
      "div",
      { class: "compare-ranking" },
      element("h4", {}, "Where the two differ"),
      element("p", { class: "note" }, "The mean size of the difference over the cells that both have, for each layer and head, as a share of a row. Choose one to see it."),
      element("div", { class: "controls" }, element("label", { class: "field", for: "compare-order" }, "Order ", this.choice), this.note),
      this.list,
    );
    this.choice.addEventListener("change", () => this.arrange());
    this.list.addEventListener("click", (event) => this.choose(this.entries.find(({ node }) => node.contains(event.target))));
    this.list.addEventListener("keydown", (event) => this.press(event));
    store.subscribe(() => this.mark());
  }

  /** Read one layer after the other while the view is open, and compare their heads. */
  async begin(pairs) {
    if (this.begun) return;
    this.begun = true;
    const { layers } = this.recording;
    for (const [index, found] of pairs.entries()) {
      this.note.textContent = `reading layer ${index + 1} of ${pairs.length} …`;
      if (found) await Promise.all([found.layer.load(), found.against.load()]);
      const pair = found && paired(found.layer, found.against);
      const heads = pair && !pair.why ? headsInBoth(found.layer, found.against, layers[index].heads.map((_, head) => head)) : [];
      if (!heads.length) this.left.push(layers[index].name);
      for (const [head, there] of heads) {
        const mean = new Difference(found.layer.head([head]), found.against.head([there]), pair).mean();
        if (!Number.isNaN(mean)) this.entries.push({ layer: index, head, mean, node: entry(layers[index], head, mean) });
      }
    }
    this.note.textContent = this.left.length ? `not compared: ${this.left.join(", ")}` : "";
    const most = Math.max(...this.entries.map(({ mean }) => mean), 1e-9);
    for (const { mean, node } of this.entries) node.style.setProperty("--weight", String(mean / most));
    this.arrange();
  }

  arrange() {
    const inOrder = this.choice.value === "model";
    this.entries.sort((a, b) => (inOrder ? 0 : b.mean - a.mean) || a.layer - b.layer || a.head - b.head);
    this.list.replaceChildren(...this.entries.map(({ node }) => node));
    this.node.hidden = this.entries.length === 0;
    this.mark();
  }

  mark() {
    const { layer, heads } = this.store.get();
    const chosen = this.entries.map((each) => each.layer === layer && heads.includes(each.head));
    this.entries.forEach(({ node }, index) => node.setAttribute("aria-selected", String(chosen[index])));
    rove(this.entries.map(({ node }) => node), Math.max(chosen.indexOf(true), 0));
  }

  choose(found) {
    if (!found) return;
    this.store.set({ layer: found.layer, heads: [found.head], hover: null });
    found.node.focus();
  }

  press(event) {
    const at = this.entries.findIndex(({ node }) => node.contains(event.target));
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: this.entries.length - 1, Enter: at, " ": at }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.choose(this.entries[Math.min(Math.max(to, 0), this.entries.length - 1)]);
  }
}

function entry(layer, head, mean) {
  const name = `${layer.name}, head ${layer.heads[head]}`;
  return element(
    "div",
    { role: "option", class: "compare-entry", "aria-selected": "false", tabindex: "-1", "data-layer": layer.name, "data-head": layer.heads[head], "data-mean": mean },
    element("span", { class: "name", title: name }, layer.name),
    element("span", {}, `head ${layer.heads[head]}`),
    element("span", { class: "compare-bar", "aria-hidden": "true" }),
    element("span", { class: "value" }, mean >= 0.001 ? written(mean) : mean.toPrecision(2)),
  );
}
