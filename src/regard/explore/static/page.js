// What a page shows of a recording; another one, or the second of two, takes its place.

import { exportButtons } from "#export/buttons.js";
import { createStore } from "#state/store.js";
import { Units } from "#state/unit.js";
import { bindAddress, bindNotebook, fromFragment, inFrame, toFragment } from "#state/url.js";
import { mountDetails } from "#ui/details.js";
import { mountHeadGrid } from "#ui/head_grid.js";
import { mountHeader } from "#ui/header.js";
import { mountLayout } from "#ui/layout.js";
import { mountLegend } from "#ui/legend.js";
import { mountOptions } from "#ui/options.js";
import { mountTheme } from "#ui/theme.js";
import { View } from "#ui/view.js";
import { mountViews } from "#views/index.js";

/**
 * @import { Recording } from '#data/recording.js'
 * @import { State, Store } from '#state/store.js'
 * @import { Fields } from '#state/url.js'
 */

/** @param {string} id */
export const find = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

export class Page {
  /** @param {Fields} fields @param {(recording: Recording, store: Store) => void} onShow  Called with what is shown from now on. @param {typeof find} findInHeader */
  constructor(fields, onShow = () => {}, findInHeader = find) {
    this.fields = fields;
    this.onShow = onShow;
    this.findInHeader = findInHeader;
    this.empty = ["main", "theme"].map((id) => /** @type {HTMLElement} */ (find(id).cloneNode(true)));
    this.arrange = mountLayout(find);
    /** @type {{recording: Recording, store: Store, end: AbortController} | null} */
    this.shown = null;
  }

  /** What is shown, as a fragment. */
  get fragment() {
    return this.shown ? toFragment(this.shown.store.get(), this.shown.recording, this.fields) : "";
  }

  /** @param {Recording} recording @param {string} fragment @param {Partial<State>} state  Of more than the fragment says. */
  show(recording, fragment, state = {}) {
    const isSwapped = recording.compareWith && new URLSearchParams(fragment.replace("#", "")).get("swap") === "1";
    this.mount(isSwapped ? recording.swapped() : recording, fragment, state);
  }

  /** @param {Recording} recording @param {string} fragment @param {Partial<State>} state */
  mount(recording, fragment, state = {}) {
    const isNamed = this.shown !== null || location.hash !== "";
    this.end();
    const end = new AbortController();
    const store = createStore({ ...fromFragment(fragment, recording, this.fields), ...state }, end.signal);
    this.shown = { recording, store, end };
    const { scrollX, scrollY } = window;
    for (const node of this.empty) find(node.id).replaceWith(node.cloneNode(true));
    this.arrange();
    const units = new Units(recording, store);
    mountTheme(find("theme"), store);
    mountHeader(this.findInHeader, recording, store);
    mountHeadGrid(find("overview"), recording, units);
    mountLegend(find("legend"), recording, units);
    mountOptions(find("legend"), recording, store);
    mountViews(find("views"), recording, units, exportButtons);
    new View(find("details"), recording, units, { showsGradients: true }).mount(mountDetails);
    window.scrollTo(scrollX, scrollY);
    recording.onUpdate = () => store.set({});
    const { swap } = store.get();
    store.subscribe((now) => now.swap !== swap && queueMicrotask(() => this.shown?.store === store && this.swap()));
    this.onShow(recording, store);
    if (inFrame()) bindNotebook(store, recording, this.fields);
    else bindAddress(store, recording, this.fields, isNamed);
  }

  /** Show the second recording first, in the same state as far as it has the same. */
  swap() {
    if (!this.shown?.recording.compareWith) return;
    const { recording, store } = this.shown;
    const { layers, counterparts } = this.shown.recording.compareWith;
    const parameters = new URLSearchParams(this.fragment);
    const counterpart = counterparts[store.get().layer];
    if (counterpart !== null) parameters.set("layer", layers[counterpart].name);
    this.mount(recording.swapped(), String(parameters));
    find("sides").querySelector("button")?.focus();
  }

  /** Show nothing. */
  end() {
    this.shown?.end.abort(); // what listens
    find("main").hidden = true;
  }
}
