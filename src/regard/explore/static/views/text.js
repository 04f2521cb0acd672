// The text itself: what is pointed at or held shows what it attends to and what attends to it, as arcs and as tint.

import { headOf } from "#data/combined_heads.js";
import { links } from "#data/links.js";
import { strongest } from "#data/recording.js";
import { beginsWord, isSpecial, matches, readable, shown } from "#data/tokens.js";
import { focusIn, hold } from "#state/store.js";
import { position } from "#ui/color.js";
import { element, svgElement } from "#ui/elements.js";
import { drawArcs } from "#views/text_arcs.js";

const AT_REST = 0.1; // where nothing is chosen, an arc below this weight is not drawn
const MOST_AT_REST = 80; // tokens of a text whose arcs are drawn where nothing is chosen
const MOST_ARCS = 24; // in each direction; tint tells the rest
const MOST_LINES = 2; // a text that would take more stands as a column
const MOST_IN_COLUMN = 48; // tokens; a longer text runs on, and scrolls
const LONGEST_TITLE = 400; // characters of a token that was cut

const ROLES = {
  source: "Source",
  written: "Written, token by token",
  read: "Read so far",
};
const ACROSS = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowRight: "ArrowDown" };

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountText(place, recording, store) {
  const arcs = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
  const stage = element("div", { class: "stage" }, arcs);
  const search = new Search(recording, store, (token) => nodeOf(token)?.scrollIntoView({ block: "nearest" }));
  const scroller = element("div", { class: "scroller" }, stage);
  place.append(search.node, scroller);
  /** @typedef {{list: HTMLElement, tokens: HTMLElement[], current: number}} Laid */
  /** @type {Map<number, Laid>} */
  const texts = new Map(); // by sequence
  /** @type {Set<HTMLElement>} */
  let marked = new Set(); // tokens that look other than at rest
  const inColumns = () => stage.classList.contains("columns");
  const textOf = (/** @type {number} */ sequence) => /** @type {Laid} */ (texts.get(sequence));
  const nodeOf = (/** @type {import("#state/store.js").Token} */ { sequence, index }) =>
    texts.get(sequence)?.tokens[index];
  let width = 0; // for which the texts were last arranged
  let _asked = 0;

  /** Lay out the texts of a layer: the keys before the queries, or one text where they are the same. */
  const lay = (layer) => {
    const sequences = [...new Set([layer.keySequence, layer.querySequence])];
    texts.clear();
    marked = new Set();
    stage.classList.toggle("one", sequences.length === 1);
    stage.replaceChildren(arcs);
    for (const sequence of sequences) {
      const { role, tokens } = recording.sequences[sequence];
      const options = tokens.map(option);
      const list = element("div", {
        role: "listbox",
        class: "tokens",
        "aria-multiselectable": "true",
        "aria-label": ROLES[role] ?? role,
      });
      for (const [index, node] of options.entries()) list.append(spaceBefore(tokens, index) ? " " : "", node);
      stage.append(
        element(
          "div",
          { class: "line" },
          element("p", { class: "role", "aria-hidden": "true" }, ROLES[role] ?? role),
          list,
        ),
      );
      texts.set(sequence, { list, tokens: options, current: 0 });
      options[0].tabIndex = 0;
      listen(list, sequence, options);
    }
    width = 0;
  };

  /** Let the texts run as lines if they need few of them, else stand as columns; long ones run on and scroll. */
  const arrange = () => {
    if (place.clientWidth === width) return;
    stage.classList.remove("columns", "wrapped", "long");
    const longest = Math.max(...[...texts.values()].map(({ tokens }) => tokens.length));
    const lines =
      longest > MOST_IN_COLUMN
        ? Infinity
        : Math.max(...[...texts.values()].map(({ tokens }) => new Set(tokens.map((node) => node.offsetTop)).size));
    stage.classList.toggle("long", longest > MOST_IN_COLUMN);
    stage.classList.toggle("columns", lines > MOST_LINES && longest <= MOST_IN_COLUMN);
    stage.classList.toggle("wrapped", lines > 1 && lines <= MOST_LINES);
    for (const { list } of texts.values())
      list.setAttribute("aria-orientation", inColumns() ? "vertical" : "horizontal");
    width = place.clientWidth;
  };

  const listen = (list, sequence, options) => {
    const point = (index) => store.set({ hover: { token: { sequence, index } } });
    const placeOf = (event) => Number(event.target.dataset?.index ?? -1);
    list.addEventListener("pointerover", (event) => placeOf(event) >= 0 && point(placeOf(event)));
    list.addEventListener("pointerleave", () => store.set({ hover: null }));
    list.addEventListener("focusin", (event) => {
      const text = textOf(sequence);
      options[text.current].tabIndex = -1;
      text.current = placeOf(event);
      options[text.current].tabIndex = 0;
      point(text.current);
    });
    list.addEventListener("focusout", () => store.set({ hover: null }));
    list.addEventListener("click", (event) => {
      const index = placeOf(event);
      if (index < 0) return;
      if (event.shiftKey) store.set({ tokens: between(store.get().tokens.at(-1), { sequence, index }) });
      else hold(store, { sequence, index }, event.ctrlKey || event.metaKey);
    });
    list.addEventListener(
      "dblclick",
      (event) =>
        placeOf(event) >= 0 &&
        store.set({ tokens: wordAround(recording.sequences[sequence].tokens, { sequence, index: placeOf(event) }) }),
    );
    list.addEventListener("keydown", (event) => press(event, sequence, placeOf(event)));
  };

  const press = (event, sequence, index) => {
    const { tokens } = textOf(sequence);
    const other = [...texts].find(([candidate]) => candidate !== sequence)?.[1];
    const go = (node) => node?.focus();
    const step = (to) => {
      const next = Math.min(Math.max(to, 0), tokens.length - 1);
      if (event.shiftKey)
        store.set({ tokens: between(store.get().tokens.at(-1) ?? { sequence, index }, { sequence, index: next }) });
      go(tokens[next]);
    };
    switch (inColumns() ? (ACROSS[event.key] ?? event.key) : event.key) {
      case "ArrowLeft":
        step(index - 1);
        break;
      case "ArrowRight":
        step(index + 1);
        break;
      case "ArrowUp":
      case "ArrowDown":
        go(other?.tokens[other.current]);
        break;
      case "Home":
        go(tokens[0]);
        break;
      case "End":
        go(tokens[tokens.length - 1]);
        break;
      case "Enter":
      case " ":
        hold(store, { sequence, index }, event.ctrlKey || event.metaKey);
        break;
      case "w":
        store.set({ tokens: wordAround(recording.sequences[sequence].tokens, { sequence, index }) });
        break;
      case "Escape":
        store.set({ tokens: [] });
        break;
      default:
        return;
    }
    event.preventDefault();
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("text")) return;
    const layer = recording.layers[state.layer];
    const head = headOf(layer, state);
    const [queries, keys] = [textOf(layer.querySequence).tokens, textOf(layer.keySequence).tokens];
    arrange();
    for (const node of marked) unmark(node);
    marked = new Set();
    const mark = (node, ...names) => {
      node.classList.add(...names);
      marked.add(node);
    };
    for (const token of state.tokens) {
      const node = nodeOf(token);
      if (!node) continue;
      node.setAttribute("aria-selected", "true");
      marked.add(node);
    }
    for (const token of search.found) if (nodeOf(token)) mark(nodeOf(token), "found");
    if (scroller.scrollHeight > scroller.clientHeight) reveal(state.tokens);
    if (!head) return arcs.replaceChildren();
    const focus = focusIn(layer, state);
    for (const query of focus.queries) mark(queries[query], focus.cell ? "as-query" : "at");
    for (const key of focus.keys) mark(keys[key], focus.cell ? "as-key" : "at");
    const found = linksOf(layer, head, state, focus);
    const most = (some) => some[0]?.weight ?? 0;
    const tint = (node, name, place) => {
      node.style.setProperty(name, place.toFixed(3));
      marked.add(node);
    };
    for (const { key, weight } of found.out)
      tint(keys[key], "--attended", position(weight, state.scale, most(found.out)));
    for (const { query, weight } of found.in)
      tint(queries[query], "--attending", position(weight, state.scale, most(found.in)));
    drawArcs(
      arcs,
      { rest: found.rest, out: found.out.slice(0, MOST_ARCS), in: found.in.slice(0, MOST_ARCS) },
      queries,
      keys,
      focus,
      inColumns(),
    );
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  /** @type {import("#state/store.js").Token | null} */
  let revealed = null;
  /** Scroll to what is held, if it was not chosen here. */
  const reveal = (/** @type {import("#state/store.js").Token[]} */ [token]) => {
    if (token && revealed !== token && !(stage.contains(document.activeElement) || stage.matches(":hover")))
      nodeOf(token)?.scrollIntoView({ block: "nearest" });
    revealed = token;
  };

  store.subscribe((state, before) => {
    const [layer, old] = [recording.layers[state.layer], recording.layers[before.layer]];
    if (state.views.includes("text")) {
      if (!layer.ready) layer.load().then(() => store.set({}));
      if (texts.size === 0 || layer.keySequence !== old.keySequence || layer.querySequence !== old.querySequence)
        lay(layer);
    }
    soon();
  });
  new ResizeObserver(soon).observe(place);
}

