// The numbers: for what is pointed at or held, where it looks and what looks at it, strongest first.

import { strongest, written } from "#data.js";
import { element } from "#elements.js";
import { focusIn } from "#state.js";
import { label } from "#tokens.js";

const LENGTH = 6;

export function mountReadout(place, recording, store) {
  const lists = element("div", { class: "lists" });
  const spoken = element("p", { class: "unseen", role: "status" });
  place.append(lists, spoken);
  store.subscribe((state) => {
    const layer = recording.layers[state.layer];
    const focus = focusIn(layer, state);
    lists.replaceChildren(...panels(layer, state.head, focus));
    const sentence = spokenOf(layer, state.head, focus);
    if (sentence !== spoken.textContent) spoken.textContent = sentence;
  });
}

function panels(layer, head, { query, key, cell }) {
  const made = [];
  if (query !== null) {
    const rows = strongest(layer.row(head, query), LENGTH);
    const entries = rows.map((link) => entry(label(layer.keys[link.key]), link.weight, "out", cell && link.key === key));
    made.push(panel([named(layer.queries[query]), " attends to"], entries));
  }
  if (key !== null) {
    const rows = strongest(layer.column(head, key), LENGTH);
    const entries = rows.map((link) => entry(label(layer.queries[link.query]), link.weight, "in", cell && link.query === query));
    made.push(panel([named(layer.keys[key]), " is attended by"], entries));
  }
  if (made.length === 0) {
    const rows = strongest(layer.links(head), LENGTH);
    const entries = rows.map((link) => entry(`${label(layer.queries[link.query])} → ${label(layer.keys[link.key])}`, link.weight, "out", false));
    made.push(panel(["Strongest in this head"], entries));
    made.push(element("p", { class: "hint" }, "Point at a word or a cell, or go there with Tab and the arrow keys. Click or press Enter to hold it."));
  }
  return made;
}

function panel(title, entries) {
  const list = entries.length ? element("ol", {}, ...entries) : element("p", { class: "hint" }, "Nothing: the mask leaves it no token.");
  return element("div", { class: "panel" }, element("h3", {}, ...title), list);
}

function entry(title, weight, direction, chosen) {
  const bar = element("span", { class: `bar ${direction}`, "aria-hidden": "true" });
  bar.style.setProperty("--weight", String(weight));
  const name = element("span", { class: "name", dir: "auto" }, title);
  return element("li", { class: chosen ? "chosen" : "" }, name, bar, element("span", { class: "value" }, written(weight)));
}

function named(token) {
  return element("b", { dir: "auto" }, label(token));
}

function spokenOf(layer, head, { query, key, cell }) {
  if (cell && Number.isNaN(layer.at(head, query, key))) return `${label(layer.queries[query])} may not see ${label(layer.keys[key])}.`;
  if (cell) return `${label(layer.queries[query])} attends to ${label(layer.keys[key])} with ${written(layer.at(head, query, key))}.`;
  const told = [];
  if (query !== null) {
    const links = strongest(layer.row(head, query), 3).map((link) => `${label(layer.keys[link.key])} ${written(link.weight)}`);
    told.push(`${label(layer.queries[query])} attends to ${links.join(", ") || "nothing"}.`);
  }
  if (key !== null) {
    const links = strongest(layer.column(head, key), 3).map((link) => `${label(layer.queries[link.query])} ${written(link.weight)}`);
    told.push(`${label(layer.keys[key])} is attended by ${links.join(", ") || "nothing"}.`);
  }
  return told.join(" ");
}
