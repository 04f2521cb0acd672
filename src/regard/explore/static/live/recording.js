// A recording of the sentence that was typed last, which the model in the page has just computed.

import { aboutScale, SENTENCES } from "#calculation/recorded.js";
import { Trace } from "#calculation/trace.js";
import { denseHeads, Layer } from "#data/layer.js";
import { BlockMap } from "#data/page_format.js";
import { Recording } from "#data/recording.js";
import { commonRuns } from "#live/common_runs.js";
import { sequenceHeader } from "#live/words.js";

/**
 * @import { LayerHeader } from '#data/layer.js'
 * @import { Header } from '#data/recording.js'
 * @import { Sequence, SequenceHeader } from '#data/sequence.js'
 * @import { Computed, LayerNumbers, ModelHeader } from '#model/computed.js'
 * @import { Traced } from '#model/traced.js'
 * @import { Reply } from '#model/worker.js'
 * @typedef {ModelHeader & {name: string, vocabulary: import("#live/words.js").Vocabulary, opening: {layer: string, head: number, reason: string},
 *   scores: string[], score_names: Record<string, string | null>, steps: Record<string, import("#calculation/trace.js").StepHeader[]>, example: string, beam: number, has_stops: boolean}} PlaygroundHeader  See playground.py.
 */

/** The sequences of the rows and the columns. @type {Record<string, Record<string, [string, string]>>} */
const AXES = {
  translate: { encoder: ["source", "source"], decoder: ["written", "read"], cross: ["written", "source"] },
  generate: { decoder: ["source", "source"] },
  "fill-mask": { encoder: ["source", "source"] },
};

/** What a model computed for a text, as views need it. */
export class LiveRecording extends Recording {
  /** @param {PlaygroundHeader} model @param {string} text @param {Computed} computed */
  constructor(model, text, computed) {
    super(header(model, text, computed), (layer, index, sequences) => {
      const numbers = computed.layers[index];
      return new LiveLayer(layer, sequences, numbers);
    });
    this.playground = model;
  }

  /** Let the model say what it computed in a layer. @param {(layer: string) => Promise<Reply>} ask @param {string[]} off  Heads that are switched off. */
  explainBy(ask, off) {
    this.calculation = async (/** @type {Layer} */ layer) => {
      const { tensors, words } = /** @type {Traced} */ ((await ask(layer.name)).traced);
      const [query, key] = [layer.queries.labels, layer.keys.labels];
      const header = {
        title: "",
        heads: this.playground.config.num_heads,
        onlyHead: null,
        isShifted: layer.querySequence !== layer.keySequence,
        labels: { query, key, token: key, word: words.map((id) => this.playground.vocabulary.display[id]) },
        layer: layer.name,
        layers: this.layers.map(({ name }) => name),
        steps: stepsOf(this.playground, layer, off).filter(({ name }) => name in tensors || name === "weighted values"),
      };
      return new Trace(header, tensors);
    };
  }

  /** Show the difference to another recording of the same model. @param {LiveRecording} other */
  compare(other) {
    this.compareWith = other;
    other.counterparts = this.layers.map((_, layer) => layer);
    other.alignments = this.sequences.map((sequence, index) => ({
      sequences: /** @type {[number, number]} */ ([index, index]),
      tokens: commonRuns(sequence.tokens, other.sequences[index].tokens),
      words: commonRuns(sequence.words.display, other.sequences[index].words.display),
    }));
  }
}

/** What is said of the steps of a layer, in a changed model, too. @param {PlaygroundHeader} model @param {Layer} layer @param {string[]} off */
function stepsOf({ steps, config }, layer, off) {
  const heads = off.filter((name) => name.startsWith(`${layer.name}.`)).map((name) => name.split(".")[2]);
  const note = heads.length ? ` Switched off, so that their sums are 0: heads ${heads.join(", ")}.` : "";
  return steps[layer.name].map((step) => {
    if (step.name === "scaled scores")
      return { ...step, ...aboutScale(SENTENCES, config.head_dim, layer.header.scale) };
    return step.name === "sum of weighted values" ? { ...step, explanation: step.explanation + note } : step;
  });
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

/** @param {PlaygroundHeader} model @param {string} text @param {Computed} computed @returns {Header} */
function header(model, text, computed) {
  const roles = Object.keys(computed.sequences);
  const sequences = roles.map((role) => sequenceHeader(model.vocabulary, computed.sequences[role], role));
  const layers = computed.layers.map((layer) => layerHeader(model, layer, { roles, sequences, scale: computed.scale }));
  const opening = layers.findIndex(({ name }) => name === model.opening.layer);
  const special = new Set(model.vocabulary.special);
  const query = computed.sequences[roles[layers[opening].queries]].findIndex((id) => !special.has(id));
  return {
    format_version: 0,
    title: text,
    model: model.name,
    dtype: "float32",
    texts: { source: text, ...(model.kind === "translate" && { translation: computed.text }) },
    image: null,
    precision: 0,
    sequences,
    layers,
    opening: { layer: opening, head: model.opening.head, query: Math.max(query, 0), reason: model.opening.reason },
  };
}

/** @param {PlaygroundHeader} model @param {LayerNumbers} numbers @param {{roles: string[], sequences: SequenceHeader[], scale: number}} text @returns {LayerHeader} */
function layerHeader(
  { kind: model, config, scores: names, score_names: scoreNames },
  { name, weights },
  { roles, sequences, scale },
) {
  const [kind] = name.split(".");
  const [queries, keys] = AXES[model][kind].map((role) => roles.indexOf(role));
  const { num_heads: heads, num_kv_heads: kvHeads, head_dim: size } = config;
  const unknown = Array(heads).fill(null);
  const shape = [sequences[queries].tokens.length, sequences[keys].tokens.length];
  return {
    name,
    kind: /** @type {import("#data/layer.js").Kind} */ (kind),
    heads: Array.from({ length: heads }, (_, head) => head),
    queries,
    keys,
    scale,
    score: scoreNames[name],
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
  const each = weights.length / heads;
  for (let head = 0; head < heads; head++) {
    for (let at = head * each; at < (head + 1) * each; at++) {
      if (weights[at] > 0) sums[head] -= weights[at] * Math.log(weights[at]);
    }
  }
  return sums.map((sum) => sum / queries);
}
