// The worker that holds the model: it receives the model once, then texts, and translates the latest.

import { inflate, readTensors } from "#data/page_format.js";
import { Translator } from "#model/translator.js";

/**
 * @import { ModelHeader, Translated } from '#model/translator.js'
 * @typedef {{model: ModelHeader, weights: Uint8Array<ArrayBuffer>, wasm: boolean}} ModelMessage
 * @typedef {{id: number, text: string, beam: number}} TextMessage
 * @typedef {{id: number, result?: Translated | null, error?: string, wasm?: boolean}} Reply  No result of a text that is outdated.
 */

class Outdated extends Error {}

/** @type {Promise<Translator>} */
let translator;
let latest = 0;
const channel = new MessageChannel(); // a timer would wait some milliseconds

/** Let messages come in, and end the translation of an outdated text. @param {number} id */
async function pause(id) {
  await new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
  if (id !== latest) throw new Outdated();
}

/** @param {TextMessage} message @returns {Promise<Reply>} */
async function reply({ id, text, beam }) {
  try {
    const model = await translator;
    await pause(id);
    const result = await model.translate(text, beam, () => pause(id));
    return { id, result, wasm: model.model.matrices.product !== null };
  } catch (error) {
    return error instanceof Outdated ? { id } : { id, error: String(error) };
  }
}

self.onmessage = async (/** @type {MessageEvent<ModelMessage | TextMessage>} */ { data }) => {
  if ("model" in data) {
    translator = inflate(data.weights).then((block) => new Translator(data.model, readTensors(block), data.wasm));
    return;
  }
  latest = data.id;
  self.postMessage(await reply(data));
};
