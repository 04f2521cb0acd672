// What would the model do, if some of it were different?

import { TEMPERATURES, WITHOUT } from "#live/typed.js";
import { button, element, hint } from "#ui/elements.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Typed } from '#live/typed.js'
 * @import { Recording } from '#data/recording.js'
 * @import { State } from '#state/store.js'
 */

const NAMES = {
  scale: "without the scale 1 / √d",
  positions: "without positions: the order of the words is lost",
  mask: "without the mask: each token sees those after it",
};
const MAX_SWITCHES = 12; // heads that are named

/** The controls; `change` is called with what is different. */
export class WhatIf {
  /** @param {PlaygroundHeader} model @param {(change: Partial<Typed>) => void} change */
  constructor(model, change) {
    this.change = change;
    /** @type {Typed | null} */
    this.typed = null;
    /** @type {string[]} */
    this.selected = []; // heads
    this.switch = button("", "", () => this.toggle(this.selected));
    this.heads = element("div", { class: "switches", role: "group", "aria-label": "Heads that are switched off" });
    const { least, most } = TEMPERATURES;
    this.temperature = element("input", { type: "number", id: "temperature", min: least, max: most, step: 0.1 });
    this.temperature.addEventListener("change", () => {
      const value = Number(this.temperature.value);
      change({ temperature: value >= least && value <= most ? value : 1 });
    });
    const options = WITHOUT.filter((name) => name !== "mask" || model.config.num_decoder_layers > 0);
    this.boxes = options.map((name) => element("input", { type: "checkbox", value: name }));
    for (const box of this.boxes) {
      box.addEventListener("change", () =>
        change({ without: this.boxes.filter(({ checked }) => checked).map(({ value }) => value) }),
      );
    }
    this.reset = button("Undo all changes", "Undo all changes", () =>
      change({ off: [], temperature: 1, without: [], begins: [] }),
    );
    const labels = this.boxes.map((box) =>
      element("label", {}, box, ` ${NAMES[/** @type {keyof typeof NAMES} */ (box.value)]}`),
    );
    this.node = element(
      "details",
      { class: "what-if" },
      element("summary", {}, "What if?"),
      hint("Change the model, and compare: its own output stays above, and Compare shows how the attention differs."),
      element("div", { class: "field" }, this.switch, this.heads),
      element(
        "label",
        { class: "field", for: "temperature" },
        "Scores are divided by the temperature ",
        this.temperature,
      ),
      element("fieldset", { class: "field" }, element("legend", { class: "visually-hidden" }, "Leave out"), ...labels),
      this.reset,
    );
  }

  /** @param {Typed} typed */
  update(typed) {
    const focused = document.activeElement;
    this.typed = typed;
    this.temperature.value = String(typed.temperature);
    for (const box of this.boxes) box.checked = typed.without.includes(box.value);
    this.reset.hidden = !isChanged(typed);
    if (!this.reset.hidden) this.node.open = true;
    const named = typed.off.slice(0, MAX_SWITCHES).map((name) => {
      const [kind, layer, head] = name.split(".");
      const text = `${kind}.${layer}, head ${head} is off ×`;
      return button(text, `${text}: switch it on`, () => this.toggle([name]));
    });
    const more = typed.off.length - named.length;
    const isLost = this.heads.contains(focused) || (focused === this.reset && this.reset.hidden);
    this.heads.replaceChildren(...named, more > 0 ? hint(`and ${more} more`) : "");
    this.rename();
    if (isLost) this.switch.focus();
  }

  /** The heads that the views show. @param {Recording} recording @param {State} state */
  select({ layers }, { layer, heads }) {
    const { name, headIndices } = layers[layer];
    this.selected = heads.map((head) => `${name}.${headIndices[head]}`);
    this.rename();
  }

  rename() {
    const heads = this.selected.map((name) => name.split(".")[2]).join(", ");
    const layer = this.selected[0]?.split(".").slice(0, 2).join(".");
    const isOff = this.selected.every((name) => this.typed?.off.includes(name));
    const text = `Switch ${isOff ? "on" : "off"} ${layer}, head ${heads}`;
    this.switch.hidden = !this.selected.length;
    this.switch.textContent = text;
    this.switch.title = text;
    this.switch.setAttribute("aria-label", text);
  }

  /** @param {string[]} names */
  toggle(names) {
    const off = this.typed?.off ?? [];
    const others = off.filter((name) => !names.includes(name));
    const isOff = names.every((name) => off.includes(name));
    this.change({ off: isOff ? others : [...others, ...names] });
  }
}

/** @param {Typed} typed */
export function isChanged({ off, temperature, without, begins }) {
  return off.length > 0 || temperature !== 1 || without.length > 0 || begins.length > 0;
}
