// The calculation of one query's attention in one head: from vectors to weights and output, a table for each step.

import { calculated, difference, weighted } from "#data/attention_steps.js";
import { label } from "#data/tokens.js";
import { PAIR } from "#export/csv.js";
import { focusIn } from "#state/store.js";
import { element, rove } from "#ui/elements.js";

const KEYS = 12; // rows of a table, unless all are asked for
const FEATURES = 8;
const MANY = 256; // keys, of which all are shown for one query only
const MOST = 2048; // keys that are shown
const STRONGEST_SHADE = 42; // % of colour behind the largest number of a step

/** @param {HTMLElement} place @param {import("#data/recording.js").Recording} recording @param {import("#state/store.js").Store} store */
export function mountCalculation(place, recording, store) {
  const all = { keys: false, features: false };
  const heading = element("p", { class: "calculation-of" });
  const toggles = { keys: element("button", { type: "button" }), features: element("button", { type: "button" }) };
  const tools = element(
    "div",
    { class: "tools", role: "group", "aria-label": "How much is shown" },
    toggles.keys,
    toggles.features,
  );
  const steps = element("div", { class: "steps" });
  place.append(heading, tools, steps);
  let name = "";
  let shown = null; // {layer, head, query}
  let _asked = 0;

  const chosen = (state = store.get()) => {
    const layer = recording.layers[state.layer];
    return { layer, head: state.heads[0], query: focusIn(layer, state).queries[0] ?? layer.queries.length - 1 };
  };
  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("calculation")) return;
    const { layer, head, query } = chosen(state);
    const one = `${layer.name} ${head} ${query}`;
    if (!name.startsWith(`${one} `) && layer.keys.length > MANY) all.keys = false;
    const wanted = [one, all.keys, all.features, state.heads.length].join(" ");
    if (name !== wanted) {
      const calculation = layer.ready ? calculated(layer, head, query) : null;
      name = calculation ? wanted : "";
      if (!calculation) return steps.replaceChildren(element("p", { class: "hint" }, "Reading …"));
      draw(layer, head, query, state.heads.length, calculation);
    }
    const key = state.hover?.cell?.query === query ? state.hover.cell.key : -1;
    for (const row of steps.querySelectorAll("tr[data-key]"))
      row.classList.toggle("chosen", Number(row.getAttribute("data-key")) === key);
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  const draw = (layer, head, query, heads, calculation) => {
    shown = { layer, head, query };
    const { rows, features } = calculation;
    const more = heads > 1 ? `, the first of the ${heads} heads chosen` : "";
    heading.replaceChildren(
      element("b", { dir: "auto" }, label(layer.queries[query])),
      ` in ${layer.name}, head ${layer.heads[head]}${more}`,
    );
    toggle(
      toggles.keys,
      all.keys,
      rows.length > KEYS,
      all.keys
        ? `Show the ${KEYS} strongest keys`
        : `Show ${rows.length > MOST ? `the ${MOST} strongest` : `all ${rows.length}`} keys`,
    );
    toggle(
      toggles.features,
      all.features,
      features > FEATURES,
      all.features ? `Show ${FEATURES} features` : `Show all ${features} features`,
    );
    steps.replaceChildren(...stepsOf(layer, query, calculation, all, recording.error));
    for (const body of steps.querySelectorAll("tbody")) rove([...body.querySelectorAll("button")], 0);
  };

  for (const part of ["keys", "features"]) {
    toggles[part].addEventListener("click", () => {
      all[part] = !all[part];
      soon();
    });
  }
  const point = (event) => {
    const row = event.target instanceof Element && event.target.closest("tr[data-key]");
    if (row) store.set({ hover: { cell: { query: shown.query, key: Number(row.getAttribute("data-key")) } } });
  };
  const leave = () => store.get().hover?.cell && store.set({ hover: null });
  steps.addEventListener("pointerover", point);
  steps.addEventListener("pointerleave", leave);
  steps.addEventListener("focusin", point);
  steps.addEventListener("focusout", leave);
  steps.addEventListener("click", point);
  steps.addEventListener("keydown", (event) => {
    const body = event.target instanceof Element && event.target.closest("tbody");
    if (!body) return;
    const buttons = [...body.querySelectorAll("button")];
    const to = stepped(event.key, buttons.indexOf(/** @type {HTMLButtonElement} */ (event.target)), buttons.length);
    if (to === null) return;
    rove(buttons, to);
    buttons[to].focus();
    event.preventDefault();
  });

  store.subscribe((state) => {
    const layer = recording.layers[state.layer];
    if (state.views.includes("calculation") && !layer.ready) layer.load().then(() => store.set({}));
    soon();
  });
  return () => {
    const { layer, head, query } = chosen();
    return tableOf(layer, query, layer.ready ? calculated(layer, head, query) : null);
  };
}

