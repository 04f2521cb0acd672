// A recording of the sentence that was typed last, which the model in the page has just computed.

import { denseHeads, Layer } from "#data/layer.js";
import { BlockMap } from "#data/page_format.js";
import { Recording } from "#data/recording.js";
import { sequenceHeader } from "#live/words.js";

/**
 * @import { LayerHeader } from '#data/layer.js'
 * @import { Header } from '#data/recording.js'
 * @import { Sequence, SequenceHeader } from '#data/sequence.js'
 * @import { LayerNumbers, ModelHeader, Translated } from '#model/translator.js'
 * @typedef {ModelHeader & {name: string, vocabulary: import("#live/words.js").Vocabulary, opening: {layer: string, head: number, reason: string},
 *   scores: string[], example: string, beam: number}} PlaygroundHeader  See playground.py.
 */

const SOURCE = 0;
const WRITTEN = 1;
const READ = 2;
/** The sequences of the rows and the columns. @type {Record<string, [number, number]>} */
const AXES = { encoder: [SOURCE, SOURCE], decoder: [WRITTEN, READ], cross: [WRITTEN, SOURCE] };

/** What a translation computed, as views need it. */
export class LiveRecording extends Recording {
  /** @param {PlaygroundHeader} model @param {string} text @param {Translated} result */
  constructor(model, text, result) {
    super(header(model, text, result), (layer, index, sequences) => {
      const numbers = result.layers[index];
      return new LiveLayer(layer, sequences, numbers);
    });
  }
}

/** A layer with all of its numbers. */
class LiveLayer extends Layer {
  /** @param {LayerHeader} header @param {Sequence[]} sequences @param {LayerNumbers} numbers */
  constructor(header, sequences, numbers) {
    super(header, sequences, 0, () => Promise.reject(new Error("a live layer has nothing to load")));
    const [queries, keys] = [this.queries.length, this.keys.length];
    const [queryShape, keyShape, valueShape] = header.qkv;
    const weights = { shape: [header.heads.length, queries, keys], values: numbers.weights };
    this.qkv = [
      { shape: queryShape, values: numbers.query },
      { shape: keyShape, values: numbers.key },
      { shape: valueShape, values: numbers.value },
    ];
    this.thumbnails = BlockMap.split(weights, 1, null);
    this.heads = denseHeads(this, { weights });
    this.loadPromise = Promise.resolve();
  }
}

/** @param {PlaygroundHeader} model @param {string} text @param {Translated} result @returns {Header} */
function header(model, text, { source, target, translation, layers }) {
  const { bos_id: bos } = model.config;
  const sequences = [
    sequenceHeader(model.vocabulary, source, "source"),
    sequenceHeader(model.vocabulary, target, "written"),
    sequenceHeader(model.vocabulary, [bos, ...target.slice(0, -1)], "read"),
  ];
  const layerHeaders = layers.map((layer) => layerHeader(model, layer, sequences));
  const opening = layerHeaders.findIndex(({ name }) => name === model.opening.layer);
  const query = target.findIndex((id) => !model.vocabulary.special.includes(id));
  return {
    format_version: 0,
    title: text,
    model: model.name,
    dtype: "float32",
    texts: { source: text, translation },
    image: null,
    precision: 0,
    sequences,
    layers: layerHeaders,
    opening: { layer: opening, head: model.opening.head, query: Math.max(query, 0), reason: model.opening.reason },
  };
}

/** @param {PlaygroundHeader} model @param {LayerNumbers} numbers @param {SequenceHeader[]} sequences @returns {LayerHeader} */
function layerHeader({ config, scores: names }, { name, weights }, sequences) {
  const [kind] = name.split(".");
  const [queries, keys] = AXES[kind];
  const { num_heads: heads, num_kv_heads: kvHeads, head_dim: size } = config;
  const unknown = Array(heads).fill(null);
  const shape = [sequences[queries].tokens.length, sequences[keys].tokens.length];
  return {
    name,
    kind: /** @type {import("#data/layer.js").Kind} */ (kind),
    heads: Array.from({ length: heads }, (_, head) => head),
    queries,
    keys,
    scale: 1 / Math.sqrt(size),
    score: null,
    has_sinks: false,
    has_gradient: false,
    scores: {
      ...Object.fromEntries(names.map((each) => [each, unknown])),
      entropy: entropies(weights, heads, shape[0]),
    },
    segments: [],
    thumbnail: shape,
    storage: "dense",
    levels: [1],
    qkv: [
      [heads, shape[0], size],
      [kvHeads, shape[1], size],
      [kvHeads, shape[1], size],
    ],
  };
}

/** The mean entropy of the rows of each head, in nats. @param {Float32Array} weights @param {number} heads @param {number} queries */
function entropies(weights, heads, queries) {
  const sums = Array(heads).fill(0);
  for (let at = 0; at < weights.length; at++) {
    if (weights[at] > 0) sums[Math.floor((at * heads) / weights.length)] -= weights[at] * Math.log(weights[at]);
  }
  return sums.map((sum) => sum / queries);
}
