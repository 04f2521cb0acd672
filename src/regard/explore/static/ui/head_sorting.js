// Sorts thumbnails: by a head score, or by what the selected words do.

import { button, dropdown, element, hint } from "#ui/elements.js";
import { countWords, layerHasWords, questionOf, rankHead, selectedWords } from "#ui/selection_ranking.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { State } from '#state/store.js'
 * @import { Caption, Thumbnail } from '#ui/head_grid.js'
 * @import { RankedHead, Word } from '#ui/selection_ranking.js'
 */

/** Head scores, as in `regard.analysis.head_scores`, and what each is the mean of over the rows. */
const SCORES = {
  previous_token: "the weight on the token before",
  next_token: "the weight on the token after",
  self: "the weight on the token itself",
  first_token: "the weight on the first token, which is often a sink",
  separator: "the weight on special tokens such as [SEP]",
  duplicate_token: "the weight on the same token elsewhere",
  induction: "the weight on the token that follows the same token elsewhere",
  entropy: "the entropy in nats: the larger, the more evenly a row is spread",
  mean_distance: "the distance between a token and what it attends to, in tokens",
};
const UNBOUNDED = ["entropy", "mean_distance"]; // the others are shares, from 0 to 1

/** The controls above the thumbnails, and the order that they choose. */
export class HeadSorting {
  /** @param {Recording} recording @param {import("#state/unit.js").Units} units */
  constructor(recording, units) {
    this.recording = recording;
    this.units = units;
    this.numHeads = recording.layers.reduce((sum, { headIndices }) => sum + headIndices.length, 0);
    this.offered = "";
    /** What the order depends on. */
    this.name = "";
    /** @type {Word[]} */
    this.words = [];
    /** @type {Map<string, RankedHead>} */
    this.ranked = new Map(); // heads by the selected words
    this.rankedFor = "";
    const { store } = units;
    const { select, node } = dropdown("sort", "Sort by ", [], (sort) => store.set({ sort, minScore: 0 }));
    this.select = select;
    this.slider = element("input", { type: "range", id: "min-score", min: "0", max: "1", step: "0.05" });
    this.output = element("output", { for: "min-score" });
    this.filter = element("label", { class: "field", for: "min-score" }, "at least ", this.slider, this.output);
    this.slider.addEventListener("input", () => store.set({ minScore: Number(this.slider.value) }));
    this.question = element("button", { type: "button", class: "question" });
    this.question.addEventListener("click", () => {
      store.set({ sort: store.get().sort === "selection" ? "order" : "selection", minScore: 0 });
    });
    this.note = hint("");
    this.counts = element("div", { class: "counts", role: "group", "aria-label": "Heads that look most at a word" });
    this.countedFor = "";
    this.node = element("div", { class: "controls" }, node, this.filter, this.question, this.note, this.counts);
  }

  /** @param {State} state */
  update(state) {
    const { sort, minScore } = state;
    this.words = selectedWords(this.recording, state);
    this.offerScores();
    const isSelection = sort === "selection";
    if (isSelection) this.rankSelection(state);
    const done = isSelection ? this.ranked.size : this.numScored(sort);
    this.name = [sort, minScore, done, isSelection ? [this.rankedFor, state.looksAt].join(" ") : ""].join(" ");
    this.updateControls(state, done);
  }

  /** @param {State} state @param {number} done  Heads whose score is known. */
  updateControls(state, done) {
    const { sort, minScore } = state;
    const question = questionOf(this.words);
    this.select.value = sort;
    this.slider.value = String(minScore);
    this.output.textContent = minScore.toFixed(2);
    this.filter.hidden = sort === "order" || UNBOUNDED.includes(sort);
    this.question.hidden = question === "";
    this.question.textContent = question;
    this.question.setAttribute("aria-pressed", String(sort === "selection"));
    const of = sort === "selection" ? this.selectable().length : this.numHeads;
    const rest = sort !== "order" && done < of ? ` Computed for ${done} of ${of} heads so far.` : "";
    this.note.textContent = this.describe(sort) + rest;
    this.updateCounts(state);
  }

  /** How many heads look most at which word: a head that was chosen for its word is one of these. @param {State} state */
  updateCounts({ sort, looksAt, layer, heads }) {
    const counts = sort === "selection" ? countWords(this.ranked.values()) : [];
    const own = heads.length === 1 ? this.ranked.get(`${layer} ${heads[0]}`)?.word : "";
    const name = JSON.stringify([counts, looksAt, own]);
    if (name === this.countedFor) return;
    this.countedFor = name;
    this.counts.hidden = counts.length === 0;
    const { store } = this.units;
    const buttons = counts.map(([word, count]) => {
      const made = button(`${word} ${count}`, `${word} ${count}: only the heads that look most at it`, () =>
        store.set({ looksAt: store.get().looksAt === word ? "" : word }),
      );
      made.setAttribute("aria-pressed", String(word === looksAt));
      return made;
    });
    const share = counts.find(([word]) => word === own)?.[1];
    const others = `The head shown is one of the ${share} of ${this.ranked.size} that look most at “${own}”.`;
    this.counts.replaceChildren(...buttons, ...(share ? [hint(others)] : []));
  }

