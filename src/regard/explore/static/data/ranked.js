// Weights of a row or a column, strongest first: of signed values those of the largest size.

/**
 * @typedef {{query: number, key: number, weight: number, error: number}} Entry  A weight, and how far it may be from the exact one.
 * @typedef {{entries: Entry[], rest: number, total?: number | null, numOrdered?: number, isComplete?: boolean, loading?: boolean, approximate?: boolean, notRescaled?: boolean}} Ranked
 *   `entries` are strongest first, `rest` is the mass of the others. `total` is what a row adds up to, if that is known.
 *   `numOrdered`: how many entries are in the exact order even where their stored weights are equal.
 *   `isComplete`: there are no others. `approximate`: `rest` is not exact. `notRescaled`: some rows could not be rescaled.
 */

/** @param {{weight: number}} a @param {{weight: number}} b */
export const byStrength = (a, b) => Math.abs(b.weight) - Math.abs(a.weight);

/** The places of numbers that are not NaN, the largest size first, equal ones in the order of the text. @param {Float32Array} numbers */
export function strongestFirst(numbers) {
  const last = numbers.length - 1;
  const bits = new Uint32Array(numbers.map(Math.abs).buffer); // in the order of the sizes
  const pairs = new Uint32Array(2 * numbers.length); // whole numbers of 64 bits, which are sorted far faster than entries
  for (let place = 0; place <= last; place++) {
    pairs[2 * place] = last - place;
    pairs[2 * place + 1] = bits[place];
  }
  new BigUint64Array(pairs.buffer).sort();
  const places = [];
  for (let at = last; at >= 0; at--) {
    const place = last - pairs[2 * at];
    if (!Number.isNaN(numbers[place])) places.push(place);
  }
  return places;
}

/**
 * Sort all entries of a row or column, equal weights in the order of the text. `order` says how the first ones stand in
 * their exact order: by how many places each comes before its turn (docs/page_format.md).
 * @param {Entry[]} entries  In the order of the text. @param {ArrayLike<number>} [order] @returns {Ranked}
 */
export function rankEntries(entries, order = []) {
  entries.sort(byStrength);
  for (let rank = 0; rank < order.length; rank++) {
    if (order[rank] > 0) entries.splice(rank, 0, ...entries.splice(rank + order[rank], 1));
  }
  return { entries, rest: 0, numOrdered: order.length, isComplete: true };
}

/**
 * Rows or columns added up, place by place.
 * @param {Ranked[]} all @param {(entry: Entry) => number} place @param {number} factor @returns {Ranked}
 */
export function sumRanked(all, place, factor) {
  /** @type {Map<number, Entry>} */
  const sums = new Map();
  for (const { entries } of all) {
    for (const entry of entries) {
      const sum = sums.get(place(entry)) ?? { ...entry, weight: 0, error: 0 };
      sum.weight += factor * entry.weight;
      sum.error += factor * entry.error;
      sums.set(place(entry), sum);
    }
  }
  const totals = all.map(({ total }) => total ?? null);
  return {
    entries: [...sums.values()].sort(byStrength),
    rest: all.reduce((sum, { rest }) => sum + factor * rest, 0),
    total: totals.includes(null)
      ? null
      : totals.reduce((/** @type {number} */ sum, total) => sum + factor * Number(total), 0),
    isComplete: all.every(({ isComplete }) => isComplete),
    loading: all.some(({ loading }) => loading),
    approximate: all.some(({ approximate }) => approximate),
    notRescaled: all.some(({ notRescaled }) => notRescaled),
  };
}

/** What is left of a row or column besides its first entries; a row adds up to its total. @param {Ranked} ranked @param {number} count @returns {{weight: number, error: number}} */
export function restAfter({ entries, rest, total }, count) {
  const isTotalKnown = typeof total === "number";
  let [weight, error] = [0, 0];
  const end = isTotalKnown ? Math.min(count, entries.length) : entries.length;
  for (let at = isTotalKnown ? 0 : count; at < end; at++) {
    weight += entries[at].weight;
    error += entries[at].error;
  }
  return { weight: isTotalKnown ? Math.max(0, total - weight) : weight + rest, error };
}

/** The rank of an entry, from 1; a range such as `3–5` where stored weights are equal. @param {Ranked} ranked @param {number} index */
export function rankOf({ entries, numOrdered = 0 }, index) {
  const { weight, error } = entries[index];
  if (error === 0 || index < numOrdered) return String(index + 1);
  const equal = entries.findIndex((entry) => entry.weight === weight);
  const first = Math.max(equal, numOrdered);
  const last = entries.findLastIndex((entry) => entry.weight === weight);
  return first === last ? String(first + 1) : `${first + 1}–${last + 1}`;
}

/** The first entries of several rows together. @param {Entry[]} entries @param {number} count */
export function strongest(entries, count = entries.length) {
  return [...entries].sort(byStrength).slice(0, count);
}
