// Translates texts with the modules of a playground: node run_translator.js FOLDER BEAM WASM, which reads header.json, block and texts.json there.

import { readFileSync, writeFileSync } from "node:fs";
import { inflateSync } from "node:zlib";
import { readTensors } from "../../../src/regard/explore/static/data/page_format.js";
import { sequenceHeader } from "../../../src/regard/explore/static/live/words.js";
import { Translator } from "../../../src/regard/explore/static/model/translator.js";

const [folder, beam, wasm] = process.argv.slice(2);
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}.json`, "utf-8"));
const header = read("header");
const { buffer } = Uint8Array.from(inflateSync(readFileSync(`${folder}/block`)));
const translator = new Translator(header, readTensors(buffer), wasm === "true");
const { model } = translator;
if (wasm === "true" && model.matrices.product === null) throw new Error("node has no WebAssembly with SIMD");

/** The logits of every step of a target. */
function logitsOf({ source, target }) {
  const state = model.start(model.encode(source));
  const inputs = [header.config.bos_id, ...target.slice(0, -1)];
  return Float32Array.from(inputs.flatMap((token) => Array.from(model.step([token], [state])[0])));
}

const results = [];
const numbers = [];
for (const text of read("texts")) {
  const result = await translator.translate(text, Number(beam), async () => {});
  if (result) {
    numbers.push(...result.layers.flatMap(({ query, key, value, weights }) => [query, key, value, weights]));
    numbers.push(logitsOf(result));
    result.sequences = [result.source, result.target].map((ids) => sequenceHeader(header.vocabulary, ids, ""));
    delete result.layers;
  }
  results.push(result);
}
writeFileSync(`${folder}/results.json`, JSON.stringify(results));
writeFileSync(
  `${folder}/numbers`,
  Buffer.concat(numbers.map((array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength))),
);
