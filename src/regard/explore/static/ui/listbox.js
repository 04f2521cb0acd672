// Lists and grids in which Tab stops once and arrow keys move.

import { clamp } from "#data/numbers.js";

/** Arrow keys of a list whose options stand one below the other. */
export const ACROSS = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowRight: "ArrowDown" };

/** Let Tab reach one of several elements, the current one. @param {(HTMLElement | SVGElement)[]} elements @param {number} current */
export function setTabStop(elements, current) {
  for (const [index, node] of elements.entries()) node.tabIndex = index === current ? 0 : -1;
}

/**
 * Where a key leads in a line of `count` entries; null if nowhere.
 * @param {string} key @param {number} index @param {number} count @returns {number | null}
 */
export function moveInLine(key, index, count) {
  const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: count - 1 }[key];
  return to === undefined ? null : clamp(to, 0, count - 1);
}

/**
 * Where a key leads in a grid; null if nowhere. Enter and Space stay. @param {string} key @param {{row: number, column: number}} at
 * @param {{columns: number, page?: number}} grid  `page` is how many rows a page key moves. @returns {{row: number, column: number} | null} it may be outside the grid
 */
export function moveInGrid(key, { row, column }, { columns, page = 1 }) {
  switch (key) {
    case "ArrowLeft":
      return { row, column: column - 1 };
    case "ArrowRight":
      return { row, column: column + 1 };
    case "ArrowUp":
      return { row: row - 1, column };
    case "ArrowDown":
      return { row: row + 1, column };
    case "PageUp":
      return { row: row - page, column };
    case "PageDown":
      return { row: row + page, column };
    case "Home":
      return { row, column: 0 };
    case "End":
      return { row, column: columns - 1 };
    default:
      return null;
  }
}

/**
 * Let pointer and keyboard choose among the options of a list.
 * @param {HTMLElement} list @param {HTMLElement[]} options  Each with its index as `data-index`.
 * @param {{point(index: number | null): void, select(index: number, event: MouseEvent | KeyboardEvent): void, clear(): void, isVertical?(): boolean,
 *   toOther?(): void, moved?(index: number, event: KeyboardEvent): void, press?(event: KeyboardEvent, index: number): boolean}} actions
 *   `point`: the pointer or the keyboard is at an option, or at none. `toOther`: go to the other list.
 *   `moved`: an arrow key leads to an option. `press`: another key; whether it was handled.
 */
export function listen(list, options, { point, select, clear, isVertical, toOther, moved, press }) {
  let current = 0;
  const indexOf = (/** @type {Event} */ { target }) =>
    Number(/** @type {HTMLElement} */ (target).closest?.("[data-index]")?.getAttribute("data-index") ?? -1);
  setTabStop(options, current);
  list.addEventListener("pointerover", (event) => indexOf(event) >= 0 && point(indexOf(event)));
  list.addEventListener("pointerleave", () => point(null));
  list.addEventListener("focusout", () => point(null));
  list.addEventListener("focusin", (event) => {
    options[current].tabIndex = -1;
    current = indexOf(event);
    options[current].tabIndex = 0;
    point(current);
  });
  list.addEventListener("click", (event) => indexOf(event) >= 0 && select(indexOf(event), event));
  list.addEventListener("keydown", (event) => {
    const index = indexOf(event);
    const key = isVertical?.() ? (ACROSS[/** @type {keyof typeof ACROSS} */ (event.key)] ?? event.key) : event.key;
    const to = moveInLine(key, index, options.length);
    if (to !== null) {
      moved?.(to, event);
      options[to].focus();
    } else if ((key === "ArrowUp" || key === "ArrowDown") && toOther) toOther();
    else if (key === "Enter" || key === " ") select(index, event);
    else if (key === "Escape") clear();
    else if (!press?.(event, index)) return;
    event.preventDefault();
  });
  return {
    /** Go to the option that was current last. */
    focus: () => options[current].focus(),
  };
}

/** In how many lines elements stand. @param {HTMLElement[]} elements */
export function countLines(elements) {
  return new Set(elements.map(({ offsetTop }) => offsetTop)).size;
}

/** Say whether lists run down or across. @param {{list: HTMLElement}[]} texts @param {boolean} isVertical */
export function setOrientation(texts, isVertical) {
  for (const { list } of texts) list.setAttribute("aria-orientation", isVertical ? "vertical" : "horizontal");
}

/** Whether an event adds to what is selected. @param {MouseEvent | KeyboardEvent} event */
export function addsToSelection(event) {
  return event.ctrlKey || event.metaKey;
}
