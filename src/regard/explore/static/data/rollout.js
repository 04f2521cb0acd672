// Attention rollout: how much of each token of the input is in a token of the last layer, layer by layer.
// Reference: S. Abnar and W. Zuidema, "Quantifying Attention Flow in Transformers" (2020), section 3; see analysis/layers.py.

/**
 * @typedef {import("#data/layer.js").Layer} Layer
 * @typedef {{sequence: number, size: number, units: number, layers: Layer[]}} Stack
 *   Layers that read one text, from the input on. A unit is a token, or in long texts a block of `size` tokens.
 * @typedef {{from: number, to: number, mass: number}} Edge  What passes from a unit above a layer to one below it.
 */

const RESIDUAL = 0.5; // the share of the residual connection

/** The layers of a kind that read the same text, query and key: those of the chosen layer, else the first there are. @param {import("#data/recording.js").Recording} recording @param {number} chosen @returns {Stack | null} */
export function stackOf(recording, chosen) {
  const reads = (layer) => layer.kind !== "cross" && layer.querySequence === layer.keySequence;
  const one = reads(recording.layers[chosen]) ? recording.layers[chosen] : recording.layers.find(reads);
  if (!one) return null;
  const layers = recording.layers.filter(
    (layer) => reads(layer) && layer.kind === one.kind && layer.querySequence === one.querySequence,
  );
  const size = one.header.form === "whole" ? 1 : (one.header.size ?? 1);
  return { sequence: one.querySequence, size, units: Math.ceil(one.queries.length / size), layers };
}

const mixtures = new WeakMap(); // of layers

/** A = ½ I + ½ W with W the mean of a layer's heads, each row divided by its sum; found once. (units × units) @param {Layer} layer @returns {Float32Array} */
export function mixture(layer) {
  if (!mixtures.has(layer)) mixtures.set(layer, mixed((layer.numbers ?? []).map(({ squares }) => squares)));
  return mixtures.get(layer);
}

/** @param {import("#data/heads.js").SquareMap[]} heads */
function mixed(heads) {
  const { rows, columns } = heads[0];
  const found = new Float32Array(rows * columns);
  for (const squares of heads) {
    for (let row = 0, place = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++, place++) {
        const weight = squares.at(row, column);
        if (weight > 0) found[place] += weight; // what is masked is NaN
      }
    }
  }
  const share = (1 - RESIDUAL) / heads.length;
  for (let row = 0; row < rows; row++) {
    const line = found.subarray(row * columns, (row + 1) * columns);
    const sum = RESIDUAL + share * line.reduce((total, weight) => total + weight, 0);
    for (let column = 0; column < columns; column++) line[column] *= share / sum;
    line[row] += RESIDUAL / sum;
  }
  return found;
}

/** Where mass goes below a layer, r A. @param {Float64Array} mass @param {Float32Array} matrix */
function below(mass, matrix) {
  const found = new Float64Array(mass.length);
  mass.forEach((share, row) => {
    if (share > 0)
      for (let column = 0, place = row * mass.length; column < mass.length; column++, place++)
        found[column] += share * matrix[place];
  });
  return found;
}

/** Which share of what is above a layer comes to the units of interest below it, A u. */
function above(interest, matrix) {
  return interest.map((_, row) =>
    interest.reduce((sum, share, column) => sum + share * matrix[row * interest.length + column], 0),
  );
}

/** The rollout from some units of the last layer. */
export class Rollout {
  /** @param {Stack} stack  Whose layers are read. @param {number[]} starts  Units; several have equal shares. */
  constructor(stack, starts) {
    this.matrices = stack.layers.map(mixture); // matrix l leads from depth l + 1 to depth l
    this.depth = stack.layers.length;
    const mass = new Float64Array(stack.units);
    for (const start of starts) mass[start] += 1 / starts.length;
    /** @type {Float64Array[]} */
    this.mass = []; // by depth: 0 is the input, `depth` the output of the last layer
    this.mass[this.depth] = mass;
    for (let depth = this.depth; depth > 0; depth--)
      this.mass[depth - 1] = below(this.mass[depth], this.matrices[depth - 1]);
  }

  /** The mass at each depth, of the paths through one unit alone, and for each layer the share of its edges' mass that they take. */
  through(depth, unit) {
    /** @type {Float64Array[]} */
    const down = [];
    /** @type {Float64Array[]} */
    const up = [];
    down[depth] = new Float64Array(this.mass[0].length);
    down[depth][unit] = this.mass[depth][unit];
    for (let at = depth; at > 0; at--) down[at - 1] = below(down[at], this.matrices[at - 1]);
    up[depth] = new Float64Array(this.mass[0].length);
    up[depth][unit] = 1;
    for (let at = depth; at < this.depth; at++) up[at + 1] = above(up[at], this.matrices[at]);
    /** What passes from a unit above layer `layer` to one below it. */
    const edge = (layer, from, to) => {
      const weight = this.matrices[layer][from * this.mass[0].length + to];
      return layer < depth ? down[layer + 1][from] * weight : this.mass[layer + 1][from] * weight * up[layer][to];
    };
    const masses = this.mass.map((mass, at) =>
      at <= depth ? down[at] : mass.map((share, index) => share * up[at][index]),
    );
    return { masses, edge };
  }

  /** What passes through a layer from one unit to another. */
  edge(layer, from, to) {
    return this.mass[layer + 1][from] * this.matrices[layer][from * this.mass[0].length + to];
  }

  /** The units with most mass at a depth, none of them without any. @returns {number[]} */
  strongest(depth, count) {
    const mass = this.mass[depth];
    return [...mass.keys()]
      .filter((unit) => mass[unit] > 0)
      .sort((a, b) => mass[b] - mass[a])
      .slice(0, count);
  }
}

/** The most units of each depth that together are no more than `most` columns. @param {Rollout} rollout @returns {number[][]} by depth */
export function drawnUnits(rollout, each, most) {
  for (let count = each; ; count--) {
    const drawn = rollout.mass.map((_, depth) => rollout.strongest(depth, count));
    if (count === 1 || new Set(drawn.flat()).size <= most) return drawn;
  }
}

/** What the layers of a stack are called for short: the number by which their names differ, else their place. @param {string[]} names */
export function numbersOf(names) {
  const all = names.map((name) => name.match(/\d+/g) ?? []);
  const place = all[0].findIndex((_, index) => new Set(all.map((numbers) => numbers[index])).size === names.length);
  return all.map((numbers, index) => (place < 0 ? String(index) : numbers[place]));
}