/** All that is calculated: a line for each key, and one for the output. @returns {import("#export/csv.js").Table} */
function tableOf(layer, query, calculation) {
  const { rows = [], output = null } = calculation ?? {};
  const features = Array.from(rows[0]?.value ?? [], (_, feature) => `weight × value ${feature}`);
  const lines = rows.map((row) => [
    query,
    layer.queries[query],
    row.key,
    layer.keys[row.key],
    row.product ?? null,
    row.scaled ?? null,
    row.weight,
    row.stored,
    ...(row.value ? weighted([row]) : []),
  ]);
  const sum = [query, layer.queries[query], null, "output", null, null, null, null, ...(output ?? [])];
  return {
    columns: [...PAIR, "product", "scaled", "weight", "stored", ...features],
    rows: output ? [...lines, sum] : lines,
  };
}

function stepped(key, at, count) {
  const to = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: count - 1 }[key];
  return to === undefined || at < 0 ? null : Math.min(Math.max(to, 0), count - 1);
}

function toggle(button, pressed, needed, text) {
  button.hidden = !needed;
  button.textContent = text;
  button.setAttribute("aria-pressed", String(pressed));
}

/** Every step that the page can tell. */
function stepsOf(layer, query, calculation, all, error) {
  const { from, vector, rows } = calculation;
  if (rows.length === 0 && calculation.left === 0)
    return [element("p", { class: "hint" }, "Nothing is calculated: the mask leaves it no key.")];
  const drawn = rows.slice(0, all.keys ? MOST : KEYS);
  const show = {
    layer,
    calculation,
    drawn,
    features: all.features ? Infinity : FEATURES,
    name: ({ key }) => label(layer.keys[key]),
  };
  const made = [];
  if (vector) made.push(queryStep(show, query));
  if (from !== "weights") made.push(productStep(show), scaleStep(show));
  if (from !== "vectors") made.push(ruleNote(layer, calculation));
  made.push(from === "vectors" ? softmaxStep(show, error) : weightsStep(show));
  if (vector) made.push(valueStep(show));
  return made.map((step, index) => numbered(step, index + 1));
}

function queryStep({ layer, calculation: { vector }, features }, query) {
  const columns = featureNames(vector, features);
  return section(
    "Query",
    "q",
    `The vector of ${vector.length} features that the token asks with.`,
    table(columns, [{ name: label(layer.queries[query]), cells: cut(vector, features) }], [], 0),
  );
}

function productStep({ calculation: { rows, vector }, drawn, features, name }) {
  const columns = ["q · k", ...featureNames(vector, features)];
  const lines = drawn.map((row) => ({
    key: row.key,
    name: name(row),
    cells: [row.product, ...cut(row.vector, features)],
  }));
  return section(
    "Products with the keys",
    "q · k_{j} = Σ_{f} q_{f} k_{jf}",
    "The keys that it may see, strongest first: their product with the query, then their features.",
    table(columns, lines, others(rows, drawn, []), 1),
  );
}

function scaleStep({ layer: { header }, calculation: { rows, vector }, drawn, name }) {
  const plain = Math.abs(header.scale * Math.sqrt(vector.length) - 1) < 1e-6;
  const formula = plain
    ? `s_{j} = q · k_{j} / √d = q · k_{j} / √${vector.length}`
    : `s_{j} = ${four(header.scale)} · q · k_{j}`;
  const lines = drawn.map((row) => ({ key: row.key, name: name(row), cells: [row.product, row.scaled] }));
  return section(
    "Scale",
    formula,
    plain ? `That is times ${four(header.scale)}.` : "",
    table(["q · k", "s"], lines, others(rows, drawn, [])),
  );
}

