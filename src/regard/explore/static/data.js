// The recording that the page holds: metadata as JSON, weights as one block of 16-bit integers in base64.

/**
 * @typedef {"encoder" | "decoder" | "cross"} Kind
 * @typedef {{role: string, tokens: string[]}} Sequence
 * @typedef {{title: string, model: string, texts: Record<string, string>, error: number, hasMask: boolean, sequences: Sequence[], layers: Layer[]}} Recording
 * @typedef {{query: number, key: number, weight: number}} Link  One weight and where it stands; where the mask forbids a weight there is no link.
 */

/** One attention layer: its weights (heads, queries, keys) and the sequences that stand at its rows and columns. */
export class Layer {
  /**
   * @param {{name: string, kind: Kind, heads: number, queries: number, keys: number, first: number}} header
   * @param {Sequence[]} sequences
   * @param {Float32Array} weights  All weights of the recording.
   */
  constructor(header, sequences, weights) {
    this.name = header.name;
    this.kind = header.kind;
    this.heads = header.heads;
    this.querySequence = header.queries;
    this.keySequence = header.keys;
    this.queries = sequences[header.queries].tokens;
    this.keys = sequences[header.keys].tokens;
    const size = this.heads * this.queries.length * this.keys.length;
    this.weights = weights.subarray(header.first, header.first + size);
  }

  /** The weight that one query gives to one key; NaN where the mask does not let it see the key. */
  at(head, query, key) {
    return this.weights[(head * this.queries.length + query) * this.keys.length + key];
  }

  /** What one query gives to the keys that it may see, in their order. @returns {Link[]} */
  row(head, query) {
    return this.keys.map((_, key) => ({ query, key, weight: this.at(head, query, key) })).filter(isSeen);
  }

  /** What one key gets from the queries that may see it, in their order. @returns {Link[]} */
  column(head, key) {
    return this.queries.map((_, query) => ({ query, key, weight: this.at(head, query, key) })).filter(isSeen);
  }

  /** All weights of one head. @returns {Link[]} */
  links(head) {
    return this.queries.flatMap((_, query) => this.row(head, query));
  }
}

function isSeen({ weight }) {
  return !Number.isNaN(weight);
}

/** Links by falling weight; where weights are equal, in the order of the text. @param {Link[]} links */
export function strongest(links, count = links.length) {
  return [...links].sort((a, b) => b.weight - a.weight).slice(0, count);
}

/** A weight as it is written everywhere: four digits, which the stored precision carries. */
export function written(weight) {
  return weight.toFixed(4);
}

/** Read the two data blocks. @param {Document} page @returns {Recording} */
export function readRecording(page) {
  const header = JSON.parse(page.getElementById("recording").textContent);
  const weights = unpacked(page.getElementById("weights").textContent, header);
  return { ...header, hasMask: weights.some(Number.isNaN), layers: header.layers.map((layer) => new Layer(layer, header.sequences, weights)) };
}

/** Little-endian 16-bit multiples of 1 / steps, as numbers; what is masked as NaN. */
function unpacked(base64, { steps, masked }) {
  const bytes = Uint8Array.from(atob(base64.trim()), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, index) => {
    const stored = view.getUint16(2 * index, true);
    return stored === masked ? NaN : stored / steps;
  });
}
