// The heads of two recordings by how much they differ.

import { Difference, paired } from "#data/difference.js";
import { headsInBoth } from "#data/pairing.js";
import { written } from "#data/recording.js";
import { element, rove } from "#ui/elements.js";

const ORDERS = { most: "the most different first", model: "the order of the model" };

/** Heads by how much they differ, to choose from; what is read grows layer by layer. */
export class Ranking {
  constructor(recording, _beside, store) {
    this.recording = recording;
    this.store = store;
    this.entries = []; // {layer, head, mean, node}
    this.begun = ""; // what is left out of what is ranked
    this.left = [];
    this.choice = element(
      "select",
      { id: "compare-order" },
      ...Object.entries(ORDERS).map(([value, text]) => element("option", { value }, text)),
    );
    this.list = element("div", {
      class: "compare-list",
      role: "listbox",
      "aria-label": "Heads, by how much they differ",
    });
    this.note = element("p", { class: "hint", role: "status" });
    this.node = element(
      "div",
      { class: "compare-ranking" },
      element("h4", {}, "Where the two differ"),
      element(
        "p",
        { class: "note" },
        "The mean size of the difference over the cells that both have, for each layer and head, as a share of a row. Choose one to see it.",
      ),
      element(
        "div",
        { class: "controls" },
        element("label", { class: "field", for: "compare-order" }, "Order ", this.choice),
        this.note,
      ),
      this.list,
    );
    this.choice.addEventListener("change", () => this.arrange());
    this.list.addEventListener("click", (event) =>
      this.choose(this.entries.find(({ node }) => node.contains(event.target))),
    );
    this.list.addEventListener("keydown", (event) => this.press(event));
    store.subscribe(() => this.mark());
  }

  /** Read one layer after the other while the view is open, and compare their heads. */
  async begin(pairs, { hidden, rescale }) {
    const name = `but for ${hidden}${rescale ? ", rescaled" : ""}`;
    if (this.begun === name) return;
    this.begun = name;
    [this.entries, this.left] = [[], []];
    const { layers } = this.recording;
    for (const [index, found] of pairs.entries()) {
      this.note.textContent = `reading layer ${index + 1} of ${pairs.length} …`;
      if (found) await Promise.all([found.layer.load(), found.against.load()]);
      if (this.begun !== name) return; // something else is left out by now
      const pair = found && paired(found.layer, found.against);
      const heads =
        pair && !pair.why
          ? headsInBoth(
              found.layer,
              found.against,
              layers[index].heads.map((_, head) => head),
            )
          : [];
      if (!heads.length) this.left.push(layers[index].name);
      for (const [head, there] of heads) {
        const mean = new Difference(found.layer.head([head]), found.against.head([there]), pair).mean();
        if (!Number.isNaN(mean))
          this.entries.push({ layer: index, head, mean, node: entry(layers[index], head, mean) });
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
    for (const [index, { node }] of this.entries.entries()) node.setAttribute("aria-selected", String(chosen[index]));
    rove(
      this.entries.map(({ node }) => node),
      Math.max(chosen.indexOf(true), 0),
    );
  }

  choose(found) {
    if (!found) return;
    this.store.set({ layer: found.layer, heads: [found.head], hover: null });
    found.node.focus();
  }

  press(event) {
    const at = this.entries.findIndex(({ node }) => node.contains(event.target));
    const to = {
      ArrowDown: at + 1,
      ArrowRight: at + 1,
      ArrowUp: at - 1,
      ArrowLeft: at - 1,
      Home: 0,
      End: this.entries.length - 1,
      Enter: at,
      " ": at,
    }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.choose(this.entries[Math.min(Math.max(to, 0), this.entries.length - 1)]);
  }
}

function entry(layer, head, mean) {
  const name = `${layer.name}, head ${layer.heads[head]}`;
  return element(
    "div",
    {
      role: "option",
      class: "compare-entry",
      "aria-selected": "false",
      tabindex: "-1",
      "data-layer": layer.name,
      "data-head": layer.heads[head],
      "data-mean": mean,
    },
    element("span", { class: "name", title: name }, layer.name),
    element("span", {}, `head ${layer.heads[head]}`),
    element("span", { class: "compare-bar", "aria-hidden": "true" }),
    element("span", { class: "value" }, mean >= 0.001 ? written(mean) : mean.toPrecision(2)),
  );
}
