// The headings: what the page shows, of which model, and which head is selected.

import { KIND_TITLES } from "#data/layer.js";
import { button, element } from "#ui/elements.js";
import { escapeInvisible } from "#ui/format.js";

/** @import { Recording } from '#data/recording.js' */

const ENCODER = "Each row is a token; it attends to the tokens in the columns.";
const WRITING = {
  encoder: ENCODER,
  decoder:
    "Each row is a decoding step, labeled with the token that it wrote; it attends to the tokens in the columns, which it had read by then.",
  cross:
    "Each row is a decoding step, labeled with the token that it wrote; it attends to the source tokens in the columns.",
};
const READING = {
  encoder: ENCODER,
  decoder: "Each row is a token; it attends to itself and to the tokens before it, in the columns.",
  cross: "Each row is a token that the decoder read; it attends to the source tokens in the columns.",
};

/** @param {(id: string) => HTMLElement} find @param {Recording} recording @param {import("#state/store.js").Store} store */
export function mountHeader(find, recording, store) {
  find("model").textContent = escapeInvisible(recording.model);
  const { compareWith } = recording;
  find("title").textContent = compareWith
    ? `A: ${titleOf(recording)} / B: ${titleOf(compareWith)}`
    : titleOf(recording);
  find("title").classList.toggle("both", compareWith !== null);
  if (compareWith) {
    const swap = button("Swap A and B", "Swap A and B: show the other in all views", () =>
      store.set({ swap: !store.get().swap }),
    );
    find("sides").append(` (${titleOf(recording)}). `, swap);
    find("sides").hidden = false;
  }
  find("texts").replaceChildren();
  for (const [role, text] of Object.entries(recording.texts)) {
    if (text === recording.title) continue;
    const term = element("dt", {}, escapeInvisible(role));
    find("texts").append(term, element("dd", { dir: "auto" }, escapeInvisible(text)));
  }
  find("precision").textContent = precisionNote(recording);
  find("reason").textContent = openingNote(recording);
  store.subscribe((state) => {
    find("server-lost").hidden = !recording.disconnected;
    const { opening } = recording;
    find("reason").hidden = state.layer !== opening.layer || state.heads.join() !== String(opening.head);
    const layer = recording.layers[state.layer];
    const notes = layer.queries.role === "written" ? WRITING : READING;
    const name = headName(layer, state);
    if (find("head-heading").lastChild?.textContent !== name)
      find("head-heading").replaceChildren(KIND_TITLES[layer.kind], element("span", { class: "head-name" }, name));
    find("head-note").textContent = notes[layer.kind];
  });
}

/** @param {Recording} recording */
function titleOf({ title, model }) {
  return escapeInvisible(title || model);
}

/** Why the page opens on this head and, if it opens on a text, a word to start with. @param {Recording} recording */
function openingNote({ opening, layers, texts, compareWith }) {
  if (compareWith || "image" in texts) return opening.reason;
  const { wordOf, wordTexts } = layers[opening.layer].queries;
  const word = escapeInvisible(wordTexts[wordOf[opening.query]]);
  return `${opening.reason} Start with the text: point at “${word}” to see what it attends to.`;
}

/** @param {import("#data/layer.js").Layer} layer @param {import("#state/store.js").State} state */
function headName(layer, { heads, reduce, show }) {
  const { name, headIndices } = layer;
  if (layer.shown(show) === "relevance") return `${name}: relevance through all layers of its kind`;
  const indices = heads.map((head) => headIndices[head]).join(", ");
  return heads.length > 1 ? `${name}, ${reduce} of heads ${indices}` : `${name}, head ${indices}`;
}

/** How exact the numbers on the page are. @param {Recording} recording */
function precisionNote({ dtype, isServed, precision, isReduced, layers }) {
  const model = `The model computed in ${dtype}.`;
  if (isServed) return `${model} Every number is computed exactly by the server.`;
  if (precision === 0) return `${model} Every number is computed in this page.`;
  const stored = `Stored weights are within ${precision.toFixed(5)} of the exact ones; numbers are shown only to the digits that are certain, and after ≈ the last may be off by one.`;
  const rows = layers.some(({ isPartial }) => isPartial)
    ? "the strongest keys of each row; whatever is not stored is marked."
    : "queries and keys, from which this page computes exact rows and columns.";
  const reduced = `A long text is stored as maps of block means and ${rows}`;
  return [model, stored, ...(isReduced ? [reduced] : [])].join(" ");
}
