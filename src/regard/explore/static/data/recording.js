// The recording that the page holds: a header, and blocks of tensors (docs/page_format.md).

import { Layer } from "#data/layer.js";
import { BlockMap, inflateBase64, readTensors, THUMBNAIL_WEIGHTS } from "#data/page_format.js";
import { Sequence } from "#data/sequence.js";
import { SHOWN } from "#data/signed_heads.js";

/**
 * @import { Trace } from '#calculation/trace.js'
 * @import { Run } from '#data/difference.js'
 * @import { LayerHeader } from '#data/layer.js'
 * @typedef {{layer: number, head: number, query: number, reason: string}} Opening  What to show first, and why.
 * @typedef {{format_version: number, title: string, model: string, dtype: string, texts: Record<string, string>, image: string | null,
 *   precision: number, max_map_size?: number, level_factor?: number, sequences: import("#data/sequence.js").SequenceHeader[],
 *   layers: LayerHeader[], opening: Opening, compare_with?: Header, counterparts?: (number | null)[],
 *   alignments?: import("#data/difference.js").AlignmentHeader[], is_served?: boolean}} Header  See page_format.py.
 */

/** The attention of one forward pass. */
export class Recording {
  /** @param {Header} header @param {(layer: LayerHeader, index: number, sequences: Sequence[]) => Layer} makeLayer */
  constructor(header, makeLayer) {
    this.title = header.title;
    this.model = header.model;
    this.dtype = header.dtype;
    this.texts = header.texts;
    this.image = header.image; // a PNG in base64
    this.precision = header.precision;
    this.opening = header.opening;
    this.sequences = header.sequences.map((sequence) => new Sequence(sequence));
    this.layers = header.layers.map((layer, index) => makeLayer(layer, index, this.sequences));
    for (const layer of this.layers) layer.relevanceLayer = this.layers[layer.header.relevance ?? -1] ?? null;
    this.isServed = false;
    /** @type {Recording | null} */
    this.compareWith = null;
    // Of the second recording: the layer with which each layer of the first is compared, and what their texts have in common.
    this.counterparts = header.counterparts ?? [];
    this.alignments = header.alignments ?? [];
    /** Every number of a layer and of its block, if the page can compute it. @type {((layer: Layer) => Promise<Trace>) | null} */
    this.calculation = null;
    /** Called when something has been loaded. @type {() => void} */
    this.onUpdate = () => {};
    /** @type {Promise<void>} */
    this.thumbnailsLoaded = Promise.resolve();
  }

  /** Whether a server no longer responds. */
  get disconnected() {
    return false;
  }

  /** The second recording, with which this one is compared instead. @returns {Recording} */
  swapped() {
    const other = /** @type {Recording} */ (this.compareWith);
    if (!this.alignments.length) {
      const places = other.layers.map((_, layer) => other.counterparts.indexOf(layer));
      this.counterparts = places.map((place) => (place < 0 ? null : place));
      /** @type {(runs: Run[]) => Run[]} */
      const reversed = (runs) => runs.map(([startA, startB, length]) => [startB, startA, length]);
      this.alignments = other.alignments.map(({ sequences: [a, b], tokens, words }) => ({
        sequences: /** @type {[number, number]} */ ([b, a]),
        tokens: reversed(tokens),
        words: reversed(words),
      }));
    }
    this.compareWith = null;
    other.compareWith = this;
    return other;
  }

  /** What can be shown of some layer besides its weights. @returns {string[]} */
  get shown() {
    return SHOWN.filter((show) => this.layers.some((layer) => layer.shown(show) === show));
  }

  /** Whether any word has more than one token. @returns {boolean} */
  get hasSubwords() {
    return (
      this.sequences.some(({ length, words }) => words.length < length) || (this.compareWith?.hasSubwords ?? false)
    );
  }

  /** Whether some layer is too large to hold all weights. @returns {boolean} */
  get isReduced() {
    return this.layers.some(({ isDense }) => !isDense) || (this.compareWith?.isReduced ?? false);
  }
}

/** A recording whose blocks are in the page. */
export class FileRecording extends Recording {
  /** @param {Header} header @param {(block: number) => Promise<ArrayBuffer>} readBlock */
  constructor(header, readBlock) {
    super(
      header,
      (layer, index, sequences) => new Layer(layer, sequences, header.precision, () => readBlock(index + 1)),
    );
    this.thumbnailsLoaded = readBlock(0).then((buffer) => {
      const tensors = readTensors(buffer);
      for (const [index, layer] of this.layers.entries()) {
        layer.thumbnails = BlockMap.split(tensors[index], 1, THUMBNAIL_WEIGHTS);
      }
    });
  }
}

/** The recordings in a page. @param {Document} page @param {(header: Header) => Recording} makeRemote @returns {Recording} */
export function readRecording(page, makeRemote) {
  /** @type {Header} */
  const header = JSON.parse(page.getElementById("recording")?.textContent ?? "");
  if (header.is_served) return makeRemote(header);
  const readBlock = (/** @type {number} */ block) =>
    inflateBase64(page.getElementById(`block-${block}`)?.textContent ?? "");
  const recording = new FileRecording(header, readBlock);
  const count = header.layers.length + 1; // the second recording's blocks follow
  if (header.compare_with) {
    recording.compareWith = new FileRecording(header.compare_with, (block) => readBlock(count + block));
  }
  return recording;
}
