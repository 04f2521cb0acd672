// The strongest weights of a row or a column in words.

import { restAfter } from "#data/ranked.js";
import { formatWeight, isVisible } from "#ui/format.js";

/** @import { Entry, Ranked } from '#data/ranked.js' */

/**
 * The first weights and what is left, such as `animal 0.521, The 0.211; 0.118 on 4 more`; a row adds up to its total.
 * @param {Ranked} ranked @param {number} count @param {(entry: Entry) => string} labelOf
 * @param {"on" | "from"} preposition  `from` for a column.
 */
export function listWeights(ranked, count, labelOf, preposition = "on") {
  if (ranked.loading) return "loading …";
  const listed = ranked.entries.slice(0, count).filter((entry, rank) => rank === 0 || isVisible(entry));
  const weights = listed
    .map((entry) => `${quote(labelOf(entry))} ${formatWeight(entry.weight, entry.error)}`)
    .join(", ");
  const rest = restAfter(ranked, listed.length);
  const more = ranked.entries.length - listed.length;
  const others = ranked.isComplete ? `${more} more` : "others, most of them not stored in this file";
  const hasRest = isVisible(rest) && (more > 0 || !ranked.isComplete);
  const about = ranked.approximate ? "about " : "";
  const left = hasRest ? `${about}${formatWeight(rest.weight, rest.error)} ${preposition} ${others}` : "";
  const list = [weights, left].filter(Boolean).join("; ") || "nothing";
  return ranked.notRescaled ? `${list} (some rows are not rescaled)` : list;
}

/** A label, in quotation marks if it is punctuation, which would read as that of the sentence. @param {string} label */
function quote(label) {
  return /[\p{L}\p{N}]/u.test(label) ? label : `“${label}”`;
}
