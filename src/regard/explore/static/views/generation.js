// The text step by step, as the model read or wrote it, and what it attended to at each step.

import { weightTable } from "#export/csv.js";
import { whenLoaded } from "#export/loading.js";
import { toggleSelection } from "#state/store.js";
import { count } from "#state/url.js";
import { position } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { addsToSelection } from "#ui/listbox.js";
import { Player } from "#ui/player.js";
import { listWeights } from "#ui/weight_sentence.js";
import { GeneratedText } from "#views/generation_text.js";

/**
 * @import { Layer } from '#data/layer.js'
 * @import { Entry } from '#data/ranked.js'
 * @import { State, Token } from '#state/store.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @typedef {{layer: Layer | null, decoder: Layer, cross: Layer | null, isReading: boolean}} Steps
 *   The selected layer, if its rows are the steps; layers that say which tokens are read and written; whether all are read.
 */

const MAX_LISTED = 3; // tokens that a step attends to

/** @type {ViewDefinition} */
export default {
  name: "generation",
  title: "Step by step", // written or only read
  help: "The text step by step, as the model read or wrote it. The tint shows what the model attended to at a step; tokens that came later are faint, because the model could not attend to them yet.",
  unit: "token",
  urlFields: { step: count },
  isAvailable: ({ layers }) => layers.some(({ kind }) => kind === "decoder"),
  mount: (place, view) => new GenerationView(place, view),
};

