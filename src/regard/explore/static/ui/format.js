// Numbers and texts as the page writes them.

const INVISIBLE = /[\u202a-\u202e\u2066-\u2069]|(?!\s)\p{Cc}/gu; // turns the order of what follows, or controls

const MAX_ERROR = 0.05; // of a number with a decimal
const NOISE = 1e-7; // of a stored weight in float32

/** The decimals that are true of a number with some error, from one to three. @param {number} error */
function trueDecimals(error) {
  return Math.min(3, Math.max(1, Math.floor(-Math.log10(2 * error) + 1e-9)));
}

/** A number with some decimals. A half is rounded to the even digit, as Python does: 1/16 is 0.062. @param {number} number @param {number} decimals */
function toFixed(number, decimals) {
  const text = number.toFixed(decimals); // a half is rounded up
  const isHalf = (number * 2 ** (decimals + 1)) % 2 === 1; // only odd multiples of this power of 2 are halves of 10 ** -decimals
  return isHalf && Number(text.at(-1)) % 2 === 1 ? (number - 10 ** -decimals / 4).toFixed(decimals) : text;
}

/** A number with all decimals, or two of three, if everything within its error rounds to it; else marked with ≈. @param {number} number  Not negative. @param {number} error @param {number} decimals */
function withCertainDigits(number, error, decimals) {
  if (error === 0) return toFixed(number, decimals);
  const bound = Math.max(0, error - NOISE);
  for (let count = decimals; count >= Math.min(2, decimals); count--) {
    const [low, high] = [Math.max(0, number - bound), number + bound].map((each) => toFixed(each, count));
    if (low === high && Number(low) > 0) return low;
  }
  return `≈ ${toFixed(number, decimals)}`;
}

/**
 * A weight with the digits that are certain: exact ones have three, or four below 0.1. `≈` before a number whose last digit may be
 * off by one; bounds, such as `0.2–0.5`, if not even the first is known. @param {number} weight @param {number} error  How far it may be from the exact one.
 */
export function formatWeight(weight, error = 0) {
  const decimals = error > 0 ? trueDecimals(error) : weight >= 0.1 ? 3 : 4;
  if (error > MAX_ERROR) {
    const [low, high] = [Math.floor(10 * Math.max(0, weight - error)), Math.ceil(10 * (weight + error))];
    return low > 0 ? `${(low / 10).toFixed(1)}–${(high / 10).toFixed(1)}` : `< ${(high / 10).toFixed(1)}`;
  }
  const smallest = 10 ** -decimals;
  return weight < smallest / 2 ? `< ${smallest.toFixed(decimals)}` : withCertainDigits(weight, error, decimals);
}

/** A number with the digits that are certain, four decimals at most, and a true minus sign. @param {number} value @param {number} error  How far it may be from the exact one. */
export function formatNumber(value, error = 0) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const text = withCertainDigits(Math.abs(value), error, error > 0 ? trueDecimals(error) : 4);
  return value < 0 && Number(text) !== 0 ? text.replace(/(?=\d)/, "−") : text;
}

const VALUE_DIGITS = 3;
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/**
 * A number of any size and sign with up to three digits, as many as everything within its error rounds to: `0.0231`, `−2.3·10⁻⁵`;
 * `0 ± 4·10⁻⁶` if not even its first digit is certain. @param {number} value @param {number} error  How far it may be from the exact one. @param {number} most  Digits.
 */
export function formatValue(value, error = 0, most = VALUE_DIGITS) {
  if (value === 0 && error === 0) return "0";
  for (let digits = most; digits > 0; digits--) {
    const [low, high] = [value - error, value + error].map((bound) => bound.toPrecision(digits));
    if (low === high) return withExponent(low);
  }
  const bound = Math.max(Math.abs(value - error), Math.abs(value + error));
  return `0 ± ${withExponent(roundUp(bound))}`;
}

/** To one digit. @param {number} bound */
function roundUp(bound) {
  const unit = 10 ** Math.floor(Math.log10(bound));
  return (Math.ceil(bound / unit - 1e-9) * unit).toPrecision(1);
}

/** @param {string} text  From `toPrecision`. */
function withExponent(text) {
  const number = Number(text);
  const size = Math.abs(number);
  const sign = number < 0 ? "−" : "";
  if (number === 0 || (size >= 0.001 && size < 1000 && !text.includes("e"))) return sign + text.replace(/^-/, "");
  const digits = text
    .replace(/e.*$/, "")
    .replace(/^[-0.]+/, "")
    .replace(".", "").length;
  const [mantissa, exponent] = size.toExponential(Math.max(digits - 1, 0)).split("e");
  const power = exponent
    .replace(/^\+/, "")
    .replace("-", "⁻")
    .replace(/\d/g, (digit) => SUPERSCRIPTS[Number(digit)]);
  return `${sign}${mantissa}·10${power}`;
}

/** Whether a weight, with its error, is written as more than `< 0.001`. @param {{weight: number, error: number}} weight */
export function isVisible({ weight, error }) {
  return weight >= 0.0005 && weight > error;
}

/** A number with its sign before its text. @param {number} value @param {string} text */
export function signed(value, text) {
  return value > 0 ? `+${text}` : value < 0 ? `−${text}` : text;
}

/** A text with the code or picture of every character that is invisible and controls the text around it. @param {string} text */
export function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0) ?? 0;
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    return code === 0x7f ? "␡" : `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}