  /** @param {string} sort */
  describe(sort) {
    if (sort === "selection") {
      const [from, to] = this.words;
      if (!from)
        return "Select a word in the text to see where each head looks from it, or two words to see which heads connect them.";
      if (to) return `Each map is the row of “${from.name}”; the number is its weight on “${to.name}”.`;
      return `Each map is the row of “${from.name}”; below it is the other word that it attends to most.`;
    }
    const what = SCORES[/** @type {keyof typeof SCORES} */ (sort)];
    return what ? `The number is ${what}, averaged over the rows.` : "";
  }

  /** The heads of layers that have the selected words, as [layer, head]. @returns {[number, number][]} */
  selectable() {
    return this.recording.layers.flatMap((layer, index) =>
      layerHasWords(layer, this.words)
        ? layer.headIndices.map((_, head) => /** @type {[number, number]} */ ([index, head]))
        : [],
    );
  }

  /** @param {State} state */
  rankSelection({ hide, rescale }) {
    const name = [JSON.stringify(this.words), hide, rescale].join(" ");
    if (name !== this.rankedFor) this.ranked.clear();
    this.rankedFor = name;
    for (const [layer, head] of this.selectable()) {
      const id = `${layer} ${head}`;
      if (this.ranked.has(id)) continue;
      const { layers } = this.recording;
      if (!layers[layer].isLoaded) layers[layer].load().then(() => this.units.store.set({}));
      const found = rankHead(this.units.tokens, layers[layer], head, this.words);
      if (found) this.ranked.set(id, found);
    }
  }

  /** Of how many heads a score is known. @param {string} score */
  numScored(score) {
    return this.recording.layers.reduce((sum, { scores }) => sum + (scores[score]?.length ?? 0), 0);
  }

  /** Offer the scores that some head has, or may have once it is computed. */
  offerScores() {
    const { layers } = this.recording;
    const names = Object.keys(SCORES).filter((name) =>
      layers.some(
        ({ scores, headIndices }) =>
          scores[name].length < headIndices.length || scores[name].some((score) => score !== null),
      ),
    );
    if (names.join() === this.offered) return;
    this.offered = names.join();
    const scores = names.map((name) => [name, name.replace("_", " ")]);
    const options = [["order", "layer and head"], ["selection", "the selected words"], ...scores];
    this.select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }

  /** The heads that are shown, the largest score first. @param {Thumbnail[]} thumbnails @param {State} state @returns {{thumbnail: Thumbnail, caption: Caption}[]} */
  rank(thumbnails, { sort, minScore, looksAt }) {
    const isCounted = countWords(this.ranked.values()).some(([word]) => word === looksAt);
    const only = sort === "selection" && isCounted ? looksAt : "";
    return thumbnails
      .filter(({ layer, head }) => !only || this.ranked.get(`${layer} ${head}`)?.word === only)
      .map((thumbnail) => ({ thumbnail, ...this.scoreOf(thumbnail, sort) }))
      .filter(({ score }) => score !== null && (UNBOUNDED.includes(sort) || score >= minScore))
      .sort((a, b) => Number(b.score) - Number(a.score))
      .map(({ thumbnail, text }) => ({ thumbnail, caption: { text, title: text } }));
  }

  /** @param {Thumbnail} thumbnail @param {string} sort @returns {{score: number | null, text: string}} */
  scoreOf({ layer, head }, sort) {
    if (sort === "selection") return this.ranked.get(`${layer} ${head}`) ?? { score: null, text: "" };
    const score = this.recording.layers[layer].scores[sort]?.[head] ?? null;
    return { score, text: Number(score).toFixed(2) };
  }

  /** What a thumbnail shows in place of its head's map. @param {number} layer @param {number} head @returns {import("#data/heads.js").Blocks | null} */
  stripOf(layer, head) {
    if (this.units.store.get().sort !== "selection") return null;
    return this.ranked.get(`${layer} ${head}`)?.strip ?? null;
  }

  /** @param {State} state */
  emptyNote({ sort }) {
    if (sort === "selection") return this.words.length ? "No head to show yet." : "";
    return this.numScored(sort) < this.numHeads ? "No head computed so far reaches this." : "No head reaches this.";
  }
}
