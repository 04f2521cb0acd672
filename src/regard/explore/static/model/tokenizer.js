// Text to token ids: special tokens that a text may name, and the rest by a subword vocabulary.

import { ByteLevelBpe } from "#model/byte_level_bpe.js";
import { WordPiece } from "#model/wordpiece.js";

/**
 * @import { BpeHeader } from '#model/byte_level_bpe.js'
 * @import { WordPieceHeader } from '#model/wordpiece.js'
 * @typedef {{content: string, id: number, lstrip: boolean}} AddedToken  `lstrip`: with the spaces before it.
 * @typedef {(BpeHeader | WordPieceHeader) & {added: AddedToken[], special: number[]}} TokenizerHeader  See playground_tokenizer.py.
 */

const WHITE_SPACE = "\\p{White_Space}*";

/** A tokenizer. */
export class Tokenizer {
  /** @param {TokenizerHeader} header */
  constructor(header) {
    this.subwords = header.type === "wordpiece" ? new WordPiece(header) : new ByteLevelBpe(header);
    this.special = new Set(header.special);
    this.added = new Map(header.added.map(({ content, id }) => [content, id]));
    const longestFirst = [...header.added].sort((a, b) => b.content.length - a.content.length);
    const names = longestFirst.map(({ content, lstrip }) => `${lstrip ? WHITE_SPACE : ""}(?:${escaped(content)})`);
    this.names = names.length ? new RegExp(`(${names.join("|")})`, "u") : null;
  }

  /** Token ids of a text, without special tokens around it. @param {string} text @returns {number[]} */
  encode(text) {
    if (!this.names) return this.subwords.encode(text);
    const parts = text.split(this.names); // every second one is a name
    return parts.flatMap((part, index) => {
      if (index % 2 === 0) return this.subwords.encode(part);
      return this.added.get(part) ?? this.added.get(part.trimStart()) ?? [];
    });
  }

  /** The text without special tokens. @param {number[]} ids @returns {string} */
  decode(ids) {
    return this.subwords.decode(ids.filter((id) => !this.special.has(id)));
  }
}

/** @param {string} text */
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|/-]/gu, "\\$&");
