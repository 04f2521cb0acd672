// The worker that holds the model: it receives the model once, then texts, and computes the latest.

import { inflate, readTensors } from "#data/page_format.js";
import { Pipeline } from "#model/pipeline.js";
import { traced } from "#model/traced.js";
import { UNCHANGED } from "#model/transformer.js";

/**
 * @import { Computed, ModelHeader } from '#model/computed.js'
 * @import { Traced } from '#model/traced.js'
 * @import { Change } from '#model/transformer.js'
 * @typedef {{model: ModelHeader, weights: Uint8Array<ArrayBuffer>, wasm: boolean}} ModelMessage
 * @typedef {{text: string, beam: number, change: Change, begins: number[]}} Request  `begins`: with what the changed text begins.
 * @typedef {{id: number, request: Request}} RequestMessage
 * @typedef {{layer: string, sequences: Record<string, number[]>, change: Change}} TraceRequest  A layer, and token ids that were read.
 * @typedef {{id: number, trace: TraceRequest}} TraceMessage
 * @typedef {{id: number, result?: Computed | null, changed?: Computed | null, traced?: Traced, error?: string, wasm?: boolean}} Reply
 *   No result of a text that is outdated; `changed` is null if nothing is changed.
 */

class Outdated extends Error {}

/** @type {Promise<Pipeline>} */
let pipeline;
let latest = 0;
/** What the unchanged model computed last. @type {{text: string, beam: number, result: Computed | null} | null} */
let original = null;
const channel = new MessageChannel(); // a timer would wait some milliseconds

/** Let messages come in, and end the work on an outdated text. @param {number} id */
async function pause(id) {
  await new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
  if (id !== latest) throw new Outdated();
}

/** @param {RequestMessage} message @returns {Promise<Reply>} */
async function reply({ id, request }) {
  try {
    const model = await pipeline;
    await pause(id);
    const { text, beam, change, begins } = request;
    const options = { beam, change, begins, pause: () => pause(id) };
    if (original?.text !== text || original.beam !== beam) {
      original = { text, beam, result: await model.run(text, { ...options, change: UNCHANGED, begins: [] }) };
    }
    const isChanged = begins.length || JSON.stringify(change) !== JSON.stringify(UNCHANGED);
    const changed = isChanged ? await model.run(text, options) : null;
    return { id, result: original.result, changed, wasm: model.matrices.product !== null };
  } catch (error) {
    return error instanceof Outdated ? { id } : { id, error: String(error) };
  }
}

/** @param {TraceMessage} message @returns {Promise<Reply>} */
async function replyTrace({ id, trace: { layer, sequences, change } }) {
  const { model } = await pipeline;
  try {
    model.change(change);
    return { id, traced: traced(model, layer, sequences) };
  } catch (error) {
    return { id, error: String(error) };
  } finally {
    model.change(UNCHANGED);
  }
}

self.onmessage = async (/** @type {MessageEvent<ModelMessage | RequestMessage | TraceMessage>} */ { data }) => {
  if ("model" in data) {
    pipeline = inflate(data.weights).then((block) => new Pipeline(data.model, readTensors(block), data.wasm));
    return;
  }
  if ("trace" in data) {
    self.postMessage(await replyTrace(data));
    return;
  }
  latest = data.id;
  self.postMessage(await reply(data));
};