/** All tokens from one to another of the same text. */
function between(from, to) {
  if (!from || from.sequence !== to.sequence) return [to];
  const step = from.index <= to.index ? 1 : -1;
  return Array.from({ length: Math.abs(to.index - from.index) + 1 }, (_, place) => ({
    sequence: to.sequence,
    index: from.index + place * step,
  }));
}

/** The tokens of the word that a token is a piece of. */
function wordAround(tokens, { sequence, index }) {
  let [first, last] = [index, index];
  while (first > 0 && !spaceBefore(tokens, first)) first--;
  while (last + 1 < tokens.length && !spaceBefore(tokens, last + 1)) last++;
  return between({ sequence, index: first }, { sequence, index: last });
}

function spaceBefore(tokens, index) {
  return index > 0 && (beginsWord(tokens[index]) || isSpecial(tokens[index]) || isSpecial(tokens[index - 1]));
}

function option(token, index) {
  const text = shown(token);
  /** @type {Record<string, string>} */
  const title = text.endsWith("…") ? { title: readable(token.slice(0, LONGEST_TITLE)) } : {};
  return element(
    "span",
    {
      role: "option",
      class: isSpecial(token) ? "token special" : "token",
      dir: "auto",
      "data-index": index,
      "aria-selected": "false",
      tabindex: "-1",
      ...title,
    },
    text,
  );
}

