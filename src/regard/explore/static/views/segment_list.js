// A list of stacked bars, one for each layer or head: a column for each segment has its share as a number.

import { element } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";
import { listen, setTabStop } from "#ui/listbox.js";

/** @import { Layer, Segment } from '#data/layer.js' */

const ERROR = 1e-7; // of shares, which have three decimals
const NUM_COLORS = 6; // further segments are striped
const MAX_RANGES = 3; // that the legend lists

/** Rows to choose from, which are filled when their shares are loaded. */
export class SegmentList {
  /** @param {string} name @param {string[]} rows  Names of layers or heads. @param {(row: number, event: MouseEvent | KeyboardEvent) => void} select */
  constructor(name, rows, select) {
    this.options = rows.map((row, index) =>
      element(
        "div",
        { role: "option", class: "segment-row", "data-index": index, "aria-selected": "false" },
        element("span", { class: "name", title: row, dir: "auto" }, row),
        element("span", { class: "hint" }, "Loading …"),
      ),
    );
    /** @type {Set<number>} */
    this.filled = new Set();
    this.header = element("div", { class: "segment-header", "aria-hidden": "true" });
    this.list = element("div", { role: "listbox", class: "segment-list", "aria-label": name }, ...this.options);
    this.node = element("div", { class: "segment-table" }, this.header, this.list);
    listen(this.list, this.options, { point: () => {}, select, clear: () => {}, isVertical: () => true });
  }

  /** @param {number} index @param {Segment[]} segments @param {number[]} shares  Of each segment. */
  fill(index, segments, shares) {
    if (this.filled.has(index)) return;
    if (this.filled.size === 0) this.fillHeader(segments);
    this.filled.add(index);
    if (!segments.length) return this.showMessage(index, "All queries are padding.");
    const numbers = shares.map((share) => formatWeight(share, ERROR));
    const name = /** @type {Element} */ (this.options[index].firstChild);
    const cells = segments.map((segment, place) =>
      element(
        "span",
        { class: "value" },
        element("span", { class: "visually-hidden" }, `${segment.name} `),
        numbers[place],
      ),
    );
    this.options[index].replaceChildren(
      name,
      stackedBar(segments, shares, numbers),
      element("span", { class: "segment-values" }, ...cells),
    );
  }

  /** @param {Segment[]} segments */
  fillHeader(segments) {
    const names = segments.map(({ name }, index) =>
      element("span", { class: "segment-name", title: name }, swatch(index), element("bdi", {}, name)),
    );
    this.header.replaceChildren(
      element("span"),
      element("span"),
      element("span", { class: "segment-values" }, ...names),
    );
  }

  /** @param {number} index @param {string} text */
  showMessage(index, text) {
    const [, message] = this.options[index].children;
    if (message.textContent !== text) message.textContent = text;
  }

  /** Mark the rows that are selected. @param {number[]} rows */
  mark(rows) {
    for (const [index, option] of this.options.entries()) {
      option.setAttribute("aria-selected", String(rows.includes(index)));
    }
    const focused = this.options.indexOf(/** @type {HTMLDivElement} */ (document.activeElement));
    setTabStop(this.options, Math.max(focused >= 0 ? focused : rows[0], 0));
  }
}

/** The mean of a segment's shares over heads. @param {Segment} segment */
export function meanShares({ shares }) {
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

/** @param {Segment[]} segments @param {number[]} shares @param {string[]} numbers */
function stackedBar(segments, shares, numbers) {
  const pieces = segments.map(({ name }, index) => {
    const piece = element("span", { class: segmentClass(index), title: `${name} ${numbers[index]}` });
    piece.style.setProperty("--share", String(Math.max(shares[index], 0)));
    return piece;
  });
  return element("span", { class: "segment-bar", "aria-hidden": "true" }, ...pieces);
}

/** The segments of a layer with their tokens. @param {Segment[]} segments @param {Layer} layer */
export function segmentLegend(segments, layer) {
  const entries = segments.map((segment, index) =>
    element(
      "li",
      {},
      swatch(index),
      element("b", { dir: "auto" }, segment.name),
      ` ${tokensOf(segment, layer.keys.length)}`,
    ),
  );
  const rest = layer.header.has_sinks ? [element("li", {}, "The rest of a bar is attention to the sink.")] : [];
  return element("ul", { class: "segment-legend", "aria-label": "Segments and their tokens" }, ...entries, ...rest);
}

/** @param {Segment} segment @param {number} count  Tokens of the text. */
function tokensOf({ name, num_tokens: numTokens, ranges }, count) {
  if (ranges === null) return name === "recent" ? recentTokens(numTokens) : "all other tokens";
  if (!ranges.length) return "no token";
  const listed = ranges.slice(0, MAX_RANGES).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  const more = ranges.length > MAX_RANGES ? ", …" : "";
  return `${numTokens === 1 ? "token" : "tokens"} ${listed.join(", ")}${more} (${numTokens} of ${count})`;
}

/** @param {number} count */
function recentTokens(count) {
  return count === 1 ? "the token of the query" : `the ${count} tokens up to each query`;
}

/** @param {number} index */
function swatch(index) {
  return element("span", { class: `swatch ${segmentClass(index)}`, "aria-hidden": "true" });
}

/** @param {number} index */
function segmentClass(index) {
  const striped = Math.floor(index / NUM_COLORS) % 2 === 1;
  return `segment-${index % NUM_COLORS}${striped ? " striped" : ""}`;
}
