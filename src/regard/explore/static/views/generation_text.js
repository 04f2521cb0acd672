// A text that is visible in part: what has been read or written at a step.

import { element } from "#ui/elements.js";

/**
 * @import { Token } from '#state/store.js'
 * @typedef {{sequence: number, text: import("#data/sequence.js").Sequence}} Part
 */

/** A text, or two: tokens that have been read, and then those that are written. */
export class GeneratedText {
  constructor() {
    this.role = element("p", { class: "role" });
    this.body = element("p", { class: "generated-text" });
    this.node = element("div", { class: "generated-line" }, this.role, this.body);
    /** @type {HTMLElement[][]} the tokens of each part */
    this.tokens = [];
    /** @type {number[]} */
    this.sequences = [];
    /** @type {HTMLElement[]} */
    this.tinted = [];
    this.revealed = -1; // the token that was scrolled to
  }

  /** @param {string} title @param {Part[]} parts */
  build(title, parts) {
    this.role.textContent = title;
    this.node.hidden = parts.length === 0;
    this.sequences = parts.map(({ sequence }) => sequence);
    this.tokens = parts.map(({ text }, part) => text.display.map((_, index) => tokenNode(text, index, part)));
    this.body.replaceChildren(
      ...parts.flatMap(({ text }, part) =>
        this.tokens[part].map((node, index) => withSpace(node, index > 0 ? text.hasSpace[index] : part > 0)),
      ),
    );
    this.tinted = [];
    this.revealed = -1;
  }

  /** @param {{point(token: Token | null): void, select(token: Token, event: MouseEvent): void}} actions */
  listen({ point, select }) {
    const tokenAt = (/** @type {Event} */ { target }) => {
      const { part, index } = /** @type {HTMLElement} */ (target).dataset;
      return index === undefined ? null : { sequence: this.sequences[Number(part)], index: Number(index) };
    };
    this.node.addEventListener("pointerover", (event) => tokenAt(event) && point(tokenAt(event)));
    this.node.addEventListener("pointerleave", () => point(null));
    this.node.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token) select(token, event);
    });
  }

  /**
   * Show what has been read, and after it the token of a step and what is written later.
   * @param {number} numRead  Tokens of the first part. @param {number | null} step  Token of the second part, if there is one.
   */
  showStep(numRead, step) {
    const [read, written = []] = this.tokens;
    const isSplit = step !== null;
    for (const [index, node] of read.entries()) {
      setState(node, {
        hidden: isSplit && index >= numRead,
        later: index >= numRead,
        current: !isSplit && index === numRead - 1,
      });
    }
    for (const [index, node] of written.entries()) {
      const current = Number(step);
      setState(node, { hidden: index < current, later: index > current, current: index === current });
    }
  }

  /** @param {[token: number, tint: number][]} tints  Of tokens of the first part. */
  tint(tints) {
    for (const node of this.tinted) node.style.removeProperty("--attended");
    this.tinted = tints.map(([index, tint]) => {
      const node = this.tokens[0][index];
      node.style.setProperty("--attended", tint.toFixed(3));
      return node;
    });
  }

  /** Scroll the text, but not the page, to a token. @param {HTMLElement} scroller @param {number} part @param {number} index */
  reveal(scroller, part, index) {
    if (scroller.scrollHeight <= scroller.clientHeight || index === this.revealed) return;
    this.revealed = index;
    const [frame, node] = [scroller, this.tokens[part][index]].map((each) => each.getBoundingClientRect());
    const isVisible = frame.top <= node.top && node.bottom <= frame.bottom;
    if (!isVisible) scroller.scrollTop += node.top - frame.top - frame.height / 2;
  }
}

/** @param {import("#data/sequence.js").Sequence} text @param {number} index @param {number} part */
function tokenNode({ display, isSpecial }, index, part) {
  const kind = isSpecial[index] ? "generated-token special" : "generated-token";
  return element("span", { class: kind, dir: "auto", "data-part": part, "data-index": index }, display[index]);
}

/** A token and the space before it, which are hidden together. @param {HTMLElement} node @param {boolean} hasSpace */
function withSpace(node, hasSpace) {
  return element("span", {}, ...(hasSpace ? [" "] : []), node);
}

/** @param {HTMLElement} node @param {{hidden: boolean, later: boolean, current: boolean}} state */
function setState(node, { hidden, later, current }) {
  const holder = /** @type {HTMLElement} */ (node.parentElement);
  holder.hidden = hidden;
  node.classList.toggle("later", later);
  node.classList.toggle("current", current);
}