function ruleNote({ header, keys }, { from, vector }) {
  if (header.rule !== null) {
    const products =
      from === "products" ? "What it makes of the scaled products" : "How it makes scores of query and key";
    return section(
      "Rule",
      header.rule,
      `Between query, key and softmax stands a rule: ${header.rule}. ${products} is not in this file; what follows is told from the weights, from which scores follow but for a constant.`,
    );
  }
  if (vector)
    return section(
      "Mask",
      "",
      "The mask of this head is not told cell by cell in this file: what follows is told from the weights of the keys that it names.",
    );
  const reason = keys.length > MANY ? "The text is long" : "The recording is large";
  return section(
    "Vectors",
    "q, k, v",
    `${reason}, so this file holds no queries and keys. A shorter text has them in its page, and \`regard serve\` shows them of any. What follows is told from the weights, from which scores follow but for a constant.`,
  );
}

function softmaxStep({ layer, calculation, drawn, name }, error) {
  const { rows, most, sum } = calculation;
  const lines = drawn.map((row) => ({
    key: row.key,
    name: name(row),
    cells: [row.scaled, row.score, row.exp, row.weight, row.stored ?? "not named"],
  }));
  const rest = rows.slice(drawn.length);
  const total = (part, some) => some.reduce((found, row) => found + row[part], 0);
  const foot = [
    ...others(rows, drawn, ["", "", total("exp", rest), total("weight", rest), ""]),
    { name: `Σ of ${rows.length}`, cells: ["", "", sum, total("weight", rows), ""] },
  ];
  const far = difference(calculation);
  const near = rows.every(
    ({ weight, stored }) =>
      stored === null || Math.abs(weight - stored) <= Math.max(1.5 * error[0] * weight, 1.5 * error[1]),
  );
  const remote = layer.header.form === "remote"; // whose weights are exact
  const where = remote ? "from the server" : "in the file";
  const precision = remote ? "" : `; it holds each within ${100 * error[0]} % or ${error[1]}`;
  const agrees = near
    ? `These weights are those ${where}, which differ by ${four(far)} at most${precision}.`
    : `The weights ${where} differ by ${four(far)}: the model may have computed in lower precision.`;
  return section(
    "Softmax",
    "w_{j} = exp(s_{j} − max s) / Σ_{i} exp(s_{i} − max s)",
    `max s = ${four(most)}. ${agrees}`,
    table(["s", "s − max s", "exp", "weight", where], lines, foot),
  );
}

/** What follows from the weights alone. */
function weightsStep({ layer, calculation: { rows, left }, drawn, name }) {
  const least = layer.codes.weights[1]; // a weight that is stored as nothing lies below it
  const lines = drawn.map((row) => ({
    key: row.key,
    name: name(row),
    cells:
      row.weight > 0
        ? [row.score, row.exp, row.weight]
        : [`< ${four(Math.log(least / rows[0].weight))}`, `< ${four(least / rows[0].weight)}`, `< ${four(least)}`],
  }));
  const total = (some) => some.reduce((found, { weight }) => found + weight, 0);
  const foot = [
    ...others(rows, drawn, ["", "", total(rows.slice(drawn.length))]),
    ...(left > 0 ? [{ name: "keys not named", cells: ["", "", left] }] : []),
    { name: "Σ, as stored", cells: ["", "", total(rows) + left] },
  ];
  return section(
    "Scores and weights",
    "s_{j} − max s = ln w_{j} − ln max w",
    "Scores but for a constant, as the weights tell them.",
    table(["s − max s", "exp", "weight"], lines, foot),
  );
}

function valueStep({ calculation: { from, rows, output }, drawn, features, name }) {
  if (!rows[0]?.value)
    return section(
      "Values",
      "o = Σ_{j} w_{j} v_{j}",
      "The values were not kept in this recording, so that the output is not known.",
    );
  const columns = featureNames(rows[0].value, features);
  const products = (some) => cut(weighted(some), features);
  const lines = drawn.map((row) => ({ key: row.key, name: name(row), cells: products([row]) }));
  const rest = rows.slice(drawn.length);
  const foot = [
    ...(rest.length ? others(rows, drawn, products(rest)) : []),
    ...(output ? [{ name: "output", cells: cut(output, features) }] : []),
  ];
  const stored = from === "vectors" ? "" : " They are made with the weights in the file.";
  const partial = output
    ? "The sum is the output of the head."
    : "Some keys are not named in this file, so that the sum is not known.";
  return section(
    "Values by weight",
    "o = Σ_{j} w_{j} v_{j}",
    `Each key’s value times its weight. ${partial}${stored}`,
    table(columns, lines, foot, 0),
  );
}

