// What the reader typed and changed, which is in the address like all that is chosen.

import { flag, someOf } from "#state/url.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Fields } from '#state/url.js'
 * @import { Request } from '#model/worker.js'
 * @typedef {{text: string, greedy: boolean, off: string[], temperature: number, without: string[], begins: number[]}} Typed
 *   `off` are heads that are switched off, such as `cross.2.5`; `begins` the token ids with which the output begins.
 */

export const WITHOUT = ["scale", "positions", "mask"];
export const TEMPERATURES = { least: 0.1, most: 10 };
const NUMBERS = /^\d+(\.\d+)*$/;

/** @param {PlaygroundHeader} model @returns {Fields} */
export function typedFields({ example, config }) {
  const layers = {
    encoder: config.num_encoder_layers,
    decoder: config.num_decoder_layers,
    cross: config.num_decoder_layers,
  };
  const exists = (/** @type {string} */ name) => {
    const [, kind, layer, head] = /^(encoder|decoder|cross)\.(\d+)\.(\d+)$/.exec(name) ?? [];
    if (kind === "cross" && !config.num_encoder_layers) return false;
    return kind && Number(layer) < layers[/** @type {keyof typeof layers} */ (kind)] && Number(head) < config.num_heads;
  };
  return {
    text: { initial: example, write: (text) => text, read: (text) => text },
    greedy: flag,
    off: {
      initial: [],
      write: (names) => names.join(","),
      read: (text) => text.split(",").filter(exists),
    },
    temperature: {
      initial: 1,
      write: String,
      read: (text) =>
        Number(text) >= TEMPERATURES.least && Number(text) <= TEMPERATURES.most ? Number(text) : undefined,
    },
    without: someOf(WITHOUT),
    begins: {
      initial: [],
      write: (ids) => ids.join("."),
      read: (text) =>
        NUMBERS.test(text) && text.split(".").every((id) => Number(id) < config.vocab_size)
          ? text.split(".").map(Number)
          : undefined,
    },
  };
}

/** What an address says of it. @param {string} fragment @param {Fields} fields @returns {Typed} */
export function readTyped(fragment, fields) {
  const parameters = new URLSearchParams(fragment.replace(/^#/, ""));
  const none = /** @type {any} */ (null); // these fields are of no recording
  const values = Object.entries(fields).map(([name, { initial, read }]) => {
    const text = parameters.get(name);
    return [name, (text === null ? undefined : read(text, none, none)) ?? initial];
  });
  return Object.fromEntries(values);
}

/** @param {Typed} typed @param {PlaygroundHeader} model @returns {Request} */
export function requestOf({ text, greedy, off, temperature, without, begins }, model) {
  const heads = [...off].sort();
  return { text, beam: greedy ? 1 : model.beam, change: { off: heads, temperature, without }, begins };
}
