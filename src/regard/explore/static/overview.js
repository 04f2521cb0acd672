// All layers and heads as small maps: a grid, a row for each layer, in which arrow keys move and choose.

import { drawPixels } from "#colour.js";
import { element, rove } from "#elements.js";
import { themeOf } from "#theme.js";

export const KINDS = [
  { kind: "encoder", title: "Encoder" },
  { kind: "cross", title: "Cross-attention" },
  { kind: "decoder", title: "Decoder" },
];

export function mountOverview(place, recording, store) {
  const rows = []; // in the order in which they are seen, each {layer, cells}
  const grid = element("div", { role: "grid", class: "grid", "aria-label": "Layers (rows) and heads (columns)" });
  grid.style.setProperty("--heads", String(Math.max(...recording.layers.map(({ heads }) => heads))));
  grid.append(headNumbers(Math.max(...recording.layers.map(({ heads }) => heads))));
  for (const { kind, title } of KINDS) {
    const layers = recording.layers.filter((layer) => layer.kind === kind);
    if (layers.length === 0) continue;
    const group = element("div", { role: "rowgroup", class: "group", "aria-label": title });
    group.append(element("h3", { role: "presentation" }, title));
    layers.forEach((layer, ordinal) => {
      const cells = Array.from({ length: layer.heads }, (_, head) => thumbnail(layer, head));
      const name = element("span", { role: "rowheader", class: "layer-name", title: layer.name, "aria-label": layer.name }, String(ordinal));
      group.append(element("div", { role: "row", class: "row" }, name, ...cells));
      rows.push({ layer: recording.layers.indexOf(layer), cells });
    });
    grid.append(group);
  }
  place.append(grid);

  const choose = (row, head) => {
    const { layer, cells } = rows[Math.min(Math.max(row, 0), rows.length - 1)];
    const bounded = Math.min(Math.max(head, 0), cells.length - 1);
    store.set({ layer, head: bounded, hover: null });
    return cells[bounded];
  };
  rows.forEach(({ cells }, row) =>
    cells.forEach((cell, head) => {
      cell.addEventListener("click", () => choose(row, head).focus());
      cell.addEventListener("keydown", (event) => {
        const to = moved(event.key, row, head, cells.length);
        if (!to) return;
        event.preventDefault();
        choose(...to).focus();
      });
    }),
  );

  let drawn = "";
  store.subscribe((state) => {
    const theme = themeOf(state);
    if (theme !== drawn) for (const { layer, cells } of rows) cells.forEach((cell, head) => draw(cell, recording.layers[layer], head, theme));
    drawn = theme;
    const all = rows.flatMap(({ cells }) => cells);
    const chosen = rows.find(({ layer }) => layer === state.layer).cells[state.head];
    rove(all, all.indexOf(chosen));
    for (const cell of all) cell.setAttribute("aria-selected", String(cell === chosen));
  });
}

function headNumbers(count) {
  const numbers = Array.from({ length: count }, (_, head) => element("span", { role: "columnheader", "aria-label": `head ${head}` }, String(head)));
  return element("div", { role: "rowgroup" }, element("div", { role: "row", class: "row numbers" }, element("span", { role: "columnheader", "aria-label": "layer" }), ...numbers));
}

function thumbnail(layer, head) {
  const name = `${layer.name}, head ${head}`;
  return element("div", { role: "gridcell", class: "thumbnail", "aria-label": name, title: name }, element("canvas", { "aria-hidden": "true" }));
}

function draw(cell, layer, head, theme) {
  drawPixels(cell.firstChild, layer.queries.length, layer.keys.length, (query, key) => layer.at(head, query, key), theme);
}

/** Where a key leads from a row and a head, or nothing. */
function moved(key, row, head, heads) {
  switch (key) {
    case "ArrowLeft": return [row, head - 1];
    case "ArrowRight": return [row, head + 1];
    case "ArrowUp": return [row - 1, head];
    case "ArrowDown": return [row + 1, head];
    case "Home": return [row, 0];
    case "End": return [row, heads - 1];
    case "Enter": case " ": return [row, head];
    default: return null;
  }
}
