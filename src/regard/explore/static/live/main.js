// The playground: a text that the reader types, its translation, and the views on what the model computed for it.

import { exportButtons } from "#export/buttons.js";
import { LiveRecording } from "#live/recording.js";
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
import { mountWordsButton } from "#ui/words_button.js";
import { initialViews, mountViews, VIEWS } from "#views/index.js";

/**
 * @import { PlaygroundHeader } from '#live/recording.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Store } from '#state/store.js'
 * @import { Fields } from '#state/url.js'
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

/** @type {Fields} */
const fields = {
  ...fieldsOf(VIEWS, initialViews),
  text: { initial: model.example, write: (text) => text, read: (text) => text },
  greedy: { initial: false, write: (on) => (on ? "1" : null), read: (text) => text === "1" },
};

const input = element("textarea", { id: "live-text", rows: 2, dir: "auto", spellcheck: "false", autocomplete: "off" });
const output = element("output", { id: "live-translation", for: "live-text", dir: "auto" });
const notice = element("p", { class: "note", id: "live-notice", role: "status" });
const greedy = element("input", { type: "checkbox", id: "live-greedy" });

const PAUSE = 300; // ms; browsers refuse an address that changes with every key stroke

/** @type {Shown | null} */
let shown = null;
let opened = location.hash; // the address that the next recording opens with, or else the state of the one before

function mountForm() {
  const heading = element("h1", {}, element("label", { for: "live-text" }, "Type a sentence"));
  const search = element(
    "label",
    { class: "note" },
    greedy,
    " Only the most probable token at each step (greedy search)",
  );
  find("model").textContent = escapeInvisible(model.name);
  find("title").replaceWith(element("form", { class: "live" }, heading, input, output, search, notice));
  find("texts").remove();
  const parameters = new URLSearchParams(location.hash.slice(1));
  input.value = parameters.get("text") ?? model.example;
  greedy.checked = parameters.get("greedy") === "1";
  input.addEventListener("input", translate);
  greedy.addEventListener("change", translate);
}

/** Translate what is typed, and show it unless something else was typed in the meantime. */
async function translate() {
  const text = input.value;
  output.classList.add("outdated");
  try {
    const { result } = await client.translate(text, greedy.checked ? 1 : model.beam);
    if (result === undefined) return;
    output.classList.remove("outdated");
    output.textContent = result ? escapeInvisible(result.translation) : "";
    notice.textContent = noticeOf(result);
    if (result) show(new LiveRecording(model, text, result), { text, greedy: greedy.checked });
    else end();
  } catch (error) {
    notice.textContent = `This browser cannot run the model: ${error instanceof Error ? error.message : error}`;
  }
}

/** @param {import("#model/translator.js").Translated | null} result */
function noticeOf(result) {
  if (!result) return "Nothing to translate yet.";
  const count = result.source.length - 1;
  const parts = [
    ...(result.truncated ? [`Only the first ${count} tokens of this text are translated.`] : []),
    ...(result.finished ? [] : ["The translation is cut: the model did not end it."]),
  ];
  return parts.join(" ");
}

/** Mount all views on a recording, in the state of those before. @param {Recording} recording @param {{text: string, greedy: boolean}} typed */
function show(recording, typed) {
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
  mountHeadGrid(find("overview"), recording, units);
  mountLegend(find("legend"), recording, units);
  mountOptions(find("legend"), recording, store);
  const buttons = mountViews(find("views"), recording, units, exportButtons);
  mountWordsButton(buttons, units);
  new View(find("details"), recording, units).mount(mountDetails);
}

/** Another address of this page. @param {HashChangeEvent} event */
function follow({ newURL }) {
  const { hash } = new URL(newURL);
  const parameters = new URLSearchParams(hash.slice(1));
  const text = parameters.get("text") ?? model.example;
  const isGreedy = parameters.get("greedy") === "1";
  if (text === input.value && isGreedy === greedy.checked) return; // `bindAddress` follows
  opened = hash;
  input.value = text;
  greedy.checked = isGreedy;
  translate();
}

mountForm();
window.addEventListener("hashchange", follow);
translate();
