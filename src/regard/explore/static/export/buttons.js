// What is seen, as files: a view as PNG or SVG, and what is chosen as CSV.

import { headOf } from "#data/combined_heads.js";
import { links } from "#data/links.js";
import { short } from "#export/canvas_to_svg.js";
import { csvOf, linksIn } from "#export/csv.js";
import { svgOf } from "#export/dom_to_svg.js";
import { focusIn } from "#state/store.js";
import { element } from "#ui/elements.js";

/**
 * @typedef {import("#state/token_or_word.js").Shown} Shown
 * @typedef {import("#data/heads.js").Link} Link
 * @typedef {import("#export/csv.js").Tell} Tell
 */

const SHARP = 2; // pixels of a PNG for each CSS pixel
const MOST_PIXELS = 16_384; // of a side; browsers draw no larger canvas
const MOST_ROWS = 1000; // that a server is asked for
const MOST_CELLS = 1_000_000; // of them, in a file

/**
 * The buttons that save a view.
 * @param {Shown} shown @param {string} name @param {string} title @param {() => HTMLElement} body  Where the view is drawn now.
 * @param {Tell | void} tell  What it shows, where that is not what is chosen.
 */
export function exportButtons(shown, name, title, body, tell) {
  const heading = () => `${title}: ${nameOf(shown, ", ")}`;
  const button = (text, what, act) => {
    const made = element("button", { type: "button", "aria-label": what, title: what }, text);
    made.addEventListener("click", act);
    return made;
  };
  const said = element("span", { class: "hint", role: "status" });
  return element(
    "div",
    { class: "exports", role: "group", "aria-label": `Save: ${title}` },
    button("PNG", "Save this view as PNG", async () =>
      save(await pngOf(svgOf(body(), heading())), `regard-${nameOf(shown)}-${name}.png`),
    ),
    button("SVG", "Save this view as SVG", () =>
      save(
        new Blob([written(svgOf(body(), heading()))], { type: "image/svg+xml" }),
        `regard-${nameOf(shown)}-${name}.svg`,
      ),
    ),
    button("CSV", `Save ${tell ? "what this view shows" : "what is chosen"} as CSV`, async () => {
      said.textContent = tell ? "" : await asked(shown, said);
      if (said.textContent) return;
      const { what, ...table } = tell ? { what: name, ...tell() } : weightsOf(shown);
      if (!tell && isPartial(shown))
        said.textContent = `${table.rows.length} weights are saved: those that this file names. The others are not zero.`;
      save(new Blob([csvOf(table)], { type: "text/csv;charset=utf-8" }), `regard-${nameOf(shown)}-${what}.csv`);
    }),
    said,
  );
}

/** Whether a file names some of the weights alone. @param {Shown} shown */
function isPartial(shown) {
  const { recording, store } = shown.now();
  return recording.layers[store.get().layer].header.form === "sketch";
}

/** Which layer and heads are seen, as `encoder.0-head-3`. @param {Shown} shown */
function nameOf(shown, between = "-") {
  const { recording, store } = shown.now();
  const { layer, heads, several } = store.get();
  const { name, heads: numbers } = recording.layers[layer];
  const head = heads.map((each) => numbers[each]).join("-");
  const together = heads.length > 1 ? `${between}${several}` : "";
  return between === "-"
    ? `${name.replace(/[^\w.-]+/g, "-")}-head-${head}${together}`
    : `${name}${between}head ${head}${together}`;
}

/** Let the browser save a file. */
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link); // some browsers follow only links that are in the page
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** @param {SVGElement} svg */
function written(svg) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`;
}

/** An SVG, drawn. @param {SVGElement} svg @returns {Promise<Blob>} */
async function pngOf(svg) {
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const times = Math.min(SHARP, MOST_PIXELS / Math.max(width, height));
  svg.setAttribute("width", short(width * times));
  svg.setAttribute("height", short(height * times));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(written(svg))}`; // the page's policy allows data:, no blob:
  await image.decode();
  const canvas = /** @type {HTMLCanvasElement} */ (
    element("canvas", { width: Math.round(width * times), height: Math.round(height * times) })
  );
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), "image/png"));
}

/**
 * The weights that are known of what is chosen: of a region, else of the tokens that are held, else of the whole head.
 * @param {Shown} shown @returns {import("#export/csv.js").Table & {what: string}}
 */
function weightsOf(shown) {
  const { recording, store } = shown.now();
  const state = store.get();
  const layer = recording.layers[state.layer];
  const { found, what } = chosen(layer, headOf(layer, state), state);
  return { ...linksIn(layer, found, state), what: state.words && shown.hasWords ? `words-${what}` : what };
}

/**
 * Have a server tell all that is chosen; a file has what it has.
 * @param {Shown} shown @param {HTMLElement} said  Where one reads that it takes a while. @returns {Promise<string>} Why it cannot be saved.
 */
async function asked(shown, said) {
  const { recording, store } = shown.now();
  const state = store.get();
  const layer = recording.layers[state.layer];
  const head = headOf(layer, state);
  if (layer.header.form !== "remote") return "";
  if (!head || recording.ended) return "The server has not told it.";
  const { queries, keys } = focusIn(layer, state);
  if (!state.region && !queries.length && !keys.length)
    return "The whole is too large for a file: mark a region, or hold tokens.";
  const rows = state.region ? range(state.region.queries) : queries;
  const cells = rows.length * (state.region ? range(state.region.keys).length : layer.keys.length);
  if (rows.length > MOST_ROWS || cells > MOST_CELLS)
    return `That is too large for a file: ${rows.length} rows, ${cells} cells; at most ${MOST_ROWS} and ${MOST_CELLS}.`;
  if (rows.length > 10) said.textContent = `Asking for ${rows.length} rows …`;
  return head.ask(rows, state.region ? [] : keys).then(
    () => "",
    () => "The server no longer answers.",
  );
}

/** @param {[number, number]} ends @returns {number[]} */
function range([first, last]) {
  return Array.from({ length: last - first + 1 }, (_, index) => first + index);
}

/** @returns {{found: Link[], what: string}} */
function chosen(layer, head, state) {
  if (!head) return { found: [], what: "none" };
  const row = (query) => links(layer, head.row(query), state);
  const { queries, keys } = focusIn(layer, state);
  if (state.region) {
    const [rows, [left, right]] = [range(state.region.queries), state.region.keys];
    const within = (query) =>
      layer.header.form === "remote"
        ? cellsOf(head, query, range([left, right]))
        : row(query).filter(({ key }) => key >= left && key <= right);
    return { found: rows.flatMap((query) => inOrder(within(query))), what: "region" };
  }
  if (queries.length || keys.length) {
    const all = [...queries.flatMap(row), ...keys.flatMap((key) => head.column(key).links)];
    const place = ({ query, key }) => query * layer.keys.length + key;
    return { found: [...new Map(all.map((link) => [place(link), link])).values()], what: "tokens" };
  }
  return { found: layer.queries.flatMap((_, query) => inOrder(row(query))), what: "weights" };
}

/** Some weights of a row that is told. @returns {Link[]} */
function cellsOf(head, query, keys) {
  return keys.map((key) => ({ query, key, ...head.cell(query, key) })).filter(({ state }) => state === "known");
}

function inOrder(some) {
  return some.sort((a, b) => a.key - b.key);
}
