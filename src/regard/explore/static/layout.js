// Where the matrix and its labels stand on the canvas: as large as the width allows, never too small to point at.
// Where cells are too small for a label each, every second or third is written.

const SMALLEST = 6; // CSS pixels of a cell; below this the frame scrolls
const SMALLEST_TOUCHED = 9; // where a finger points
const LINE = 8; // CSS pixels from label to label, at least
const LARGEST = 2.4; // rem
const SLANT = (52 * Math.PI) / 180; // of the column labels
const MARGIN = 10;

/**
 * @typedef {{left: number, top: number, cell: number, gap: number, width: number, height: number, font: string, angle: number,
 *   every: number, rows: string[], columns: string[]}} Layout  `left` and `top` are the corner of the first cell; of `every` labels one is written.
 */

/** Fit rows × columns of cells and their labels into a width. @returns {Layout} */
export function fitted(context, rows, columns, width, style) {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const smallest = window.matchMedia("(pointer: coarse)").matches ? SMALLEST_TOUCHED : SMALLEST;
  let cell = 1.6 * rem;
  let layout = null;
  // Labels grow with the cells, and the cells have what the labels leave: two rounds settle it.
  for (let round = 0; round < 3; round++) {
    const size = Math.min(Math.max(0.72 * cell, cell < 9 ? 8.5 : 9), 0.95 * rem);
    const angle = cell < 13 ? Math.PI / 2 : SLANT;
    context.font = `${size}px ${style.fontFamily}`;
    const left = Math.ceil(widest(context, rows) + MARGIN + 2);
    const top = Math.ceil(widest(context, columns) * Math.sin(angle) + size + MARGIN);
    const beyond = (fit) => Math.max(0, ...columns.map((text, key) => context.measureText(text).width * Math.cos(angle) + size / 2 - (columns.length - key - 0.5) * fit));
    const room = (width - left - beyond(cell)) / columns.length;
    cell = Math.max(smallest, Math.min(Math.floor(room), Math.floor(LARGEST * rem)));
    const gap = cell >= 14 ? 1 : 0;
    layout = {
      left,
      top,
      cell,
      gap,
      width: Math.ceil(left + columns.length * cell + Math.max(beyond(cell), 2)),
      height: top + rows.length * cell + 2,
      font: `${size}px ${style.fontFamily}`,
      angle,
      every: Math.ceil(LINE / cell),
      rows,
      columns,
    };
  }
  return layout;
}

/** The row and the column at a point of the canvas; null where there is none. @param {Layout} layout */
export function hit({ left, top, cell, rows, columns }, x, y) {
  const query = Math.floor((y - top) / cell);
  const key = Math.floor((x - left) / cell);
  return {
    query: query >= 0 && query < rows.length ? query : null,
    key: key >= 0 && key < columns.length ? key : null,
  };
}

function widest(context, texts) {
  return Math.max(...texts.map((text) => context.measureText(text).width));
}
