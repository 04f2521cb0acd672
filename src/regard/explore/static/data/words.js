// Words made of tokens, as regard/text/words.py makes them.

import { beginsWord, isSpecial, shown, unmarked } from "#data/tokens.js";

/** @typedef {{text: string, token: string, pieces: number[], special: boolean}} Word  As it is shown; as a token, with a mark where a space stands before it; its tokens, by their places. */

const WORD = /[\p{L}\p{M}\p{N}_]+(?:['’\-\u200c\u200d][\p{L}\p{M}\p{N}_]+)*|[^\p{L}\p{M}\p{N}_\s]+/gu;
const BYTES = /^(?:<0x[0-9A-F]{2}>)+$/; // of letters that a tokenizer does not know
const BREAK = /^(?:[\s▁Ġ]*[\nĊ]+[\s▁Ġ]*|<0x0A>)$/u; // a token that ends a line
const CONTINUES = /^##(?=.)/u; // before a piece that goes on, where tokenizers mark these and not those that begin a word

/**
 * The words of a text, each token in one of them. Marks of the model's are words of their own, and so are punctuation and
 * the ends of lines; where tokens do not say which of them begin words, each is one.
 * @param {string[]} tokens @returns {Word[]}
 */
export function wordsOf(tokens) {
  const continued = !tokens.some(beginsWord) && tokens.some((token) => CONTINUES.test(token));
  const pieces = continued
    ? tokens.map((token) =>
        CONTINUES.test(token) ? token.replace(CONTINUES, "") : isSpecial(token) ? token : `▁${token}`,
      )
    : tokens;
  const told = pieces.some(beginsWord);
  const alone = (/** @type {string} */ token) => isSpecial(token) || BREAK.test(token) || !told;
  /** @type {Word[]} */
  const found = [];
  for (let place = 0; place < pieces.length; ) {
    const first = place++;
    if (alone(pieces[first])) {
      const [token, special] = [tokens[first], isSpecial(tokens[first])];
      found.push({
        text: shown(token),
        token: told || special ? token : `▁${unmarked(token)}`,
        pieces: [first],
        special,
      });
      continue;
    }
    while (place < pieces.length && !alone(pieces[place])) place++;
    found.push(...wordsOfRun(pieces.slice(first, place), first));
  }
  return found;
}

/**
 * The words of tokens that are all text; a token belongs to the word that its end lies in.
 * @param {string[]} tokens @param {number} first  The place of the first of them. @returns {Word[]}
 */
function wordsOfRun(tokens, first) {
  const spelled = tokens.map((token) => (beginsWord(token) ? " " : "") + letters(unmarked(token)));
  const ends = [...spelled.join("").matchAll(WORD)].map((found) => found.index + found[0].length);
  /** @type {number[][]} */
  const pieces = ends.map(() => []);
  if (!ends.length) pieces.push([]);
  let [end, word] = [0, 0];
  tokens.forEach((_, place) => {
    end += spelled[place].length;
    while (word + 1 < ends.length && ends[word] < end) word++;
    pieces[word].push(place);
  });
  return pieces
    .filter((own) => own.length)
    .map((own) => {
      const text = own.map((place) => unmarked(tokens[place])).join("");
      const spaced = own[0] === 0 || beginsWord(tokens[own[0]]);
      return {
        text: shown(text),
        token: (spaced ? "▁" : "") + text,
        pieces: own.map((place) => first + place),
        special: false,
      };
    });
}

/** @param {string} piece */
function letters(piece) {
  return BYTES.test(piece) ? "_".repeat(piece.length / 6) : piece;
}
