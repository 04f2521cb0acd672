// The text of the tip next to a cell of the matrix.

import { rankOf } from "#data/ranked.js";
import { element } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";
import { formatOf } from "#ui/shown.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Sequence } from '#data/sequence.js'
 */

/** @param {Head} head @param {Sequence} queries @param {Sequence} keys @param {number} query @param {number} key */
export function cellTip(head, queries, keys, query, key) {
  const places = element("span", { class: "places" }, `${query} → ${key}`);
  return [pairNode(queries.labels[query], keys.labels[key]), places, ...describeCell(head, query, key)];
}

/** A query and a key. @param {string} from @param {string} to */
export function pairNode(from, to) {
  const query = element("b", { class: "out-word", dir: "auto" }, from);
  return element("span", { class: "pair" }, query, " → ", element("b", { class: "in-word", dir: "auto" }, to));
}

/** The weight of a cell and its rank, or why there is none. @param {Head} head @param {number} query @param {number} key */
function describeCell(head, query, key) {
  const note = (/** @type {string} */ text) => element("span", { class: "rank" }, text);
  const { state, weight, error, upperBound } = head.cell(query, key);
  if (state === "masked") return [note("masked")];
  if (state === "hidden") return [note("hidden")];
  if (state === "unknown" && head.isRemote) return [note("loading …")];
  if (state === "unknown") {
    const blocks = head.finestBlocks;
    const { size } = blocks;
    const mean = formatWeight(blocks.at(Math.floor(query / size), Math.floor(key / size)));
    const bound = `not stored in this file: at most ${formatWeight(upperBound)}`;
    return [note(bound), note(`${mean} to the ${size} keys around it, averaged over ${size} rows`)];
  }
  const value = element("span", { class: "value" }, formatOf(head)(weight, error));
  const row = head.row(query);
  if (row.loading) return [value];
  const index = row.entries.findIndex((entry) => entry.key === key);
  const rank = rankOf(row, index);
  return [value, note(`rank ${rank}${row.isComplete ? ` of ${row.entries.length}` : ""} in its row`)];
}
