// The text itself: a token that is pointed at shows what it attends to and what attends to it, as arcs and as tint.

import { drawArcs } from "#arcs.js";
import { position } from "#colour.js";
import { strongest } from "#data.js";
import { element, rove, svgElement } from "#elements.js";
import { focusIn } from "#state.js";
import { beginsWord, isSpecial, shown } from "#tokens.js";

const AT_REST = 0.1; // where nothing is chosen, an arc below this weight is not drawn
const MOST_LINES = 2; // a text that would take more stands as a column
const LONGEST_TITLE = 400; // characters of a token that was cut

const ROLES = {
  source: "Source",
  written: "Written, token by token",
  read: "Read so far",
};
const ACROSS = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowRight: "ArrowDown" };

export function mountText(place, recording, store) {
  const arcs = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
  const stage = element("div", { class: "stage" }, arcs);
  place.append(stage);
  const texts = new Map(); // sequence → {list, tokens, current}
  const inColumns = () => stage.classList.contains("columns");
  let width = 0; // for which the texts were last arranged

  /** Lay out the texts of a layer: the keys before the queries, or one text where they are the same. */
  const lay = (layer) => {
    const sequences = [...new Set([layer.keySequence, layer.querySequence])];
    texts.clear();
    stage.classList.toggle("one", sequences.length === 1);
    stage.replaceChildren(arcs);
    for (const sequence of sequences) {
      const { role, tokens } = recording.sequences[sequence];
      const options = tokens.map(option);
      const list = element("div", { role: "listbox", class: "tokens", "aria-label": ROLES[role] });
      options.forEach((node, index) => list.append(spaceBefore(tokens, index) ? " " : "", node));
      stage.append(element("div", { class: "line" }, element("p", { class: "role", "aria-hidden": "true" }, ROLES[role]), list));
      texts.set(sequence, { list, tokens: options, current: 0 });
      rove(options, 0);
      listen(list, sequence, options);
    }
    width = 0;
  };

  /** Let the texts run as lines if they need few of them, else stand as columns. */
  const arrange = () => {
    if (place.clientWidth === width) return;
    stage.classList.remove("columns", "wrapped");
    const lines = Math.max(...[...texts.values()].map(({ tokens }) => new Set(tokens.map((node) => node.offsetTop)).size));
    stage.classList.toggle("columns", lines > MOST_LINES);
    stage.classList.toggle("wrapped", lines > 1 && lines <= MOST_LINES);
    for (const { list } of texts.values()) list.setAttribute("aria-orientation", inColumns() ? "vertical" : "horizontal");
    width = place.clientWidth;
  };

  const listen = (list, sequence, options) => {
    const point = (index) => store.set({ hover: { token: { sequence, index } } });
    const placeOf = (event) => options.indexOf(event.target);
    list.addEventListener("pointerover", (event) => placeOf(event) >= 0 && point(placeOf(event)));
    list.addEventListener("pointerleave", () => store.set({ hover: null }));
    list.addEventListener("focusin", (event) => {
      texts.get(sequence).current = placeOf(event);
      rove(options, placeOf(event));
      point(placeOf(event));
    });
    list.addEventListener("focusout", () => store.set({ hover: null }));
    list.addEventListener("click", (event) => placeOf(event) >= 0 && hold(store, { sequence, index: placeOf(event) }));
    list.addEventListener("keydown", (event) => press(event, sequence, placeOf(event)));
  };

  const press = (event, sequence, index) => {
    const { tokens } = texts.get(sequence);
    const other = [...texts].find(([candidate]) => candidate !== sequence)?.[1];
    const go = (node) => node?.focus();
    switch (inColumns() ? (ACROSS[event.key] ?? event.key) : event.key) {
      case "ArrowLeft": go(tokens[Math.max(index - 1, 0)]); break;
      case "ArrowRight": go(tokens[Math.min(index + 1, tokens.length - 1)]); break;
      case "ArrowUp": case "ArrowDown": go(other?.tokens[other.current]); break;
      case "Home": go(tokens[0]); break;
      case "End": go(tokens[tokens.length - 1]); break;
      case "Enter": case " ": hold(store, { sequence, index }); break;
      case "Escape": store.set({ token: null }); break;
      default: return;
    }
    event.preventDefault();
  };

  const paint = () => {
    const state = store.get();
    const layer = recording.layers[state.layer];
    const focus = focusIn(layer, state);
    const links = linksOf(layer, state.head, focus);
    const [queries, keys] = [texts.get(layer.querySequence).tokens, texts.get(layer.keySequence).tokens];
    arrange();
    for (const [sequence, { tokens }] of texts) mark(tokens, sequence, layer, state, focus);
    for (const { key, weight } of links.out) keys[key].style.setProperty("--attended", String(position(weight)));
    for (const { query, weight } of links.in) queries[query].style.setProperty("--attending", String(position(weight)));
    drawArcs(arcs, links, queries, keys, focus, inColumns());
  };

  store.subscribe((state, before) => {
    const [layer, old] = [recording.layers[state.layer], recording.layers[before.layer]];
    if (texts.size === 0 || layer.keySequence !== old.keySequence || layer.querySequence !== old.querySequence) lay(layer);
    paint();
  });
  new ResizeObserver(paint).observe(place);
}

/** Hold a token, or let it go if it was held. */
function hold(store, token) {
  const held = store.get().token;
  const same = held !== null && held.sequence === token.sequence && held.index === token.index;
  store.set({ token: same ? null : token });
}

function spaceBefore(tokens, index) {
  return index > 0 && (beginsWord(tokens[index]) || isSpecial(tokens[index]) || isSpecial(tokens[index - 1]));
}

function option(token) {
  const text = shown(token);
  const title = text.endsWith("…") ? { title: token.slice(0, LONGEST_TITLE) } : {};
  return element("span", { role: "option", class: isSpecial(token) ? "token special" : "token", dir: "auto", ...title }, text);
}

/** The links that are drawn: what a token attends to (out), what attends to it (in), or the head's strongest (rest). */
function linksOf(layer, head, { query, key, cell }) {
  if (query === null && key === null) {
    const strong = layer.links(head).filter(({ weight }) => weight >= AT_REST);
    return { rest: strongest(strong, 3 * layer.queries.length), out: [], in: [] };
  }
  return {
    rest: [],
    out: query === null ? [] : layer.row(head, query),
    in: key === null || cell ? [] : layer.column(head, key),
  };
}

/** Mark which tokens are held and which are pointed at, and clear their tint. */
function mark(tokens, sequence, layer, state, { query, key, cell }) {
  tokens.forEach((node, index) => {
    const isQuery = sequence === layer.querySequence && index === query;
    const isKey = sequence === layer.keySequence && index === key;
    node.setAttribute("aria-selected", String(state.token?.sequence === sequence && state.token.index === index));
    node.classList.toggle("at", !cell && (isQuery || isKey));
    node.classList.toggle("as-query", cell && isQuery);
    node.classList.toggle("as-key", cell && isKey);
    node.style.setProperty("--attended", "0");
    node.style.setProperty("--attending", "0");
  });
}
