// The tokens of a text, or its words, with what is shown for each. Words and special tokens are computed in Python.

import { range } from "#data/numbers.js";

/**
 * @typedef {{role: string, tokens: string[], display: string[], words: number[], word_texts?: string[], special: number[], spaces: number[]}} SequenceHeader
 *   `special` are positions of special tokens, `spaces` positions that have a space before them.
 */

const MAX_LENGTH = 32; // characters of a label

/** A text in tokens, or in words. */
export class Sequence {
  /** @param {SequenceHeader} header */
  constructor({ role, tokens, display, words, word_texts: wordTexts = display, special, spaces }) {
    this.role = role;
    this.tokens = tokens;
    this.display = display;
    this.length = tokens.length;
    /** The word of each token. */
    this.wordOf = words;
    this.wordTexts = wordTexts;
    /** @type {boolean[]} */
    this.isSpecial = Array(tokens.length).fill(false);
    for (const index of special) this.isSpecial[index] = true;
    /** @type {boolean[]} Whether each token has a space before it. */
    this.hasSpace = Array(tokens.length).fill(false);
    for (const index of spaces) this.hasSpace[index] = true;
    /** How each token is displayed outside the text; a subword that continues a word has a dot before it. */
    this.labels = display.map((text, index) => (continues(words, index) ? "·" : "") + shorten(text));
    /** @type {WordSequence | null} */
    this.cachedWords = null;
    /** @type {Set<string> | null} */
    this.cachedRepeated = null;
  }

  /** The labels that more than one token has. @returns {Set<string>} */
  get repeated() {
    if (!this.cachedRepeated) {
      const seen = new Set();
      this.cachedRepeated = new Set(this.labels.filter((label) => seen.size === seen.add(label).size));
    }
    return this.cachedRepeated;
  }

  /** The same text in words. @returns {WordSequence} */
  get words() {
    this.cachedWords ??= new WordSequence(this);
    return this.cachedWords;
  }

  /** The runs of tokens that contain a text, ignoring case. @param {string} text @returns {number[][]} */
  find(text) {
    const pattern = text.trim().toLowerCase();
    if (pattern === "") return [];
    let whole = "";
    const ends = this.display.map((shown, index) => {
      whole += (this.hasSpace[index] || this.isSpecial[index] ? " " : "") + shown.toLowerCase();
      return whole.length;
    });
    const runs = [];
    let token = 0;
    for (let at = whole.indexOf(pattern); at >= 0; at = whole.indexOf(pattern, at + pattern.length)) {
      while (ends[token] <= at) token++;
      let last = token;
      while (ends[last] < at + pattern.length) last++;
      runs.push(range(token, last));
    }
    return runs;
  }
}

/** A text in words: runs of tokens. Where the tokens do not say where words begin, each token is one. */
export class WordSequence extends Sequence {
  /** @param {Sequence} text */
  constructor(text) {
    const starts = text.wordOf.flatMap((_, index) => (continues(text.wordOf, index) ? [] : [index]));
    /** @type {(word: number, parts: string[]) => string} */
    const join = (word, parts) => parts.slice(starts[word], starts[word + 1] ?? text.length).join("");
    const words = starts.map((_, word) => word);
    super({
      role: text.role,
      tokens: words.map((word) => join(word, text.tokens)),
      display: text.wordTexts,
      words,
      special: words.filter((word) => text.isSpecial[starts[word]]),
      spaces: words.filter((word) => text.hasSpace[starts[word]]),
    });
    /** Where each word begins; and, last, where the tokens end. */
    this.starts = [...starts, text.length];
    /** The word of each token. */
    this.of = new Uint32Array(text.length);
    for (const word of words) this.of.fill(word, this.starts[word], this.starts[word + 1]);
  }

  /** The tokens of a word. @param {number} word */
  tokensOf(word) {
    return range(this.starts[word], this.starts[word + 1] - 1);
  }

  /** How many tokens a word has. @param {number} word */
  size(word) {
    return this.starts[word + 1] - this.starts[word];
  }
}

/** @param {number[]} words @param {number} index */
function continues(words, index) {
  return index > 0 && words[index] === words[index - 1];
}

/** @param {string} text */
function shorten(text) {
  const characters = Array.from(text);
  return characters.length > MAX_LENGTH ? `${characters.slice(0, MAX_LENGTH - 1).join("")}…` : text;
}
