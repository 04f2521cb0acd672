// One attention layer of a recording: its texts at once, its weights when they are loaded.

import { combineHeads } from "#data/combined_heads.js";
import { ComputedHead } from "#data/computed_head.js";
import { DenseHead, SketchHead } from "#data/heads.js";
import { BlockMap, CODE_WEIGHTS, joinBytes, readTensors } from "#data/page_format.js";
import { relevanceHead, signedHeads } from "#data/signed_heads.js";

/**
 * @import { BaseHead as Head } from '#data/heads.js'
 * @import { Tensor } from '#data/page_format.js'
 * @import { Sequence } from '#data/sequence.js'
 * @typedef {"encoder" | "decoder" | "cross"} Kind
 * @typedef {{name: string, num_tokens: number, ranges: [first: number, last: number][] | null, shares: number[]}} Segment  See page_format.py.
 * @typedef {{name: string, kind: Kind, heads: number[], queries: number, keys: number, scale: number, score: string | null,
 *   has_sinks: boolean, scores: Record<string, (number | null)[]>, segments: Segment[], thumbnail: number[], storage: "dense" | "computed" | "sketch" | "remote",
 *   levels: number[], mask?: "none" | "runs" | "unknown", qkv: number[][], has_gradient: boolean, omits_gradient?: boolean, relevance?: number}} LayerHeader
 *   See page_format.py.
 * @typedef {{features: number, values: Float32Array}} Vectors  Of every token, one after the other.
 */

/** The kinds of layers, in the order of the page. @type {Record<Kind, string>} */
export const KIND_TITLES = { encoder: "Encoder", cross: "Cross-attention", decoder: "Decoder" };

/** One attention layer. */
export class Layer {
  /** @param {LayerHeader} header @param {Sequence[]} sequences @param {number} precision @param {() => Promise<ArrayBuffer>} read  Reads the block. */
  constructor(header, sequences, precision, read) {
    this.header = header;
    this.name = header.name;
    this.kind = header.kind;
    this.headIndices = header.heads; // in the model
    this.scores = header.scores;
    /** @type {Segment[] | null} */
    this.segments = header.segments;
    this.querySequence = header.queries;
    this.keySequence = header.keys;
    this.queries = sequences[header.queries];
    this.keys = sequences[header.keys];
    this.precision = precision;
    this.isDense = header.storage === "dense";
    this.isRemote = header.storage === "remote";
    this.isPartial = header.storage === "sketch";
    this.blockSize = header.levels[0];
    this.read = read;
    /** @type {BlockMap[]} */
    this.thumbnails = [];
    /** @type {Head[] | null} */
    this.heads = null;
    /** @type {Map<string, Head[]>} */
    this.shownHeads = new Map(); // of gradients, by what is shown
    /** @type {Head | null} */
    this.relevance = null; // of its part of the model, if this block has it
    /** @type {Layer | null} */
    this.relevanceLayer = null; // whose block has the relevance of this one
    /** @type {Tensor[]} */
    this.qkv = []; // query, key and value, if the page has them
    /** @type {Promise<void> | null} */
    this.loadPromise = null;
  }

  /** Load the weights, once. */
  load() {
    this.loadPromise ??= this.readBlock();
    return this.loadPromise;
  }

  async readBlock() {
    const tensors = readTensors(await this.read());
    this.qkv = ["query", "key", "value"].flatMap((name) => tensors[name] ?? []);
    const heads = this.isDense ? denseHeads(this, tensors) : longHeads(this, tensors);
    if (this.header.has_gradient) {
      for (const show of ["gradient", "gradient_times_weights"])
        this.shownHeads.set(show, signedHeads(heads, tensors, show));
    }
    if (tensors.relevance) this.relevance = relevanceHead(tensors.relevance, this.kind !== "cross");
    if (this.relevanceLayer !== this) await this.relevanceLayer?.load();
    this.heads = heads;
  }

  /** Load the blocks of every head. */
  async loadBlocks() {
    await this.load();
  }

  get isLoaded() {
    return this.heads !== null;
  }

  /** Whether the first row of a thumbnail has masked blocks. */
  get isMasked() {
    return this.thumbnails.some((map) => map.values.some((_, index) => Number.isNaN(map.at(0, index))));
  }

  /** The share of attention on each segment of the text; null while they are loading. @returns {Segment[] | null} */
  requestSegments() {
    return this.segments;
  }

  /** Query, key and, if it was recorded, value of a head; null while they are loading. Heads may share keys and values. @param {number} head @returns {Vectors[] | null} */
  vectors(head) {
    return this.qkv.map(({ shape: [heads, tokens, features], values }) => {
      const start = Math.floor((head * heads) / this.headIndices.length) * tokens * features;
      return { features, values: /** @type {Float32Array} */ (values.subarray(start, start + tokens * features)) };
    });
  }

  /** What is shown of this layer: what is chosen, or its weights if it has nothing else. @param {string} show */
  shown(show) {
    const has = show === "relevance" ? this.relevanceLayer : this.header.has_gradient;
    return has ? show : "weights";
  }

  /** One head, or several combined; null before it is loaded. @param {number[]} heads @param {string} reduce @param {string} show @returns {Head | null} */
  head(heads, reduce = "mean", show = "weights") {
    if (!this.heads) return null;
    if (show === "relevance") return this.relevanceLayer?.relevance ?? null;
    const all = this.shownHeads.get(show) ?? this.heads;
    const chosen = heads.map((head) => all[head]);
    return combineHeads(chosen, reduce);
  }
}

