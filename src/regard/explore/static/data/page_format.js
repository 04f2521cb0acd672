// Numbers out of bytes: what packing.py wrote.

/** Inflate a block that lies in base64 in the page. @param {string} base64 @returns {Promise<Uint8Array>} */
export async function inflated(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return inflate(bytes);
}

/** Inflate bytes. @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<Uint8Array>} */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The weights that codes stand for: steps below `coarse`, powers from there; what is masked is NaN. */
export class Codes {
  /** @param {import("#data/recording.js").CodesHeader} header */
  constructor({ fine, coarse, growth, linear, last, masked }) {
    this.weights = new Float32Array(masked + 1).fill(NaN);
    for (let code = 0; code <= last; code++) {
      this.weights[code] = code < linear ? code * fine : Math.min(coarse * growth ** (code - linear), 1);
    }
  }
}

/** Squares of cells: how much the queries of each give to its keys, on their mean. NaN where all is masked. */
export class Squares {
  /** @param {Uint16Array} stored @param {number} rows @param {number} columns @param {number} size  Cells of a side. @param {Codes} codes */
  constructor(stored, rows, columns, size, codes) {
    this.stored = stored;
    this.rows = rows;
    this.columns = columns;
    this.size = size;
    this.codes = codes;
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    return this.codes.weights[this.stored[row * this.columns + column]];
  }
}

/** Takes numbers from the beginning of a block, one kind after the other. */
export class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.place = 0;
  }

  /** Unsigned integers of some bytes, the lowest bytes of all first. @param {number} count @param {number} width */
  integers(count, width) {
    const found = width > 2 ? new Uint32Array(count) : new Uint16Array(count);
    for (let rank = 0; rank < width; rank++) {
      const from = this.place + rank * count;
      const shift = 8 * rank;
      if (rank === 0) for (let index = 0; index < count; index++) found[index] = this.bytes[from + index];
      else for (let index = 0; index < count; index++) found[index] |= this.bytes[from + index] << shift;
    }
    this.place += count * width;
    return found;
  }

  /** Squares of some heads. @param {Codes} codes @param {number} heads @param {number[]} shape @param {number} size @returns {Squares[]} */
  codes(codes, heads, [rows, columns], size = 1) {
    const all = /** @type {Uint16Array} */ (this.integers(heads * rows * columns, 2));
    return Array.from(
      { length: heads },
      (_, head) =>
        new Squares(all.subarray(head * rows * columns, (head + 1) * rows * columns), rows, columns, size, codes),
    );
  }

  /** Floats of two bytes. Reference: IEEE 754, binary16. @param {number} count */
  halves(count) {
    const view = this.view(2 * count);
    return Float32Array.from({ length: count }, (_, index) => {
      const bits = view.getUint16(2 * index, true);
      const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
      const size = exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15);
      return bits & 0x8000 ? -size : size;
    });
  }

  /** Floats of four bytes. @param {number} count */
  floats(count) {
    const view = this.view(4 * count);
    return Float32Array.from({ length: count }, (_, index) => view.getFloat32(4 * index, true));
  }

  /** @param {number} length */
  view(length) {
    const view = new DataView(this.bytes.buffer, this.bytes.byteOffset + this.place, length);
    this.place += length;
    return view;
  }
}
