// One attention layer of a recording: its tokens, and its weights as soon as they are read.

import { together } from "#data/combined_heads.js";
import { Sketch, Whole } from "#data/heads.js";
import { Reader } from "#data/page_format.js";

/**
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {{features: number, values: Float32Array}} Vectors  Of every token, one after the other.
 */

/** One attention layer: the tokens at its rows and columns at once, its weights when they are read. */
export class Layer {
  /** @param {import("#data/recording.js").LayerHeader} header @param {import("#data/recording.js").Sequence[]} sequences @param {import("#data/page_format.js").Codes} codes @param {() => Promise<Uint8Array>} read */
  constructor(header, sequences, codes, read) {
    this.header = header;
    this.name = header.name;
    this.kind = header.kind;
    this.heads = header.heads; // their numbers in the model
    this.scores = header.scores;
    this.querySequence = header.queries;
    this.keySequence = header.keys;
    this.queries = sequences[header.queries].tokens;
    this.keys = sequences[header.keys].tokens;
    this.codes = codes;
    this.read = read;
    /** @type {import("#data/page_format.js").Squares[]} */
    this.thumbnails = [];
    /** @type {Head[] | null} */
    this.numbers = null;
    /** @type {Promise<void> | null} */
    this.reading = null;
    /** @type {{shape: number[], values: Float32Array}[]} */
    this.vectors = []; // query, key and value, where the file has them
  }

  /** Read the weights, once. */
  load() {
    this.reading ??= this.read().then((bytes) => {
      const reader = new Reader(bytes);
      this.numbers = this.header.form === "whole" ? Whole.all(reader, this) : Sketch.all(reader, this);
      this.vectors = this.header.vectors.map((shape) => ({
        shape,
        values: reader.floats(shape.reduce((a, b) => a * b)),
      }));
    });
    return this.reading;
  }

  /** Read the squares of every head. */
  async maps() {
    await this.load();
  }

  /**
   * Query, key and, where it is kept, value of a head, where they are here; heads may share those of keys and values: head h of
   * H has that of head ⌊h · shared / H⌋.
   * @param {number} head @returns {Vectors[] | null} null while they are on their way
   */
  vectorsOf(head) {
    return this.vectors.map(({ shape: [heads, tokens, features], values }) => {
      const from = Math.floor((head * heads) / this.heads.length) * tokens * features;
      return { features, values: values.subarray(from, from + tokens * features) };
    });
  }

  /** Whether the weights are read. */
  get ready() {
    return this.numbers !== null;
  }

  /** One head, or the mean of several; null before the weights are read. @param {number[]} heads @returns {Head | null} */
  head(heads) {
    const { numbers } = this;
    return numbers && together(heads.map((head) => numbers[head]));
  }
}