/** The row that stands for the keys that are not shown. */
function others(rows, drawn, cells) {
  const left = rows.length - drawn.length;
  return left ? [{ name: `${left} more`, cells }] : [];
}

function featureNames(vector, features) {
  const names = Array.from({ length: Math.min(vector.length, features) }, (_, index) => String(index));
  return vector.length > features ? [...names, "…"] : names;
}

/** A vector's first numbers, and that there are more. @returns {(number | string)[]} */
function cut(vector, features) {
  const numbers = Array.from(vector.subarray(0, Math.min(vector.length, features)));
  return vector.length > features ? [...numbers, "…"] : numbers;
}

/** Four decimals, with a true minus sign. */
function four(number) {
  const text = number.toFixed(4);
  return Number(text) === 0 ? "0.0000" : text.replace("-", "−");
}

/**
 * A step's table: a row for each key, numbers shaded by their size.
 * @param {string[]} columns @param {{key?: number, name: string, cells: (number | string)[]}[]} lines
 * @param {{name: string, cells: (number | string)[]}[]} foot @param {number} shaded  From which column on numbers are shaded, on one scale.
 */
function table(columns, lines, foot, shaded = Infinity) {
  const largest = Math.max(
    ...lines.flatMap(({ cells }) => cells.slice(shaded).map((cell) => Math.abs(Number(cell)) || 0)),
  );
  const head = element(
    "thead",
    {},
    element("tr", {}, element("td", {}), ...columns.map((name) => element("th", { scope: "col" }, name))),
  );
  const body = lines.map(({ key, name, cells }) =>
    element(
      "tr",
      key === undefined ? {} : { "data-key": key },
      rowName(name, key),
      ...cells.map((cell, column) => number(cell, column >= shaded ? largest : 0)),
    ),
  );
  const last = foot.map(({ name, cells }) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      ...(cells.length ? cells : columns.map(() => "")).map((cell) => number(cell, 0)),
    ),
  );
  const sheet = element(
    "div",
    { class: "sheet" },
    element("table", {}, head, element("tbody", {}, ...body), ...(last.length ? [element("tfoot", {}, ...last)] : [])),
  );
  if (lines.some(({ key }) => key !== undefined)) return sheet;
  sheet.tabIndex = 0; // nothing else in it takes the focus, without which the keyboard could not scroll it
  sheet.setAttribute("role", "group");
  sheet.setAttribute("aria-label", "Table");
  return sheet;
}

function rowName(name, key) {
  const text = key === undefined ? name : element("button", { type: "button", dir: "auto" }, name);
  return element("th", { scope: "row" }, text);
}

function number(cell, largest) {
  const made = element("td", {}, typeof cell === "number" ? four(cell) : cell);
  if (typeof cell !== "number" || !largest) return made;
  made.classList.add(cell < 0 ? "down" : "up");
  made.style.setProperty("--shade", `${(STRONGEST_SHADE * Math.abs(cell)) / largest}%`);
  return made;
}

function section(title, formula, note, ...rest) {
  return { title, formula, note, rest };
}

function numbered({ title, formula, note, rest }, count) {
  const texts = [
    ...(formula ? [element("p", { class: "formula" }, ...marked(formula))] : []),
    ...(note ? [element("p", { class: "note" }, ...coded(note))] : []),
  ];
  return element(
    "section",
    { class: "step", "aria-label": `${count} ${title}` },
    element("h4", {}, element("span", { class: "number" }, String(count)), title),
    ...texts,
    ...rest,
  );
}

/** A formula with its indices, `_{j}`, set low. */
function marked(formula) {
  return formula.split(/_\{(\w+)\}/).map((part, index) => (index % 2 ? element("sub", {}, part) : part));
}

/** A sentence with `commands` set as such. */
function coded(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}
