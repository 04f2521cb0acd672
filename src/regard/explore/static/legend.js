// What the colours mean, with their unit.

import { drawPixels, position } from "#colour.js";
import { element } from "#elements.js";
import { themeOf } from "#theme.js";

const TICKS = [0, 0.01, 0.1, 0.25, 0.5, 1];
const SHADES = 256;

export function mountLegend(place, recording, store) {
  const scale = element("canvas", { class: "scale", "aria-hidden": "true" });
  const ticks = element("div", { class: "ticks", "aria-hidden": "true" });
  for (const weight of TICKS) {
    const tick = element("span", {}, String(weight));
    tick.style.left = `${100 * position(weight)}%`;
    ticks.append(tick);
  }
  place.append(
    element("p", { class: "legend-title" }, "Attention weight ", element("span", { class: "unit" }, "share of a row, 0 to 1")),
    element("div", { class: "scale-frame" }, scale, ticks),
    element(
      "p",
      { class: "arc-key" },
      element("span", { class: "out-word" }, element("i", { class: "stroke out" }), "attends to"),
      element("span", { class: "in-word" }, element("i", { class: "stroke in" }), "is attended by"),
      ...(recording.hasMask ? [element("span", { class: "masked-word" }, element("i", { class: "masked" }), "may not be seen")] : []),
    ),
  );
  let drawn = "";
  store.subscribe((state) => {
    const theme = themeOf(state);
    if (theme === drawn) return;
    drawn = theme;
    drawPixels(scale, 1, SHADES, (_, column) => (column / (SHADES - 1)) ** 2, theme);
  });
}
