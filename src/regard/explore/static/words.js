// Words made of tokens, as regard/text/words.py makes them.

import { beginsWord, isSpecial, shown, unmarked } from "#tokens.js";

/** @typedef {{text: string, pieces: number[], special: boolean}} Word  Its tokens, by their places. */

const WORD = /[\p{L}\p{M}\p{N}_]+(?:['’\-\u200c\u200d][\p{L}\p{M}\p{N}_]+)*|[^\p{L}\p{M}\p{N}_\s]+/gu;
const BYTES = /^(?:<0x[0-9A-F]{2}>)+$/; // of letters that a tokenizer does not know

/**
 * The words of a text, each token in one of them. Marks of the model's are words of their own, and so is punctuation; where
 * tokens do not say which of them begin words, each is one.
 * @param {string[]} tokens @returns {Word[]}
 */
export function wordsOf(tokens) {
  const told = tokens.some(beginsWord);
  /** @type {Word[]} */
  const found = [];
  /** @type {number[]} */
  let run = [];
  const end = () => {
    found.push(...wordsOfRun(tokens, run));
    run = [];
  };
  tokens.forEach((token, place) => {
    if (told && !isSpecial(token)) return run.push(place);
    end();
    found.push({ text: shown(token), pieces: [place], special: isSpecial(token) });
  });
  end();
  return found;
}

/** The words of tokens that are all text; a token belongs to the word that its end lies in. @param {string[]} tokens @param {number[]} run @returns {Word[]} */
function wordsOfRun(tokens, run) {
  const spelled = run.map((place) => (beginsWord(tokens[place]) ? " " : "") + letters(unmarked(tokens[place])));
  const ends = [...spelled.join("").matchAll(WORD)].map((found) => found.index + found[0].length);
  /** @type {number[][]} */
  const pieces = ends.map(() => []);
  if (!ends.length) pieces.push([]);
  let [end, word] = [0, 0];
  run.forEach((place, index) => {
    end += spelled[index].length;
    while (word + 1 < ends.length && ends[word] < end) word++;
    pieces[word].push(place);
  });
  return pieces.filter((own) => own.length).map((own) => ({ text: shown(own.map((place) => unmarked(tokens[place])).join("")), pieces: own, special: false }));
}

/** @param {string} piece */
function letters(piece) {
  return BYTES.test(piece) ? "_".repeat(piece.length / 6) : piece;
}
