// Rollout as a layered graph: from a token of the last layer down to the input, the tokens it is made of and the paths between.

import { written } from "#data/recording.js";
import { drawnUnits, mixture, Rollout, stackOf } from "#data/rollout.js";
import { label } from "#data/tokens.js";
import { PAIR } from "#export/csv.js";
import { hold } from "#state/store.js";
import { element, rove, svgElement } from "#ui/elements.js";
import { Plan } from "#views/rollout_layout.js";

/**
 * @typedef {import("#data/rollout.js").Stack} Stack
 * @typedef {import("#data/rollout.js").Edge & {layer: number}} Edge
 * @typedef {{depth: number, unit: number, mark: SVGElement}} Node
 * @typedef {{name: string, stack: Stack, rollout: Rollout, starts: number[], names: string[], units: number[][], plan: Plan, nodes: Node[]}} Drawn
 */

const EACH = 8; // nodes of a layer
const EDGES = 8; // of a layer that are drawn, however faint
const FAINTEST = 0.004; // of the mass: an edge that is drawn beside them
const FAINTEST_PATH = 0.02; // of what passes through the node that is pointed at
const LISTED = 12; // shares of the input
const LETTERS = 16; // pixels of the page’s letters for which the plan is made
const NONE = 0.0005; // mass that rounds to nothing

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountGraph(place, recording, store) {
  const any = stackOf(recording, 0);
  if (!any) return false;
  const told = element("p", { class: "graph-told" });
  const svg = svgElement("svg", { class: "layers", role: "group" });
  const paths = svgElement("g", { class: "paths" });
  const parts = svgElement("g", { class: "parts" });
  const frame = element("div", { class: "graph-frame" }, svg);
  const shares = element("div", { class: "shares" });
  place.append(told, frame, shares);
  const ready = new Set(); // stacks by their first layer
  const begun = new Set();
  /** @type {Drawn | null} */
  let drawn = null;
  /** @type {{hover: import("#state/store.js").State["hover"], depth: number, unit: number} | null} */
  let own = null; // which node is pointed at here: a token has one at each depth
  let drawing = false;
  /** @type {SVGElement | null} */
  let refocused = null; // a node to which focus returns when the graph was drawn anew
  let _asked = 0;

  const show = (...parts) => told.replaceChildren(...parts);
  const prepare = async (stack) => {
    const [first] = stack.layers;
    if (begun.has(first)) return;
    begun.add(first);
    for (const [index, layer] of stack.layers.entries()) {
      show(`Reading layer ${index + 1} of ${stack.layers.length} …`);
      await layer.maps();
      mixture(layer);
      await new Promise((resume) => setTimeout(resume)); // the page answers in between
    }
    ready.add(first);
    store.set({});
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("graph") || place.clientWidth === 0) return;
    const stack = stackOf(recording, state.layer) ?? any;
    if (!ready.has(stack.layers[0])) {
      svg.replaceChildren();
      shares.replaceChildren();
      drawn = null;
      prepare(stack);
      return;
    }
    const starts = startsIn(stack, state);
    const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / LETTERS;
    const name = [stack.layers[0].name, starts.join(), place.clientWidth, scale].join(" ");
    if (drawn?.name !== name) drawn = draw(name, stack, starts, scale);
    highlight(drawn, state);
    refocused?.focus({ preventScroll: true });
    refocused = null;
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  const draw = (name, stack, starts, scale) => {
    drawing = true;
    const focused = svg.contains(document.activeElement);
    const rollout = new Rollout(stack, starts);
    const names = namesOf(recording, stack);
    const room = Math.floor(place.clientWidth / scale) - 4;
    const units = drawnUnits(rollout, EACH, Plan.most(room));
    const plan = new Plan(stack, units, names, room);
    const nodes = units.flatMap((at, depth) =>
      at.sort((a, b) => a - b).map((unit) => node({ depth, unit }, rollout, plan, names, starts)),
    );
    const made = { name, stack, rollout, starts, names, units, plan, nodes };
    svg.setAttribute("viewBox", `0 0 ${plan.width} ${plan.height}`);
    svg.setAttribute("width", `${scale * plan.width}`);
    svg.setAttribute("height", `${scale * plan.height}`);
    svg.setAttribute(
      "aria-label",
      `Rollout from ${starts.map((start) => names[start]).join(" and ")}: ${stack.layers.length} layers down to the input. Arrow keys move from node to node; Enter begins at a node’s token.`,
    );
    svg.replaceChildren(
      plan.axes((depth) => left(rollout, units, depth)),
      svgElement("g", { class: "edges" }, ...atRest(made).map((edge) => plan.edge(edge))),
      paths,
      svgElement("g", {}, ...nodes.map(({ mark }) => mark)),
      parts,
    );
    const first = nodes.findIndex(({ depth }) => depth === rollout.depth);
    rove(
      nodes.map(({ mark }) => mark),
      first,
    );
    shares.replaceChildren(...listed(made));
    drawing = false;
    refocused = focused ? nodes[first].mark : null;
    return made;
  };

  /** The paths through what is pointed at, over the others. */
  const highlight = (/** @type {Drawn} */ drawn, /** @type {import("#state/store.js").State} */ state) => {
    const pointed = pointedIn(drawn, state);
    svg.classList.toggle("pointed", pointed !== null);
    for (const { mark, depth, unit } of drawn.nodes)
      mark.classList.toggle("at", pointed?.depth === depth && pointed.unit === unit);
    for (const mark of svg.querySelectorAll(".unit"))
      mark.classList.toggle("at", Number(mark.getAttribute("data-unit")) === pointed?.unit);
    if (!pointed) {
      paths.replaceChildren();
      parts.replaceChildren();
      return show(...summary(drawn));
    }
    const { masses, edge } = drawn.rollout.through(pointed.depth, pointed.unit);
    const share = drawn.rollout.mass[pointed.depth][pointed.unit];
    paths.replaceChildren(
      ...(share > 0 ? edges(drawn, FAINTEST_PATH * share, edge).map((each) => drawn.plan.edge(each)) : []),
    );
    parts.replaceChildren(
      ...drawn.nodes.map(({ depth, unit }) => drawn.plan.circle({ depth, unit }, masses[depth][unit], "share")),
    );
    show(
      element("b", { dir: "auto" }, drawn.names[pointed.unit]),
      ` ${drawn.plan.depthName(pointed.depth)}: `,
      element("span", { class: "value" }, shareOf(share)),
      share > 0 ? " of the whole passes here" : ", no path passes here",
    );
  };

  const pointedIn = (
    /** @type {Drawn} */ { stack },
    /** @type {import("#state/store.js").State} */ { hover, layer },
  ) => {
    if (!hover) return null;
    if (own?.hover === hover) return own;
    const unitOf = (index) => Math.floor(index / stack.size);
    if (hover.token)
      return hover.token.sequence === stack.sequence ? { depth: 0, unit: unitOf(hover.token.index) } : null;
    const at = stack.layers.indexOf(recording.layers[layer]);
    return at < 0 || !hover.cell ? null : { depth: at + 1, unit: unitOf(hover.cell.query) };
  };

  const nodeAt = (event) => drawn?.nodes.find(({ mark }) => mark.contains(event.target));
  const tokenOf = (/** @type {Stack} */ stack, { unit }) => tokenIn(stack, unit, store.get());
  const point = (stack, found) => {
    const hover = { token: tokenOf(stack, found) };
    own = { hover, depth: found.depth, unit: found.unit };
    store.set({ hover });
  };
  const leave = () => !drawing && own && store.get().hover === own.hover && store.set({ hover: null });
  // On the frame: an SVG element that listens for focus would be a place that Tab stops at.
  frame.addEventListener("pointerover", (event) => {
    const found = nodeAt(event);
    if (drawn && found) point(drawn.stack, found);
    else leave();
  });
  frame.addEventListener("pointerleave", leave);
  frame.addEventListener("focusin", (event) => {
    const found = nodeAt(event);
    if (!drawn || !found) return;
    rove(
      drawn.nodes.map(({ mark }) => mark),
      drawn.nodes.indexOf(found),
    );
    point(drawn.stack, found);
  });
  frame.addEventListener("focusout", leave);
  frame.addEventListener("click", (event) => {
    const found = nodeAt(event);
    if (drawn && found) hold(store, tokenOf(drawn.stack, found), event.ctrlKey || event.metaKey);
  });
  frame.addEventListener("keydown", (event) => {
    const found = nodeAt(event);
    if (!drawn || !found) return;
    const next = drawn.plan.stepped(event.key, found, drawn.nodes);
    if (next) next.mark.focus();
    else if (event.key === "Enter" || event.key === " ")
      hold(store, tokenOf(drawn.stack, found), event.ctrlKey || event.metaKey);
    else if (event.key === "Escape") store.set({ tokens: [] });
    else return;
    event.preventDefault();
  });

  store.subscribe((state) => {
    const layer = recording.layers[state.layer];
    if (state.views.includes("graph") && !layer.ready) layer.load().then(() => store.set({})); // which may be none of the graph's
    soon();
  });
  new ResizeObserver(soon).observe(place);
  return () => ({
    columns: ["layer", ...PAIR, "share"],
    rows: drawn ? rowsOf(drawn, recording.sequences[drawn.stack.sequence].tokens) : [],
  });
}