class GenerationView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.view = view;
    const steps = {
      count: () => this.steps.decoder.queries.length,
      current: () => this.step,
      go: (/** @type {number} */ step) => this.go(step),
    };
    this.player = new Player(steps, view.signal);
    this.note = element("p", { class: "note" });
    this.source = new GeneratedText();
    this.text = new GeneratedText();
    this.caption = element("p", { class: "hint" });
    this.token = element("p", { class: "step-token", dir: "auto" });
    this.sentence = element("p", { class: "hint" });
    const attributes = { class: "scroller", tabindex: "0", role: "group", "aria-label": "The text up to this step" };
    this.scroller = element("div", attributes, this.source.node, this.text.node);
    const about = element("div", { class: "generation-step" }, this.caption, this.token, this.sentence);
    place.append(this.player.node, this.note, element("div", { class: "generation-layout" }, this.scroller, about));
    for (const text of [this.source, this.text]) {
      text.listen({
        point: (token) => this.point(token),
        select: (token, event) => this.select(token, addsToSelection(event)),
      });
    }
    this.built = ""; // the sequences on the page
  }

  /** @returns {Steps} */
  get steps() {
    const { layer, recording } = this.view;
    const decoders = recording.layers.filter(({ kind }) => kind === "decoder");
    const hasSameRows = (/** @type {Layer} */ { querySequence }) => querySequence === layer.querySequence;
    const isEncoder = layer.kind === "encoder";
    const decoder = (!isEncoder && (layer.kind === "decoder" ? layer : decoders.find(hasSameRows))) || decoders[0];
    const isStep = !isEncoder && layer.querySequence === decoder.querySequence;
    const cross = recording.layers.find(
      ({ kind, querySequence }) => kind === "cross" && querySequence === decoder.querySequence,
    );
    return {
      layer: isStep ? layer : null,
      decoder,
      cross: (isStep && layer.kind === "cross" ? layer : cross) ?? null,
      isReading: decoder.querySequence === decoder.keySequence,
    };
  }

  /** The step that was selected, or else that of the selected token, or the first. */
  get step() {
    const { step, tokens } = this.view.state;
    const { querySequence, queries } = this.steps.decoder;
    const selected = tokens.find(({ sequence }) => sequence === querySequence)?.index;
    return Math.min(step ?? selected ?? 0, queries.length - 1);
  }

  /** @param {number} step */
  go(step) {
    const token = { sequence: this.steps.decoder.querySequence, index: step };
    this.view.set({ step, tokens: [token], hover: null });
  }

  layers() {
    const { layer } = this.steps;
    return layer ? [layer] : [];
  }

  /** A step whose token is selected in another view is shown. @param {State} state @param {State} before */
  update({ tokens }, before) {
    if (!this.view.isOpen()) {
      if (this.player.timer) this.player.stop();
      return;
    }
    const [token] = tokens.length === 1 && tokens !== before.tokens ? tokens : [];
    const isStep = token?.sequence === this.steps.decoder.querySequence;
    if (isStep && token.index !== this.step) this.view.set({ step: token.index });
  }

  paint() {
    const { steps, step } = this;
    const { decoder, isReading } = steps;
    this.build(steps);
    this.caption.textContent = `Step ${step + 1} of ${decoder.queries.length} ${isReading ? "reads" : "writes"}`;
    this.token.textContent = decoder.queries.display[step];
    this.text.showStep(numRead(decoder, step), isReading ? null : step);
    this.text.reveal(this.scroller, isReading ? 0 : 1, step);
    this.paintWeights(steps, step);
    const attention = steps.layer ? `, ${this.sentence.textContent}` : "";
    this.player.update(`${this.caption.textContent} ${decoder.queries.labels[step]}${attention}`);
  }

  /** @param {Steps} steps */
  build({ decoder, cross, isReading }) {
    const { querySequence, keySequence, queries, keys } = decoder;
    const built = [querySequence, keySequence, cross?.keySequence].join();
    if (built === this.built) return;
    this.built = built;
    const read = { sequence: keySequence, text: keys };
    this.source.build("Source", cross ? [{ sequence: cross.keySequence, text: cross.keys }] : []);
    if (isReading) this.text.build("Read so far", [read]);
    else this.text.build("Written so far", [read, { sequence: querySequence, text: queries }]);
    this.note.textContent = isReading
      ? "This model reads its input: each step is a token, which attends to itself and to the tokens before it."
      : "Each step wrote a token: the tint shows what the model attended to while writing it.";
  }

  /** Tint what the step attends to, and list the strongest. @param {Steps} steps @param {number} step */
  paintWeights({ layer }, step) {
    const { state, unit } = this.view;
    const ranked = (layer && unit.head(layer)?.row(step)) ?? { entries: [], rest: 0, loading: true };
    const [strongest] = ranked.entries;
    /** @type {[number, number][]} */
    const tints = ranked.entries.map(({ key, weight }) => [key, position(weight, state.scale, strongest.weight)]);
    this.text.tint(layer?.kind === "decoder" ? tints : []);
    this.source.tint(layer?.kind === "cross" ? tints : []);
    const label = (/** @type {Entry} */ { key }) => layer?.keys.labels[key] ?? "";
    const attends = ranked.loading ? "Loading …" : `attends most to ${listWeights(ranked, MAX_LISTED, label)}`;
    this.sentence.textContent = layer ? attends : notOfStep(this.view.layer);
  }

  /** Point at the weight of a token that the step may attend to; at any other, point at the token. @param {Token | null} token */
  point(token) {
    const { layer } = this.steps;
    const { step } = this;
    const isKey = token && layer && token.sequence === layer.keySequence;
    const isCell = isKey && (layer.kind === "cross" || token.index < numRead(layer, step));
    const hover = isCell ? { cell: { query: step, key: token.index } } : token && { token };
    this.view.set({ hover });
  }

  /** Go to the step of a token; select one that has none. @param {Token} token @param {boolean} more  Whether to select it in addition to others. */
  select(token, more) {
    const { decoder } = this.steps;
    const step =
      token.sequence === decoder.querySequence
        ? token.index
        : token.sequence === decoder.keySequence
          ? token.index - numRead(decoder, 0)
          : -1;
    if (step >= 0 && !more) this.player.stopAt(step);
    else toggleSelection(this.view.store, token, more);
  }

  /** The weights of the step. */
  async table() {
    const { view, step, steps } = this;
    const { layer, decoder } = steps;
    const head = layer && (await whenLoaded(view.recording, () => view.unit.head(layer)));
    await head?.fetch([step], []);
    const entries = [...(head?.row(step).entries ?? [])].sort((a, b) => a.key - b.key);
    return weightTable(layer ?? decoder, entries, view.state);
  }
}

/** How many tokens have been read at a step: at the first step those before the first written token, or that token itself. @param {Layer} decoder @param {number} step */
function numRead({ queries, keys }, step) {
  return Math.max(keys.length - queries.length, 0) + 1 + step;
}

/** @param {Layer} layer */
function notOfStep({ name }) {
  return `${name} is not part of these steps: select a head of the decoder or of cross-attention to see what it attends to.`;
}
