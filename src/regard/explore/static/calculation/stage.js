// A calculation, a step at a time: a map of the model, the list of steps, one of them, and what turns to others.

import { modelMap } from "#calculation/model_map.js";
import { stepNodes } from "#calculation/step_nodes.js";
import { DEPTHS, screensOf } from "#calculation/steps.js";
import { dropdown, element } from "#ui/elements.js";

/**
 * @import { Pointed } from '#calculation/picture.js'
 * @import { Depth, Screen } from '#calculation/steps.js'
 * @import { Trace } from '#calculation/trace.js'
 * @typedef {{step?: string, depth?: Depth, query?: number}} Change  `step` is a slug.
 * @typedef {{step: string, depth: Depth, head: number, query: number, theme: "light" | "dark", note: string}} Shown
 *   `note` is below the first step.
 */

const ARROWS = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 });

export class Stage {
  /** @param {(change: Change) => void} change  Called with what the reader chooses. @param {"h2" | "h4"} heading  Of a step. @param {(at: Pointed) => void} point  Called with what the pointer is at. */
  constructor(change, heading = "h2", point = () => {}) {
    this.change = change;
    this.heading = heading;
    this.point = point;
    this.map = element("div");
    this.contents = element("ol");
    this.step = element("section", { class: "step", "aria-label": "Step" });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.turns = [-1, 1].map((by) => {
      const node = element("button", { type: "button" });
      node.addEventListener("click", () => this.turn(by));
      return node;
    });
    this.place = element("p", { role: "status" });
    this.depth = dropdown("depth", "Depth", DEPTHS, (depth) => change({ depth: /** @type {Depth} */ (depth) }));
    const details = element("details", { open: "" }, element("summary", {}, "Steps"), this.contents);
    if (matchMedia("(max-width: 61.99rem)").matches) details.removeAttribute("open");
    const nav = element("nav", { "aria-label": "Steps" }, this.depth.node, details);
    const isView = heading === "h4"; // among others: what turns stays where it is when a step is longer
    const turn = element("div", { class: "turn" }, this.turns[0], this.place, this.turns[1]);
    const pages = element("div", {}, ...(isView ? [turn, this.step] : [this.step, turn]));
    const body = element("div", { class: "stage-body" }, nav, pages);
    this.node = element("div", { class: "stage" }, this.map, body);
    /** @type {Screen[]} */
    this.screens = []; // at the depth
    /** @type {HTMLAnchorElement[]} */
    this.links = [];
    this.index = 0; // of the step that is shown
  }

  /** Draw a step, or the last one before it that there is at the depth. @param {Trace} trace @param {Shown} shown @returns {string} the slug of what is drawn */
  draw(trace, { step, depth, head, query, theme, note }) {
    const all = screensOf(trace);
    const wanted = all.findIndex(({ slug }) => slug === step);
    this.screens = all.filter(({ isShort }) => depth !== "minute" || isShort);
    const last = this.screens.findLastIndex((screen) => all.indexOf(screen) <= wanted);
    this.index = Math.max(last, 0);
    const screen = this.screens[this.index];
    const choose = (/** @type {number} */ chosen) => this.change({ query: chosen });
    const shown = {
      heading: this.heading,
      number: this.index + 1,
      place: { head, query },
      depth,
      drawing: { theme, tip: this.tip, choose, point: this.point },
    };
    const notes = this.index === 0 && note ? [element("p", { class: "note" }, note)] : [];
    this.tip.hidden = true;
    this.step.replaceChildren(...stepNodes(trace, screen, shown), ...notes, this.tip);
    this.map.replaceChildren(modelMap(trace.header, this.screens, screen, (other) => this.show(other)));
    this.depth.select.value = depth;
    this.drawContents();
    return screen.slug;
  }

  /** Show a step, and go on reading there. @param {Screen} screen */
  show({ slug }) {
    this.change({ step: slug });
    this.step.querySelector(this.heading)?.focus({ preventScroll: true });
  }

  drawContents() {
    const { screens, index } = this;
    if (this.links.map(({ hash }) => hash).join() !== screens.map(({ slug }) => `#${slug}`).join()) {
      this.links = screens.map(({ slug, title }, i) => {
        const link = element("a", { href: `#${slug}` }, element("span", { class: "number" }, String(i + 1)), title);
        link.addEventListener("click", (event) => {
          event.preventDefault();
          this.change({ step: slug });
        });
        return link;
      });
      this.contents.replaceChildren(...this.links.map((link) => element("li", {}, link)));
    }
    for (const [i, link] of this.links.entries()) {
      if (i === index) link.setAttribute("aria-current", "step");
      else link.removeAttribute("aria-current");
    }
    const titles = [screens[index - 1]?.title, screens[index + 1]?.title];
    for (const [i, node] of this.turns.entries()) node.disabled = titles[i] === undefined;
    this.turns[0].textContent = `← ${titles[0] ?? "Previous"}`;
    this.turns[1].textContent = `${titles[1] ?? "Next"} →`;
    this.place.textContent = `Step ${index + 1} of ${screens.length}`;
  }

  /** @param {number} by */
  turn(by) {
    const next = this.screens[this.index + by];
    if (next) this.change({ step: next.slug });
  }

  /** Turn with the arrow keys, except where these do something else. @param {KeyboardEvent} event */
  press({ target, key, altKey, ctrlKey, metaKey, shiftKey }) {
    const isTaken = /** @type {HTMLElement} */ (target).closest("input, select, .sheet") !== null;
    if (key in ARROWS && !(isTaken || altKey || ctrlKey || metaKey || shiftKey)) this.turn(ARROWS[key]);
  }
}