/** Where the rollout begins: at what is held in its text, else at the last token. */
function startsIn(stack, { tokens }) {
  const held = tokens
    .filter(({ sequence }) => sequence === stack.sequence)
    .map(({ index }) => Math.floor(index / stack.size));
  return held.length ? [...new Set(held)] : [stack.units - 1];
}

/** The token that stands for a unit: one that is held in it, else its first. */
function tokenIn({ sequence, size }, unit, { tokens }) {
  const held = tokens.find((token) => token.sequence === sequence && Math.floor(token.index / size) === unit);
  return held ?? { sequence, index: unit * size };
}

/** What units are called: their token; or the place of a block's first token, and the token. */
function namesOf(recording, { sequence, size, units }) {
  const { tokens } = recording.sequences[sequence];
  return Array.from({ length: units }, (_, unit) =>
    size === 1 ? label(tokens[unit]) : `${unit * size}: ${label(tokens[unit * size])} …`,
  );
}

/** The mass at a depth that none of its nodes has. */
function left({ mass }, units, depth) {
  return Math.max(0, 1 - units[depth].reduce((sum, unit) => sum + mass[depth][unit], 0));
}

/** A share as it is written; where no path is, there is nothing. @param {number} mass */
function shareOf(mass) {
  return mass === 0 ? "0" : written(mass);
}

