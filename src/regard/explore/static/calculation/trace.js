// A calculation: its steps by name, each a tensor with named axes, and what follows from them for a head and a query.

/**
 * @typedef {{shape: number[], values: ArrayLike<number>, errors?: ArrayLike<number>}} Tensor  `errors`: how far numbers may be from the exact ones.
 * @typedef {{name: string, formula: string, explanation: string, axes: string[]}} StepHeader
 *   `axes` are the names of the tensor's axes: "head", "query", "key", "token" (in self-attention: what is read at the place of a query), "dim" of
 *   a head, "feature" of the model, "unit" of a feed-forward network, and "word" of the vocabulary.
 * @typedef {{head: number, query: number}} Place
 * @typedef {{rowAxis: string, columnAxis: string, rows: number, columns: number, at(row: number, column: number): number, errorAt?(row: number, column: number): number}} Matrix
 * @typedef {{title: string, heads: number, onlyHead: number | null, isShifted: boolean, labels: Record<string, string[]>, positions?: Record<string, number[]>, layer: string, layers: string[], steps: StepHeader[]}} TraceHeader
 *   `onlyHead` is the only one whose numbers there are; null if there are those of all. `isShifted`: queries are not the tokens that are read at
 *   their places, as in a decoder. `labels` are the names of the entries of axes, `positions` their places in the text, if an axis
 *   has not all of it.
 */

/** What is computed from other steps, if it is not one. @type {Record<string, {needs: string[], formula?: string, explanation?: string, compute(trace: Trace, place: Place): Matrix}>} */
const DERIVED = {
  products: {
    needs: ["query", "key", "scaled scores"],
    formula: "products = the factors of a score, feature by feature",
    explanation: "What each feature adds to the score of each key: a row adds up to the score.",
    compute: products,
  },
  "weighted values": { needs: ["weighted values"], compute: weightedValues },
  "part of the head": {
    needs: ["W_O"],
    formula: "part of the head = sum of weighted values · W_O, the rows of this head",
    explanation: "Every head adds such a part to the output.",
    compute: partOfHead,
  },
};

export class Trace {
  /** @param {TraceHeader} header @param {Record<string, Tensor>} tensors */
  constructor(header, tensors) {
    this.header = header;
    this.tensors = tensors;
    this.steps = new Map(header.steps.map((step) => [step.name, step]));
  }

  /** The first of some names, separated by |, that is a step or follows from some; else an empty text. @param {string} names */
  find(names) {
    return names.split("|").find((name) => this.steps.has(name) || this.isDerived(name)) ?? "";
  }

  /** @param {string} name */
  isDerived(name) {
    return DERIVED[name]?.needs.every((need) => this.steps.has(need)) ?? false;
  }

  /** Its formula and what it does, either of which may be empty. @param {string} name */
  about(name) {
    return { formula: "", explanation: "", ...DERIVED[name], ...this.steps.get(name) };
  }

  /** A step, of which some axes before the last two are at a place. @param {string} name @param {Place} place @returns {Matrix} */
  matrix(name, place) {
    const step = this.steps.get(name);
    if (!step || !(name in this.tensors)) return DERIVED[name].compute(this, place);
    const { shape, values, errors } = this.tensors[name];
    const inner = step.axes.filter((axis) => axis !== "head").slice(-2);
    const outer = step.axes.length - inner.length;
    const entry = shape.slice(0, outer).reduce((sum, size, i) => sum * size + this.entry(step.axes[i], size, place), 0);
    const [rows, columns] = [...(inner.length < 2 ? [1] : []), ...shape.slice(outer)];
    const start = entry * rows * columns;
    const [rowAxis, columnAxis] = [...(inner.length < 2 ? [""] : []), ...inner];
    const at = (/** @type {number} */ row, /** @type {number} */ column) => values[start + row * columns + column];
    const errorAt = (/** @type {number} */ row, /** @type {number} */ column) =>
      errors?.[start + row * columns + column] ?? 0;
    return { rowAxis, columnAxis, rows, columns, at, errorAt };
  }

  /** Where a place is on an axis: several heads may share keys, and there may be only one. @param {string} axis @param {number} size @param {Place} place */
  entry(axis, size, { head, query }) {
    if (size === 1) return 0;
    return axis === "head" ? Math.floor((head * size) / this.header.heads) : query;
  }

  /** The row of a step at the query, or the only one. @param {string} name @param {Place} place */
  row(name, place) {
    const matrix = this.matrix(name, place);
    const row = matrix.rows === 1 ? 0 : place.query;
    return Array.from({ length: matrix.columns }, (_, column) => matrix.at(row, column));
  }

  /** The number of the query, of a step with one for each token. @param {string} name @param {Place} place */
  ofToken(name, place) {
    return this.matrix(name, place).at(0, place.query);
  }

  /** The key with the largest weight. @param {Place} place */
  strongest(place) {
    const weights = this.row("weights", place);
    return weights.indexOf(Math.max(...weights));
  }

  /** The name of an entry of an axis. @param {string} axis @param {number} index */
  label(axis, index) {
    return this.header.labels[axis]?.[index] ?? String(index);
  }
}

/** What each feature adds to the score of each key. @param {Trace} trace @param {Place} place @returns {Matrix} */
function products(trace, place) {
  const query = trace.row(trace.find("rotated query|query"), place);
  const keys = trace.matrix(trace.find("rotated key|key"), place);
  return { ...keys, at: (row, column) => query[column] * keys.at(row, column) };
}

/** The vector of each key times its weight. @param {Trace} trace @param {Place} place @returns {Matrix} */
function weightedValues(trace, place) {
  const weights = trace.row("weights", place);
  const values = trace.matrix(trace.find("value|memory"), place);
  const added = trace.steps.has("b by distance") ? trace.matrix("b by distance", place) : null;
  const at = (/** @type {number} */ row, /** @type {number} */ column) =>
    weights[row] * (values.at(row, column) + (added?.at(row, column) ?? 0));
  return { ...values, at };
}

/** What a head adds to the output. @param {Trace} trace @param {Place} place @returns {Matrix} */
function partOfHead(trace, place) {
  const heads = trace.matrix("sum of weighted values", place);
  const map = trace.matrix("W_O", place);
  const at = (/** @type {number} */ row, /** @type {number} */ column) => {
    let sum = 0;
    for (let dim = 0; dim < map.rows; dim++) sum += heads.at(row, dim) * map.at(dim, column);
    return sum;
  };
  return { ...map, rowAxis: heads.rowAxis, rows: heads.rows, at };
}

/** Rows as columns. @param {Matrix} matrix @returns {Matrix} */
export function transposed({ rowAxis, columnAxis, rows, columns, at }) {
  return {
    rowAxis: columnAxis,
    columnAxis: rowAxis,
    rows: columns,
    columns: rows,
    at: (row, column) => at(column, row),
  };
}
