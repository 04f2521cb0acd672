// The matrix product y = x Wᵀ in WebAssembly with SIMD, assembled here from the text of its instructions.

/** An unsigned number in LEB128. @param {number} value @returns {number[]} */
const unsigned = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...unsigned(value >>> 7)]);

/** The instructions without an operand, as in the text format, except for `v128.zero`. @type {Record<string, number[]>} */
const OPCODES = {
  loop: [0x03, 0x40],
  end: [0x0b],
  "br_if 0": [0x0d, 0],
  "i32.add": [0x6a],
  "i32.lt_u": [0x49],
  "f32.add": [0x92],
  "f32.store": [0x38, 2, 0],
  "f32x4.add": [0xfd, ...unsigned(0xe4)],
  "f32x4.mul": [0xfd, ...unsigned(0xe6)],
  "v128.zero": [0xfd, 0x0c, ...Array(16).fill(0)],
};
/** Those with one. @type {Record<string, number[]>} */
const PREFIXES = {
  "local.get": [0x20],
  "local.set": [0x21],
  "local.tee": [0x22],
  "i32.const": [0x41],
  "v128.load": [0xfd, 0, 2], // aligned as single numbers are
  "f32x4.extract_lane": [0xfd, 0x1f],
};
/** Addresses in bytes: x, where it ends, W, y; and the bytes of a row of W and x, and of a row of y. */
const PARAMETERS = ["x", "x_end", "w", "y", "inner", "outer"];
const ADDRESSES = ["at", "from", "end", "out", "y_end"];
const SUMS = ["a", "b", "c", "d"]; // four, so that an addition need not wait for the one before
const LOCALS = [...PARAMETERS, ...ADDRESSES, ...SUMS];
const STEP = 16 * SUMS.length;

/** The numbers in a row of W must be a multiple of this. */
export const MULTIPLE = STEP / 4;

const PRODUCT = `
  local.get y; local.get outer; i32.add; local.set y_end
  loop
    local.get x; local.set at
    local.get y; local.set out
    local.get w; local.get inner; i32.add; local.set end
    loop
      ${SUMS.map((sum) => `v128.zero; local.set ${sum}`).join("; ")}
      local.get w; local.set from
      loop
        ${SUMS.map(
          (sum, index) => `local.get at; v128.load ${16 * index}; local.get from; v128.load ${16 * index}; f32x4.mul
            local.get ${sum}; f32x4.add; local.set ${sum}`,
        ).join("\n")}
        local.get at; i32.const ${STEP}; i32.add; local.set at
        local.get from; i32.const ${STEP}; i32.add; local.tee from
        local.get end; i32.lt_u; br_if 0
      end
      local.get a; local.get b; f32x4.add; local.get c; local.get d; f32x4.add; f32x4.add; local.set a
      local.get out
      local.get a; f32x4.extract_lane 0; local.get a; f32x4.extract_lane 1; f32.add
      local.get a; f32x4.extract_lane 2; local.get a; f32x4.extract_lane 3; f32.add; f32.add
      f32.store
      local.get out; local.get outer; i32.add; local.set out
      local.get at; local.get x_end; i32.lt_u; br_if 0
    end
    local.get end; local.set w
    local.get y; i32.const 4; i32.add; local.tee y
    local.get y_end; i32.lt_u; br_if 0
  end
end`;

/** @param {string} text @returns {number[]} */
function assemble(text) {
  return text
    .split(/[;\n]/)
    .map((line) => line.trim())
    .filter(Boolean)
    .flatMap((line) => {
      if (OPCODES[line]) return OPCODES[line];
      const [name, operand] = line.split(" ");
      if (name === "i32.const") return [...PREFIXES[name], ...signed(Number(operand))];
      return [...PREFIXES[name], ...unsigned(name.startsWith("local") ? LOCALS.indexOf(operand) : Number(operand))];
    });
}

/** A positive number in signed LEB128. @param {number} value */
const signed = (value) => (value < 64 ? [value] : [(value & 127) | 128, value >>> 7]);

/** @param {number} id @param {number[]} content */
const section = (id, content) => [id, ...unsigned(content.length), ...content];
/** @param {string} text */
const named = (text) => [text.length, ...new TextEncoder().encode(text)];

/** The bytes of the module. */
export function moduleBytes() {
  const [i32, v128] = [0x7f, 0x7b];
  const body = [2, ADDRESSES.length, i32, SUMS.length, v128, ...assemble(PRODUCT)];
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, [1, 0x60, PARAMETERS.length, ...PARAMETERS.map(() => i32), 0]), // the type of the function
    ...section(2, [1, ...named("page"), ...named("memory"), 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, ...named("product"), 0, 0]),
    ...section(10, [1, ...unsigned(body.length), ...body]),
  ]);
}

/** @typedef {(x: number, xEnd: number, w: number, y: number, inner: number, outer: number) => void} Product */

/** The product in a memory; null where the browser or the page's policy has no WebAssembly with SIMD. @param {number} bytes @returns {{buffer: ArrayBuffer, product: Product} | null} */
export function wasmProduct(bytes) {
  try {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(moduleBytes()), { page: { memory } });
    return { buffer: memory.buffer, product: /** @type {Product} */ (exports.product) };
  } catch {
    return null;
  }
}
