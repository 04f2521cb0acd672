// What the reader types, what the model makes of it, and beside it what a changed model makes of it.

import { Choices } from "#live/choices.js";
import { commonRuns } from "#live/common_runs.js";
import { isChanged, WhatIf } from "#live/what_if.js";
import { element } from "#ui/elements.js";
import { escapeInvisible } from "#ui/format.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Typed } from '#live/typed.js'
 * @import { Computed } from '#model/computed.js'
 */

const WORDING = {
  translate: {
    title: "Type a sentence",
    nothing: "Nothing to translate yet.",
    cut: "The translation is cut: the model did not end it.",
    read: "translated",
  },
  generate: { title: "Type the beginning of a text", nothing: "Nothing to continue yet.", cut: "", read: "continued" },
  "fill-mask": { title: "Type a text", nothing: "Nothing to read yet.", cut: "", read: "read" },
};

/** What a changed model is compared with, and the changed model. */
export const SIDES = { original: "The model as it is", changed: "With the change" };

export class Form {
  /** @param {PlaygroundHeader} model @param {Typed} typed @param {{change(change: Partial<Typed>): void, choose(choice: number): void}} actions */
  constructor(model, typed, { change, choose }) {
    this.model = model;
    this.wording = WORDING[model.kind];
    this.input = element("textarea", {
      id: "live-text",
      rows: 1,
      dir: "auto",
      spellcheck: "false",
      autocomplete: "off",
    });
    const outputs = { for: "live-text", dir: "auto" };
    this.output = element("output", { id: "live-translation", ...outputs });
    this.changed = element("output", { id: "live-changed", ...outputs });
    this.sides = [
      element("label", { for: this.output.id }, SIDES.original),
      element("label", { for: this.changed.id }, SIDES.changed),
    ];
    const outputNodes = [this.sides[0], this.output, this.sides[1], this.changed];
    this.outputs = element("div", { class: "outputs" }, ...outputNodes);
    this.difference = element("p", { class: "note", id: "live-difference" });
    this.notice = element("p", { class: "note", id: "live-notice", role: "status" });
    this.greedy = element("input", { type: "checkbox", id: "live-greedy" });
    const search = element(
      "label",
      { class: "note" },
      this.greedy,
      " Only the most probable token at each step (greedy search)",
    );
    search.hidden = model.kind !== "translate";
    this.whatIf = new WhatIf(model, change);
    this.choices = new Choices(model, { begin: (begins) => change({ begins }), choose });
    this.input.addEventListener("input", () => change({ text: this.input.value, begins: [] }));
    this.greedy.addEventListener("change", () => change({ greedy: this.greedy.checked }));
    const heading = element("h1", {}, element("label", { for: "live-text" }, this.hint()));
    const more = element("div", { class: "more" }, this.choices.node, this.whatIf.node, search);
    const parts = [this.input, this.outputs, this.difference, more, this.notice];
    this.node = element("form", { class: "live" }, heading, ...parts);
    this.node.addEventListener("submit", (event) => event.preventDefault());
    this.output.hidden = !this.writes;
    this.update(typed);
  }

  /** Whether the model writes anything. */
  get writes() {
    return this.model.kind !== "fill-mask" || this.model.mask !== null;
  }

  hint() {
    const { mask, vocabulary } = this.model;
    return mask === null
      ? this.wording.title
      : `${this.wording.title}, with ${vocabulary.tokens[mask]} for words to guess`;
  }

  /** Show what was typed, until there is a result. @param {Typed} typed */
  update(typed) {
    if (this.input.value !== typed.text) this.input.value = typed.text; // without moving the cursor
    this.greedy.checked = typed.greedy;
    this.whatIf.update(typed);
    const isCompared = isChanged(typed) && this.writes;
    for (const node of [...this.sides, this.changed, this.difference]) node.hidden = !isCompared;
    this.isOutdated = true;
  }

  /** @param {boolean} isOutdated */
  set isOutdated(isOutdated) {
    for (const node of [this.output, this.changed]) node.classList.toggle("outdated", isOutdated);
  }

  /** @param {Computed | null} computed @param {Computed | null} changed */
  show(computed, changed) {
    this.isOutdated = false;
    const [text, other] = [computed, changed].map((each) => escapeInvisible(each?.text ?? ""));
    const prompt = this.model.kind === "generate" ? "… " : "";
    this.output.replaceChildren(prompt, ...(changed ? marked(text, other) : [text]));
    this.changed.replaceChildren(prompt, ...marked(other, text));
    if (changed) this.difference.textContent = differenceOf(text, other);
    this.choices.show(changed ?? computed);
    this.notice.textContent = computed ? this.noticeOf(computed) : this.wording.nothing;
  }

  /** @param {Computed} computed */
  noticeOf({ sequences, truncated, finished }) {
    const { before, after } = this.model;
    const count =
      this.model.kind === "generate" ? this.model.max_tokens : sequences.source.length - before.length - after.length;
    const parts = [
      ...(truncated ? [`Only the first ${count} tokens of this text are ${this.wording.read}.`] : []),
      ...(finished ? [] : [this.wording.cut]),
    ];
    return parts.join(" ");
  }

  /** @param {unknown} error */
  fail(error) {
    this.notice.textContent = `This browser cannot run the model: ${error instanceof Error ? error.message : error}`;
  }
}

const wordsOf = (/** @type {string} */ text) => text.split(/(?<=\s)/u);

/** A text in which the words are marked that another does not have. @param {string} text @param {string} other */
function marked(text, other) {
  const words = wordsOf(text);
  const isCommon = words.map(() => false);
  for (const [start, , length] of commonRuns(words, wordsOf(other))) isCommon.fill(true, start, start + length);
  return words.map((word, index) => (isCommon[index] ? word : element("mark", {}, word)));
}

/** @param {string} text @param {string} other */
function differenceOf(text, other) {
  if (text === other) return "The change makes no difference to the text.";
  const common = commonRuns(wordsOf(text), wordsOf(other)).reduce((sum, [, , length]) => sum + length, 0);
  return `${wordsOf(other).length - common} of ${wordsOf(other).length} words differ.`;
}
