// A translation word by word: source and translation, and lines between them that show which word was translated by which.

import { pairCells, WeightColumn } from "#export/csv.js";
import { NotSaved, whenLoaded } from "#export/loading.js";
import { focusedCells, toggleSelection } from "#state/store.js";
import { oneOf } from "#state/url.js";
import { position } from "#ui/color.js";
import { dropdown, element, svgElement } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";
import { addsToSelection, countLines, listen, setOrientation } from "#ui/listbox.js";
import { listWeights } from "#ui/weight_sentence.js";
import { drawLines, linesAtRest, linesOf } from "#views/translation_lines.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Ranked } from '#data/ranked.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @import { Focus } from '#views/translation_lines.js'
 * @typedef {{text: Sequence, node: HTMLElement, list: HTMLElement, words: HTMLElement[], focus: () => void}} Side  A text on the page.
 */

const MIN_NUMBERED = 0.05; // smallest weight that is written next to its word
const MAX_LISTED = 4; // words in a sentence, and sentences
const MAX_WORDS_IN_LINE = 60; // a longer text is a column

const ALIGN_BY = {
  heads: "the selected heads",
  layer: "all heads of the layer (mean)",
  all: "all heads of all cross-attention layers (mean)",
};
const AT_REST = "Point at a word, or go to one with Tab and the arrow keys, to see what it is aligned with.";
const SELECT_WORDS = "This file does not store the weights between all words: select some words to see their lines.";

/** @type {ViewDefinition} */
export default {
  name: "translation",
  title: "Translation",
  help: "The source and its translation, word by word. A line shows how much a word of the translation attended to a word of the source when it was generated: the mean over the subwords of the former, the sum over the subwords of the latter. At first each word has only its strongest lines; point at a word to see all of them, with their weights.",
  unit: "word",
  urlFields: { alignBy: { ...oneOf(Object.keys(ALIGN_BY)), name: "align_by" } },
  isAvailable: ({ layers }) => layers.some(isCross),
  mount: (place, view) => new TranslationView(place, view),
};

