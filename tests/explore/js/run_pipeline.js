// Runs the model of a playground: node run_pipeline.js FOLDER WASM, which reads header.json, block and requests.json there.

import { readFileSync, writeFileSync } from "node:fs";
import { inflateSync } from "node:zlib";
import { readTensors } from "../../../src/regard/explore/static/data/page_format.js";
import { sequenceHeader } from "../../../src/regard/explore/static/live/words.js";
import { Pipeline } from "../../../src/regard/explore/static/model/pipeline.js";
import { traced } from "../../../src/regard/explore/static/model/traced.js";
import { UNCHANGED } from "../../../src/regard/explore/static/model/transformer.js";

const [folder, wasm] = process.argv.slice(2);
const read = (name) => JSON.parse(readFileSync(`${folder}/${name}.json`, "utf-8"));
const header = read("header");
const { buffer } = Uint8Array.from(inflateSync(readFileSync(`${folder}/block`)));
const pipeline = new Pipeline(header, readTensors(buffer), wasm === "true");
const { model } = pipeline;
if (wasm === "true" && model.matrices.product === null) throw new Error("node has no WebAssembly with SIMD");

/** The logits at every token that the decoder read, at once. */
function logitsOf({ sequences }, change) {
  if (header.kind === "fill-mask") return [];
  model.change(change);
  const state = model.start(header.kind === "translate" ? model.encode(sequences.source).memories : []);
  const tokens = sequences.read ?? sequences.source;
  const logits = model.logits(
    model.step(
      tokens,
      tokens.map(() => state),
    ),
  );
  model.change(UNCHANGED);
  return logits;
}

const results = [];
const numbers = [];
for (const { text, beam = 1, change = {}, begins = [], isTraced = false } of read("requests")) {
  const changes = { ...UNCHANGED, ...change };
  const result = await pipeline.run(text, { beam, change: changes, begins, pause: async () => {} });
  if (result) {
    numbers.push(...result.layers.flatMap(({ query, key, value, weights }) => [query, key, value, weights]));
    numbers.push(...logitsOf(result, changes));
    result.headers = Object.entries(result.sequences).map(([role, ids]) =>
      sequenceHeader(header.vocabulary, ids, role),
    );
    if (isTraced) {
      const plain = (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
      const traces = result.layers.map(({ name }) => [name, traced(model, name, result.sequences)]);
      result.traces = JSON.parse(JSON.stringify(Object.fromEntries(traces), plain));
    }
    delete result.layers;
  }
  results.push(result);
}
writeFileSync(`${folder}/results.json`, JSON.stringify(results));
writeFileSync(
  `${folder}/numbers`,
  Buffer.concat(numbers.map((array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength))),
);
