// The numbers of a calculation: one query of one head, from its vectors to its output, as far as the page holds them.

/**
 * @typedef {{key: number, vector?: Float32Array, product?: number, scaled?: number, score: number, exp: number, weight: number,
 *   stored: number | null, value?: Float32Array}} Row
 *   `score` is what the softmax is taken of, less its maximum; `stored` is the weight that the page holds, if it names it.
 * @typedef {{from: "vectors" | "products" | "weights", vector: Float32Array | null, rows: Row[], left: number, most: number, sum: number,
 *   output: Float64Array | null, features: number}} Calculation
 *   `from` says what the weights follow from: from vectors; or they are those that the page holds, beside products or alone.
 *   `left` is the mass on keys that have no row.
 */

/** @param {import("#data/layer.js").Layer} layer @param {number} head @param {number} query @returns {Calculation | null} rows by falling weight; null while something is on its way */
export function calculated(layer, head, query) {
  const known = layer.head([head]);
  const vectors = layer.vectorsOf(head);
  if (!known || !vectors) return null;
  const { links, left, waiting } = known.row(query);
  if (waiting) return null;
  const [queries, keys, values] = vectors.map(
    ({ features, values: all }) =>
      (/** @type {number} */ token) =>
        all.subarray(token * features, (token + 1) * features),
  );
  const { rule, scale, form, mask } = layer.header;
  const multiplied = queries !== undefined && (rule === null || rule.includes("ScaledDotProduct"));
  const exact = multiplied && rule === null && (form === "whole" || mask !== null);
  const vector = queries ? queries(query) : null;
  const rows = (exact ? seen(layer, known, query) : links).map(({ key, weight }) => {
    const row = /** @type {Row} */ ({ key, weight, stored: weight });
    if (values) row.value = values(key);
    row.score = Math.log(weight);
    if (!vector || !multiplied) return row;
    row.vector = keys(key);
    row.product = dot(vector, row.vector);
    row.scaled = scale * row.product;
    if (exact) row.score = row.scaled;
    return row;
  });
  const most = rows.reduce((highest, { score }) => Math.max(highest, score), -Infinity);
  for (const row of rows) {
    row.score -= most;
    row.exp = Math.exp(row.score);
  }
  const sum = rows.reduce((total, { exp }) => total + exp, 0);
  if (exact) for (const row of rows) row.weight = row.exp / sum;
  rows.sort((a, b) => b.weight - a.weight);
  const whole = exact || left === 0;
  return {
    from: exact ? "vectors" : multiplied ? "products" : "weights",
    vector,
    rows,
    left: exact ? 0 : left,
    most,
    sum,
    output: whole && rows[0]?.value ? weighted(rows) : null,
    features: vector?.length ?? 0,
  };
}

/** The keys that a query may see, and their weights where the page names them. */
function seen(layer, known, query) {
  const cells = layer.keys.map((_, key) => ({ key, cell: known.cell(query, key) }));
  return cells
    .filter(({ cell }) => cell.state !== "masked")
    .map(({ key, cell }) => ({ key, weight: cell.state === "known" ? cell.weight : null }));
}

function dot(a, b) {
  let sum = 0;
  for (let index = 0; index < a.length; index++) sum += a[index] * b[index];
  return sum;
}

/** Σ weight × value, of rows that have values. @param {Row[]} rows */
export function weighted(rows) {
  const sum = new Float64Array(rows[0]?.value?.length ?? 0);
  for (const { weight, value } of rows)
    for (let index = 0; index < sum.length; index++) sum[index] += weight * (value?.[index] ?? 0);
  return sum;
}

/** How far the weights lie from those that the page holds, at most; null where none was computed. @param {Calculation} calculation */
export function difference({ from, rows }) {
  return from === "vectors"
    ? rows.reduce((most, { weight, stored }) => (stored === null ? most : Math.max(most, Math.abs(weight - stored))), 0)
    : null;
}