function unmark(node) {
  node.setAttribute("aria-selected", "false");
  node.classList.remove("at", "as-query", "as-key", "found");
  node.style.removeProperty("--attended");
  node.style.removeProperty("--attending");
}

/** The links that are drawn: what the chosen attend to (out), what attends to them (in), or the head's strongest (rest). */
function linksOf(layer, head, state, focus) {
  if (!focus.queries.length && !focus.keys.length) {
    if (layer.queries.length > MOST_AT_REST) return { rest: [], out: [], in: [] };
    const strong = layer.queries.flatMap((_, query) =>
      links(layer, head.row(query), state).filter(({ weight }) => weight >= AT_REST),
    );
    return { rest: strongest(strong, 3 * layer.queries.length), out: [], in: [] };
  }
  const { cell } = focus;
  return {
    rest: [],
    out: focus.queries.length ? links(layer, head.rows(focus.queries), state) : [],
    in: focus.keys.length && !cell ? links(layer, head.columnsOf(focus.keys), state) : [],
  };
}

/** Finds tokens by what they say. */
class Search {
  /** @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store @param {(token: import("#state/store.js").Token) => void} reveal */
  constructor(recording, store, reveal) {
    /** @type {import("#state/store.js").Token[][]} */
    this.runs = [];
    /** @type {import("#state/store.js").Token[]} */
    this.found = [];
    const input = element("input", {
      type: "search",
      id: "search",
      placeholder: "Find in the text",
      autocomplete: "off",
      spellcheck: "false",
    });
    const count = element("output", { class: "hint", for: "search" });
    this.node = element(
      "div",
      { class: "controls" },
      element("label", { class: "field", for: "search" }, "Find ", input),
      count,
    );
    let name = "";
    input.addEventListener("input", () => store.set({ search: input.value }));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") store.set({ search: "" });
      if (event.key !== "Enter" || !this.runs.length) return;
      event.preventDefault();
      const held = store.get().tokens[0];
      const at = this.runs.findIndex(([{ sequence, index }]) => held?.sequence === sequence && held.index === index);
      const next = this.runs[(at + (event.shiftKey ? -1 : 1) + this.runs.length) % this.runs.length];
      store.set({ tokens: next });
      reveal(next[0]);
    });
    store.subscribe(({ search, layer }) => {
      const wanted = `${layer} ${search}`;
      if (wanted === name) return;
      name = wanted;
      if (input.value !== search) input.value = search;
      const { querySequence, keySequence } = recording.layers[layer];
      this.runs = [...new Set([keySequence, querySequence])].flatMap((sequence) =>
        matches(recording.sequences[sequence].tokens, search).map((run) => run.map((index) => ({ sequence, index }))),
      );
      this.found = this.runs.flat();
      count.textContent =
        search === "" ? "" : `${this.runs.length} found${this.runs.length ? ": Enter goes from one to the next" : ""}`;
    });
  }
}
