// What is written about the shades of an image.

import { patchGrid, tokenName } from "#data/patches.js";
import { formatWeight } from "#ui/format.js";

/**
 * @import { PatchGrid } from '#data/patches.js'
 * @import { Sequence } from '#data/sequence.js'
 * @import { TokenWeight, Weights } from '#views/image.js'
 */

const MAX_NAMED = 3; // tokens

/** A weight, or why there is none. @param {TokenWeight} weight */
export function describeWeight({ state, weight, error, upperBound }) {
  if (state === "masked" || state === "hidden") return state;
  if (state === "known") return formatWeight(weight, error);
  const [low, high] = [formatWeight(weight, error), formatWeight(upperBound)];
  return weight > 0 ? `${low} to ${high}` : `at most ${high}`;
}

/** What the shades mean. @param {Sequence} text @param {number[]} tokens  Whose attention is shown. @param {string} direction */
export function describeShades(text, tokens, direction) {
  const isAll = tokens.length === text.length && tokens.length > 1;
  const isOne = tokens.length === 1 || isAll;
  if (direction === "to") {
    const name = isAll ? "all patches" : nameOf(text, tokens);
    return `how much each patch attends to ${name}${tokens.length > 1 ? " together" : ""}`;
  }
  const name = isAll ? "the average patch" : nameOf(text, tokens);
  return `how much ${name} ${isOne ? "attends" : "attend"} to each patch${isOne ? "" : " on average"}`;
}

/** @param {Sequence} text @param {number[]} tokens */
function nameOf(text, tokens) {
  if (tokens.length <= MAX_NAMED) return tokens.map((index) => tokenName(text, index)).join(" and ");
  const grid = patchGrid(text);
  return `${tokens.length} ${tokens.every((index) => grid?.patchOf.has(index)) ? "patches" : "tokens"}`;
}

/** The largest weight of the patches, what they add up to, and what is not known of them. @param {Weights} weights @param {PatchGrid} grid @param {boolean} isServed */
export function describeRange({ tokens, total }, grid, isServed) {
  const others = tokens.filter((_, index) => !grid.patchOf.has(index));
  const patches = grid.tokens.map((token) => tokens[token]);
  const [{ state }] = patches;
  if ((state === "hidden" || state === "masked") && patches.every((each) => each.state === state))
    return `all ${state}.`;
  const largest = patches.reduce((a, b) => (b.weight > a.weight ? b : a));
  const isKnown = (/** @type {TokenWeight} */ { state }) => state !== "unknown";
  const sum = addWeights(patches);
  // What all tokens add up to is exact, so this is closer than the sum of many rounded weights.
  const rest = total !== null && others.every(isKnown) ? addWeights(others) : null;
  const together = rest && total !== null ? { weight: total - rest.weight, error: rest.error } : sum;
  const isPartial = !patches.every(isKnown);
  const parts = [`from 0 to the largest weight, ${formatWeight(largest.weight, largest.error)}.`];
  parts.push(
    `${rest || !isPartial ? "All patches" : "The known weights"} together: ${formatWeight(together.weight, together.error)}.`,
  );
  if (isPartial) {
    const reason = isServed ? "is still loading" : "has weights that are not stored in this file";
    parts.push(`A dotted patch ${reason}: point at it for its bounds.`);
  }
  return parts.join(" ");
}

/** @param {TokenWeight[]} weights */
function addWeights(weights) {
  return weights.reduce((sum, { weight, error }) => ({ weight: sum.weight + weight, error: sum.error + error }), {
    weight: 0,
    error: 0,
  });
}
