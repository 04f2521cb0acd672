// Two recordings side by side, and how much more the second gives than the first where their texts align.

import { Difference, pairLayers } from "#data/difference.js";
import { whenLoaded } from "#export/loading.js";
import { focusedCells, toggleSelection } from "#state/store.js";
import { placeTip } from "#ui/drawing.js";
import { element } from "#ui/elements.js";
import { escapeInvisible } from "#ui/format.js";
import { focusOn, mapFocus, spotsOf, tableOf } from "#views/compare_cells.js";
import { DifferenceLegend } from "#views/compare_legend.js";
import { Panel } from "#views/compare_panel.js";
import { Ranking } from "#views/compare_ranking.js";
import { describeCells, describeComparison, tipContent } from "#views/compare_text.js";
import { tokenAt } from "#views/matrix.js";
import { boxOfCell } from "#views/matrix_layout.js";

/**
 * @import { LayerPair } from '#data/difference.js'
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { Focus } from '#state/store.js'
 * @import { PanelContent, PanelName } from '#views/compare_panel.js'
 * @import { Spot } from '#views/matrix.js'
 * @typedef {{layer: Layer, heads: number[], head: Head, queries: Sequence, keys: Sequence, hidden: boolean[]}} Side
 * @typedef {{pair: LayerPair | null, a: Side, b: Side | null, difference: Difference | null}} Comparison
 */

/** @type {import("#ui/view.js").ViewDefinition} */
export default {
  name: "compare",
  title: "Compare",
  help: "The same head in two recordings, A and B. Weights are compared between tokens that both have: teal means more weight in A, ochre more in B. The heads that differ most are listed below.",
  unit: ({ isReduced }) => (isReduced ? "token" : "either"),
  isAvailable: ({ compareWith }) => compareWith !== null,
  mount: (place, view) => new CompareView(place, view, /** @type {Recording} */ (view.recording.compareWith)),
};

