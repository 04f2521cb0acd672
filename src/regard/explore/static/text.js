// The text itself: a token that is pointed at shows what it attends to and what attends to it, as arcs and as tint.

import { bow, link, thickness } from "#arcs.js";
import { position } from "#colour.js";
import { strongest } from "#data.js";
import { element, rove, svgElement } from "#elements.js";
import { focusIn } from "#state.js";
import { beginsWord, isSpecial, shown } from "#tokens.js";

const FAINTEST = 0.01; // an arc below this weight is not drawn
const AT_REST = 0.1; // and, where nothing is chosen, below this one

const ROLES = {
  source: "Source",
  written: "Written, token by token",
  read: "Read so far",
};

export function mountText(place, recording, store) {
  const arcs = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
  const stage = element("div", { class: "stage" }, arcs);
  place.append(stage);
  const lines = new Map(); // sequence → its line: {tokens: HTMLElement[], current: number}

  /** Lay out the texts of a layer: the keys above the queries, or one text where they are the same. */
  const lay = (layer) => {
    const sequences = [...new Set([layer.keySequence, layer.querySequence])];
    const focused = [...lines].flatMap(([sequence, { tokens }]) => (tokens.includes(document.activeElement) ? [sequence] : []))[0];
    lines.clear();
    stage.classList.toggle("one", sequences.length === 1);
    stage.replaceChildren(arcs);
    for (const sequence of sequences) {
      const { role, tokens } = recording.sequences[sequence];
      const options = tokens.map(option);
      const list = element("div", { role: "listbox", class: "tokens", "aria-orientation": "horizontal", "aria-label": ROLES[role] });
      options.forEach((node, index) => list.append(spaceBefore(tokens, index) ? " " : "", node));
      stage.append(element("div", { class: "line" }, element("p", { class: "role", "aria-hidden": "true" }, ROLES[role]), list));
      lines.set(sequence, { tokens: options, current: 0 });
      listen(list, sequence, options);
    }
    const again = lines.get(focused);
    if (again) again.tokens[0].focus();
  };

  const listen = (list, sequence, options) => {
    const point = (index) => store.set({ hover: { token: { sequence, index } } });
    const placeOf = (event) => options.indexOf(event.target);
    list.addEventListener("pointerover", (event) => placeOf(event) >= 0 && point(placeOf(event)));
    list.addEventListener("pointerleave", () => store.set({ hover: null }));
    list.addEventListener("focusin", (event) => {
      lines.get(sequence).current = placeOf(event);
      rove(options, placeOf(event));
      point(placeOf(event));
    });
    list.addEventListener("focusout", () => store.set({ hover: null }));
    list.addEventListener("click", (event) => placeOf(event) >= 0 && hold(store, { sequence, index: placeOf(event) }));
    list.addEventListener("keydown", (event) => {
      const to = key(event, sequence, placeOf(event));
      if (to) event.preventDefault();
      to?.focus?.();
    });
    rove(options, 0);
  };

  /** What a key does at a token: the token to go to, or true where it does something else. */
  const key = ({ key: name }, sequence, index) => {
    const { tokens } = lines.get(sequence);
    const other = [...lines].find(([candidate]) => candidate !== sequence)?.[1];
    switch (name) {
      case "ArrowLeft": return tokens[Math.max(index - 1, 0)];
      case "ArrowRight": return tokens[Math.min(index + 1, tokens.length - 1)];
      case "Home": return tokens[0];
      case "End": return tokens[tokens.length - 1];
      case "ArrowUp": case "ArrowDown": return other?.tokens[other.current];
      case "Enter": case " ": hold(store, { sequence, index }); return true;
      case "Escape": store.set({ token: null }); return true;
      default: return null;
    }
  };

  const paint = (state) => {
    const layer = recording.layers[state.layer];
    const focus = focusIn(layer, state);
    const links = linksOf(layer, state.head, focus);
    tint(lines, layer, state, focus, links);
    drawArcs(arcs, stage, lines, layer, focus, links);
  };

  store.subscribe((state, before) => {
    const layer = recording.layers[state.layer];
    const old = recording.layers[before.layer];
    if (lines.size === 0 || layer.keySequence !== old.keySequence || layer.querySequence !== old.querySequence) lay(layer);
    paint(state);
  });
  new ResizeObserver(() => paint(store.get())).observe(stage);
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
  return element("span", { role: "option", class: isSpecial(token) ? "token special" : "token", dir: "auto", title: token.length > 32 ? token.slice(0, 400) : "" }, shown(token));
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

function tint(lines, layer, state, { query, key, cell }, links) {
  for (const [sequence, { tokens }] of lines) {
    tokens.forEach((node, index) => {
      const held = state.token?.sequence === sequence && state.token.index === index;
      node.setAttribute("aria-selected", String(held));
      node.classList.toggle("as-query", sequence === layer.querySequence && index === query);
      node.classList.toggle("as-key", cell && sequence === layer.keySequence && index === key);
      node.classList.toggle("at", !cell && ((sequence === layer.querySequence && index === query) || (sequence === layer.keySequence && index === key)));
      node.style.setProperty("--attended", "0");
      node.style.setProperty("--attending", "0");
    });
  }
  for (const { key: to, weight } of links.out) lines.get(layer.keySequence).tokens[to].style.setProperty("--attended", String(position(weight)));
  for (const { query: from, weight } of links.in) lines.get(layer.querySequence).tokens[from].style.setProperty("--attending", String(position(weight)));
}

function drawArcs(arcs, stage, lines, layer, focus, links) {
  const frame = stage.getBoundingClientRect();
  const box = (rectangle) => ({
    left: rectangle.left - frame.left,
    right: rectangle.right - frame.left,
    top: rectangle.top - frame.top,
    bottom: rectangle.bottom - frame.top,
  });
  const queries = lines.get(layer.querySequence).tokens.map((node) => box(node.getBoundingClientRect()));
  const one = layer.keySequence === layer.querySequence;
  const keys = one ? queries : lines.get(layer.keySequence).tokens.map((node) => box(node.getBoundingClientRect()));
  arcs.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const paths = Object.entries(links).flatMap(([direction, some]) =>
    // The weakest first, so that the strongest lie on top.
    strongest(some).reverse().filter(({ weight, key }) => weight >= FAINTEST || (focus.cell && key === focus.key)).map(({ query, key, weight }) => {
      const chosen = focus.cell && key === focus.key ? " chosen" : "";
      const shape = one ? bow(queries[query], keys[key], direction === "in") : link(queries[query], keys[key]);
      return svgElement("path", {
        d: shape,
        class: `arc ${direction}${focus.cell && !chosen ? " beside" : ""}${chosen}`,
        "stroke-width": thickness(weight).toFixed(2),
        "stroke-opacity": (0.25 + 0.75 * position(weight)).toFixed(3),
        "data-query": query,
        "data-key": key,
      });
    }),
  );
  arcs.replaceChildren(...paths);
}