/** @param {Layer} layer @param {Record<string, Tensor>} tensors @returns {Head[]} */
export function denseHeads(layer, { weights, key_order: keyOrder, query_order: queryOrder }) {
  const isExact = weights.values instanceof Float32Array;
  const maps = isExact ? BlockMap.split(weights, 1, null) : BlockMap.split(joinBytes(weights), 1, CODE_WEIGHTS);
  const [keys, queries] = [keyOrder, queryOrder].map((order) => (order ? splitRows(joinBytes(order)) : null));
  return maps.map((blocks, head) => {
    const [query, key] = isExact || layer.header.score !== null ? [] : (layer.vectors(head) ?? []);
    return new DenseHead(blocks, {
      error: isExact ? 0 : layer.precision,
      hasSinks: layer.header.has_sinks,
      exactRow: query ? computeRows(query, key, layer.header.scale, blocks) : null,
      keyOrder: keys?.[head],
      queryOrder: queries?.[head],
    });
  });
}

/** The rows of each head. @param {Tensor} tensor  (heads, rows, columns) @returns {ArrayLike<number>[][]} */
function splitRows({ shape: [heads, rows, columns], values }) {
  return Array.from({ length: heads }, (_, head) =>
    Array.from({ length: rows }, (_, row) =>
      values.subarray((head * rows + row) * columns, (head * rows + row + 1) * columns),
    ),
  );
}

/**
 * What computes rows as softmax(scale · q Kᵀ), NaN where masked, each once.
 * @param {Vectors} query @param {Vectors} key @param {number} scale @param {BlockMap} blocks  Says what is masked. @returns {(query: number) => Float32Array}
 */
function computeRows(query, key, scale, blocks) {
  /** @type {Map<number, Float32Array>} */
  const rows = new Map();
  const { features } = query;
  /** @param {number} row */
  const compute = (row) => {
    const scores = new Float64Array(blocks.columns).fill(-Infinity);
    for (let column = 0; column < blocks.columns; column++) {
      if (Number.isNaN(blocks.at(row, column))) continue;
      let product = 0;
      for (let at = 0; at < features; at++)
        product += query.values[row * features + at] * key.values[column * features + at];
      scores[column] = scale * product;
    }
    const largest = scores.reduce((a, b) => Math.max(a, b), -Infinity);
    const exp = scores.map((score) => Math.exp(score - largest));
    const sum = exp.reduce((total, value, column) => total + (scores[column] === -Infinity ? 0 : value), 0);
    return Float32Array.from(exp, (value, column) => (scores[column] === -Infinity ? NaN : value / sum));
  };
  return (row) => {
    const found = rows.get(row) ?? compute(row);
    rows.set(row, found);
    return found;
  };
}

/** @param {Layer} layer @param {Record<string, Tensor>} tensors @returns {Head[]} */
function longHeads(layer, tensors) {
  const { header } = layer;
  const maps = header.levels.map((size) => BlockMap.split(joinBytes(tensors[`blocks_${size}`]), size, CODE_WEIGHTS));
  const kinds = { none: { allows: () => true }, unknown: { allows: () => null } };
  const mask =
    header.mask === "runs" ? new MaskRuns(tensors.mask_counts, tensors.mask_edges) : kinds[header.mask ?? "none"];
  if (layer.isPartial) return sketchHeads(layer, tensors, maps, mask);
  const { values, shape } = tensors.lse;
  return maps[0].map((map, head) => {
    const [query, key] = layer.vectors(head) ?? [];
    const lse = values.subarray(head * shape[1], (head + 1) * shape[1]);
    return new ComputedHead(map, { query, key, lse, scale: header.scale, mask });
  });
}

/** @param {Layer} layer @param {Record<string, Tensor>} tensors @param {BlockMap[][]} maps  By level. @param {import("#data/heads.js").Mask} mask @returns {Head[]} */
function sketchHeads(layer, tensors, maps, mask) {
  const topKeys = joinBytes(tensors.top_keys);
  const [weights, rest] = [tensors.top_weights, tensors.rest].map((tensor) =>
    Float32Array.from(joinBytes(tensor).values, (code) => CODE_WEIGHTS[code]),
  );
  const [queries, k] = topKeys.shape.slice(1);
  const keys = layer.keys.length;
  return layer.headIndices.map(
    (_, head) =>
      new SketchHead({
        levels: maps.map((level) => level[head]),
        topKeys: topKeys.values.subarray(head * queries * k, (head + 1) * queries * k),
        topWeights: weights.subarray(head * queries * k, (head + 1) * queries * k),
        rest: rest.subarray(head * queries, (head + 1) * queries),
        received: tensors.received.values.subarray(head * keys, (head + 1) * keys),
        mask,
        error: layer.precision,
        hasSinks: layer.header.has_sinks,
      }),
  );
}

/** The keys that each row may attend to, as runs. */
class MaskRuns {
  /** @param {Tensor} counts  Edges of each row. @param {Tensor} differences  Each edge, less the one before, modulo 2³². */
  constructor({ values: counts }, { values: differences }) {
    this.edges = new Uint32Array(differences.length);
    for (let index = 0, edge = 0; index < differences.length; index++) {
      edge = (edge + differences[index]) >>> 0;
      this.edges[index] = edge;
    }
    this.starts = new Uint32Array(counts.length + 1); // of the edges of each row
    for (let row = 0; row < counts.length; row++) this.starts[row + 1] = this.starts[row] + counts[row];
  }

  /** @param {number} row @param {number} key */
  allows(row, key) {
    let passed = 0;
    for (let at = this.starts[row]; at < this.starts[row + 1] && this.edges[at] <= key; at++) passed++;
    return passed % 2 === 1;
  }
}
