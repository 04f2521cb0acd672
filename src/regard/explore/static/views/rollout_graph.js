// Rollout as a layered graph: from a token after the last layer down to the input, the tokens it consists of and the paths between.

import { edgesBetween, nodesToDraw, Rollout, stackOf } from "#data/rollout.js";
import { RolloutMatrix } from "#data/rollout_matrix.js";
import { toggleSelection } from "#state/store.js";
import { element, svgElement } from "#ui/elements.js";
import { addsToSelection, setTabStop } from "#ui/listbox.js";
import { RolloutLayout } from "#views/rollout_layout.js";
import {
  contributions,
  describeNode,
  describeRoots,
  formatFlow,
  labelOf,
  namesOf,
  notDrawn,
  toTable,
} from "#views/rollout_text.js";

/**
 * @import { Layer } from '#data/layer.js'
 * @import { LayerStack } from '#data/rollout.js'
 * @import { State, Token } from '#state/store.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @import { NodePosition } from '#views/rollout_layout.js'
 * @typedef {NodePosition & {mark: SVGElement}} GraphNode
 * @typedef {{stack: LayerStack, rollout: Rollout, roots: number[], names: string[], nodes: number[][], unit: string}} Graph
 *   `names` of all nodes; `nodes` of each depth are those that are drawn; `unit` is what a node is: token or patch.
 * @typedef {Graph & {key: string, layout: RolloutLayout, marks: GraphNode[]}} Drawing
 */

const NODES_PER_LAYER = 8;
const EDGES = { perLayer: 8, minFlow: 0.004 }; // that are drawn
const MIN_PATH_SHARE = 0.02; // of the flow through a node, on an edge of its paths
const FONT_SIZE = 16; // CSS pixels for which the layout is computed

/** @type {ViewDefinition} */
export default {
  name: "graph",
  title: "Graph",
  help: "Attention rollout: a token after the last layer, and layer by layer below it the tokens that contribute to it, down to the input: as in drawings of Transformers, and other than in the small maps, the last layer is above. Each layer is assumed to take half from the token itself and half from what it attends to, averaged over the heads. An edge is as wide as the flow from one token to the next. Point at a node to see the paths through it; click it to start from its token. The numbers say where information could have come from, not what the model did with it.",
  unit: "token",
  isAvailable: (recording) => stackOf(recording, 0) !== null,
  mount: (place, view) => new GraphView(place, view),
};