class TranslationView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.place = place;
    this.view = view;
    const options = Object.entries(ALIGN_BY);
    this.alignBy = dropdown("align-by", "Aligned by ", options, (alignBy) => view.set({ alignBy }));
    this.layerNames = element("span", { class: "hint" });
    this.lines = svgElement("svg", { class: "alignment-lines", "aria-hidden": "true" });
    this.stage = element("div", { class: "alignment" }, this.lines);
    this.sentence = element("p", { class: "hint alignment-sentence", "aria-live": "polite" });
    const controls = element("div", { class: "controls" }, this.alignBy.node, this.layerNames);
    place.append(controls, element("div", { class: "scroller" }, this.stage), this.sentence);
    /** @type {{source: Side, target: Side} | null} */
    this.sides = null;
    this.width = 0; // for which the words were arranged
    /** @type {{head: Head | null, lines: import("#views/translation_lines.js").Line[]}} */
    this.atRest = { head: null, lines: [] };
  }

  /** What aligns the words: the selected layer, or all layers of cross-attention if it is not one of them. */
  get alignment() {
    const { layer, recording, state } = this.view;
    const cross = recording.layers.filter(isCross);
    const base = isCross(layer) ? layer : cross[cross.length - 1];
    const by = isCross(layer) ? state.alignBy : "all";
    const hasSameTexts = (/** @type {Layer} */ { querySequence, keySequence }) =>
      querySequence === base.querySequence && keySequence === base.keySequence;
    return { base, by, layers: by === "all" ? cross.filter(hasSameTexts) : [base] };
  }

  /** Null while weights are loading. @returns {Head | null} */
  get head() {
    const { base, by, layers } = this.alignment;
    return by === "heads" ? this.view.unit.head(base) : this.view.unit.meanHead(layers);
  }

  layers() {
    return this.alignment.layers;
  }

  update() {
    const { by, layers } = this.alignment;
    const { select } = this.alignBy;
    select.value = by;
    select.disabled = !isCross(this.view.layer);
    const names = layers.map(({ name }) => name).join(", ");
    this.layerNames.textContent = select.disabled ? "The selected head is not a cross-attention head." : names;
  }

  paint() {
    const { base } = this.alignment;
    const sides = this.buildSides(base);
    this.arrange(sides);
    const focus = this.focusOn(base);
    const selected = this.selected(base);
    mark(sides.source, focus.keys, selected.keys);
    mark(sides.target, focus.queries, selected.queries);
    const { head } = this;
    if (!head) return this.lines.replaceChildren();
    const ranked = rankedOf(head, focus);
    const lines = ranked.length ? linesOf(ranked, focus) : this.linesAtRest(head, sides);
    drawLines(this.lines, lines, { ...sides, focus, isColumn: this.isColumn });
    if (ranked.length === 1) this.number(ranked[0], focus.queries.length ? sides.source : sides.target);
    this.sentence.textContent = ranked.length ? describe(head, ranked, focus, sides) : AT_REST;
  }

  get isColumn() {
    return this.stage.classList.contains("columns");
  }

  /** The texts on the page, built again if they are other ones. @param {Layer} base */
  buildSides({ querySequence, keySequence }) {
    const { unit, recording } = this.view;
    const [target, source] = [querySequence, keySequence].map((sequence) => unit.text(recording.sequences[sequence]));
    if (this.sides?.source.text === source && this.sides.target.text === target) return this.sides;
    this.sides = {
      source: this.buildSide(source, keySequence, "source", "Source"),
      target: this.buildSide(target, querySequence, "target", "Translation"),
    };
    this.stage.replaceChildren(this.lines, this.sides.source.node, this.sides.target.node);
    this.width = 0;
    return this.sides;
  }

  /** @param {Sequence} text @param {number} sequence @param {"source" | "target"} side @param {string} title @returns {Side} */
  buildSide(text, sequence, side, title) {
    const words = text.display.map((_, index) => wordNode(text, index));
    const label = `${title}, word by word`;
    const attributes = { role: "listbox", class: "words", "aria-multiselectable": "true", "aria-label": label };
    const list = element("div", attributes, ...words);
    const role = element("p", { class: "role", "aria-hidden": "true" }, title);
    const { view } = this;
    const { focus } = listen(list, words, {
      point: (index) => view.set({ hover: index === null ? null : { token: { sequence, index } } }),
      select: (index, event) => toggleSelection(view.store, { sequence, index }, addsToSelection(event)),
      clear: () => view.set({ tokens: [] }),
      isVertical: () => this.isColumn,
      toOther: () => this.sides?.[side === "source" ? "target" : "source"].focus(),
    });
    return { text, node: element("div", { class: `side ${side}` }, role, list), list, words, focus };
  }

  /** Two lines if each text fits into one, else two columns. @param {{source: Side, target: Side}} sides */
  arrange({ source, target }) {
    if (this.place.clientWidth === this.width) return;
    this.stage.classList.remove("columns");
    const isLong = (/** @type {Side} */ { words }) => words.length > MAX_WORDS_IN_LINE || countLines(words) > 1;
    this.stage.classList.toggle("columns", isLong(source) || isLong(target));
    setOrientation([source, target], this.isColumn);
    this.width = this.place.clientWidth;
  }

  /** The words that the pointer or the keyboard is at, in any view, or else those that are selected. @param {Layer} base @returns {Focus} */
  focusOn(base) {
    const { layer, state } = this.view;
    const cell = state.hover?.cell;
    if (!cell || layer === base) return focusedCells(base, state);
    const query = { sequence: layer.querySequence, index: cell.query };
    const key = { sequence: layer.keySequence, index: cell.key };
    return focusedCells(base, { ...state, hover: null, tokens: [query, key] });
  }

  /** @param {Layer} base @returns {Focus} */
  selected(base) {
    return focusedCells(base, { ...this.view.state, hover: null });
  }

  /** @param {Head} head @param {{target: Side}} sides */
  linesAtRest(head, { target }) {
    if (this.layers().some(({ isRemote }) => isRemote)) return [];
    if (this.atRest.head !== head) this.atRest = { head, lines: linesAtRest(head, target.text.length) };
    return this.atRest.lines;
  }

  /** Tint the words that one word is aligned with, and write the weights next to them. @param {Ranked} ranked @param {Side} side */
  number({ entries }, { words }) {
    const isSource = words === this.sides?.source.words;
    for (const { query, key, weight, error } of entries) {
      const node = words[isSource ? key : query];
      node.style.setProperty("--share", position(weight, this.view.state.scale, entries[0].weight).toFixed(3));
      if (weight >= MIN_NUMBERED) node.setAttribute("data-weight", formatWeight(weight, error));
    }
  }

  /** The weights of the selected words, or all. */
  async table() {
    const { view } = this;
    const { base, by, layers } = this.alignment;
    const { queries: target, keys: source } = view.unit.texts(base);
    const selected = this.selected(base);
    const isAll = selected.queries.length + selected.keys.length === 0;
    if (isAll && layers.some(({ isRemote }) => isRemote)) throw new NotSaved(SELECT_WORDS);
    const words = isAll ? { queries: [...target.display.keys()], keys: [] } : selected;
    const head = await whenLoaded(view.recording, () => this.head);
    await head.fetch(words.queries, words.keys);
    const ranked = rankedOf(head, words);
    const heads = by === "heads" ? view.state.heads : layers.flatMap(({ headIndices }) => headIndices);
    const column = new WeightColumn({ ...view.state, heads, reduce: by === "heads" ? view.state.reduce : "mean" });
    column.someNotRescaled = ranked.some(({ notRescaled }) => notRescaled);
    const entries = ranked.flatMap((each) => each.entries).sort((a, b) => a.query - b.query || a.key - b.key);
    const rows = entries.map((entry) => [...pairCells(target, source, entry), column.round(entry)]);
    return { columns: ["target word index", "target word", "source word index", "source word", column.name], rows };
  }
}

