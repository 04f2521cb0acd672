// One step of a calculation: its sentence and formula, its tensors as pictures, and their numbers.

import { numberTable } from "#calculation/number_table.js";
import { pictureOf, withIndices } from "#calculation/picture.js";
import { transposed } from "#calculation/trace.js";
import { element } from "#ui/elements.js";

/**
 * @import { Drawing } from '#calculation/picture.js'
 * @import { Operand, Screen } from '#calculation/steps.js'
 * @import { Place, Trace } from '#calculation/trace.js'
 * @import { Depth } from '#calculation/steps.js'
 */

/** @param {Trace} trace @param {Screen} screen @param {{heading: "h2" | "h4", number: number, place: Place, depth: Depth, drawing: Drawing}} shown @returns {HTMLElement[]} */
export function stepNodes(trace, screen, { heading: level, number, place, depth, drawing }) {
  const matrixOf = (/** @type {Operand} */ { name, isTransposed }) => {
    const matrix = trace.matrix(name, place);
    return isTransposed ? transposed(matrix) : matrix;
  };
  const textsOf = (/** @type {string} */ axis) => (axis === "token" && !trace.header.isShifted ? "query" : axis);
  const operands = screen.lines.flat().filter((part) => typeof part !== "string");
  const pictures = screen.lines.map((line) => {
    let named = ""; // the axis of the rows of the picture before, whose names are not repeated
    const parts = line.map((part) => {
      if (typeof part === "string") return element("span", { class: "sign", "aria-hidden": "true" }, part);
      const matrix = matrixOf(part);
      if (part.name === "ids") return numberTable(trace, part, matrix, place, drawing.point); // a color would say nothing
      const picture = pictureOf(trace, part, matrix, place, {
        ...drawing,
        hasNames: textsOf(matrix.rowAxis) !== named,
      });
      named = textsOf(matrix.rowAxis);
      return picture;
    });
    return element("div", { class: "equation" }, ...parts);
  });
  const reading = screen.reading(place);
  const heading = element(level, { tabindex: -1 }, element("span", { class: "number" }, String(number)), screen.title);
  const nodes = [heading, element("p", { class: "sentence" }, screen.sentences.join(" "))];
  const formulas = screen.formulas.map((formula) => element("span", {}, ...formulaNodes(formula, operands)));
  if (formulas.length && depth !== "minute") nodes.push(element("p", { class: "formula" }, ...formulas));
  if (reading) nodes.push(element("p", { class: "reading" }, reading));
  nodes.push(...pictures);
  if (depth !== "numbers" || screen.slug === "subwords") return nodes;
  const unique = operands.filter(({ name }, i) => operands.findIndex((other) => other.name === name) === i);
  const details = screen.details.map((detail) => element("p", { class: "note" }, detail));
  const tables = unique.map((operand) => numberTable(trace, operand, matrixOf(operand), place, drawing.point));
  return [...nodes, ...details, ...tables];
}

/** A formula whose terms have the colors of their pictures, with its indices. @param {string} formula @param {Operand[]} operands @returns {(Node | string)[]} */
export function formulaNodes(formula, operands) {
  const colors = new Map(operands.map(({ term, color }) => [term, color]));
  const terms = [...colors.keys()]
    .sort((one, other) => other.length - one.length)
    .map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const parts = formula.split(new RegExp(`(?<![\\p{Lu}\\p{Ll}_-])(${terms.join("|")})(?![\\p{Lu}\\p{Ll}_-])`, "u"));
  return parts.flatMap((part, i) =>
    i % 2 ? [element("b", { class: `term ${colors.get(part)}` }, ...withIndices(part))] : withIndices(part),
  );
}
