// The tokens of a text that was just computed, grouped into words as regard.text.words does.

/**
 * @import { SequenceHeader } from '#data/sequence.js'
 * @typedef {{tokens: string[], display: string[], special: number[]}} Vocabulary  Readable entries: ▁ is a space, <0xC3> one byte of a character; how each is displayed; ids of special tokens.
 */

const SPACE = "▁";
const BYTES = /^(?:<0x[0-9A-F]{2}>)+$/;
const BYTES_OR_SPACES = /^(?:▁|<0x[0-9A-F]{2}>)+$/;
const SPACES = "\\p{Z}\\t-\\r\\x1c-\\x1f\\x85"; // Python's \s; its \w is [\p{L}\p{N}_]
const LINE_END = new RegExp(`^(?:[${SPACES}${SPACE}]*\\n[${SPACES}${SPACE}]*|<0x0A>)$`, "u");
const WORD = new RegExp(`[\\p{L}\\p{N}_]+(?:['’\\-\\u200c\\u200d][\\p{L}\\p{N}_]+)*|[^\\p{L}\\p{N}_${SPACES}]+`, "gu");
const OUTER_SPACE = new RegExp(`^[${SPACES}]+|[${SPACES}]+$`, "gu");
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const JOINERS = /[\u200c\u200d]/gu; // determine the shape of the letters next to them
const LENGTHS = [0xc0, 0xe0, 0xf0, 0xf8]; // first bytes of characters of 2, 3 and 4 bytes are below the last three

/** The header of a sequence. @param {Vocabulary} vocabulary @param {number[]} ids @param {string} role @returns {SequenceHeader} */
export function sequenceHeader(vocabulary, ids, role) {
  const tokens = ids.map((id) => vocabulary.tokens[id]);
  const special = ids.map((id) => vocabulary.special.includes(id));
  const marksWords = tokens.some((token, index) => !special[index] && token.includes(SPACE));
  /** @type {number[]} */
  const words = [];
  /** @type {string[]} */
  const texts = [];
  const isSingle = (/** @type {number} */ at) =>
    special[at] || LINE_END.test(tokens[at]) || (!marksWords && !BYTES.test(tokens[at]));
  for (let start = 0, end = 0; start < ids.length; start = end) {
    end = start + 1;
    if (!isSingle(start)) while (end < ids.length && !isSingle(end)) end++;
    const group = isSingle(start)
      ? { words: [0], texts: [singleText(tokens[start], special[start])] }
      : wordsOf(tokens.slice(start, end));
    words.push(...group.words.map((word) => texts.length + word));
    texts.push(...group.texts);
  }
  const begins = (/** @type {number} */ at) =>
    !marksWords || special[at] || special[at - 1] || tokens[at].startsWith(SPACE);
  const positions = [...ids.keys()];
  return {
    role,
    tokens,
    display: ids.map((id) => vocabulary.display[id]),
    words,
    word_texts: texts,
    special: positions.filter((at) => special[at]),
    spaces: positions.filter((at) => at > 0 && begins(at)),
  };
}

/** @param {string} token @param {boolean} isSpecial */
function singleText(token, isSpecial) {
  if (LINE_END.test(token)) return "↵".repeat(Math.max(1, token.split("\n").length - 1));
  return readable(isSpecial ? token : token.replaceAll(SPACE, " "));
}

/** @param {string} text */
const readable = (text) => escapeInvisible(text.replace(/^ +| +$/gu, "")) || "␣";

/** The word of each token, and the words; a token with several, such as "U.S.", makes one word of them. @param {string[]} tokens */
function wordsOf(tokens) {
  const encoded = tokens.map(tokenBytes);
  const { text, bytesBefore } = decode(encoded.flat());
  // A letter for a combining mark and for a byte of a character that is not complete, as in Python.
  const letters = text.replace(/[\p{M}\ufffd]/gu, (mark) => "_".repeat(mark.length));
  const borders = [...letters.matchAll(WORD)].slice(0, -1).map(({ 0: match, index }) => index + match.length);
  /** @type {number[]} */
  const words = [];
  /** @type {string[]} */
  const texts = [];
  let [start, place, from] = [0, -1, 0];
  for (const [index, bytes] of encoded.entries()) {
    const last = start + (tokenBytes(tokens[index].replace(/▁+$/u, "")).length || bytes.length);
    const found = borders.filter((border) => bytesBefore[border] < last).length;
    if (found !== place) {
      const end = borders[found] ?? text.length;
      texts.push(readable(text.slice(from, end).replace(OUTER_SPACE, "")));
      [place, from] = [found, end];
    }
    words.push(texts.length - 1);
    start += bytes.length;
  }
  return { words, texts };
}

/** @param {string} token @returns {number[]} */
function tokenBytes(token) {
  if (!BYTES_OR_SPACES.test(token)) return [...new TextEncoder().encode(token.replaceAll(SPACE, " "))];
  return [...token.matchAll(/▁|<0x(..)>/gu)].map(([, byte]) => (byte ? Number.parseInt(byte, 16) : 0x20));
}

/** Bytes as text, in which � is one byte that belongs to no character; and the bytes before each place in the text. @param {number[]} bytes */
function decode(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const bytesBefore = [0];
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    let length = 1 + LENGTHS.findIndex((bound, index) => index > 0 && bytes[at] < bound);
    if (bytes[at] < 0x80 || length === 0) length = 1; // bytes from 0xf8 on are of no character
    let character = "\ufffd";
    try {
      character = decoder.decode(Uint8Array.from(bytes.slice(at, at + length)));
    } catch {
      length = 1;
    }
    at += length;
    text += character;
    while (bytesBefore.length <= text.length) bytesBefore.push(at);
  }
  return { text, bytesBefore };
}

/** Text in which a picture or a code replaces each character that is invisible, as in regard.text.display. @param {string} text */
function escapeInvisible(text) {
  const hasMore = text.replace(JOINERS, "") !== "";
  return text.replace(INVISIBLE, (character) => {
    const code = character.charCodeAt(0);
    if (hasMore && (code === 0x200c || code === 0x200d)) return character;
    if (character === "\n" || character === "\t") return character === "\n" ? "↵" : "⇥";
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨${character.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