/** @param {Layer} layer */
function isCross({ kind }) {
  return kind === "cross";
}

/** @param {Sequence} text @param {number} index */
function wordNode({ display, isSpecial }, index) {
  const kind = isSpecial[index] ? "word special" : "word";
  const attributes = { role: "option", class: kind, dir: "auto", "data-index": index, "aria-selected": "false" };
  return element("span", attributes, display[index]);
}

/** Show which words are focused and selected, and nothing else. @param {Side} side @param {number[]} focused @param {number[]} selected */
function mark({ words }, focused, selected) {
  for (const [index, node] of words.entries()) {
    node.classList.toggle("focused", focused.includes(index));
    node.setAttribute("aria-selected", String(selected.includes(index)));
    node.removeAttribute("data-weight");
    node.style.removeProperty("--share");
  }
}

/** What words of the translation are aligned with; if there are none, words of the source. @param {Head} head @param {Focus} focus @returns {Ranked[]} */
function rankedOf(head, { queries, keys }) {
  const all = queries.length ? queries.map((query) => head.row(query)) : keys.map((key) => head.column(key));
  return all.map((ranked) => (ranked.loading ? { entries: [], rest: 0, loading: true } : ranked));
}

/** The focused words as sentences. @param {Head} head @param {Ranked[]} ranked  As `rankedOf` returns them. @param {Focus} focus @param {{source: Side, target: Side}} sides */
function describe(head, ranked, { queries, keys }, { source, target }) {
  const [sources, targets] = [source.text.labels, target.text.labels];
  const cells = queries.flatMap((query) => keys.map((key) => ({ query, key })));
  const pairs = cells.map(
    (at) => `${targets[at.query]} – ${sources[at.key]}: ${describeCell(head, at.query, at.key)}.`,
  );
  const lists = ranked.map((each, index) =>
    queries.length
      ? `${targets[queries[index]]}: ${listWeights(each, MAX_LISTED, ({ key }) => sources[key])}.`
      : `${sources[keys[index]]}: ${listWeights(each, MAX_LISTED, ({ query }) => targets[query], "from")}.`,
  );
  return (pairs.length ? pairs : lists).slice(0, MAX_LISTED).join(" ");
}

/** @param {Head} head @param {number} query @param {number} key */
function describeCell(head, query, key) {
  const { state, weight, upperBound, error } = head.cell(query, key);
  if (state === "known") return formatWeight(weight, error);
  if (state !== "unknown") return state;
  return head.isRemote ? "loading …" : `at most ${formatWeight(upperBound, error)}, not stored in this file`;
}
