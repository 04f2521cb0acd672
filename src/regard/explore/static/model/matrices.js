// The model's tensors in one memory, and products with its matrices: with WebAssembly where it may, else in JavaScript.

import { MULTIPLE, wasmProduct } from "#model/wasm_product.js";

/** @import { Tensor } from '#data/page_format.js' */

const ROWS = 16; // of a product at once

/** A matrix W (outer, inner) and a bias, for y = x Wᵀ + bias. @typedef {{weight: Float32Array, bias: Float32Array | null, outer: number, inner: number}} Linear */

/** The tensors of a model. */
export class Matrices {
  /** @param {Record<string, Tensor>} stored  Byte planes of float32, of which the lowest two may be missing. @param {Record<string, string>} tied  The name under which each tied tensor is stored. @param {boolean} wasm  Whether to use WebAssembly, if it is there. */
  constructor(stored, tied, wasm = true) {
    const sizes = Object.values(stored).map(({ shape: [, ...shape] }) => shape.reduce((a, b) => a * b, 1));
    const widest = Object.values(stored).reduce((most, { shape }) => Math.max(most, ...shape.slice(1)), 0);
    const total = sizes.reduce((a, b) => a + b, 0);
    const bytes = 4 * (total + 2 * ROWS * widest) + 64;
    const wasmMemory = wasm ? wasmProduct(bytes) : null;
    const buffer = wasmMemory?.buffer ?? new ArrayBuffer(bytes);
    this.product = wasmMemory?.product ?? null;
    this.numbers = new Float32Array(buffer, 0, total);
    this.x = new Float32Array(buffer, 4 * total, ROWS * widest);
    this.y = new Float32Array(buffer, 4 * (total + ROWS * widest), ROWS * widest);
    /** @type {Map<string, {values: Float32Array, shape: number[]}>} */
    this.tensors = new Map();
    let start = 0;
    for (const [
      name,
      {
        shape: [width, ...shape],
        values,
      },
    ] of Object.entries(stored)) {
      const count = values.length / width;
      joinPlanes(new Uint32Array(buffer, 4 * start, count), values, width);
      this.tensors.set(name, { values: new Float32Array(buffer, 4 * start, count), shape });
      start += count;
    }
    for (const [name, other] of Object.entries(tied)) this.tensors.set(name, this.get(other));
  }

  /** @param {string} name */
  get(name) {
    const tensor = this.tensors.get(name);
    if (!tensor) throw new Error(`the page has no tensor ${name}`);
    return tensor;
  }

  /** A linear map, or some of its rows. @param {string} name @param {number} first @param {number} [count] @returns {Linear} */
  linear(name, first = 0, count) {
    const { values, shape } = this.get(`${name}.weight`);
    const [rows, inner] = shape;
    const outer = count ?? rows - first;
    const bias = this.tensors.get(`${name}.bias`)?.values.subarray(first, first + outer) ?? null;
    return { weight: values.subarray(first * inner, (first + outer) * inner), bias, outer, inner };
  }

  /** x Wᵀ + bias. @param {Float32Array} x  (rows, inner) @param {Linear} linear @returns {Float32Array} (rows, outer) */
  multiply(x, linear) {
    const { bias, outer, inner } = linear;
    const rows = x.length / inner;
    const y = new Float32Array(rows * outer);
    for (let row = 0; row < rows; row += ROWS) {
      const count = Math.min(ROWS, rows - row);
      const [part, result] = [x.subarray(row * inner, (row + count) * inner), y.subarray(row * outer)];
      if (this.product && inner % MULTIPLE === 0) this.multiplyFast(part, linear, result);
      else multiplyPlain(part, linear, result);
    }
    if (bias) {
      for (let start = 0; start < y.length; start += outer)
        for (let at = 0; at < outer; at++) y[start + at] += bias[at];
    }
    return y;
  }

  /** @param {Float32Array} x @param {Linear} linear @param {Float32Array} result */
  multiplyFast(x, { weight, outer, inner }, result) {
    this.x.set(x);
    const start = this.x.byteOffset;
    this.product?.(start, start + x.byteLength, weight.byteOffset, this.y.byteOffset, 4 * inner, 4 * outer);
    result.set(this.y.subarray(0, (x.length / inner) * outer));
  }
}

/** Float32 from byte planes, the lowest bytes first, of which the lowest two may be missing. @param {Uint32Array} target @param {Tensor["values"]} planes @param {number} width */
function joinPlanes(target, planes, width) {
  const [low, high] = [(width - 2) * target.length, (width - 1) * target.length];
  for (let at = 0; at < target.length; at++) target[at] = (planes[low + at] << 16) | (planes[high + at] << 24);
  if (width === 4) {
    for (let at = 0; at < target.length; at++) target[at] |= planes[at] | (planes[target.length + at] << 8);
  }
}

/** @param {Float32Array} x @param {Linear} linear @param {Float32Array} result */
function multiplyPlain(x, { weight, outer, inner }, result) {
  for (let row = 0; row * inner < x.length; row++) {
    for (let place = 0; place < outer; place++) {
      let sum = 0;
      for (let at = 0; at < inner; at++) sum += x[row * inner + at] * weight[place * inner + at];
      result[row * outer + place] = sum;
    }
  }
}
