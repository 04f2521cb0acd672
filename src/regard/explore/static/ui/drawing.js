// What several views draw: hatching, curves, canvases with sharp pixels, and tips next to a cell.

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box  In CSS pixels. */

const TIP_DISTANCE = 8; // CSS pixels from a cell to its tip

/** @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** Give a canvas a size in CSS pixels, with a pixel for each of the screen's, and clear it. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function resizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  if (canvas.width !== size.width || canvas.height !== size.height) {
    Object.assign(canvas, size);
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/**
 * Fill the current clip with slanted lines. @param {CanvasRenderingContext2D} context @param {Box} box
 * @param {{color: string, step?: number, rising?: boolean}} style  CSS pixels between lines, and which way they slant.
 */
export function hatch(context, { left, right, top, bottom }, { color, step = 7, rising = true }) {
  const height = bottom - top;
  context.beginPath();
  for (let x = left - height; x < right; x += step) {
    context.moveTo(x, rising ? bottom : top);
    context.lineTo(x + height, rising ? top : bottom);
  }
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.stroke();
}

/**
 * A curve between two points that starts and ends vertically, or horizontally if transposed.
 * @param {[x: number, y: number]} from @param {[x: number, y: number]} to @param {boolean} transposed @param {number} bend  The y of its handles.
 */
export function linkPath(from, to, transposed = false, bend = (from[1] + to[1]) / 2) {
  const points = [from, [from[0], bend], [to[0], bend], to];
  const written = points.map(([x, y]) => (transposed ? [y, x] : [x, y]).map((value) => value.toFixed(1)).join(" "));
  return `M${written[0]}C${written.slice(1).join(" ")}`;
}

/** The x in the middle of a box. @param {Box} box */
export function middleOf({ left, right }) {
  return (left + right) / 2;
}

/** The box of an element within another, with x and y exchanged if it is transposed. @param {Element} node @param {DOMRect} frame @returns {Box} */
export function boxOf(node, frame, transposed = false) {
  const { left, right, top, bottom } = node.getBoundingClientRect();
  const box = { left: left - frame.left, right: right - frame.left, top: top - frame.top, bottom: bottom - frame.top };
  return transposed ? { left: box.top, right: box.bottom, top: box.left, bottom: box.right } : box;
}

/**
 * Put a tip next to a cell, to its right and below if there is room, so that neither its row nor its column is covered.
 * @param {HTMLElement} tip @param {Box} cell  In pixels of what the tip is placed in. @param {{width: number, height: number}} room
 */
export function placeTip(tip, cell, room) {
  const [after, before] = [cell.right + TIP_DISTANCE, cell.left - tip.offsetWidth - TIP_DISTANCE];
  const [below, above] = [cell.bottom + TIP_DISTANCE, cell.top - tip.offsetHeight - TIP_DISTANCE];
  tip.style.left = `${after + tip.offsetWidth <= room.width ? after : Math.max(before, 0)}px`;
  tip.style.top = `${above >= 0 && below + tip.offsetHeight > room.height ? above : below}px`;
}
