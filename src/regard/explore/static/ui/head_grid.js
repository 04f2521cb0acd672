// All layers and heads as small maps: a grid, a row for each layer, in which arrow keys move and choose; or sorted by what heads do.

import { drawPixels } from "#ui/color.js";
import { element, rove } from "#ui/elements.js";
import { themeOf } from "#ui/theme.js";

/** @typedef {{layer: number, head: number, cell: HTMLElement, score: number | null}} Place  A head in the overview. */

export const KINDS = [
  { kind: "encoder", title: "Encoder" },
  { kind: "cross", title: "Cross-attention" },
  { kind: "decoder", title: "Decoder" },
];

/** What heads are sorted by, and what the number is. Entropy and mean distance have no bound; the others are shares, from 0 to 1. */
const SCORES = {
  previous_token: "the weight on the token before",
  next_token: "the weight on the token after",
  self: "the weight on the token itself",
  first_token: "the weight on the first token, which is often a sink",
  separator: "the weight on marks such as [SEP]",
  duplicate_token: "the weight on the same token at other places",
  induction: "the weight on what follows the same token at other places",
  entropy: "the entropy in nats: the larger, the more evenly a row is spread",
  mean_distance: "the distance between a token and what it attends to, in tokens",
};
const UNBOUNDED = ["entropy", "mean_distance"];

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountOverview(place, recording, store) {
  const controls = new Controls(recording, store);
  const grid = element("div", { role: "grid", class: "grid", "aria-label": "Layers (rows) and heads (columns)" });
  place.append(controls.node, grid);
  const cells = recording.layers.map((layer) => layer.heads.map((_, head) => thumbnail(layer, head)));
  /** @type {Place[][]} */
  let rows = []; // as they are seen

  const choose = (/** @type {number} */ row, /** @type {number} */ column, more = false) => {
    const line = rows[Math.min(Math.max(row, 0), rows.length - 1)];
    const { layer, head, cell } = line[Math.min(Math.max(column, 0), line.length - 1)];
    const { heads, layer: current } = store.get();
    const others = heads.filter((other) => other !== head);
    const several = more && layer === current && (others.length === heads.length || others.length > 0);
    store.set({
      layer,
      heads: several ? (others.length === heads.length ? [...heads, head].sort((a, b) => a - b) : others) : [head],
      hover: null,
    });
    return cell;
  };
  const placeOf = (/** @type {any} */ node) => {
    for (const [row, line] of rows.entries()) {
      const column = line.findIndex(({ cell }) => cell.contains(node));
      if (column >= 0) return [row, column];
    }
    return null;
  };
  grid.addEventListener("click", (event) => {
    const at = placeOf(event.target);
    if (at) choose(at[0], at[1], event.ctrlKey || event.metaKey || event.shiftKey).focus();
  });
  grid.addEventListener("keydown", (event) => {
    const at = placeOf(event.target);
    const to = at && moved(event.key, at[0], at[1], rows[at[0]].length);
    if (!to) return;
    event.preventDefault();
    choose(to[0], to[1], event.ctrlKey || event.metaKey || event.shiftKey).focus();
  });

  const arrange = (/** @type {import("#state/store.js").State} */ { sort, least }) => {
    const all = recording.layers.flatMap((layer, index) =>
      layer.heads.map((_, head) => ({
        layer: index,
        head,
        cell: cells[index][head],
        score: layer.scores[sort]?.[head] ?? null,
      })),
    );
    const passes = ({ score }) => UNBOUNDED.includes(sort) || (score ?? 0) >= least;
    if (sort === "order") {
      const ordered = KINDS.flatMap(({ kind }) =>
        recording.layers.map((layer, index) => ({ layer, index })).filter(({ layer }) => layer.kind === kind),
      );
      rows = ordered.map(({ index }) => all.filter(({ layer }) => layer === index));
      grid.replaceChildren(...inOrder(recording, cells));
    } else {
      const wide = Math.min(Math.max(...recording.layers.map(({ heads }) => heads.length)), 12);
      const sorted = all
        .filter(({ score }) => score !== null)
        .sort((a, b) => Number(b.score) - Number(a.score))
        .filter(passes);
      rows = Array.from({ length: Math.ceil(sorted.length / wide) }, (_, row) =>
        sorted.slice(row * wide, (row + 1) * wide),
      );
      grid.style.setProperty("--heads", String(wide));
      const lines = rows.map((line) =>
        element("div", { role: "row", class: "row sorted" }, ...line.map(({ cell, score }) => captioned(cell, score))),
      );
      const at = /** @type {HTMLElement} */ (document.activeElement);
      grid.replaceChildren(
        ...(lines.length
          ? lines
          : [
              element(
                "p",
                { class: "hint" },
                told(recording, sort) < controls.heads
                  ? "None that reaches it is computed yet."
                  : "No head reaches that.",
              ),
            ]),
      );
      if (at !== document.activeElement) at.focus(); // which heads that come lately take from it
    }
  };

  let arranged = "";
  const drawn = cells.map((line) => line.map(() => ""));
  const update = (state) => {
    const name = `${state.sort} ${state.least} ${told(recording, state.sort)}`;
    if (name !== arranged) arrange(state);
    arranged = name;
    const looks = `${themeOf(state)} ${state.palette} ${state.scale}`;
    recording.layers.forEach(({ thumbnails }, layer) => {
      thumbnails.forEach((squares, head) => {
        if (drawn[layer][head] === looks) return;
        const canvas = /** @type {HTMLCanvasElement} */ (cells[layer][head].firstChild);
        drawPixels(canvas, squares, state, themeOf(state));
        canvas.classList.add("drawn");
        drawn[layer][head] = looks;
      });
    });
    const shown = rows.flat().map(({ cell }) => cell);
    const chosen = state.heads.map((head) => cells[state.layer][head]);
    rove(shown, Math.max(shown.indexOf(chosen[0]), 0));
    for (const cell of shown) cell.setAttribute("aria-selected", String(chosen.includes(cell)));
  };
  store.subscribe(update);
  recording.begun.then(() => update(store.get()));
}

