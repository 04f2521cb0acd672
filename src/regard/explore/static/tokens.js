// How a token is shown: what a reader sees of a string that may hold anything.

const MARKER = /^[▁Ġ ]/u; // what tokenizers put before a piece that begins a word
const LONGEST = 32; // characters of a token that are shown

/** Whether a piece begins a word, so that a space stands before it. */
export function beginsWord(token) {
  return MARKER.test(token);
}

/** Whether a token is no text but a mark of the model's, as the start and the end of a sentence. */
export function isSpecial(token) {
  return /^(<\/?[a-z]+>|\[[A-Z]+\]|<\|\w+\|>)$/.test(token);
}

/** A token as running text shows it: without its space marker, with nothing invisible, and not without end. */
export function shown(token) {
  const piece = token.replace(MARKER, "");
  const letters = Array.from(piece === "" ? "␣" : piece);
  const cut = letters.length > LONGEST ? [...letters.slice(0, LONGEST - 1), "…"] : letters;
  return cut.map(visible).join("");
}

/** A token as a label shows it: a piece that goes on within a word carries a dot before it. */
export function label(token) {
  const goesOn = !beginsWord(token) && /^[\p{L}\p{N}]/u.test(token);
  return (goesOn ? "·" : "") + shown(token);
}

/** Control characters as their pictures; marks that would turn or hide their surroundings as their code. */
function visible(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u.test(character) && code !== 0x200d; // a joiner holds emoji together
  return hidden ? `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩` : character;
}
