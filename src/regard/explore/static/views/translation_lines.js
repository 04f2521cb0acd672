// The lines between the words of a translation and those of its source.

import { position } from "#ui/color.js";
import { boxOf, linkPath, middleOf } from "#ui/drawing.js";
import { svgElement } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @typedef {Entry & {direction: "out" | "in" | "rest"}} Line
 * @typedef {{queries: number[], keys: number[]}} Focus  Words of the translation, and of the source.
 * @typedef {{text: import("#data/sequence.js").Sequence, words: HTMLElement[]}} Side
 */

const MIN_WEIGHT = 0.01; // of a line
const MAX_LINES = 24; // of a focused word
const MIN_WEIGHT_AT_REST = 0.1; // of a line that is not a word's strongest
const MAX_LINES_AT_REST = 3; // of a word
const NUM_CANDIDATES = 5; // stored weights may be equal where exact ones are not
const MAX_WORDS_AT_REST = 300; // of a translation whose lines are drawn at rest

/** The lines of the focused words. @param {Ranked[]} ranked @param {Focus} focus @returns {Line[]} */
export function linesOf(ranked, { queries, keys }) {
  const direction = queries.length ? "out" : "in";
  const isFocused = (/** @type {number} */ key) => queries.length > 0 && keys.includes(key);
  return ranked.flatMap(({ entries }) =>
    entries
      .filter(({ key, weight }, rank) => (weight >= MIN_WEIGHT && rank < MAX_LINES) || isFocused(key))
      .map((entry) => ({ ...entry, direction })),
  );
}

/** The strongest lines of each word of the translation, if it is not long. @param {Head} head @param {number} words @returns {Line[]} */
export function linesAtRest(head, words) {
  if (words > MAX_WORDS_AT_REST) return [];
  return Array.from({ length: words }, (_, query) => strongestKeys(head, query)).flatMap((entries) =>
    entries
      .slice(0, MAX_LINES_AT_REST)
      .filter(({ weight }, rank) => rank === 0 || weight >= MIN_WEIGHT_AT_REST)
      .map((entry) => ({ ...entry, direction: "rest" })),
  );
}

/** The first entries of a row. Ranking a whole row takes long for the mean of many heads, so candidates come from the blocks. @param {Head} head @param {number} query @returns {Entry[]} */
function strongestKeys(head, query) {
  if (!head.isDense) return head.row(query).entries;
  const { blocks } = head;
  const weights = Array.from({ length: blocks.columns }, (_, key) => blocks.at(query, key) || 0);
  const candidates = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, NUM_CANDIDATES);
  const cells = candidates.map((key) => ({ query, key, ...head.cell(query, key) }));
  return cells.filter(({ state }) => state === "known").sort((a, b) => b.weight - a.weight);
}

/**
 * Draw lines in place of those that were there, the strongest on top.
 * @param {SVGElement} svg  As large as the node that contains the words. @param {Line[]} lines
 * @param {{source: Side, target: Side, focus: Focus, isColumn: boolean}} stage
 */
export function drawLines(svg, lines, { source, target, focus, isColumn }) {
  const frame = svg.getBoundingClientRect();
  const isCell = focus.queries.length > 0 && focus.keys.length > 0;
  const path = (/** @type {Line} */ { query, key, weight, error, direction }) => {
    const [upper, lower] = [source.words[key], target.words[query]].map((node) => boxOf(node, frame, isColumn));
    const title = `${target.text.labels[query]} – ${source.text.labels[key]}: ${formatWeight(weight, error)}`;
    const attributes = {
      d: linkPath([middleOf(upper), upper.bottom], [middleOf(lower), lower.top], isColumn),
      class: `aligned ${direction}${isCell && !focus.keys.includes(key) ? " other" : ""}`,
      "stroke-width": (0.7 + 5.3 * Math.min(weight, 1)).toFixed(2),
      "stroke-opacity": (0.15 + 0.85 * position(weight)).toFixed(3),
      "data-query": query,
      "data-key": key,
      "data-weight": weight.toFixed(6),
    };
    return svgElement("path", attributes, svgElement("title", {}, title));
  };
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  svg.replaceChildren(...[...lines].sort((a, b) => a.weight - b.weight).map(path));
}
