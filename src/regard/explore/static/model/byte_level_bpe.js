// Byte-level BPE, as a model's tokenizer.json says.

/**
 * @typedef {{type: string, pattern?: string, content?: string}} Step  Of the normalizer: `nfc`, `replace`, `strip` or `prepend`.
 * @typedef {{normalizer: Step[], split: string, vocab: string[], merges: [string, string][], trims: string[], type: "bpe"}} BpeHeader
 */

const PRINTABLE = [...range(0x21, 0x7f), ...range(0xa1, 0xad), ...range(0xae, 0x100)];
const OTHERS = [...range(0, 256)].filter((byte) => !PRINTABLE.includes(byte));
/** The character by which a byte-level vocabulary spells each byte, as in GPT-2. @type {string[]} */
const BYTE_LETTERS = [];
for (const byte of PRINTABLE) BYTE_LETTERS[byte] = String.fromCharCode(byte);
for (const [index, byte] of OTHERS.entries()) BYTE_LETTERS[byte] = String.fromCharCode(256 + index);

/** @param {number} from @param {number} to */
function* range(from, to) {
  for (let value = from; value < to; value++) yield value;
}

/** An expression of Oniguruma, whose \s is White_Space of Unicode, which has U+0085 and not U+FEFF. @param {string} pattern */
const expression = (pattern) =>
  new RegExp(
    pattern
      .replaceAll("\\s", "\\p{White_Space}")
      .replaceAll("\\S", "\\P{White_Space}")
      .replaceAll("\\A", "^")
      .replaceAll("\\z", "$"),
    "gu",
  );
const OUTER_SPACE = expression("\\A\\s+|\\s+\\z");

/** A byte-level BPE. */
export class ByteLevelBpe {
  /** @param {BpeHeader} header */
  constructor({ normalizer, split, vocab, merges, trims }) {
    this.normalizer = normalizer.map(({ type, pattern, content = "" }) => {
      /** @type {Record<string, (text: string) => string>} */
      const steps = {
        nfc: (text) => text.normalize("NFC"),
        replace: (text) => text.replace(replaced, () => content),
        strip: (text) => text.replace(OUTER_SPACE, ""),
        prepend: (text) => (text ? content + text : text),
      };
      const replaced = expression(pattern ?? "");
      return steps[type];
    });
    this.split = expression(split);
    this.vocab = vocab;
    this.ids = new Map(vocab.map((entry, id) => [entry, id]));
    this.ranks = new Map(merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
    this.trims = trims.map(expression);
    this.bytes = new Map(BYTE_LETTERS.map((letter, byte) => [letter, byte]));
  }

  /** @param {string} text @returns {number[]} */
  encode(text) {
    const normal = this.normalizer.reduce((before, step) => step(before), text);
    return this.preTokenize(normal).flatMap((part) => {
      const bytes = new TextEncoder().encode(part);
      return this.merge(Array.from(bytes, (byte) => BYTE_LETTERS[byte])).map((entry) => this.ids.get(entry) ?? 0);
    });
  }

  /** What the split pattern matches, and what is between the matches. @param {string} text */
  preTokenize(text) {
    const parts = [];
    let end = 0;
    for (const { 0: match, index } of text.matchAll(this.split)) {
      if (index > end) parts.push(text.slice(end, index));
      if (match) parts.push(match);
      end = index + match.length;
    }
    if (end < text.length) parts.push(text.slice(end));
    return parts;
  }

  /** Merge the neighbors of the lowest rank until none is left. @param {string[]} entries @returns {string[]} */
  merge(entries) {
    const merged = [...entries];
    for (;;) {
      let [place, lowest] = [-1, Infinity];
      for (let at = 0; at + 1 < merged.length; at++) {
        const rank = this.ranks.get(`${merged[at]} ${merged[at + 1]}`) ?? Infinity;
        if (rank < lowest) [place, lowest] = [at, rank];
      }
      if (place < 0) return merged;
      merged.splice(place, 2, merged[place] + merged[place + 1]);
    }
  }

  /** @param {number[]} ids @returns {string} */
  decode(ids) {
    const bytes = ids.flatMap((id) => [...(this.vocab[id] ?? "")].map((letter) => this.bytes.get(letter) ?? 0x3f));
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
    return this.trims.reduce((before, pattern) => before.replace(pattern, ""), text);
  }
}
