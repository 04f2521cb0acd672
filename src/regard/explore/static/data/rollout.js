// Attention rollout: how much of each token of the input is in a token after the last layer, layer by layer.
// Reference: S. Abnar and W. Zuidema, "Quantifying Attention Flow in Transformers" (2020), section 3; see analysis/rollout.py.

/**
 * @import { Layer } from '#data/layer.js'
 * @import { RolloutMatrix } from '#data/rollout_matrix.js'
 * @typedef {{sequence: number, blockSize: number, numNodes: number, layers: Layer[]}} LayerStack
 *   The self-attention layers of one text, from the input on. A node is a token, or in long texts a block of tokens.
 * @typedef {{layer: number, from: number, to: number, flow: number}} Edge
 */

const MIN_FLOW = 0.0005; // of a node that is drawn or listed: written with three decimals, it is not 0

/** The layers of one kind and text, in which a token attends to tokens of the same text: with a layer, or else the first that there are. @param {import("#data/recording.js").Recording} recording @param {number} index  Of the layer. @returns {LayerStack | null} */
export function stackOf({ layers }, index) {
  const isSelfAttention = (/** @type {Layer} */ layer) =>
    layer.kind !== "cross" && layer.querySequence === layer.keySequence;
  const first = isSelfAttention(layers[index]) ? layers[index] : layers.find(isSelfAttention);
  if (!first) return null;
  const { kind, querySequence, blockSize } = first;
  return {
    sequence: querySequence,
    blockSize,
    numNodes: Math.ceil(first.queries.length / blockSize),
    layers: layers.filter(
      (layer) => isSelfAttention(layer) && layer.kind === kind && layer.querySequence === querySequence,
    ),
  };
}

/** The rollout from some nodes after the last layer. */
export class Rollout {
  /** @param {RolloutMatrix[]} matrices  From the first layer on. @param {number[]} roots  Nodes; several have equal shares. */
  constructor(matrices, roots) {
    this.matrices = matrices; // matrices[l] leads from depth l + 1 to depth l
    this.numLayers = matrices.length;
    const flow = new Float64Array(matrices[0].size);
    for (const root of roots) flow[root] += 1 / roots.length;
    /** @type {Float64Array[]} The flow through each node by depth: 0 is the input, `numLayers` the output of the last layer. */
    this.flow = [];
    this.flow[this.numLayers] = flow;
    for (let depth = this.numLayers; depth > 0; depth--) {
      this.flow[depth - 1] = matrices[depth - 1].propagateDown(this.flow[depth]);
    }
  }

  /** What passes through a layer from one node to another. @param {number} layer @param {number} from @param {number} to */
  edge(layer, from, to) {
    return this.flow[layer + 1][from] * this.matrices[layer].at(from, to);
  }

  /** How far what passes through a layer may be from the exact one. @param {number} layer @param {number} from @param {number} to */
  edgeError(layer, from, to) {
    const matrix = this.matrices[layer];
    const value = matrix.at(from, to);
    const valueError = matrix.error + matrix.rowErrors[from] * value;
    return this.errorOf(layer + 1, [from]) * value + this.flow[layer + 1][from] * valueError;
  }

  /** The part of each flow, and of each edge, that passes through one node. @param {number} depth @param {number} node */
  through(depth, node) {
    const down = this.flowBelow(depth, node);
    const up = this.sharesAbove(depth, [node]);
    /** @type {(layer: number, from: number, to: number) => number} */
    const edge = (layer, from, to) => {
      const value = this.matrices[layer].at(from, to);
      return layer < depth ? down[layer + 1][from] * value : this.flow[layer + 1][from] * value * up[layer][to];
    };
    const flow = this.flow.map((all, at) => (at <= depth ? down[at] : all.map((part, index) => part * up[at][index])));
    return { flow, edge };
  }

  /** Where the flow through a node goes. @param {number} depth @param {number} node */
  flowBelow(depth, node) {
    /** @type {Float64Array[]} */
    const down = [];
    down[depth] = new Float64Array(this.flow[0].length);
    down[depth][node] = this.flow[depth][node];
    for (let at = depth; at > 0; at--) down[at - 1] = this.matrices[at - 1].propagateDown(down[at]);
    return down;
  }

  /** Which share of what is at each node above comes to some nodes. @param {number} depth @param {number[]} nodes */
  sharesAbove(depth, nodes) {
    /** @type {Float64Array[]} */
    const up = [];
    up[depth] = new Float64Array(this.flow[0].length);
    for (const node of nodes) up[depth][node] = 1;
    for (let at = depth; at < this.numLayers; at++) up[at + 1] = this.matrices[at].propagateUp(up[at]);
    return up;
  }

  /** How far the flow through some nodes may be from the exact one, as stored weights are rounded. @param {number} depth @param {number[]} nodes */
  errorOf(depth, nodes) {
    if (this.matrices.every(({ error }) => error === 0)) return 0;
    const up = this.sharesAbove(depth, nodes);
    let error = 0;
    for (let at = depth; at < this.numLayers; at++) {
      error += this.matrices[at].errorOf(this.flow[at + 1], up[at], up[at + 1]);
    }
    return error;
  }

  /** The nodes with the largest flow at a depth, without those of nearly none. @param {number} depth @param {number} count @returns {number[]} */
  strongest(depth, count) {
    const flow = this.flow[depth];
    return [...flow.keys()]
      .filter((node) => flow[node] >= MIN_FLOW)
      .sort((a, b) => flow[b] - flow[a])
      .slice(0, count);
  }
}

/** As many of the strongest nodes of each depth as fit into some columns. @param {Rollout} rollout @param {number} perLayer @param {number} maxColumns @returns {number[][]} by depth */
export function nodesToDraw(rollout, perLayer, maxColumns) {
  for (let count = perLayer; ; count--) {
    const nodes = rollout.flow.map((_, depth) => rollout.strongest(depth, count));
    if (count === 1 || new Set(nodes.flat()).size <= maxColumns) return nodes;
  }
}

/**
 * The edges between some nodes, the last layer's first: of each layer the strongest, and all with enough flow.
 * @param {number[][]} nodes  By depth. @param {{perLayer: number, minFlow: number}} limits
 * @param {(layer: number, from: number, to: number) => number} flowOf @returns {Edge[]}
 */
export function edgesBetween(nodes, { perLayer, minFlow }, flowOf) {
  const all = [];
  for (let layer = nodes.length - 2; layer >= 0; layer--) {
    const edges = nodes[layer + 1].flatMap((from) =>
      nodes[layer].map((to) => ({ layer, from, to, flow: flowOf(layer, from, to) })),
    );
    edges.sort((a, b) => b.flow - a.flow);
    all.push(...edges.filter(({ flow }, rank) => flow > 0 && (flow >= minFlow || rank < perLayer)));
  }
  return all;
}

/** What the layers of a stack are called for short: the number in which their names differ, else their position. @param {string[]} names */
export function layerNumbers(names) {
  const all = names.map((name) => name.match(/\d+/g) ?? []);
  const at = all[0].findIndex((_, index) => new Set(all.map((numbers) => numbers[index])).size === names.length);
  return all.map((numbers, index) => (at < 0 ? String(index) : numbers[at]));
}
