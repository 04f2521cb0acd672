// The legend of a difference.

import { position, weightAt } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";
import { drawDifference } from "#views/compare_panel.js";

const TICKS = { root: [0.1, 0.4, 1], linear: [0.5, 1], log: [0.01, 0.1, 1], rows: [0.5, 1] };

/** What the colours of a difference mean, with their unit. */
export class Legend {
  constructor() {
    this.scale = element("canvas", { class: "scale", "aria-hidden": "true" });
    this.ticks = element("div", { class: "ticks", "aria-hidden": "true" });
    this.unit = element("span", { class: "unit" });
    const ends = element(
      "p",
      { class: "compare-ends" },
      element("span", { class: "out-word" }, "− more in A"),
      element("span", { class: "in-word" }, "+ more in B"),
    );
    this.masked = element("p", { class: "hint" }, element("i", { class: "masked" }), "may not be seen in A or in B");
    this.node = element(
      "div",
      { class: "compare-legend" },
      element("p", { class: "legend-title" }, "Difference ", this.unit),
      element("div", { class: "scale-frame" }, this.scale, this.ticks),
      ends,
      this.masked,
    );
    this.drawn = "";
  }

  paint(state, { difference }) {
    const theme = themeOf(state);
    const { size } = difference.squares;
    this.unit.textContent =
      state.scale === "rows"
        ? "B − A, times the largest of its row"
        : `B − A, in shares of a row, −1 to +1${size > 1 ? `; a square is ${size} × ${size} tokens` : ""}`;
    this.masked.hidden = !difference.values.some(Number.isNaN);
    const name = `${theme} ${state.scale}`;
    if (name === this.drawn) return;
    this.drawn = name;
    const half = 128;
    const scale = state.scale === "rows" ? "linear" : state.scale;
    const line = {
      rows: 1,
      columns: 2 * half + 1,
      at: (_, column) => Math.sign(column - half) * weightAt(Math.abs(column - half) / half, scale),
    };
    drawDifference(this.scale, line, { scale }, theme);
    const known = TICKS[state.scale];
    this.ticks.replaceChildren(
      ...[...known.map((value) => -value).reverse(), 0, ...known].map((value) => {
        const tick = element("span", {}, signed(value, String(Math.abs(value))));
        tick.style.left = `${50 + 50 * Math.sign(value) * position(Math.abs(value), scale)}%`;
        return tick;
      }),
    );
  }
}

/** A text with the sign of its number. */
export function signed(value, text) {
  return value > 0 ? `+${text}` : value < 0 ? `−${text}` : text;
}
