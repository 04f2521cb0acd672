// How a token is shown: what a reader sees of a string that may hold anything.

const MARKER = /^[▁Ġ ]/u; // what tokenizers put before a piece that begins a word
const PATCH = /^\d+,\d+$/; // row and column of an image's patch
// As <s>, </s>, <pad>, <extra_id_0>, <start_of_turn>; [CLS], [unused1]; <|endoftext|>, <|im_start|>, <｜begin▁of▁sentence｜>.
const SPECIAL = /^(<\/?[A-Za-z][\w-]*>|\[([A-Z][A-Z0-9_]*|unused\d+)\]|<\|[^\s|<>]+\|>|<｜[^\s｜<>]+｜>)$/;
// Marks of embeddings, overrides and isolates. Those of a single letter's direction, and joiners, are ordinary in texts from right to left.
const UNREADABLE = /[\u202a-\u202e\u2066-\u2069]|(?!\s)\p{Cc}/gu;
const LONGEST = 32; // characters of a token that are shown

/** Whether a piece begins a word, so that a space stands before it. @param {string} token */
export function beginsWord(token) {
  return MARKER.test(token);
}

/** A token without its space marker. @param {string} token */
export function unmarked(token) {
  return token.replace(MARKER, "");
}

/** Whether a token is no text but a mark of the model's, as the start and the end of a sentence. @param {string} token */
export function isSpecial(token) {
  return SPECIAL.test(token);
}

/** A token as running text shows it: without its space marker, with nothing invisible, and not without end. @param {string} token */
export function shown(token) {
  const piece = unmarked(token);
  const letters = Array.from(piece === "" ? "␣" : piece)
    .slice(0, LONGEST + 1)
    .map(visible); // a code is several characters
  const lengthOf = (/** @type {string[]} */ some) => Array.from(some.join("")).length;
  if (lengthOf(letters) <= LONGEST) return letters.join("");
  while (lengthOf(letters) >= LONGEST) letters.pop();
  return `${letters.join("")}…`;
}

/** A text as it is, but for what turns the order of what follows, and for controls: of them their code or picture. @param {string} text */
export function readable(text) {
  return text.replace(UNREADABLE, visible);
}

/** The runs of tokens in which a text is found, whatever its case. @param {string[]} tokens @param {string} text @returns {number[][]} */
export function matches(tokens, text) {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return [];
  /** @type {number[]} */
  const ends = [];
  let whole = "";
  for (const token of tokens) {
    whole += (beginsWord(token) || isSpecial(token) ? " " : "") + token.replace(MARKER, "").toLowerCase();
    ends.push(whole.length);
  }
  const found = [];
  let token = 0;
  for (let place = whole.indexOf(wanted); place >= 0; place = whole.indexOf(wanted, place + wanted.length)) {
    while (ends[token] <= place) token++;
    let last = token;
    while (ends[last] < place + wanted.length) last++;
    found.push(Array.from({ length: last - token + 1 }, (_, index) => token + index));
  }
  return found;
}

/** A token as a label shows it: a piece that goes on within a word carries a dot before it. @param {string} token */
export function label(token) {
  const goesOn = !beginsWord(token) && !PATCH.test(token) && /^[\p{L}\p{N}]/u.test(token);
  return (goesOn ? "·" : "") + shown(token);
}

/** The ends of lines and tabs as arrows, which more fonts have than their pictures; other controls as pictures; marks that would turn or hide their surroundings as their code. @param {string} character */
function visible(character) {
  const code = character.codePointAt(0) ?? 0;
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u.test(character) && code !== 0x200d; // a joiner holds emoji together
  return hidden ? `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩` : character;
}
