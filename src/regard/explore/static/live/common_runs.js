// What two lists have in common: a longest common subsequence, as runs.

/** @param {string[]} a @param {string[]} b @returns {[startA: number, startB: number, length: number][]} */
export function commonRuns(a, b) {
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1)); // of what follows
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  /** @type {[number, number, number][]} */
  const runs = [];
  for (let [i, j] = [0, 0]; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) {
      const last = runs.at(-1);
      if (last && last[0] + last[2] === i && last[1] + last[2] === j) last[2]++;
      else runs.push([i, j, 1]);
      i++;
      j++;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return runs;
}
