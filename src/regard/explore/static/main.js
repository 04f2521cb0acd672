// The page: reads the recording, makes the store and mounts every view on it.

import { readRecording } from "#data.js";
import { element } from "#elements.js";
import { mountLegend } from "#legend.js";
import { mountMatrix } from "#matrix.js";
import { mountOverview } from "#overview.js";
import { mountReadout } from "#readout.js";
import { bindFragment, createStore, fromFragment } from "#state.js";
import { mountText } from "#text.js";
import { mountTheme } from "#theme.js";

const HEADS = {
  encoder: ["Encoder", "Each row is a source token; it attends to the source tokens in the columns."],
  decoder: ["Decoder", "Each row is a decoding step, named by the token that it wrote; it attends to the tokens in the columns, those read so far."],
  cross: ["Cross-attention", "Each row is a decoding step, named by the token that it wrote; it attends to the source tokens in the columns."],
};

const READING = "Each row is a token; it attends to the tokens in the columns, itself and those before it.";

const place = (id) => document.getElementById(id);
const recording = readRecording(document);
const store = createStore(fromFragment(window.location.hash, recording));

place("model").textContent = recording.model;
place("title").textContent = recording.title;
for (const [role, text] of Object.entries(recording.texts)) {
  if (text !== recording.title) place("texts").append(element("dt", {}, role), element("dd", { dir: "auto" }, text));
}
place("precision").textContent = `Weights are stored in 16 bits: what is shown lies within ${recording.error.toFixed(6)} of what was computed.`;

mountTheme(place("theme"), store);
mountOverview(place("overview"), recording, store);
mountLegend(place("legend"), recording, store);
mountText(place("text"), recording, store);
mountMatrix(place("matrix"), recording, store);
mountReadout(place("readout"), recording, store);
bindFragment(store, recording);

store.subscribe((state) => {
  const layer = recording.layers[state.layer];
  const [title, note] = HEADS[layer.kind];
  place("head-heading").replaceChildren(title, element("span", { class: "head-name" }, `${layer.name}, head ${state.head}`));
  const reading = layer.kind === "decoder" && layer.querySequence === layer.keySequence;
  place("head-note").textContent = reading ? READING : note;
});