class GraphView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.place = place;
    this.view = view;
    this.summary = element("p", { class: "graph-summary" });
    this.status = element("p", { class: "graph-status" });
    this.svg = svgElement("svg", { class: "layers", role: "group" });
    this.paths = svgElement("g", { class: "paths" });
    this.parts = svgElement("g", { class: "parts" });
    this.frame = element("div", { class: "graph-frame" }, this.svg);
    this.list = element("div", { class: "shares" });
    place.append(this.summary, this.status, this.frame, this.list);
    /** @type {Map<Layer, RolloutMatrix>} */
    this.matrices = new Map();
    /** @type {Drawing | null} */
    this.drawing = null;
    /** @type {(NodePosition & {hover: State["hover"]}) | null} */
    this.pointed = null; // the node that is pointed at in this view: a token has one at each depth
    this.isDrawing = false;
    this.listen();
  }

  get stack() {
    const { recording, state } = this.view;
    return /** @type {LayerStack} */ (stackOf(recording, state.layer));
  }

  layers() {
    return this.stack.layers;
  }

  paint() {
    const { view, stack } = this;
    const next = stack.layers.findIndex((layer) => !this.matrices.has(layer));
    if (next >= 0) return this.addMatrix(stack, next);
    const roots = rootsOf(view, stack);
    const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / FONT_SIZE;
    const key = [stack.layers[0].name, roots.join(), this.place.clientWidth, scale].join(" ");
    const isFocused = this.svg.contains(document.activeElement);
    const isNew = this.drawing?.key !== key;
    const drawing = this.drawing && !isNew ? this.drawing : this.draw(key, stack, roots, scale);
    this.drawing = drawing;
    this.highlight(drawing);
    if (isNew && isFocused) rootMark(drawing).focus({ preventScroll: true });
  }

  /** Compute the matrix of a layer, one in each frame, so that the page responds in between. @param {LayerStack} stack @param {number} index */
  addMatrix({ layers }, index) {
    const layer = layers[index];
    this.drawing = null;
    this.svg.replaceChildren();
    this.list.replaceChildren();
    this.status.replaceChildren();
    this.summary.replaceChildren(`Loading layer ${index + 1} of ${layers.length} …`);
    if (!layer.head(layer.headIndices.map((_, head) => head))) return; // it is painted again when the layer is loaded
    this.matrices.set(layer, new RolloutMatrix(layer));
    this.view.schedulePaint();
  }

  /** @param {string} key @param {LayerStack} stack @param {number[]} roots @param {number} scale @returns {Drawing} */
  draw(key, stack, roots, scale) {
    const room = Math.floor(this.place.clientWidth / scale) - 4;
    const matrices = stack.layers.map((layer) => /** @type {RolloutMatrix} */ (this.matrices.get(layer)));
    const rollout = new Rollout(matrices, roots);
    const nodes = nodesToDraw(rollout, NODES_PER_LAYER, RolloutLayout.maxColumns(room));
    const { names, unit } = namesOf(this.view.recording.sequences[stack.sequence], stack);
    const layout = new RolloutLayout({ nodes, names, layers: stack.layers.map(({ name }) => name), room });
    const { width, height } = layout.fit;
    const graph = { stack, rollout, roots, names, nodes, unit };
    const positions = nodes.flatMap((some, depth) => some.toSorted((a, b) => a - b).map((node) => ({ depth, node })));
    const marks = positions.map((position) => ({ ...position, mark: nodeMark(position, graph, layout) }));
    const drawing = { ...graph, key, layout, marks };
    this.isDrawing = true; // replacing what has the focus takes the focus from it
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("width", String(scale * width));
    this.svg.setAttribute("height", String(scale * height));
    this.svg.setAttribute("aria-label", labelOf(graph));
    this.svg.replaceChildren(
      layout.axes((depth) => notDrawn(graph, depth)),
      svgElement("g", { class: "edges" }, ...edgesAtRest(graph).map((edge) => layout.edge(edge))),
      this.paths,
      svgElement("g", {}, ...marks.map(({ mark }) => mark)),
      this.parts,
    );
    this.isDrawing = false;
    moveTabStop(drawing, rootMark(drawing));
    this.list.replaceChildren(...contributions(graph));
    return drawing;
  }

  /** Draw the paths through the node that is pointed at over the others. @param {Drawing} drawing */
  highlight(drawing) {
    const { layout, rollout, marks } = drawing;
    const pointed = this.pointedNode(drawing);
    this.svg.classList.toggle("pointed", pointed !== null);
    for (const { mark, depth, node } of marks) {
      mark.classList.toggle("focused", pointed?.depth === depth && pointed.node === node);
    }
    for (const mark of this.svg.querySelectorAll(".node-name, .guide")) {
      mark.classList.toggle("focused", Number(mark.getAttribute("data-node")) === pointed?.node);
    }
    this.paths.replaceChildren();
    this.parts.replaceChildren();
    this.summary.replaceChildren(...describeRoots(drawing, this.view.state.hide.length > 0));
    if (!pointed) return this.status.replaceChildren("Point at a node to see the paths through it.");
    this.status.replaceChildren(...describeNode(drawing, pointed, layout.depthName(pointed.depth)));
    const share = rollout.flow[pointed.depth][pointed.node];
    if (share === 0) return;
    const { flow, edge } = rollout.through(pointed.depth, pointed.node);
    const paths = edgesBetween(drawing.nodes, { ...EDGES, minFlow: MIN_PATH_SHARE * share }, edge);
    this.paths.append(...paths.map((each) => layout.edge(each)));
    this.parts.append(...marks.map((each) => layout.circle(each, flow[each.depth][each.node], "share")));
  }

  /** The node that is pointed at: here, or in another view, where a row is a token after the layer. @param {Drawing} drawing @returns {NodePosition | null} */
  pointedNode({ stack }) {
    const { state, layer } = this.view;
    const { hover } = state;
    if (!hover) return null;
    if (this.pointed?.hover === hover) return this.pointed;
    const nodeOf = (/** @type {number} */ index) => Math.floor(index / stack.blockSize);
    if (hover.token) {
      return hover.token.sequence === stack.sequence ? { depth: 0, node: nodeOf(hover.token.index) } : null;
    }
    const index = stack.layers.indexOf(layer);
    return index < 0 || !hover.cell ? null : { depth: index + 1, node: nodeOf(hover.cell.query) };
  }

  /** On the frame: Tab would stop at an SVG element that listens for focus. */
  listen() {
    const { frame, view } = this;
    const leave = () => {
      if (!this.isDrawing && this.pointed && view.state.hover === this.pointed.hover) view.set({ hover: null });
    };
    /** @type {(event: Event, act: (node: GraphNode, drawing: Drawing) => void) => boolean} */
    const atNode = ({ target }, act) => {
      const { drawing } = this;
      const node = drawing?.marks.find(({ mark }) => mark.contains(/** @type {Node} */ (target)));
      if (drawing && node) act(node, drawing);
      return node !== undefined;
    };
    frame.addEventListener("pointerover", (event) => {
      if (!atNode(event, (node, drawing) => this.point(node, drawing))) leave();
    });
    frame.addEventListener("pointerleave", leave);
    frame.addEventListener("focusout", leave);
    frame.addEventListener("focusin", (event) =>
      atNode(event, (node, drawing) => {
        moveTabStop(drawing, node.mark);
        this.point(node, drawing);
      }),
    );
    frame.addEventListener("click", (event) => atNode(event, (node, drawing) => this.select(node, drawing, event)));
    frame.addEventListener("keydown", (event) =>
      atNode(event, (node, drawing) => this.press(node, drawing, event) && event.preventDefault()),
    );
  }

  /** @param {GraphNode} node @param {Drawing} drawing */
  point({ depth, node }, { stack }) {
    const hover = { token: tokenOf(stack, node, this.view.state) };
    this.pointed = { hover, depth, node };
    this.view.set({ hover });
  }

  /** @param {GraphNode} node @param {Drawing} drawing @param {MouseEvent | KeyboardEvent} event */
  select({ node }, { stack }, event) {
    toggleSelection(this.view.store, tokenOf(stack, node, this.view.state), addsToSelection(event));
  }

  /** @param {GraphNode} node @param {Drawing} drawing @param {KeyboardEvent} event @returns {boolean} whether the key means something */
  press(node, drawing, event) {
    const to = drawing.layout.neighbor(event.key, node, drawing.marks);
    if (to) to.mark.focus();
    else if (event.key === "Enter" || event.key === " ") this.select(node, drawing, event);
    else if (event.key === "Escape") this.view.set({ tokens: [] });
    else return false;
    return true;
  }

  table() {
    if (!this.drawing) return toTable();
    const tokens = this.view.recording.sequences[this.drawing.stack.sequence].tokens;
    return toTable(this.drawing, edgesAtRest(this.drawing), tokens);
  }
}

