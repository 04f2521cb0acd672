// The playground: a text that the reader types, what the model makes of it, and the views on what it computed.

import { Form, SIDES } from "#live/form.js";
import { LiveRecording } from "#live/recording.js";
import { Start, startField, wholeAddress } from "#live/start.js";
import { readTyped, requestOf, typedFields } from "#live/typed.js";
import { isChanged } from "#live/what_if.js";
import { ModelClient } from "#model/client.js";
import { find, Page } from "#page.js";
import { count, fieldsOf } from "#state/url.js";
import { element } from "#ui/elements.js";
import { escapeInvisible } from "#ui/format.js";
import { VIEWS } from "#views/index.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Typed } from '#live/typed.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Computed } from '#model/computed.js'
 * @import { Store } from '#state/store.js'
 */

/** @type {PlaygroundHeader} */
const model = JSON.parse(find("recording").textContent ?? "");
const client = new ModelClient(model, document);
const own = typedFields(model);
const initialViews = (/** @type {Recording} */ { compareWith }) => [
  "text",
  "matrix",
  ...(compareWith ? ["compare"] : []),
];
const fields = { ...fieldsOf(VIEWS, initialViews), ...own, choice: count, start: startField };
const aside = element("div"); // for what the form shows
const page = new Page(fields, onShow, (id) => (["title", "texts", "model"].includes(id) ? aside : find(id)));

const start = model.has_stops ? new Start() : null;
const addressOf = (/** @type {string} */ hash) => (start ? wholeAddress(hash) : hash);
if (addressOf(location.hash) !== location.hash) history.replaceState(null, "", addressOf(location.hash));

let typed = readTyped(location.hash, own);
let opened = location.hash; // the address that the next recording opens with, or else the state of the one before
const form = new Form(model, typed, {
  change: (change) => run({ ...typed, ...change }),
  choose: (choice) => page.shown?.store.set({ choice }),
});

/** Compute what was typed, and show it unless something else was typed in the meantime. @param {Typed} next */
async function run(next) {
  typed = next;
  form.update(typed);
  try {
    const { result, changed = null } = await client.run(requestOf(typed, model));
    if (result === undefined) return;
    form.show(result, changed);
    if (!result) return page.end();
    page.show(recordingOf(result, changed), opened || page.fragment, typed);
    opened = "";
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
    recording.title = SIDES.changed;
    original.title = SIDES.original;
    recording.compare(original);
  }
  return recording;
}

/** @param {Recording} recording @param {Store} store */
function onShow(recording, store) {
  store.subscribe((state) => {
    form.whatIf.select(recording, state);
    form.choices.select(state.choice);
  });
  start?.arrive();
}

/** Another address of this page. @param {HashChangeEvent} event */
function follow(event) {
  const { hash } = new URL(event.newURL);
  if (addressOf(hash) !== hash) {
    event.stopImmediatePropagation();
    return location.replace(addressOf(hash)); // which is followed
  }
  const next = readTyped(hash, own);
  start?.update(hash);
  if (JSON.stringify(next) === JSON.stringify(typed)) return start?.arrive(); // `bindAddress` follows
  opened = hash;
  form.whatIf.node.open = isChanged(next);
  run(next);
}

find("model").textContent = escapeInvisible(model.name);
find("title").replaceWith(form.node);
find("texts").remove();
if (start) {
  find("model").after(start.opener);
  find("skip").after(start.node, start.figure);
  start.update(location.hash);
}
window.addEventListener("hashchange", follow);
run(typed);
