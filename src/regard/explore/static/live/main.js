// The playground: a text that the reader types, what the model makes of it, and the views on what it computed.

import { exportButtons } from "#export/buttons.js";
import { Form } from "#live/form.js";
import { LiveRecording } from "#live/recording.js";
import { readTyped, requestOf, typedFields } from "#live/typed.js";
import { ModelClient } from "#model/client.js";
import { createStore } from "#state/store.js";
import { Units } from "#state/unit.js";
import { bindAddress, fieldsOf, fromFragment, toFragment } from "#state/url.js";
import { mountDetails } from "#ui/details.js";
import { element } from "#ui/elements.js";
import { escapeInvisible } from "#ui/format.js";
import { mountHeadGrid } from "#ui/head_grid.js";
import { mountHeader } from "#ui/header.js";
import { mountLayout } from "#ui/layout.js";
import { mountLegend } from "#ui/legend.js";
import { mountOptions } from "#ui/options.js";
import { mountTheme } from "#ui/theme.js";
import { View } from "#ui/view.js";
import { mountViews, VIEWS } from "#views/index.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Typed } from '#live/typed.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Computed } from '#model/computed.js'
 * @import { Store } from '#state/store.js'
 * @typedef {{recording: Recording, store: Store, end: AbortController}} Shown
 */

const find = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @type {PlaygroundHeader} */
const model = JSON.parse(find("recording").textContent ?? "");
const client = new ModelClient(model, document);
const mainElement = () => /** @type {HTMLElement} */ (document.querySelector("main"));
const emptyMain = mainElement().cloneNode(true);
const emptyTheme = find("theme").cloneNode();
const arrange = mountLayout(find);
const own = typedFields(model);
const initialViews = (/** @type {Recording} */ { compareWith }) => [
  "text",
  "matrix",
  ...(compareWith ? ["compare"] : []),
];
const fields = { ...fieldsOf(VIEWS, initialViews), ...own };

const PAUSE = 300; // ms; browsers refuse an address that changes with every key stroke

let typed = readTyped(location.hash, own);
/** @type {Shown | null} */
let shown = null;
let opened = location.hash; // the address that the next recording opens with, or else the state of the one before
const form = new Form(model, typed, (change) => run({ ...typed, ...change }));

/** Compute what was typed, and show it unless something else was typed in the meantime. @param {Typed} next */
async function run(next) {
  typed = next;
  form.update(typed);
  try {
    const { result, changed = null } = await client.run(requestOf(typed, model));
    if (result === undefined) return;
    form.show(result, changed);
    if (result) show(recordingOf(result, changed));
    else end();
  } catch (error) {
    form.fail(error);
  }
}

/** @param {Computed} result @param {Computed | null} changed */
function recordingOf(result, changed) {
  const computed = changed ?? result;
  const recording = new LiveRecording(model, typed.text, computed);
  const { change } = requestOf(typed, model);
  recording.explainBy((layer) => client.trace({ layer, sequences: computed.sequences, change }), change.off);
  if (changed) {
    const original = new LiveRecording(model, typed.text, result);
    recording.title = "With the change";
    original.title = "The model as it is";
    recording.compare(original);
  }
  return recording;
}

/** Mount all views on a recording, in the state of those before. @param {Recording} recording */
function show(recording) {
  const before = opened || !shown ? opened : toFragment(shown.store.get(), shown.recording, fields);
  opened = "";
  end();
  const page = new AbortController();
  const store = createStore({ ...fromFragment(before, recording, fields), ...typed }, page.signal);
  shown = { recording, store, end: page };
  const { scrollX, scrollY } = window;
  mainElement().replaceWith(emptyMain.cloneNode(true));
  find("theme").replaceWith(emptyTheme.cloneNode());
  arrange();
  mountPage(recording, store);
  window.scrollTo(scrollX, scrollY);
  const timer = setTimeout(() => {
    history.replaceState(null, "", `#${toFragment(store.get(), recording, fields)}`);
    bindAddress(store, recording, fields);
  }, PAUSE);
  page.signal.addEventListener("abort", () => clearTimeout(timer));
}

/** Nothing of what is on the page is that of the text any more. */
function end() {
  shown?.end.abort();
  mainElement().hidden = true;
}

/** @param {Recording} recording @param {Store} store */
function mountPage(recording, store) {
  const units = new Units(recording, store);
  const aside = element("div"); // for what the form shows
  mountTheme(find("theme"), store);
  mountHeader((id) => (["title", "texts", "model"].includes(id) ? aside : find(id)), recording, store);
  find("sides").textContent =
    "Compare shows the changed model (A) and the model as it is (B); all other views show the changed one.";
  mountHeadGrid(find("overview"), recording, units);
  mountLegend(find("legend"), recording, units);
  mountOptions(find("legend"), recording, store);
  mountViews(find("views"), recording, units, exportButtons);
  new View(find("details"), recording, units).mount(mountDetails);
  store.subscribe((state) => form.whatIf.select(recording, state));
}

/** Another address of this page. @param {HashChangeEvent} event */
function follow({ newURL }) {
  const { hash } = new URL(newURL);
  const next = readTyped(hash, own);
  if (JSON.stringify(next) === JSON.stringify(typed)) return; // `bindAddress` follows
  opened = hash;
  run(next);
}

find("model").textContent = escapeInvisible(model.name);
find("title").replaceWith(form.node);
find("texts").remove();
window.addEventListener("hashchange", follow);
run(typed);
