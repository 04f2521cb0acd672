// WordPiece, as in BERT.

/** @typedef {{type: "wordpiece", vocab: string[], unknown: number, prefix: string, longest: number, clean: boolean, chinese: boolean, accents: boolean, lowercase: boolean}} WordPieceHeader
 *    Characters of the longest word; and whether the normalizer removes controls, makes a word of each Chinese character, keeps accents and makes letters small. */

const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;
const CONTROLS = /(?![\t\n\r])[\0\ufffd\p{Cc}\p{Cf}\p{Co}]/gu;
const PUNCTUATION = /([!-/:-@[-`{-~\p{P}])/u;

/** How tokenizers undoes the splitting of English punctuation. */
const SPACED = [
  [" .", "."],
  [" ?", "?"],
  [" !", "!"],
  [" ,", ","],
  [" ' ", "'"],
  [" n't", "n't"],
  [" 'm", "'m"],
  [" do not", " don't"],
  [" 's", "'s"],
  [" 've", "'ve"],
  [" 're", "'re"],
];

/** A vocabulary of words and of parts that continue them. */
export class WordPiece {
  /** @param {WordPieceHeader} header */
  constructor(header) {
    this.header = header;
    this.ids = new Map(header.vocab.map((entry, id) => [entry, id]));
  }

  /** @param {string} text @returns {number[]} */
  encode(text) {
    const words = this.normalize(text).split(/\p{White_Space}+/u);
    return words.flatMap((word) => word.split(PUNCTUATION)).flatMap((word) => (word ? this.split(word) : []));
  }

  /** @param {string} text */
  normalize(text) {
    const { clean, chinese, accents, lowercase } = this.header;
    let normal = clean ? text.replace(CONTROLS, "").replace(/\p{White_Space}/gu, " ") : text;
    if (chinese) normal = normal.replace(CHINESE, " $& ");
    if (!accents) normal = normal.normalize("NFD").replace(/\p{Mn}/gu, "");
    return lowercase ? [...normal].map((letter) => letter.toLowerCase()).join("") : normal;
  }

  /** The longest entries, from left to right. @param {string} word @returns {number[]} */
  split(word) {
    const { prefix, unknown, longest } = this.header;
    const letters = [...word];
    if (letters.length > longest) return [unknown];
    const ids = [];
    for (let start = 0, end = 0; start < letters.length; start = end) {
      const entry = (/** @type {number} */ stop) => (start ? prefix : "") + letters.slice(start, stop).join("");
      for (end = letters.length; end > start && !this.ids.has(entry(end)); ) end--;
      if (end === start) return [unknown];
      ids.push(this.ids.get(entry(end)) ?? unknown);
    }
    return ids;
  }

  /** @param {number[]} ids @returns {string} */
  decode(ids) {
    const { vocab, prefix } = this.header;
    const parts = ids.map((id, index) => {
      if (index === 0) return vocab[id];
      return vocab[id].startsWith(prefix) ? vocab[id].slice(prefix.length) : ` ${vocab[id]}`;
    });
    return parts.map((part) => SPACED.reduce((text, [from, to]) => text.replaceAll(from, to), part)).join("");
  }
}
