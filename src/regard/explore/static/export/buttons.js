// Buttons that save a view as PNG or SVG, and its numbers or the selected weights as CSV.

import { round2 } from "#export/boxes.js";
import { toCsv } from "#export/csv.js";
import { elementToSvg } from "#export/dom_to_svg.js";
import { NotSaved, reasonNotSaved } from "#export/loading.js";
import { describeSelection, selectedWeights } from "#export/selected_weights.js";
import { button, element } from "#ui/elements.js";

/** @import { Painter, View, ViewDefinition } from '#ui/view.js' */

const PIXELS = 2; // of a PNG for each CSS pixel
const MAX_IMAGE_SIZE = 16_384; // pixels of a side; browsers draw no larger canvas
const REPORT_INTERVAL = 250; // ms between two reports of progress
const DOWNLOAD_TIME = 60_000; // ms that a browser has to save a file

/** @param {ViewDefinition} definition @param {View} view @param {Painter} painter  Its `table`, if it has one, is what CSV saves. */
export function exportButtons({ name, title }, view, painter) {
  const toSvg = () => elementToSvg(view.place, `${title}: ${headName(view, ", ")}`);
  const prefix = () => `regard-${headName(view, "-")}`;
  const status = element("span", { class: "hint", role: "status" });
  const saveSvg = () => save([serializeSvg(toSvg())], "image/svg+xml", `${prefix()}-${name}.svg`);
  const savePng = async () => save([await toPng(toSvg())], "image/png", `${prefix()}-${name}.png`);
  const saveCsv = csvSaver(view, painter, name, status);
  const csv = button("CSV", "Save the numbers of this view as CSV", () => saveCsv(prefix()));
  if (!painter.table) {
    view.units.store.subscribe(() => {
      const selected = describeSelection(view);
      csv.textContent = selected ? `CSV of ${selected}` : "CSV";
      const name = `${csv.textContent}: save ${selected ? "its weights" : "all weights of the head"} as CSV`;
      if (csv.title !== name) for (const attribute of ["title", "aria-label"]) csv.setAttribute(attribute, name);
    });
  }
  return element(
    "div",
    { class: "exports", role: "group", "aria-label": `Save: ${title}` },
    button("PNG", "Save this view as PNG", savePng),
    button("SVG", "Save this view as SVG", saveSvg),
    csv,
    status,
  );
}

/** What saves one CSV file at a time, and reports how far it is. @param {View} view @param {Painter} painter @param {string} viewName @param {HTMLElement} status */
function csvSaver(view, painter, viewName, status) {
  let [isSaving, lastReport] = [false, 0];
  const report = (/** @type {string} */ progress) => {
    const now = performance.now();
    if (now - lastReport < REPORT_INTERVAL) return;
    lastReport = now;
    status.textContent = progress;
  };
  const content = async () => {
    const table = await painter.table?.();
    if (table?.rows.length === 0) throw new NotSaved("Nothing is shown here for this selection, so no file was saved.");
    return table ? { name: viewName, parts: [toCsv(table)], note: "" } : selectedWeights(view, report);
  };
  return async (/** @type {string} */ prefix) => {
    if (isSaving) return;
    [isSaving, lastReport] = [true, 0];
    status.textContent = "";
    try {
      const { name, parts, note } = await content();
      save(parts, "text/csv;charset=utf-8", `${prefix}-${name}.csv`);
      status.textContent = note;
    } catch (error) {
      status.textContent = reasonNotSaved(view.recording, error);
    } finally {
      isSaving = false;
    }
  };
}

/** The layer and the selected heads, as `encoder.0-head-3` or `encoder.0, head 3`. @param {View} view @param {"-" | ", "} separator */
function headName({ layer, state }, separator) {
  const isFileName = separator === "-";
  const heads = state.heads.map((head) => layer.headIndices[head]).join("-");
  const name = isFileName ? layer.name.replace(/[^\w.-]+/g, "-") : layer.name;
  const parts = [name, `head${isFileName ? "-" : " "}${heads}`, ...(state.heads.length > 1 ? [state.reduce] : [])];
  return parts.join(separator);
}

/** Let the browser save a file. @param {BlobPart[]} parts @param {string} type @param {string} name */
function save(parts, type, name) {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const link = element("a", { href: address, download: name });
  document.body.append(link); // some browsers only follow links that are in the page
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), DOWNLOAD_TIME);
}

/** @param {SVGElement} svg */
function serializeSvg(svg) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`;
}

/** @param {SVGElement} svg @returns {Promise<Blob>} */
async function toPng(svg) {
  const [width, height] = ["width", "height"].map((side) => Number(svg.getAttribute(side)));
  const scale = Math.min(PIXELS, MAX_IMAGE_SIZE / Math.max(width, height));
  svg.setAttribute("width", round2(width * scale));
  svg.setAttribute("height", round2(height * scale));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(serializeSvg(svg))}`; // the page's policy has no blob:
  await image.decode();
  const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(/** @type {Blob} */ (blob)), "image/png"));
}
