// The way of a text through the model, and where in it a step is.

import { element } from "#ui/elements.js";

/**
 * @import { Screen } from '#calculation/steps.js'
 * @import { TraceHeader } from '#calculation/trace.js'
 */

/** The stacks of the model, with the parts of the block whose layer is shown. @param {TraceHeader} header @param {Screen[]} screens @param {Screen} current @param {(screen: Screen) => void} show */
export function modelMap({ layer, layers }, screens, current, show) {
  const part = (/** @type {string} */ where, /** @type {string} */ text) => {
    const first = screens.find((screen) => screen.where === where);
    if (!first) return [];
    const button = element("button", { type: "button" }, text);
    if (where === current.where) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => show(first));
    return [button];
  };
  const [kind, number] = layer.split(".");
  const attention = part("attention", kind === "cross" ? "Cross-attention" : "Attention");
  const block = [...attention, ...part("residual", "Residual"), ...part("feed-forward", "Feed-forward")];
  const stacks = ["encoder", "decoder"].flatMap((stack) => {
    const kinds = stack === "encoder" ? ["encoder"] : ["decoder", "cross"];
    const numbers = new Set(
      layers.filter((name) => kinds.includes(name.split(".")[0])).map((name) => name.split(".")[1]),
    );
    const isOwn = kinds.includes(kind);
    const blocks = [...numbers].map((each) => {
      const isHere = isOwn && each === number;
      return element(
        "li",
        isHere ? { class: "here" } : {},
        element("span", { class: "box" }, each),
        ...(isHere ? block : []),
      );
    });
    const [before, after] = isOwn ? [part("embedding", "Embedding"), part("words", "Words")] : [[], []];
    const name = stack === "encoder" ? "Encoder" : "Decoder";
    return blocks.length ? [element("li", {}, name, ...before, element("ol", {}, ...blocks), ...after)] : [];
  });
  const items = stacks.length ? stacks : [element("li", {}, ...block)];
  return element("ol", { class: "model-map", "aria-label": "Where this is in the model" }, ...items);
}
