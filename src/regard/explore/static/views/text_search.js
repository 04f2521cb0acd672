// Finds tokens by their text.

import { element } from "#ui/elements.js";

/** @import { Token } from '#state/store.js' */

/** A search field; Enter goes from one match to the next. */
export class Search {
  /** @param {import("#ui/view.js").View} view @param {(token: Token) => void} reveal */
  constructor(view, reveal) {
    this.view = view;
    this.reveal = reveal;
    /** @type {Token[][]} */
    this.runs = [];
    const attributes = { type: "search", id: "search", placeholder: "Find in the text", autocomplete: "off" };
    this.input = element("input", { ...attributes, spellcheck: "false" });
    this.count = element("output", { class: "hint", for: "search" });
    const field = element("label", { class: "field", for: "search" }, "Find ", this.input);
    this.node = element("div", { class: "controls" }, field, this.count);
    this.input.addEventListener("input", () => view.set({ search: this.input.value }));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") view.set({ search: "" });
      if (event.key !== "Enter" || !this.runs.length) return;
      event.preventDefault();
      this.goToNext(event.shiftKey ? -1 : 1);
    });
    this.searched = "";
    /** @type {import("#state/unit.js").Unit | null} */
    this.unit = null;
  }

  /** All tokens that match. */
  get found() {
    return this.runs.flat();
  }

  update() {
    const { view } = this;
    const { search, layer } = view.state;
    if (this.input.value !== search) this.input.value = search;
    if (this.searched === `${layer} ${search}` && this.unit === view.unit) return;
    this.searched = `${layer} ${search}`;
    this.unit = view.unit;
    const { querySequence, keySequence } = view.layer;
    const sequences = [...new Set([keySequence, querySequence])];
    this.runs = sequences.flatMap((sequence) => {
      const runs = view.unit.text(view.recording.sequences[sequence]).find(search);
      return runs.map((run) => run.map((index) => ({ sequence, index })));
    });
    const more = this.runs.length ? ": press Enter for the next one" : "";
    this.count.textContent = search === "" ? "" : `${this.runs.length} found${more}`;
  }

  /** @param {number} step */
  goToNext(step) {
    const [selected] = this.view.state.tokens;
    const at = this.runs.findIndex(
      ([{ sequence, index }]) => selected?.sequence === sequence && selected.index === index,
    );
    const next = this.runs[(at + step + this.runs.length) % this.runs.length];
    this.view.set({ tokens: next });
    this.reveal(next[0]);
  }
}
