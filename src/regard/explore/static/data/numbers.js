// What several modules do with numbers.

/** The nearest number that is not below `low`, nor above `high` unless that is below `low`. @param {number} value @param {number} low @param {number} high */
export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), Math.max(high, low));
}

/** All whole numbers from one to another. @param {number} first @param {number} last */
export function range(first, last) {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}
