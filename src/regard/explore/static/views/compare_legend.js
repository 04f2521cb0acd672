// The legend of a difference.

import { drawDifferences } from "#ui/color.js";
import { element } from "#ui/elements.js";
import { signed } from "#ui/format.js";
import { ColorScale } from "#ui/legend.js";
import { themeOf } from "#ui/theme.js";

const TICKS = { sqrt: [0.1, 0.4, 1], linear: [0.5, 1], log: [0.01, 0.1, 1], row_max: [0.5, 1] };

/** What the colors of a difference mean, with their unit. */
export class DifferenceLegend {
  constructor() {
    this.scale = new ColorScale();
    this.unit = element("span", { class: "unit" });
    const title = element("p", { class: "legend-title" }, "Difference ", this.unit);
    const more = [
      element("span", { class: "side-a" }, "− more in A"),
      element("span", { class: "side-b" }, "+ more in B"),
    ];
    this.masked = element("p", { class: "hint" }, element("i", { class: "masked" }), "masked in A or in B");
    const ends = element("p", { class: "compare-ends" }, ...more);
    this.node = element("div", { class: "compare-legend" }, title, this.scale.node, ends, this.masked);
    this.drawn = "";
  }

  /** @param {import("#state/store.js").State} state @param {import("#data/difference.js").Difference} difference @param {boolean[]} hidden  For each of its columns. */
  paint(state, { blocks, values, numHeads }, hidden) {
    const { size, columns } = blocks;
    this.unit.textContent = [
      `B − A, ${state.scale === "row_max" ? "relative to the largest of the row" : unitOf(numHeads)}`,
      ...(size > 1 ? [`a block is ${size} × ${size} tokens`] : []),
    ].join("; ");
    this.masked.hidden = !values.some((value, index) => Number.isNaN(value) && !hidden[(index % columns) * size]);
    const name = `${themeOf(state)} ${state.scale}`;
    if (name !== this.drawn) this.drawScale(state);
    this.drawn = name;
  }

  /** @param {import("#state/store.js").State} state */
  drawScale(state) {
    const sizes = TICKS[/** @type {keyof typeof TICKS} */ (state.scale)];
    const values = [...sizes.map((value) => -value).reverse(), 0, ...sizes];
    const ticks = values.map((value) => ({ value, text: signed(value, String(Math.abs(value))) }));
    const theme = themeOf(state);
    this.scale.draw(state.scale, ticks, (canvas, line, scale) => drawDifferences(canvas, line, { scale }, theme), true);
  }
}

/** @param {number} heads  That are added up. */
function unitOf(heads) {
  return heads > 1
    ? `in shares of a row, summed over ${heads} heads: −${heads} to +${heads}; the last colors from 1 on`
    : "in shares of a row, −1 to +1";
}
