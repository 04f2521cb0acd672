// Buttons and a slider that go through steps one by one, or play them.

import { clamp } from "#data/numbers.js";
import { button, element } from "#ui/elements.js";

const INTERVAL = 800; // ms for a step, while it plays

/** @typedef {{count(): number, current(): number, go(step: number): void}} Steps */

export class Player {
  /** @param {Steps} steps @param {AbortSignal} signal  Aborted when it is no longer on the page. */
  constructor(steps, signal) {
    signal.addEventListener("abort", () => this.stop());
    this.steps = steps;
    this.timer = 0;
    this.slider = element("input", { type: "range", min: "0", step: "1", "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.stopAt(Number(this.slider.value)));
    this.play = button("Play", "Play", () => (this.timer ? this.stop() : this.start()));
    this.node = element(
      "div",
      { class: "player", role: "group", "aria-label": "Steps" },
      button("‹", "Previous step", () => this.stopAt(steps.current() - 1)),
      button("›", "Next step", () => this.stopAt(steps.current() + 1)),
      this.play,
      this.slider,
    );
  }

  /** @param {string} text  What a screen reader says of the current step. */
  update(text) {
    this.slider.max = String(this.steps.count() - 1);
    this.slider.value = String(this.steps.current());
    this.slider.setAttribute("aria-valuetext", text);
  }

  /** Go to a step, or to the first or last if there is none. @param {number} step */
  stopAt(step) {
    this.stop();
    this.steps.go(clamp(step, 0, this.steps.count() - 1));
  }

  /** Play from the current step, or from the beginning if it is the last. */
  start() {
    if (this.isLast()) this.steps.go(0);
    this.timer = setInterval(() => (this.isLast() ? this.stop() : this.steps.go(this.steps.current() + 1)), INTERVAL);
    this.rename("Pause");
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.rename("Play");
  }

  isLast() {
    return this.steps.current() >= this.steps.count() - 1;
  }

  /** @param {string} name */
  rename(name) {
    this.play.textContent = name;
    this.play.title = name;
    this.play.setAttribute("aria-label", name);
  }
}
