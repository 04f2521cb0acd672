// The recording that the page holds: metadata as JSON, and a deflated block of bytes for each layer (see packing.py).

import { Layer } from "#data/layer.js";
import { Codes, inflated, Reader } from "#data/page_format.js";
import { RemoteRecording } from "#data/remote.js";

/**
 * @typedef {"encoder" | "decoder" | "cross"} Kind
 * @typedef {{role: string, tokens: string[]}} Sequence
 * @typedef {{fine: number, coarse: number, growth: number, linear: number, last: number, masked: number}} CodesHeader
 * @typedef {{name: string, kind: Kind, heads: number[], queries: number, keys: number, scale: number, rule: string | null, sinks: boolean,
 *   scores: Record<string, (number | null)[]>, form: "whole" | "sketch" | "remote", shape?: {queries: number, keys: number}, size?: number, map?: number[], finer?: {size: number, map: number[]}[], strongest?: number,
 *   mask?: number | null, thumbnail: number[], vectors: number[][]}} LayerHeader
 * @typedef {{format: number, title: string, model: string, dtype: string, texts: Record<string, string>, picture: string | null, codes: CodesHeader, error: number[],
 *   sequences: Sequence[], layers: LayerHeader[], beside?: Header, remote?: boolean}} Header
 * @typedef {import("#data/heads.js").Head} Head
 * @typedef {import("#data/heads.js").Link} Link
 */

/** What one forward pass attended to. */
export class Recording {
  /** @param {Header} header @param {(block: number) => Promise<Uint8Array>} read  Reads a block. */
  constructor(header, read) {
    this.title = header.title;
    this.model = header.model;
    this.dtype = header.dtype;
    this.texts = header.texts;
    this.picture = header.picture; // a PNG in base64
    this.error = header.error;
    /** @type {Recording | null} */
    this.beside = null; // what it is compared with
    this.sequences = header.sequences;
    /** Told when what was asked for has come. @type {() => void} */
    this.changed = () => {};
    this.ended = false; // a file does not
    const codes = new Codes(header.codes);
    this.layers = header.layers.map((layer, index) => new Layer(layer, header.sequences, codes, () => read(index + 1)));
    this.begun = read(0).then((bytes) => {
      const reader = new Reader(bytes);
      for (const layer of this.layers)
        layer.thumbnails = reader.codes(codes, layer.heads.length, layer.header.thumbnail);
    });
  }
}

/** Links by falling weight; where weights are equal, in the order of the text. @param {Link[]} links @param {number} count */
export function strongest(links, count = links.length) {
  return [...links].sort((a, b) => b.weight - a.weight).slice(0, count);
}

/** A weight as it is written everywhere: what the stored precision carries, three digits, and four decimals at most; a file holds nothing between that and none. @param {number} weight */
export function written(weight) {
  if (weight < 0.00005) return "< 0.0001";
  return weight >= 0.1 ? weight.toFixed(3) : weight.toFixed(4);
}

/** The recording of a page. @param {Document} page @returns {Recording} */
export function readRecording(page) {
  /** @param {string} id */
  const text = (id) => page.getElementById(id)?.textContent ?? "";
  /** @param {number} block */
  const read = (block) => inflated(text(`block-${block}`));
  /** @type {Header} */
  const header = JSON.parse(text("recording"));
  if (header.remote) return new RemoteRecording(header);
  const recording = new Recording(header, read);
  const blocks = header.layers.length + 1; // of the first; those of the second lie behind them
  if (header.beside) recording.beside = new Recording(header.beside, (block) => read(blocks + block));
  return recording;
}
