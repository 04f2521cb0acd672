// The heads of two recordings by how much they differ.

import { Difference } from "#data/difference.js";
import { dropdown, element } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";
import { listen, moveInLine, setTabStop } from "#ui/listbox.js";

/**
 * @import { LayerPair } from '#data/difference.js'
 * @typedef {{layer: number, head: number, mean: number, node: HTMLElement}} Entry
 */

/** @type {[string, string][]} */
const ORDERS = [
  ["difference", "the most different first"],
  ["model", "the order of the model"],
];
const ABOUT =
  "The mean size of the difference over the cells that both have, for each layer and head, as a share of a row. Select a head to see it.";

/** A list of heads to choose from. */
export class Ranking {
  /** @param {import("#ui/view.js").View} view */
  constructor(view) {
    this.view = view;
    /** @type {Entry[]} */
    this.entries = [];
    this.ranked = ""; // of which weights
    this.opensOnLargest = !/[#&]layer=/.test(window.location.hash); // unless a link names a head
    const { select, node } = dropdown("compare-order", "Order ", ORDERS, () => this.build());
    this.order = select;
    this.status = element("p", { class: "hint", role: "status" });
    this.list = element("div");
    this.node = element(
      "div",
      { class: "compare-ranking" },
      element("h4", {}, "Where the two differ"),
      element("p", { class: "note" }, ABOUT),
      element("div", { class: "controls" }, node, this.status),
      this.list,
    );
    this.node.hidden = true;
  }

  /** Load one layer after another, and compare their heads. @param {(LayerPair | null)[]} pairs */
  async rank(pairs) {
    const { hide, rescale } = this.view.state;
    const name = [this.view.unit.name, hide, hide.length && rescale].join(" ");
    if (this.ranked === name) return;
    this.ranked = name;
    const entries = [];
    const skipped = [];
    for (const [index, pair] of pairs.entries()) {
      this.status.textContent = `Loading layer ${index + 1} of ${pairs.length} …`;
      if (pair) await Promise.all([pair.a.load(), pair.b.load()]);
      if (this.ranked !== name) return; // other weights are ranked now
      const compared = pair ? compareHeads(pair, index) : [];
      if (!compared.length) skipped.push(this.view.recording.layers[index].name);
      entries.push(...compared);
    }
    this.status.textContent = skipped.length ? `Not compared: ${skipped.join(", ")}` : "";
    const largest = Math.max(...entries.map(({ mean }) => mean), 1e-9);
    for (const { mean, node } of entries) node.style.setProperty("--weight", String(mean / largest));
    this.entries = entries;
    this.build();
    this.openOnLargest();
  }

  /** Show the head that differs most, if the reader has not chosen one yet. */
  openOnLargest() {
    const { view } = this;
    const { opening } = view.recording;
    const { layer, heads } = view.state;
    const isUntouched = layer === opening.layer && heads.join() === String(opening.head);
    if (this.opensOnLargest && isUntouched && this.entries.length) {
      const [first] = [...this.entries].sort((a, b) => b.mean - a.mean);
      view.set({ layer: first.layer, heads: [first.head] });
    }
    this.opensOnLargest = false;
  }

  build() {
    const isByModel = this.order.value === "model";
    this.entries.sort((a, b) => (isByModel ? 0 : b.mean - a.mean) || a.layer - b.layer || a.head - b.head);
    const options = this.entries.map(({ node }) => node);
    for (const [index, node] of options.entries()) node.dataset.index = String(index);
    const attributes = { class: "compare-list", role: "listbox", "aria-label": "Heads, by how much they differ" };
    const list = element("div", attributes, ...options);
    this.list.replaceWith(list);
    this.list = list;
    this.node.hidden = options.length === 0;
    if (options.length) this.listen(options);
    this.mark(this.view.state);
  }

  /** @param {HTMLElement[]} options */
  listen(options) {
    const choose = (/** @type {number} */ index) => {
      const { layer, head } = this.entries[index];
      this.view.set({ layer, heads: [head], hover: null });
      options[index].focus();
    };
    listen(this.list, options, {
      point: () => {},
      select: choose,
      clear: () => {},
      isVertical: () => true,
      moved: choose,
      press: ({ key }, index) => {
        const to = moveInLine(key, index, options.length); // the list has several columns
        if (to !== null) choose(to);
        return to !== null;
      },
    });
  }

  /** @param {import("#state/store.js").State} state */
  mark({ layer, heads }) {
    const nodes = this.entries.map(({ node }) => node);
    const chosen = this.entries.map((entry) => entry.layer === layer && heads.includes(entry.head));
    for (const [index, node] of nodes.entries()) node.setAttribute("aria-selected", String(chosen[index]));
    setTabStop(nodes, Math.max(chosen.indexOf(true), 0));
  }
}

/** @param {LayerPair} pair @param {number} layer @returns {Entry[]} */
function compareHeads(pair, layer) {
  if (pair.reason) return [];
  const { a, b, unit } = pair;
  const both = pair.headsInBoth(a.headIndices.map((_, head) => head));
  const error = a.precision + b.precision; // of a single difference
  return both.a.flatMap((head, index) => {
    const [headA, headB] = [unit.head(a, [head]), unit.head(b, [both.b[index]])];
    const mean = headA && headB ? new Difference(headA, headB, pair).mean() : NaN;
    return Number.isNaN(mean) ? [] : [{ layer, head, mean, node: optionFor(a, head, mean, error) }];
  });
}

/** @param {import("#data/layer.js").Layer} layer @param {number} head @param {number} mean @param {number} error */
function optionFor(layer, head, mean, error) {
  const index = layer.headIndices[head];
  const data = { "data-layer": layer.name, "data-head": index, "data-mean": mean };
  return element(
    "div",
    { role: "option", class: "compare-entry", title: `${layer.name}, head ${index}`, ...data },
    element("span", { class: "name" }, layer.name),
    element("span", {}, `head ${index}`),
    element("span", { class: "compare-bar", "aria-hidden": "true" }),
    element("span", { class: "value" }, formatWeight(mean, error)),
  );
}
