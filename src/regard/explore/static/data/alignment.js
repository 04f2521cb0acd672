// How much of a target word's attention each source word has, as regard/analysis/alignment.py defines it.

/**
 * @typedef {import("#data/words.js").Word} Word
 * @typedef {{word: number, weight: number}} Aligned
 * @typedef {{aligned: Aligned[], left: number, waiting?: boolean}} Some  Words of the other text, strongest first, the mass that is
 *   not known of, and whether a server was asked for them.
 */

/** A target word has the mean of its pieces' rows, a source word the sum of its pieces' columns. */
export class Alignment {
  /** @param {import("#data/heads.js").Head} head @param {Word[]} target @param {Word[]} source @param {(key: number) => boolean} hides */
  constructor(head, target, source, hides) {
    this.head = head;
    this.target = target;
    this.source = source;
    this.hides = hides;
    this.targetOf = wordOfEach(target);
    this.sourceOf = wordOfEach(source);
    /** @type {Map<number, Some>} */
    this.rows = new Map();
  }

  /** The source words of a target word. @param {number} word @returns {Some} */
  row(word) {
    const found = this.rows.get(word) ?? this.computed(word);
    if (!found.waiting) this.rows.set(word, found);
    return found;
  }

  /** The target words of a source word. @param {number} word @returns {Some} */
  column(word) {
    const sums = new Float64Array(this.target.length);
    const pieces = this.source[word].pieces.filter((key) => !this.hides(key));
    if (!pieces.length) return { aligned: [], left: 0 };
    const { links, left, waiting } = this.head.columnsOf(pieces);
    for (const { query, weight } of links) {
      const target = this.targetOf[query];
      sums[target] += weight / this.target[target].pieces.length;
    }
    return { aligned: ranked(sums), left, waiting };
  }

  /** @param {number} word @returns {Some} */
  computed(word) {
    const sums = new Float64Array(this.source.length);
    const { pieces } = this.target[word];
    let [left, waiting] = [0, false];
    for (const query of pieces) {
      const row = this.whole(query) ?? this.head.row(query);
      for (const { key, weight } of row.links) if (!this.hides(key)) sums[this.sourceOf[key]] += weight / pieces.length;
      left += row.left / pieces.length;
      waiting ||= row.waiting === true;
    }
    return { aligned: ranked(sums), left, waiting };
  }

  /** A row of which all is known, without its order, which takes long for the mean of many heads. @param {number} query @returns {import("#data/heads.js").Some | null} */
  whole(query) {
    if (!this.head.whole) return null;
    const weights = Array.from(this.sourceOf, (_, key) => ({ query, key, weight: this.head.squares.at(query, key) }));
    return { links: weights.filter(({ weight }) => !Number.isNaN(weight)), left: 0 };
  }
}

/** The word of each token. @param {Word[]} words @returns {number[]} */
export function wordOfEach(words) {
  /** @type {number[]} */
  const found = [];
  for (const [word, { pieces }] of words.entries()) for (const place of pieces) found[place] = word;
  return found;
}

/** @param {Float64Array} sums */
function ranked(sums) {
  return Array.from(sums, (weight, word) => ({ word, weight }))
    .filter(({ weight }) => weight > 0)
    .sort((a, b) => b.weight - a.weight);
}
