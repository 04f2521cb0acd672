// Reads the page's data: deflated safetensors, weights as integers (docs/page_format.md).

/** @typedef {Uint8Array | Uint16Array | Uint32Array | Float32Array} TensorValues */
/** @typedef {{shape: number[], values: TensorValues}} Tensor */

const TYPES = { U8: Uint8Array, U16: Uint16Array, U32: Uint32Array, F32: Float32Array };
const CODES_PER_UNIT = 3000;
const MASKED_CODE = 4095;
const THUMBNAIL_CODES = 254;

/** The weight of each code; NaN where masked. */
export const CODE_WEIGHTS = Float32Array.from({ length: MASKED_CODE + 1 }, (_, code) =>
  code === MASKED_CODE ? NaN : code / CODES_PER_UNIT,
);
/** The weight of each code of a thumbnail; NaN where masked. */
export const THUMBNAIL_WEIGHTS = Float32Array.from({ length: 256 }, (_, code) =>
  code > THUMBNAIL_CODES ? NaN : (code / THUMBNAIL_CODES) ** 2,
);

/** Decode and inflate a block of the page. @param {string} base64 @returns {Promise<ArrayBuffer>} */
export const inflateBase64 = (base64) => inflate(bytesOfBase64(base64));

/** @param {string} base64 @returns {Uint8Array<ArrayBuffer>} */
export function bytesOfBase64(base64) {
  /** @type {{fromBase64?: (text: string) => Uint8Array<ArrayBuffer>}} */
  const { fromBase64 } = /** @type {any} */ (Uint8Array);
  if (fromBase64) return fromBase64(base64); // ten times as fast; browsers have it since 2025
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length); // Uint8Array.from with a function takes ten times as long
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return bytes;
}

/** @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<ArrayBuffer>} */
export function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** The tensors of a safetensors file, by name. @param {ArrayBuffer} buffer @returns {Record<string, Tensor>} */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(header)) {
    const Type = TYPES[/** @type {keyof typeof TYPES} */ (dtype)];
    const [start, end] = offsets;
    tensors[name] = { shape, values: new Type(buffer, 8 + length + start, (end - start) / Type.BYTES_PER_ELEMENT) };
  }
  return tensors;
}

/** Integers that are stored as byte planes, the lowest bytes first. @param {Tensor} tensor @returns {Tensor} without the first axis */
export function joinBytes({ shape: [width, ...shape], values }) {
  if (width === 1) return { shape, values };
  const count = values.length / width;
  const joined = width === 2 ? new Uint16Array(count) : new Uint32Array(count);
  for (let byte = 0; byte < width; byte++) {
    const start = byte * count;
    for (let index = 0; index < count; index++) joined[index] |= values[start + index] << (8 * byte);
  }
  return { shape, values: joined };
}

/** A grid of weights; each cell stands for `size` × `size` cells of the matrix: the attention of a query to the block's keys, averaged over its queries. NaN where masked. */
export class BlockMap {
  /** @param {TensorValues} values @param {number} rows @param {number} columns @param {number} size @param {Float32Array | null} table  The weight of each value, if the values are codes. */
  constructor(values, rows, columns, size, table = null) {
    this.values = values;
    this.rows = rows;
    this.columns = columns;
    this.size = size;
    this.table = table;
  }

  /** One map for each head. @param {Tensor} tensor  (heads, rows, columns) @param {number} size @param {Float32Array | null} table @returns {BlockMap[]} */
  static split({ shape: [heads, rows, columns], values }, size, table) {
    const cells = rows * columns;
    return Array.from({ length: heads }, (_, head) => {
      const own = values.subarray(head * cells, (head + 1) * cells);
      return new BlockMap(own, rows, columns, size, table);
    });
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    const value = this.values[row * this.columns + column];
    return this.table ? this.table[value] : value;
  }
}