function node({ depth, unit }, rollout, plan, names, starts) {
  const mass = rollout.mass[depth][unit];
  const name = `${names[unit]}, ${plan.depthName(depth)}: ${shareOf(mass)}`;
  const mark = svgElement(
    "g",
    { class: "node", role: "button", "aria-label": name, "data-depth": depth, "data-unit": unit, "data-mass": mass },
    plan.target({ depth, unit }),
    plan.circle({ depth, unit }, mass, "mass"),
  );
  if (depth === rollout.depth && starts.includes(unit)) mark.setAttribute("aria-pressed", "true");
  return { depth, unit, mark };
}

/** The edges that are drawn where nothing is pointed at. @param {Drawn} drawn */
function atRest(drawn) {
  return edges(drawn, FAINTEST, (...edge) => drawn.rollout.edge(...edge));
}

/** These edges, and the shares of the input. @param {Drawn} drawn @param {string[]} tokens @returns {import("#export/csv.js").Table["rows"]} */
function rowsOf(drawn, tokens) {
  const {
    stack: { layers, size },
    rollout,
    starts,
  } = drawn;
  const name = (unit) => tokens[unit * size] + (size > 1 ? " …" : "");
  const place = (unit) => [unit * size, name(unit)];
  const begin = starts.length > 1 ? [null, starts.map(name).join(" ")] : place(starts[0]);
  const given = [...rollout.mass[0].keys()].filter((unit) => rollout.mass[0][unit] > 0);
  return [
    ...atRest(drawn).map(({ layer, from, to, mass }) => [layers[layer].name, ...place(from), ...place(to), mass]),
    ...given.map((unit) => ["all", ...begin, ...place(unit), rollout.mass[0][unit]]),
  ];
}

/** The edges between nodes, of each layer the strongest, and all that have `least`. @param {Drawn} drawn @param {number} least @param {(layer: number, from: number, to: number) => number} mass @returns {Edge[]} */
function edges({ rollout, units }, least, mass) {
  const found = [];
  for (let layer = rollout.depth - 1; layer >= 0; layer--) {
    const all = units[layer + 1].flatMap((from) =>
      units[layer].map((to) => ({ layer, from, to, mass: mass(layer, from, to) })),
    );
    all.sort((a, b) => b.mass - a.mass);
    found.push(...all.filter(({ mass: passing }, rank) => passing > 0 && (passing >= least || rank < EDGES)));
  }
  return found;
}

/** What is seen, in words. @param {Drawn} drawn */
function summary({ stack, starts, names }) {
  const several = starts.length > 1 ? ", on the mean" : "";
  const begin =
    starts
      .slice(0, 4)
      .map((start) => names[start])
      .join(" ") + (starts.length > 4 ? " …" : "");
  const text = ` after ${stack.layers.length} layer${stack.layers.length > 1 ? "s" : ""}${several}: where its parts come from.`;
  const blocks =
    stack.size > 1
      ? ` The text is long: each node is a block of ${stack.size} tokens, named by its first, and mass is taken to be spread evenly within it.`
      : "";
  return [element("b", { dir: "auto" }, begin), text + blocks];
}

/** The shares of the input, largest first. @param {Drawn} drawn */
function listed({ stack, rollout, starts, names }) {
  const largest = rollout.strongest(0, LISTED);
  const entries = largest.map((unit) => {
    const bar = element("span", { class: "bar out", "aria-hidden": "true" });
    bar.style.setProperty("--weight", String(rollout.mass[0][unit]));
    return element(
      "li",
      {},
      element("span", { class: "name", dir: "auto" }, names[unit]),
      bar,
      element("span", { class: "value" }, shareOf(rollout.mass[0][unit])),
    );
  });
  const rest = Math.max(0, 1 - largest.reduce((sum, unit) => sum + rollout.mass[0][unit], 0));
  const title = [
    "Shares of the input in ",
    element(
      "b",
      { dir: "auto" },
      starts
        .slice(0, 4)
        .map((start) => names[start])
        .join(" "),
    ),
    ` after ${stack.layers.length} layers`,
  ];
  const hint =
    rest >= NONE ? [element("p", { class: "hint" }, `${written(rest)} of ${stack.units - largest.length} others`)] : [];
  return [element("h4", {}, ...title), element("ol", {}, ...entries), ...hint];
}
