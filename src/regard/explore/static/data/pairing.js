// Which tokens, layers and heads of two recordings belong together.

const MOST = 2 ** 20; // pairs of tokens that are looked at
const MARKERS = /^[▁Ġ ]/u; // what tokenizers put before a piece that begins a word: each its own

/**
 * @typedef {import("#data/recording.js").Recording} Recording
 * @typedef {import("#data/layer.js").Layer} Layer
 * @typedef {{pairs: [number, number][], there: Int32Array, here: Int32Array, all: boolean}} Alignment
 *   `there` is the place in the other text of each token of the one, or −1, and `here` the reverse; `all` is whether
 *   the whole texts were looked at, and not only their beginnings and ends.
 */

/**
 * Align two texts by a longest common subsequence of their tokens; of two long ones, by what they begin and end with.
 * @param {string[]} one @param {string[]} other @returns {Alignment}
 */
export function aligned(one, other) {
  const [a, b] = [one, other].map((tokens) => tokens.map((token) => token.replace(MARKERS, "▁")));
  let first = 0;
  while (first < a.length && first < b.length && a[first] === b[first]) first++;
  let [endA, endB] = [a.length, b.length];
  while (endA > first && endB > first && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const all = (endA - first) * (endB - first) <= MOST;
  const middle = all ? common(a.slice(first, endA), b.slice(first, endB)) : [];
  const run = (count, fromA, fromB) =>
    Array.from({ length: count }, (_, index) => /** @type {[number, number]} */ ([fromA + index, fromB + index]));
  const pairs = [
    ...run(first, 0, 0),
    ...middle.map(([x, y]) => /** @type {[number, number]} */ ([first + x, first + y])),
    ...run(a.length - endA, endA, endB),
  ];
  return { pairs, ...places(pairs, a.length, b.length), all };
}

/** Every token with the one at the same place. @returns {Alignment} */
export function byPlace(count) {
  const pairs = Array.from({ length: count }, (_, index) => /** @type {[number, number]} */ ([index, index]));
  return { pairs, ...places(pairs, count, count), all: true };
}

function places(pairs, one, other) {
  const [there, here] = [new Int32Array(one).fill(-1), new Int32Array(other).fill(-1)];
  for (const [x, y] of pairs) [there[x], here[y]] = [y, x];
  return { there, here };
}

/** The pairs of a longest common subsequence. Reference: Wagner and Fischer, "The string-to-string correction problem" (1974). */
function common(a, b) {
  const width = b.length + 1;
  const lengths = new Uint16Array((a.length + 1) * width); // of the longest from a place in each to their ends
  for (let x = a.length - 1; x >= 0; x--) {
    for (let y = b.length - 1; y >= 0; y--) {
      const at = x * width + y;
      lengths[at] = a[x] === b[y] ? lengths[at + width + 1] + 1 : Math.max(lengths[at + width], lengths[at + 1]);
    }
  }
  const pairs = [];
  for (let x = 0, y = 0; x < a.length && y < b.length; ) {
    if (a[x] === b[y]) pairs.push([x++, y++]);
    else if (lengths[(x + 1) * width + y] >= lengths[x * width + y + 1]) x++;
    else y++;
  }
  return pairs;
}

/** The layer of the other recording that belongs to one: of the same name, else as many-th of its kind; null if there is none. @param {Recording} recording @param {Recording} other @param {Layer} layer @returns {Layer | null} */
export function counterpart(recording, other, layer) {
  const named = other.layers.find(({ name }) => name === layer.name);
  if (named) return named;
  const ofKind = ({ layers }) => layers.filter(({ kind }) => kind === layer.kind);
  return ofKind(other)[ofKind(recording).indexOf(layer)] ?? null;
}

/** The places of some heads in both layers, of those that are in both: heads of one number belong together. @param {Layer} layer @param {Layer} against @param {number[]} heads @returns {[number, number][]} */
export function headsInBoth(layer, against, heads) {
  return heads
    .map((head) => /** @type {[number, number]} */ ([head, against.heads.indexOf(layer.heads[head])]))
    .filter(([, there]) => there >= 0);
}
