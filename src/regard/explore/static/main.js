// The page: reads the recording, makes the store and mounts every view on it.

import { readRecording } from "#data/recording.js";
import { readable } from "#data/tokens.js";
import { exportButtons } from "#export/buttons.js";
import { bindHost, inFrame } from "#state/host.js";
import { bindFragment, createStore, fromFragment } from "#state/store.js";
import { mountWords, Shown } from "#state/token_or_word.js";
import { mountReadout } from "#ui/details.js";
import { element } from "#ui/elements.js";
import { mountOverview } from "#ui/head_grid.js";
import { mountLegend } from "#ui/legend.js";
import { mountTheme } from "#ui/theme.js";
import { mountCalculation } from "#views/calculation.js";
import { mountCompare } from "#views/compare.js";
import { mountGeneration } from "#views/generation.js";
import { mountImage } from "#views/image.js";
import { mountViews } from "#views/index.js";
import { mountMatrix } from "#views/matrix.js";
import { mountGraph } from "#views/rollout_graph.js";
import { mountText } from "#views/text.js";
import { mountTranslation } from "#views/translation.js";

const HEADS = {
  encoder: ["Encoder", "Each row is a source token; it attends to the source tokens in the columns."],
  decoder: [
    "Decoder",
    "Each row is a decoding step, named by the token that it wrote; it attends to the tokens in the columns, those read so far.",
  ],
  cross: [
    "Cross-attention",
    "Each row is a decoding step, named by the token that it wrote; it attends to the source tokens in the columns.",
  ],
};

const READING = {
  decoder: "Each row is a token; it attends to the tokens in the columns, itself and those before it.",
  cross: "Each row is a token that was read; it attends to the source tokens in the columns.",
};

const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const recording = readRecording(document);
const store = createStore(fromFragment(window.location.hash, recording));
recording.changed = () => store.set({}); // what was asked for has come
const shown = new Shown(recording, store);

place("model").textContent = readable(recording.model);
place("title").textContent = readable(recording.title || recording.model);
for (const [role, text] of Object.entries(recording.texts)) {
  if (text !== recording.title)
    place("texts").append(element("dt", {}, readable(role)), element("dd", { dir: "auto" }, readable(text)));
}
place("precision").textContent =
  `The model computed in ${recording.dtype}. Weights are stored as ${100 * recording.error[0]} % of themselves or ${recording.error[1]}, whichever is more: so near is what is shown of a head to what was computed. Where a text is long, each row names its strongest keys and says how much it gives to the others; what is not in the file is said to be so.`;

store.subscribe(() => (place("ended").hidden = !recording.ended));
mountTheme(place("theme"), store);
mountOverview(place("overview"), recording, store);
mountLegend(place("legend"), recording, store);
mountViews(
  place("views"),
  recording,
  store,
  {
    text: shown.ofEither(mountText),
    matrix: shown.sketched ? shown.ofTokens(mountMatrix) : shown.ofEither(mountMatrix),
    translation: mountTranslation,
    generation: mountGeneration,
    image: mountImage,
    graph: mountGraph,
    calculation: mountCalculation,
    compare: shown.sketched ? shown.ofTokens(mountCompare) : shown.ofEither(mountCompare),
  },
  (...view) => exportButtons(shown, ...view),
);
shown.ofEither(mountReadout)(place("readout"), recording, store);
mountWords(/** @type {Element} */ (place("views").firstElementChild), shown, store);
(inFrame() ? bindHost : bindFragment)(store, recording);

store.subscribe((state) => {
  const layer = recording.layers[state.layer];
  const [title, note] = HEADS[layer.kind];
  const heads = state.heads.map((head) => layer.heads[head]);
  place("head-heading").replaceChildren(
    title,
    element(
      "span",
      { class: "head-name" },
      `${layer.name}, head${heads.length > 1 ? "s" : ""} ${heads.join(", ")}${heads.length > 1 ? ` (their ${state.several})` : ""}`,
    ),
  );
  const writes = recording.sequences[layer.querySequence].role === "written";
  place("head-note").textContent = (!writes && READING[layer.kind]) || note;
});