/** The nodes from which the rollout starts: those that are selected, or else one that says something. @param {View} view @param {LayerStack} stack */
function rootsOf({ recording, state }, stack) {
  const selected = state.tokens.filter(({ sequence }) => sequence === stack.sequence).map(({ index }) => index);
  const tokens = selected.length ? selected : [initialToken(recording, stack)];
  return [...new Set(tokens.map((index) => Math.floor(index / stack.blockSize)))];
}

/** The token of the page's opening, or the last one with a letter or digit. @param {import("#data/recording.js").Recording} recording @param {LayerStack} stack */
function initialToken({ opening, layers, sequences }, { sequence }) {
  if (layers[opening.layer].querySequence === sequence) return opening.query;
  const { display, isSpecial, length } = sequences[sequence];
  const last = display.findLastIndex((text, index) => !isSpecial[index] && /[\p{L}\p{N}]/u.test(text));
  return last < 0 ? length - 1 : last;
}

/** The token that represents a node: one that is selected in it, or else its first. @param {LayerStack} stack @param {number} node @param {State} state */
function tokenOf({ sequence, blockSize }, node, { tokens }) {
  const isInNode = (/** @type {Token} */ token) =>
    token.sequence === sequence && Math.floor(token.index / blockSize) === node;
  return tokens.find(isInNode) ?? { sequence, index: node * blockSize };
}

/** @param {NodePosition} position @param {Graph} graph @param {RolloutLayout} layout */
function nodeMark({ depth, node }, graph, layout) {
  const { rollout, roots, names } = graph;
  const flow = rollout.flow[depth][node];
  const label = `${names[node]}, ${layout.depthName(depth)}: ${formatFlow(rollout, depth, node)}`;
  const isRoot = depth === rollout.numLayers && roots.includes(node);
  return svgElement(
    "g",
    {
      class: "node",
      role: "button",
      "aria-label": label,
      "data-depth": depth,
      "data-node": node,
      "data-flow": flow,
      ...(isRoot && { "aria-pressed": "true" }),
    },
    layout.target({ depth, node }),
    layout.circle({ depth, node }, flow, "flow"),
  );
}

/** @param {Drawing} drawing */
function rootMark({ marks, rollout }) {
  return /** @type {GraphNode} */ (marks.find(({ depth }) => depth === rollout.numLayers)).mark;
}

/** @param {Drawing} drawing @param {SVGElement} mark */
function moveTabStop({ marks }, mark) {
  const nodes = marks.map((each) => each.mark);
  setTabStop(nodes, nodes.indexOf(mark));
}

/** The edges where nothing is pointed at. @param {Graph} graph */
function edgesAtRest(graph) {
  return edgesBetween(graph.nodes, EDGES, (...edge) => graph.rollout.edge(...edge));
}
