// Where the matrix stands on its canvas: fitted, zoomed, panned.

import assert from "node:assert/strict";
import { test } from "node:test";

import { cellAt, fitMatrix, panBy, zoomAt } from "../../../src/regard/explore/static/views/matrix_layout.js";

/** Letters are as wide as half their height. */
const context = {
  font: "",
  measureText(text) {
    return { width: text.length * parseFloat(this.font) * 0.5 };
  },
};
const labels = (count) => Array.from({ length: count }, (_, index) => `word${index}`);
const room = { width: 800, height: 700, rem: 16, family: "serif", zoom: null };
const fit = (rows, columns, changed = {}) => fitMatrix(context, labels(rows), labels(columns), { ...room, ...changed });
const inside = (layout, query, key) => [
  layout.left + (key + 0.5 - layout.column) * layout.cell,
  layout.top + (query + 0.5 - layout.row) * layout.cell,
];

for (const [rows, columns] of [
  [1, 1],
  [10, 8],
  [72, 72],
  [300, 300],
  [4096, 4096],
  [5, 4096],
  [16384, 3],
]) {
  test(`${rows} × ${columns} cells are all visible`, () => {
    const layout = fit(rows, columns);
    assert.ok(layout.left + columns * layout.cell <= room.width + 1);
    assert.ok(
      layout.cell * rows <= room.height || layout.cell <= 6,
      "no higher than the window, unless cells became too small",
    );
    assert.deepEqual([layout.row, layout.column], [0, 0]);
    assert.ok(layout.cell <= 2.4 * 16);
    for (const place of [
      [0, 0],
      [rows - 1, columns - 1],
      [rows >> 1, columns >> 1],
    ]) {
      assert.deepEqual(cellAt(layout, ...inside(layout, ...place)), { query: place[0], key: place[1] });
    }
  });
}

test("outside of the cells there is no row, or no column", () => {
  const layout = fit(10, 8);
  const [x, y] = inside(layout, 3, 2);
  assert.deepEqual(cellAt(layout, x, layout.top - 3), { query: null, key: 2 });
  assert.deepEqual(cellAt(layout, layout.left - 3, y), { query: 3, key: null });
  assert.deepEqual(cellAt(layout, 1, 1), { query: null, key: null });
  assert.deepEqual(cellAt(layout, layout.left + 8 * layout.cell + 1, y), { query: 3, key: null });
});

test("labels are tokens where cells are large, and numbers where they are not", () => {
  assert.equal(fit(10, 8).named, true);
  assert.equal(fit(10, 8).every, 1);
  const long = fit(4096, 4096);
  assert.equal(long.named, false);
  assert.ok(long.every * long.cell >= 44);
  assert.match(String(long.every), /^(1|2|5)0*$/);
});

test("zooming keeps the cell that is pointed at where it is", () => {
  for (const [cell, factor] of [
    [24, 1.5],
    [40, 0.8],
    [0.5, 4],
  ]) {
    const layout = fit(4096, 4096, { zoom: { query: 3000, key: 1500, cell } });
    const [x, y] = inside(layout, 3004, 1497);
    const after = fit(4096, 4096, { zoom: zoomAt(layout, factor, x, y) });
    assert.ok(Math.abs(after.cell - factor * layout.cell) < 1e-6);
    assert.deepEqual(cellAt(after, x, y), { query: 3004, key: 1497 });
  }
});

test("where labels turn into tokens, the cell moves by no more than their room", () => {
  const layout = fit(4096, 4096);
  const [x, y] = inside(layout, 3000, 1500);
  const after = fit(4096, 4096, { zoom: zoomAt(layout, 40, x, y) });
  const [left, top] = inside(after, 3000, 1500);
  assert.ok(Math.abs(left - x) <= Math.abs(after.left - layout.left) + after.cell);
  assert.ok(Math.abs(top - y) <= Math.abs(after.top - layout.top) + after.cell);
});

test("zooming goes no deeper than cells can be, and out to all that there is", () => {
  const layout = fit(4096, 4096);
  const deep = fit(4096, 4096, { zoom: zoomAt(layout, 1e6, ...inside(layout, 10, 10)) });
  assert.equal(deep.cell, 48);
  assert.equal(zoomAt(deep, 1e-6, 200, 200), null);
  assert.equal(zoomAt(layout, 0.5, 200, 200), null);
});

test("a zoom beyond the edges shows the edges", () => {
  for (const [query, key] of [
    [-500, -500],
    [1e6, 1e6],
  ]) {
    const layout = fit(1000, 1000, { zoom: { query, key, cell: 20 } });
    assert.ok(layout.row >= 0 && layout.column >= 0);
    assert.ok(layout.row + layout.viewport.height / layout.cell <= 1000 + 1e-9);
    assert.ok(layout.column + layout.viewport.width / layout.cell <= 1000 + 1e-9);
  }
});

test("moving aside by a cell shows the next one, and stops at the edge", () => {
  const layout = fit(1000, 1000, { zoom: { query: 500, key: 500, cell: 20 } });
  const after = fit(1000, 1000, { zoom: panBy(layout, -20, 40) });
  assert.ok(Math.abs(after.column - layout.column - 1) < 1e-6);
  assert.ok(Math.abs(after.row - layout.row + 2) < 1e-6);
  const corner = fit(1000, 1000, { zoom: panBy(layout, 1e6, 1e6) });
  assert.deepEqual([corner.row, corner.column], [0, 0]);
});
