// What is written about a rollout: sentences, the list of contributions, and the table of a CSV file.

import { patchGrid, tokenName } from "#data/patches.js";
import { PAIR, WeightColumn } from "#export/csv.js";
import { bar, element, hint } from "#ui/elements.js";
import { formatWeight } from "#ui/format.js";

/**
 * @import { Edge, LayerStack, Rollout } from '#data/rollout.js'
 * @import { Table } from '#export/csv.js'
 * @import { Graph } from '#views/rollout_graph.js'
 * @import { NodePosition } from '#views/rollout_layout.js'
 */

const MAX_LISTED = 12; // contributions
const MAX_NAMED = 4; // roots
const MIN_REST = 0.0005; // a smaller one is rounding

/** What nodes are called, a block by its first token and its position; and what they are. @param {import("#data/sequence.js").Sequence} text @param {LayerStack} stack */
export function namesOf(text, { blockSize, numNodes }) {
  const names = Array.from({ length: numNodes }, (_, node) => {
    const first = node * blockSize;
    return blockSize === 1 ? tokenName(text, first) : `${first}: ${tokenName(text, first)} …`;
  });
  return { names, unit: patchGrid(text) ? "patch" : "token" };
}

/** @param {Graph} graph */
export function labelOf({ stack, roots, names }) {
  const from = roots.map((root) => names[root]).join(" and ");
  return `Rollout from ${from}: ${stack.layers.length} layers down to the input. Arrow keys move from node to node; Enter starts from a node’s token.`;
}

/** The flow through a node; 0 only where no path leads. @param {Rollout} rollout @param {number} depth @param {number} node */
export function formatFlow(rollout, depth, node) {
  const flow = rollout.flow[depth][node];
  return flow === 0 ? "0" : formatWeight(flow, rollout.errorOf(depth, [node]));
}

/** The flow at a depth that some nodes do not have. @param {Graph} graph @param {number} depth @param {number[]} nodes */
function rest({ rollout }, depth, nodes) {
  const sum = nodes.reduce((total, node) => total + rollout.flow[depth][node], 0);
  return { weight: Math.max(0, 1 - sum), error: rollout.errorOf(depth, nodes) };
}

/** @param {Graph} graph @param {number} depth */
export function notDrawn(graph, depth) {
  const { weight, error } = rest(graph, depth, graph.nodes[depth]);
  return weight < MIN_REST ? "all drawn" : `${formatWeight(weight, error)} not drawn`;
}

/** What the graph shows while the pointer is at no node. @param {Graph} graph @param {boolean} hidesKeys */
export function describeRoots(graph, hidesKeys) {
  const { stack, roots, unit } = graph;
  const average = roots.length > 1 ? ", averaged" : "";
  const sentences = [`${afterLayers(graph)}${average}: how much each input ${unit} contributes.`];
  if (stack.blockSize > 1) {
    sentences.push(
      `The text is long: each node is a block of ${stack.blockSize} ${plural(unit)}, named after its first, and the flow within a block is assumed to be uniform.`,
    );
  }
  if (hidesKeys) sentences.push("Rollout uses all weights, including those of hidden keys.");
  return [rootNames(graph), sentences.join(" ")];
}

/** @param {Graph} graph @param {NodePosition} position @param {string} depthName */
export function describeNode({ rollout, names }, { depth, node }, depthName) {
  const name = element("b", { dir: "auto" }, names[node]);
  if (rollout.flow[depth][node] === 0) return [name, ` ${depthName}: no path leads through it`];
  const value = element("span", { class: "value" }, formatFlow(rollout, depth, node));
  return [name, ` ${depthName}: `, value, " of the flow"];
}

/** The largest shares of the input. @param {Graph} graph */
export function contributions(graph) {
  const { stack, rollout, names, unit } = graph;
  const largest = rollout.strongest(0, MAX_LISTED);
  const items = largest.map((node) =>
    element(
      "li",
      {},
      element("span", { class: "name", dir: "auto" }, names[node]),
      bar(rollout.flow[0][node], "out"),
      element("span", { class: "value" }, formatFlow(rollout, 0, node)),
    ),
  );
  const heading = element("h4", {}, `Contributions of input ${plural(unit)} to `, rootNames(graph), afterLayers(graph));
  const { weight, error } = rest(graph, 0, largest);
  const others = `${formatWeight(weight, error)} from ${stack.numNodes - largest.length} others`;
  return [heading, element("ol", {}, ...items), ...(weight < MIN_REST ? [] : [hint(others)])];
}

/** @param {Graph} graph */
function rootNames({ roots, names }) {
  const some = roots.slice(0, MAX_NAMED).map((root) => names[root]);
  return element("b", { dir: "auto" }, some.join(" ") + (roots.length > MAX_NAMED ? " …" : ""));
}

/** @param {Graph} graph */
function afterLayers({ stack: { layers } }) {
  return ` after ${layers.length} layer${layers.length > 1 ? "s" : ""}`;
}

/** @param {string} unit */
function plural(unit) {
  return unit === "patch" ? "patches" : `${unit}s`;
}

/** The edges that are drawn, and the shares of the input. @param {Graph | null} graph @param {Edge[]} edges @param {string[]} tokens @returns {Table} */
export function toTable(graph = null, edges = [], tokens = []) {
  const column = new WeightColumn({ heads: [], reduce: "", hide: [], rescale: false }, "share");
  if (!graph) return { columns: ["layer", ...PAIR, column.name], rows: [] };
  const { stack, rollout, roots } = graph;
  const { blockSize, layers } = stack;
  const name = (/** @type {number} */ node) => tokens[node * blockSize] + (blockSize > 1 ? " …" : "");
  const cells = (/** @type {number} */ node) => [node * blockSize, name(node)];
  const from = roots.length > 1 ? [null, roots.map(name).join(" ")] : cells(roots[0]);
  const reached = [...rollout.flow[0].keys()].filter((node) => rollout.flow[0][node] > 0);
  /** @type {Table["rows"]} */
  const rows = edges.map(({ layer, from: above, to: below, flow }) => {
    const share = column.round({ weight: flow, error: rollout.edgeError(layer, above, below) });
    return [layers[layer].name, ...cells(above), ...cells(below), share];
  });
  for (const node of reached) {
    const share = column.round({ weight: rollout.flow[0][node], error: rollout.errorOf(0, [node]) });
    rows.push(["all", ...from, ...cells(node), share]);
  }
  return { columns: ["layer", ...PAIR, column.name], rows };
}
