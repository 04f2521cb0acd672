// The page of `regard steps`: a calculation, for a head and a query that can be chosen.

import { Stage } from "#calculation/stage.js";
import { DEPTHS } from "#calculation/steps.js";
import { Trace } from "#calculation/trace.js";
import { inflateBase64, readTensors } from "#data/page_format.js";
import { createStore } from "#state/store.js";
import { THEMES } from "#state/url.js";
import { dropdown, element } from "#ui/elements.js";
import { mountTheme, themeOf } from "#ui/theme.js";

/**
 * @import { TraceHeader } from '#calculation/trace.js'
 * @import { State } from '#state/store.js'
 * @typedef {TraceHeader & {head: number, query: number, note: string}} PageHeader  See steps_page.py: where the page opens, and why.
 */

const find = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

class Page {
  /** @param {PageHeader} header @param {Trace} trace */
  constructor(header, trace) {
    this.header = header;
    this.trace = trace;
    const opening = { step: "", head: header.head, query: header.query, depth: "block", theme: "auto" };
    this.opening = /** @type {State} */ (/** @type {unknown} */ (opening));
    this.store = createStore({ ...this.opening, ...this.read(location.hash) });
    this.stage = new Stage((change) => this.store.set(change));
    find("title").textContent = header.title;
    find("main").append(this.stage.node);
    this.mountChoices();
    mountTheme(find("theme"), this.store);
    this.store.subscribe((state, before) => this.paint(state, before));
    document.addEventListener("keydown", (event) => this.stage.press(event));
    addEventListener("popstate", () => this.store.set({ ...this.opening, ...this.read(location.hash) }));
  }

  /** What an address names. @param {string} hash @returns {Partial<State>} */
  read(hash) {
    const [step, ...pairs] = decodeURIComponent(hash.slice(1)).split("&");
    const { heads, labels, onlyHead } = this.header;
    const sizes = { head: onlyHead === null ? heads : 0, query: labels.query.length };
    /** @type {Partial<State>} */
    const state = { step };
    for (const [name, value] of pairs.map((pair) => pair.split("="))) {
      const isIndex = (name === "head" || name === "query") && /^\d+$/.test(value) && Number(value) < sizes[name];
      if (isIndex) state[name] = Number(value);
      if (name === "depth" && DEPTHS.some(([depth]) => depth === value)) state.depth = value;
      if (name === "theme" && THEMES.includes(value)) state.theme = value;
    }
    return state;
  }

  /** @param {State} state @param {State} before */
  paint(state, before) {
    const { step, depth, head, query } = state;
    const { note } = this.header;
    const slug = this.stage.draw(this.trace, { step, depth, head, query, theme: themeOf(state), note });
    const changed = ["head", "query", "depth", "theme"].filter((name) => state[name] !== this.opening[name]);
    const address = `#${[slug, ...changed.map((name) => `${name}=${state[name]}`)].join("&")}`;
    const isTurned = step !== before.step;
    if (address !== location.hash) history[isTurned ? "pushState" : "replaceState"](null, "", address);
    const above = find("main").getBoundingClientRect().top;
    if (isTurned && above < 0) scrollBy(0, above - 12); // so that the heading is in view
  }

  mountChoices() {
    const { header, store } = this;
    if (header.onlyHead === null && header.heads > 1) {
      const heads = Array.from({ length: header.heads }, (_, head) => String(head));
      const options = heads.map((head) => /** @type {[string, string]} */ ([head, `${head} of ${heads.length}`]));
      const { node, select } = dropdown("head", "Head", options, (head) => store.set({ head: Number(head) }));
      find("choice").append(node);
      store.subscribe(({ head }) => {
        select.value = String(head);
      });
    }
    const queries = header.labels.query;
    const inputs = queries.map((_, query) => element("input", { type: "radio", name: "query", value: query }));
    for (const [query, input] of inputs.entries()) input.addEventListener("change", () => store.set({ query }));
    store.subscribe(({ query }) => {
      for (const [index, input] of inputs.entries()) input.checked = index === query;
    });
    const labels = queries.map((label, query) =>
      element("label", { class: "token" }, inputs[query], element("span", { dir: "auto" }, label)),
    );
    find("choice").append(element("fieldset", { class: "tokens" }, element("legend", {}, "Query"), ...labels));
  }
}

const header = JSON.parse(find("recording").textContent ?? "");
inflateBase64(find("block-0").textContent ?? "").then((buffer) => {
  new Page(header, new Trace(header, readTensors(buffer)));
});
