// The page of a trace: one step at a time, and the choice of a head and a query. Without it all steps are below one another.

import { filled, page, state } from "#trace/numbers.js";
import { draw } from "#trace/tables.js";
import { element } from "#ui/elements.js";

const sections = [...document.querySelectorAll("section")];
const links = [...document.querySelectorAll("nav a")];
const CHOICES = /** @type {const} */ (["head", "query"]);

/** Draw what depends on the head and the query. */
function refresh() {
  for (const span of document.querySelectorAll("[data-fill]"))
    span.textContent = filled(span.getAttribute("data-fill") ?? "");
  for (const figure of sections[state.step].querySelectorAll("figure")) draw(figure);
  const changed = CHOICES.filter((name) => state[name] !== page[name]).map((name) => `&${name}=${state[name]}`);
  history.replaceState(null, "", `#${sections[state.step].id}${changed.join("")}`);
}

/** Show a step, and no other. @param {number} step */
function show(step) {
  state.step = Math.min(Math.max(step, 0), sections.length - 1);
  for (const [i, section] of sections.entries()) section.toggleAttribute("hidden", i !== state.step);
  for (const [i, link] of links.entries()) {
    if (i === state.step) link.setAttribute("aria-current", "step");
    else link.removeAttribute("aria-current");
  }
  const turns = /** @type {[HTMLButtonElement, number][]} */ ([
    [previous, -1],
    [next, 1],
  ]);
  for (const [button, direction] of turns) {
    const title = links[state.step + direction]?.textContent?.replace(/^\d+\s*/, "") ?? "";
    button.disabled = title === "";
    button.textContent = direction < 0 ? `← ${title || "Previous"}` : `${title || "Next"} →`;
  }
  const above = document.querySelector("main")?.getBoundingClientRect().top ?? 0;
  if (above < 0) scrollBy(0, above - 12); // so that the heading is in view
  place.textContent = `Step ${state.step + 1} of ${sections.length}`;
  refresh();
}

/** Show what an address names. @param {string} hash */
function follow(hash) {
  const [slug, ...pairs] = decodeURIComponent(hash.slice(1)).split("&");
  for (const pair of pairs) {
    const [text, value] = pair.split("=");
    const name = CHOICES.find((choice) => choice === text);
    const count = name === "head" ? page.heads : page.labels.query.length;
    if (name && page.choices[name] && /^\d+$/.test(value) && Number(value) < count) state[name] = Number(value);
  }
  for (const control of document.querySelectorAll("#choice input, #choice select")) {
    if (control instanceof HTMLInputElement) control.checked = Number(control.value) === state.query;
    else if (control instanceof HTMLSelectElement) control.value = String(state.head);
  }
  show(sections.findIndex(({ id }) => id === slug)); // −1 shows the first
}

/** The head as a list, and the query as one of the tokens. */
function choices() {
  const parts = [];
  if (page.choices.head) {
    const options = Array.from({ length: page.heads }, (_, head) => element("option", { value: head }, `${head}`));
    const select = element("select", { id: "head" }, ...options);
    select.addEventListener("change", () => {
      state.head = Number(select.value);
      refresh();
    });
    const label = element("label", { for: "head" }, "Head ");
    parts.push(element("p", { class: "field" }, label, select, ` of ${page.heads}`));
  }
  if (page.choices.query && page.labels.query.length > 1) {
    const tokens = page.labels.query.map((/** @type {string} */ label, /** @type {number} */ query) => {
      const input = element("input", { type: "radio", name: "query", value: String(query) });
      input.addEventListener("change", () => {
        state.query = query;
        refresh();
      });
      return element("label", { class: "token" }, input, element("span", {}, label));
    });
    parts.push(element("fieldset", { class: "tokens" }, element("legend", {}, "Query"), ...tokens));
  }
  if (parts.length) document.getElementById("choice")?.replaceChildren(...parts);
}

const [previous, next] = ["previous", "next"].map(
  (id) => /** @type {HTMLButtonElement} */ (document.getElementById(id)),
);
const place = /** @type {HTMLElement} */ (document.getElementById("place"));
choices();
document.body.className = "paged";
document.querySelector(".turn")?.removeAttribute("hidden");
previous.addEventListener("click", () => show(state.step - 1));
next.addEventListener("click", () => show(state.step + 1));
for (const [i, link] of links.entries()) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    show(i);
  });
}
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (isTyping || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (direction) show(state.step + direction);
});
addEventListener("hashchange", ({ newURL }) => follow(new URL(newURL).hash));
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  sections[state.step].querySelectorAll("figure").forEach(draw);
}).observe(document.body);
const contents = document.querySelector("nav details");
if (matchMedia("(max-width: 61.99rem)").matches) contents?.removeAttribute("open");
follow(location.hash);
