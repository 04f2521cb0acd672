// What the model could have written: for each token, the most probable ones and their probabilities.

import { bar, button, element } from "#ui/elements.js";
import { escapeInvisible, formatWeight } from "#ui/format.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Computed } from '#model/computed.js'
 */

/** Buttons of the tokens that were written, and the choices of the one that is selected. */
export class Choices {
  /** @param {PlaygroundHeader} model @param {{begin(tokens: number[]): void, choose(choice: number): void}} actions  `begin`: with what the output shall begin; `choose`: which token is selected. */
  constructor(model, actions) {
    this.model = model;
    this.actions = actions;
    /** @type {number | null} */
    this.choice = null; // in the address
    /** @type {Computed | null} */
    this.computed = null;
    this.steps = element("div", { class: "steps", role: "group", "aria-label": "Written tokens" });
    this.list = element("ol", { class: "probabilities" });
    const title = model.kind === "fill-mask" ? "What could stand for the mask?" : "What else could the next word be?";
    const note = element("p", { class: "hint" }, this.explanation());
    this.node = element("details", { class: "choices" }, element("summary", {}, title), note, this.steps, this.list);
    this.node.open = model.kind !== "translate";
  }

  get selected() {
    return Math.min(this.choice ?? 0, (this.computed?.choices.length ?? 1) - 1);
  }

  /** @param {number | null} choice */
  select(choice) {
    if (choice === this.choice) return;
    this.choice = choice;
    this.node.open = choice !== null || this.model.kind !== "translate";
    this.paint();
  }

  explanation() {
    if (this.model.kind === "fill-mask") return "Select a mask to see the most probable tokens.";
    return "Select a token to see the most probable ones at its place; choose another, and the model continues from there.";
  }

  /** @param {Computed | null} computed */
  show(computed) {
    this.computed = computed;
    this.node.hidden = !computed?.choices.length;
    if (!computed) return;
    const buttons = computed.written.map((token, step) => {
      const name = this.nameOf(token);
      return button(name, `Choices for token ${step + 1}, ${name}`, () => this.actions.choose(step));
    });
    const isLost = [this.steps, this.list].some((node) => node.contains(document.activeElement));
    this.steps.replaceChildren(...buttons);
    this.paint();
    if (isLost) buttons[this.selected]?.focus();
  }

  paint() {
    const { computed, selected, steps, list } = this;
    for (const [step, node] of [...steps.children].entries())
      node.setAttribute("aria-pressed", String(step === selected));
    if (!computed || this.node.hidden) return list.replaceChildren();
    const canContinue = this.model.kind !== "fill-mask";
    const items = computed.choices[selected].map(({ token, probability }) => {
      const name = this.nameOf(token);
      const isWritten = token === computed.written[selected];
      const choose = () => this.actions.begin([...computed.written.slice(0, selected), token]);
      const named = canContinue && !isWritten && !this.model.ends.includes(token);
      const label = named ? button(name, `Write ${name} and continue`, choose) : element("span", {}, name);
      const value = element("span", { class: "value" }, formatWeight(probability));
      return element("li", isWritten ? { class: "written" } : {}, label, bar(probability, "out"), value);
    });
    list.replaceChildren(...items);
  }

  /** @param {number} token */
  nameOf(token) {
    return escapeInvisible(this.model.vocabulary.display[token]) || "␣";
  }
}