/** Of how many heads a server has told what they do; a file tells it of all. @param {import("#data/recording.js").Recording} recording @param {string} score */
function told(recording, score) {
  return recording.layers.reduce((sum, { scores }) => sum + (scores[score]?.length ?? 0), 0);
}

/** Sorting and filtering. */
class Controls {
  constructor(recording, store) {
    this.recording = recording;
    this.heads = recording.layers.reduce((sum, { heads }) => sum + heads.length, 0);
    this.names = "";
    this.select = element("select", { id: "sort" });
    this.least = element("input", { type: "range", id: "least", min: "0", max: "1", step: "0.05" });
    this.note = element("p", { class: "hint" });
    this.bound = element("output", { for: "least" });
    this.filter = element("label", { class: "field", for: "least" }, "at least ", this.least, this.bound);
    this.node = element(
      "div",
      { class: "controls" },
      element("label", { class: "field", for: "sort" }, "Sort by ", this.select),
      this.filter,
      this.note,
    );
    this.select.addEventListener("change", () => store.set({ sort: this.select.value, least: 0 }));
    this.least.addEventListener("input", () => store.set({ least: Number(this.least.value) }));
    store.subscribe((state) => this.update(state));
  }

  /** @param {import("#state/store.js").State} state */
  update({ sort, least }) {
    this.offer();
    this.select.value = sort;
    this.least.value = String(least);
    this.bound.textContent = least.toFixed(2);
    this.filter.hidden = sort === "order" || UNBOUNDED.includes(sort);
    const done = told(this.recording, sort);
    const notes = [
      `The number is, on the mean over the rows, ${SCORES[sort]}.`,
      ...(done < this.heads ? [`So far it is computed of ${done} of ${this.heads} heads.`] : []),
    ];
    this.note.textContent = SCORES[sort] ? notes.join(" ") : "";
  }

  /** What can be sorted by: what some head does, or may do. */
  offer() {
    const names = Object.keys(SCORES).filter((name) =>
      this.recording.layers.some(
        ({ scores, heads }) => scores[name].length < heads.length || scores[name].some((score) => score !== null),
      ),
    );
    if (names.join() === this.names) return;
    this.names = names.join();
    const options = [["order", "layer and head"], ...names.map((name) => [name, name.replace("_", " ")])];
    this.select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }
}

/** A row for each layer, in groups by kind. */
function inOrder(recording, cells) {
  const most = Math.max(...recording.layers.map(({ heads }) => heads.length));
  const groups = KINDS.flatMap(({ kind, title }) => {
    const layers = recording.layers
      .map((layer, index) => ({ layer, index }))
      .filter(({ layer }) => layer.kind === kind);
    if (layers.length === 0) return [];
    const lines = layers.map(({ layer, index }, ordinal) => {
      const name = element(
        "span",
        { role: "rowheader", class: "layer-name", title: layer.name, "aria-label": layer.name },
        String(ordinal),
      );
      return element("div", { role: "row", class: "row" }, name, ...cells[index]);
    });
    return element(
      "div",
      { role: "rowgroup", class: "group", "aria-label": title },
      element("h3", { role: "presentation" }, title),
      ...lines,
    );
  });
  const made = [headNumbers(most), ...groups];
  for (const node of made) node.style.setProperty("--heads", String(most));
  return made;
}

/** @param {HTMLElement} cell @param {number | null} score */
function captioned(cell, score) {
  return element(
    "div",
    { role: "presentation", class: "captioned" },
    cell,
    element("span", { class: "caption", "aria-hidden": "true" }, Number(score).toFixed(2)),
  );
}

function headNumbers(count) {
  const numbers = Array.from({ length: count }, (_, head) =>
    element("span", { role: "columnheader", "aria-label": `head ${head}` }, String(head)),
  );
  return element(
    "div",
    { role: "rowgroup" },
    element(
      "div",
      { role: "row", class: "row numbers" },
      element("span", { role: "columnheader", "aria-label": "layer" }),
      ...numbers,
    ),
  );
}

function thumbnail(layer, head) {
  const name = `${layer.name}, head ${layer.heads[head]}`;
  return element(
    "div",
    { role: "gridcell", class: "thumbnail", "aria-label": name, title: name },
    element("canvas", { "aria-hidden": "true" }),
  );
}

/** Where a key leads from a row and a head, or nothing. @param {string} key @param {number} row @param {number} head @param {number} heads @returns {[number, number] | null} */
function moved(key, row, head, heads) {
  switch (key) {
    case "ArrowLeft":
      return [row, head - 1];
    case "ArrowRight":
      return [row, head + 1];
    case "ArrowUp":
      return [row - 1, head];
    case "ArrowDown":
      return [row + 1, head];
    case "Home":
      return [row, 0];
    case "End":
      return [row, heads - 1];
    case "Enter":
    case " ":
      return [row, head];
    default:
      return null;
  }
}