class CompareView {
  /** @param {HTMLElement} place @param {import("#ui/view.js").View} view @param {Recording} compareWith */
  constructor(place, view, compareWith) {
    this.place = place;
    this.view = view;
    this.compareWith = compareWith;
    this.panels = {
      a: this.buildPanel("a", titleOf(view.recording)),
      b: this.buildPanel("b", titleOf(compareWith)),
      difference: this.buildPanel("difference", [element("span", {}, "how much larger the weights of B are")]),
    };
    this.legend = new DifferenceLegend();
    this.ranking = new Ranking(view);
    this.note = element("p", { class: "note compare-note" });
    this.reason = element("p", { class: "note compare-reason" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.status = element("p", { class: "visually-hidden", role: "status" });
    const figures = Object.values(this.panels).map(({ figure }) => figure);
    const panels = element("div", { class: "compare-panels" }, ...figures);
    this.panels.difference.figure.append(this.legend.node);
    place.append(this.note, panels, this.reason, this.tip, this.status, this.ranking.node);
    /** @type {import("#state/unit.js").Unit | null} */
    this.unit = null;
    /** @type {(LayerPair | null)[]} */
    this.cachedPairs = [];
    /** @type {Difference | null} */
    this.difference = null;
    /** @type {{panel: PanelName, at: Spot} | null} */
    this.pointed = null;
  }

  /** @param {PanelName} name @param {Node[]} title */
  buildPanel(name, title) {
    const { view } = this;
    return new Panel(name, title, {
      point: (at) => this.point(name, at),
      leave: () => {
        this.pointed = null;
        view.set({ hover: null });
      },
      select: (at, more) => {
        const comparison = this.compare();
        const token = comparison && tokenAt(view.layer, spotsOf(name, at, comparison).a);
        if (token) toggleSelection(view.store, token, more);
      },
      clear: () => view.set({ tokens: [], hover: null }),
    });
  }

  /** The pair of each layer, in the current unit. */
  get pairs() {
    const { view } = this;
    if (this.unit !== view.unit) this.cachedPairs = pairLayers(view.recording, this.compareWith, view.unit);
    this.unit = view.unit;
    return this.cachedPairs;
  }

  layers() {
    const pair = this.pairs[this.view.state.layer];
    return pair ? [pair.a, pair.b] : [this.view.layer];
  }

  /** @param {import("#state/store.js").State} state @param {import("#state/store.js").State} before */
  update(state, before) {
    if (state.layer !== before.layer || state.unit !== before.unit) this.pointed = null;
    this.ranking.mark(state);
  }

  /** What is compared; null while it is loading. @returns {Comparison | null} */
  compare() {
    const { view } = this;
    const { heads, layer } = view.state;
    const pair = this.pairs[layer];
    const both = pair?.headsInBoth(heads) ?? { a: [], b: [] };
    const hasBoth = both.a.length > 0;
    const a = this.sideOf(view.layer, hasBoth ? both.a : heads);
    const b = pair && hasBoth ? this.sideOf(pair.b, both.b) : null;
    if (!a || (hasBoth && !b)) return null;
    return { pair, a, b, difference: pair && b && !pair.reason ? this.differenceOf(a.head, b.head, pair) : null };
  }

  /** @param {Layer} layer @param {number[]} heads @returns {Side | null} */
  sideOf(layer, heads) {
    const { unit } = this.view;
    const head = unit.head(layer, heads);
    return head && { layer, heads, head, ...unit.texts(layer), hidden: unit.hidden(layer) };
  }

  /** @param {Head} a @param {Head} b @param {LayerPair} pair */
  differenceOf(a, b, pair) {
    if (this.difference?.a !== a || this.difference.b !== b) this.difference = new Difference(a, b, pair);
    return this.difference;
  }

  paint() {
    const { view, panels } = this;
    this.ranking.rank(this.pairs);
    const comparison = this.compare();
    for (const { canvas } of Object.values(panels)) canvas.classList.toggle("loading", !comparison);
    if (!comparison) return;
    const { pair, b, difference } = comparison;
    this.note.textContent = describeComparison(comparison, view.layer, view.state.heads);
    this.reason.textContent = pair?.reason ?? "";
    this.reason.hidden = !this.reason.textContent;
    panels.b.figure.hidden = !b;
    panels.difference.figure.hidden = !difference;
    const contents = this.contentsOf(comparison);
    const cells = contents.map(([name, content]) => panels[name].fit(content));
    for (const [name, content] of contents) {
      panels[name].fit(content, Math.min(...cells)); // all of one size
      panels[name].paint(view.state, content);
      if (name === "difference" && difference) this.legend.paint(view.state, difference, content.hidden);
    }
    this.showTip(comparison);
  }

  /** @param {Comparison} comparison @returns {[PanelName, PanelContent][]} */
  contentsOf(comparison) {
    const { pair, a, b, difference } = comparison;
    const focus = focusedCells(a.layer, this.view.state);
    /** @type {[PanelName, PanelContent][]} */
    const contents = [["a", contentOf(a, focus)]];
    if (pair && b) {
      const mapped = mapFocus(focus, pair.rows.aToB, pair.columns.aToB);
      contents.push(["b", contentOf(b, this.pointed?.panel === "b" ? focusOn(this.pointed.at) : mapped)]);
    }
    if (pair && b && difference) {
      const differenceFocus = mapFocus(focus, pair.rows.aToPair, pair.columns.aToPair);
      contents.push([
        "difference",
        {
          ...contentOf({ ...a, head: difference }, differenceFocus),
          rows: pair.rows.labels,
          columns: pair.columns.labels,
          hidden: difference.pairs.columns.map(([keyA, keyB]) => a.hidden[keyA] || b.hidden[keyB]),
        },
      ]);
    }
    return contents;
  }

  /** @param {PanelName} panel @param {Spot} at */
  point(panel, at) {
    const comparison = this.compare();
    if (!comparison) return;
    this.pointed = { panel, at };
    const { query, key } = spotsOf(panel, at, comparison).a;
    const isLabel = at.query === null || at.key === null;
    const token = isLabel ? tokenAt(this.view.layer, { query, key }) : null;
    if (query !== null && key !== null) this.view.set({ hover: { cell: { query, key } } });
    else this.view.set({ hover: token && { token } });
  }

  /** @param {Comparison} comparison */
  showTip(comparison) {
    const { tip, pointed, place, status } = this;
    const panel = pointed && this.panels[pointed.panel];
    const cells = pointed && describeCells(comparison, spotsOf(pointed.panel, pointed.at, comparison));
    tip.hidden = !cells || !panel?.layout;
    if (!cells || !panel?.layout) return;
    tip.replaceChildren(...tipContent(cells));
    const spoken = `${cells.from} to ${cells.to}: ${cells.lines.map((line) => line.join(" ")).join(", ")}.`;
    if (status.textContent !== spoken) status.textContent = spoken;
    const [outer, inner] = [place, panel.canvas].map((node) => node.getBoundingClientRect());
    const box = boxOfCell(panel.layout, panel.cursor, [inner.left - outer.left, inner.top - outer.top]);
    placeTip(tip, box, { width: place.clientWidth, height: inner.bottom - outer.top });
  }

  /** The numbers of the difference. */
  async table() {
    const { recording, state } = this.view;
    return tableOf(await whenLoaded(recording, () => this.compare()), state);
  }
}

/** @param {Recording} recording */
function titleOf({ title, model }) {
  return [
    element("span", { class: "compare-title", dir: "auto" }, escapeInvisible(title)),
    document.createTextNode(" "),
    element("span", { class: "compare-model" }, escapeInvisible(model)),
  ];
}

/** @param {Side} side @param {Focus} focus @returns {PanelContent} */
function contentOf({ layer, heads, head, queries, keys, hidden }, focus) {
  const label = `${layer.name}, head ${heads.map((each) => layer.headIndices[each]).join(" and ")}`;
  return { head, focus, rows: queries.labels, columns: keys.labels, hidden, label };
}
