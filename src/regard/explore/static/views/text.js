// The text: the token that is focused shows what it attends to and what attends to it, as arcs and as tint.

import { strongest } from "#data/ranked.js";
import { focusedCells, toggleSelection } from "#state/store.js";
import { position } from "#ui/color.js";
import { element, svgElement } from "#ui/elements.js";
import { addsToSelection, countLines, listen, setOrientation } from "#ui/listbox.js";
import { drawArcs } from "#views/text_arcs.js";
import { Search } from "#views/text_search.js";

/**
 * @import { Sequence } from '#data/sequence.js'
 * @import { Focus, Token } from '#state/store.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 * @typedef {{isSelected: boolean, isFocused: boolean, isQuery: boolean, isKey: boolean, isFound: boolean, attended: string, attending: string,
 *   isNegativeKey: boolean, isNegativeQuery: boolean}} Look
 *   How a token looks; `attended` and `attending` are the strengths of its tints, empty without.
 * @typedef {{node: HTMLElement, first: number}} Block  Some lines of a text that runs on, from a token on.
 * @typedef {{text: Sequence, sequence: number, list: HTMLElement, tokens: HTMLElement[], blocks: Block[], focus: () => void}} TextNodes  A text on the page.
 */

const MIN_WEIGHT_AT_REST = 0.1; // of an arc where nothing is focused
const MAX_TOKENS_AT_REST = 80; // of a text whose arcs are drawn where nothing is focused
const MAX_ARCS = 24; // in each direction; the tint shows the rest
const MAX_LINES = 2; // one text that would take more, or two that would take two each, become columns
const MAX_TOKENS_IN_COLUMN = 48; // a longer text runs on, and scrolls
const LINES = 8; // of a block
const MAX_TITLE = 400; // characters of a token that was shortened
const TINTS = 20; // the eye cannot distinguish more, and a token whose tint stays the same is not styled again

/** @type {Look} */
const AT_REST = {
  isSelected: false,
  isFocused: false,
  isQuery: false,
  isKey: false,
  isFound: false,
  attended: "",
  attending: "",
  isNegativeKey: false,
  isNegativeQuery: false,
};
const LOOK_FIELDS = /** @type {(keyof Look)[]} */ (Object.keys(AT_REST));
const ROLES = { source: "Source", written: "Written, token by token", read: "Read so far" };

/** @type {ViewDefinition} */
export default {
  name: "text",
  showsGradients: true,
  title: "Text",
  help: "The text that was read or written. Point at a token: arcs and tint show what it attends to (blue) and what attends to it (orange).",
  urlFields: { search: { initial: "", write: (search) => search, read: (text) => text.slice(0, 200) } },
  mount: (place, view) => new TextView(place, view),
};

class TextView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.place = place;
    this.view = view;
    this.arcs = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
    this.stage = element("div", { class: "stage" }, this.arcs);
    this.scroller = element("div", { class: "scroller" }, this.stage);
    this.search = new Search(view, (token) => this.nodeOf(token)?.scrollIntoView({ block: "nearest" }));
    place.append(this.search.node, this.scroller);
    const paint = () => this.isLong && view.schedulePaint(); // what comes into sight has no tint yet
    document.addEventListener("scroll", paint, { capture: true, signal: view.signal }); // of the text, or of the page
    /** @type {TextNodes[]} the keys before the queries, or one where they are the same text */
    this.texts = [];
    /** @type {Sequence[]} */
    this.sequences = [];
    /** @type {Map<HTMLElement, Look>} of the tokens that look other than at rest */
    this.looks = new Map();
    this.width = 0; // for which the texts were arranged
    /** @type {Token | null} */
    this.revealed = null;
  }

  update() {
    this.search.update();
  }

  paint() {
    const { view } = this;
    const texts = [...new Set([view.keys, view.queries])];
    if (texts.length !== this.sequences.length || texts.some((text, index) => text !== this.sequences[index]))
      this.build(texts);
    this.arrange();
    if (this.scroller.scrollHeight > this.scroller.clientHeight) this.reveal(view.state.tokens[0]);
    const { head } = view;
    /** @type {Map<HTMLElement, Look>} */
    const looks = new Map();
    this.markSelected(looks);
    this.stage.classList.toggle("signed", head?.isSigned ?? false);
    if (head) this.paintHead(head, focusedCells(view.layer, view.state), looks);
    else this.arcs.replaceChildren();
    this.setLooks(looks);
  }

  /** @param {Sequence[]} texts */
  build(texts) {
    const { layer } = this.view;
    this.sequences = texts;
    this.looks.clear();
    this.stage.classList.toggle("one", texts.length === 1);
    this.stage.replaceChildren(this.arcs);
    const sequences = [...new Set([layer.keySequence, layer.querySequence])];
    this.texts = texts.map((text, index) => this.buildText(text, sequences[index]));
    this.width = 0;
  }

  /** @param {Sequence} text @param {number} sequence @returns {TextNodes} */
  buildText(text, sequence) {
    const role = ROLES[/** @type {keyof typeof ROLES} */ (text.role)] ?? text.role;
    const attributes = { role: "listbox", class: "tokens", "aria-multiselectable": "true", "aria-label": role };
    const list = element("div", attributes);
    const tokens = text.display.map((_, index) => tokenNode(text, index));
    const line = element("div", { class: "line" }, element("p", { class: "role", "aria-hidden": "true" }, role), list);
    this.stage.append(line);
    return { text, sequence, list, tokens, blocks: [], focus: this.listen(text, sequence, list, tokens) };
  }

  /** @param {Sequence} text @param {number} sequence @param {HTMLElement} list @param {HTMLElement[]} tokens */
  listen(text, sequence, list, tokens) {
    const { view } = this;
    const tokenAt = (/** @type {number} */ index) => ({ sequence, index });
    const last = () => view.state.tokens.at(-1);
    const selectWord = (/** @type {number} */ index) => view.set({ tokens: wordAround(text, tokenAt(index)) });
    const { focus } = listen(list, tokens, {
      point: (index) => view.set({ hover: index === null ? null : { token: tokenAt(index) } }),
      select: (index, event) => {
        if (event.type === "click" && event.shiftKey) view.set({ tokens: between(last(), tokenAt(index)) });
        else if (/** @type {MouseEvent} */ (event).detail === 2) selectWord(index);
        else toggleSelection(view.store, tokenAt(index), addsToSelection(event));
      },
      clear: () => view.set({ tokens: [] }),
      isVertical: () => this.isColumn,
      toOther: () => this.texts.find((other) => other.sequence !== sequence)?.focus(),
      moved: (index, event) =>
        event.shiftKey && view.set({ tokens: between(last() ?? tokenAt(index), tokenAt(index)) }),
      press: ({ key }, index) => {
        if (key === "w") selectWord(index);
        return key === "w";
      },
    });
    return focus;
  }

  get isColumn() {
    return this.stage.classList.contains("columns");
  }

  get isLong() {
    return this.stage.classList.contains("long");
  }

  /** Let the texts run as lines if they need few of them, else as columns; long ones run on and scroll. */
  arrange() {
    if (this.place.clientWidth === this.width) return;
    this.stage.classList.remove("columns", "wrapped", "long");
    for (const text of this.texts) text.list.replaceChildren(flow(text, 0, text.tokens.length));
    const isLong = this.texts.some(({ tokens }) => tokens.length > MAX_TOKENS_IN_COLUMN);
    const lines = isLong ? Infinity : Math.max(...this.texts.map(({ tokens }) => countLines(tokens)));
    this.stage.classList.toggle("long", isLong);
    const isColumn = lines > MAX_LINES / this.texts.length && !isLong;
    this.stage.classList.toggle("columns", isColumn);
    this.stage.classList.toggle("wrapped", lines > 1 && !isColumn && !isLong);
    setOrientation(this.texts, isColumn);
    for (const text of isLong ? this.texts : []) divide(text);
    this.width = this.place.clientWidth;
  }

  /** @param {Token} token */
  nodeOf({ sequence, index }) {
    return this.texts.find((text) => text.sequence === sequence)?.tokens[index];
  }

  /** Says of a token by its index whether it is in sight; only of a text that runs on some are not. @param {TextNodes | undefined} text @returns {(index: number) => boolean} */
  inSight(text) {
    if (!this.isLong || !text) return () => true;
    const frame = this.scroller.getBoundingClientRect();
    const [top, bottom] = [Math.max(frame.top, 0), Math.min(frame.bottom, window.innerHeight)];
    const first = firstBlock(text, (box) => box.bottom > top)?.first ?? text.tokens.length;
    const end = firstBlock(text, (box) => box.top >= bottom)?.first ?? text.tokens.length;
    return (index) => first <= index && index < end;
  }

  /** Change only what differs: a text can have thousands of tokens, and is painted whenever something is loaded. @param {Map<HTMLElement, Look>} looks */
  setLooks(looks) {
    for (const node of this.looks.keys()) if (!looks.has(node)) setLook(node, AT_REST);
    for (const [node, look] of looks) {
      const before = this.looks.get(node) ?? AT_REST;
      if (LOOK_FIELDS.some((field) => look[field] !== before[field])) setLook(node, look);
    }
    this.looks = looks;
  }

  /** @param {Map<HTMLElement, Look>} looks */
  markSelected(looks) {
    for (const token of this.view.state.tokens) change(looks, this.nodeOf(token), { isSelected: true });
    for (const token of this.search.found) change(looks, this.nodeOf(token), { isFound: true });
  }

  /** Scroll to a token that was selected elsewhere. @param {Token | undefined} token */
  reveal(token) {
    const isHere = this.stage.contains(document.activeElement) || this.stage.matches(":hover");
    if (token && this.revealed !== token && !isHere) this.nodeOf(token)?.scrollIntoView({ block: "nearest" });
    this.revealed = token ?? null;
  }

  /** While a server sends a row, the tints stay: to remove thousands and to add others takes twice as long. @param {Map<HTMLElement, Look>} looks */
  keepTints(looks) {
    for (const [node, { attended, attending }] of this.looks) {
      if (attended || attending) change(looks, node, { attended, attending });
    }
  }

  /** @param {import("#data/heads.js").BaseHead} head @param {Focus} focus @param {Map<HTMLElement, Look>} looks */
  paintHead(head, focus, looks) {
    const { layer, state } = this.view;
    const texts = [layer.querySequence, layer.keySequence].map((own) =>
      this.texts.find(({ sequence }) => sequence === own),
    );
    const [queries, keys] = texts.map((text) => text?.tokens ?? []);
    const names = focus.cell ? ["isQuery", "isKey"] : ["isFocused", "isFocused"];
    for (const query of focus.queries) change(looks, queries[query], { [names[0]]: true });
    for (const key of focus.keys) change(looks, keys[key], { [names[1]]: true });
    const entries = entriesToDraw(head, queries.length, focus);
    const isNegative = (/** @type {number} */ weight) => head.isSigned && weight < 0;
    if (entries.loading) return this.keepTints(looks);
    const tint = (/** @type {number} */ weight, /** @type {number} */ largest) => {
      const [size, end] = [weight, largest].map((value) => Math.abs(value) / head.scaleEnd);
      const level = Math.round(position(size, state.scale, end) * TINTS);
      return level ? (level / TINTS).toFixed(2) : "";
    };
    const isQueryInSight = this.inSight(texts[0]);
    const isKeyInSight = texts[1] === texts[0] ? isQueryInSight : this.inSight(texts[1]);
    for (const { key, weight } of entries.out)
      if (isKeyInSight(key))
        change(looks, keys[key], {
          attended: tint(weight, entries.out[0].weight),
          isNegativeKey: isNegative(weight),
        });
    for (const { query, weight } of entries.in)
      if (isQueryInSight(query))
        change(looks, queries[query], {
          attending: tint(weight, entries.in[0].weight),
          isNegativeQuery: isNegative(weight),
        });
    const arcs = { rest: entries.rest, out: entries.out.slice(0, MAX_ARCS), in: entries.in.slice(0, MAX_ARCS) };
    if (this.isLong) return this.arcs.replaceChildren(); // they would run through words
    const isWrapped = this.stage.classList.contains("wrapped");
    drawArcs(this.arcs, arcs, { head, queries, keys, focus, isColumn: this.isColumn, isWrapped });
  }
}

/** The first block whose box has a property that those after it have, too. @param {TextNodes} nodes @param {(box: DOMRect) => boolean} has */
function firstBlock({ blocks }, has) {
  let [low, high] = [0, blocks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (has(blocks[middle].node.getBoundingClientRect())) high = middle;
    else low = middle + 1;
  }
  return blocks.at(low);
}

/** Some tokens with the spaces between them. @param {TextNodes} nodes @param {number} first @param {number} end */
function flow({ text, tokens }, first, end) {
  const line = document.createDocumentFragment();
  for (let index = first; index < end; index++) line.append(text.hasSpace[index] ? " " : "", tokens[index]);
  return line;
}

/** Divide a text that runs on into blocks of lines, of which the browser draws those that are in sight. @param {TextNodes} nodes */
function divide(nodes) {
  const { list, tokens } = nodes;
  const tops = tokens.map(({ offsetTop }) => offsetTop);
  const lines = tops.flatMap((top, index) => (index === 0 || top > tops[index - 1] ? [index] : []));
  const starts = lines.filter((_, line) => line % LINES === 0);
  const height = list.offsetHeight / lines.length;
  nodes.blocks = starts.map((first, at) => {
    const end = starts[at + 1] ?? tokens.length;
    const node = element("div", { class: "lines", role: "presentation" }, flow(nodes, first, end));
    node.style.containIntrinsicHeight = `${height * Math.min(LINES, lines.length - at * LINES)}px`;
    return { node, first };
  });
  list.replaceChildren(...nodes.blocks.map(({ node }) => node));
}

/** @param {Map<HTMLElement, Look>} looks @param {HTMLElement | undefined} node @param {Partial<Look>} fields */
function change(looks, node, fields) {
  if (node) looks.set(node, { ...(looks.get(node) ?? AT_REST), ...fields });
}

/** @param {HTMLElement} node @param {Look} look */
function setLook(node, look) {
  const { isSelected, isFocused, isQuery, isKey, isFound, attended, attending } = look;
  node.setAttribute("aria-selected", String(isSelected));
  node.classList.toggle("focused", isFocused);
  node.classList.toggle("as-query", isQuery);
  node.classList.toggle("as-key", isKey);
  node.classList.toggle("found", isFound);
  node.classList.toggle("negative-key", look.isNegativeKey);
  node.classList.toggle("negative-query", look.isNegativeQuery);
  node.style.setProperty("--attended", attended);
  node.style.setProperty("--attending", attending);
}

/** All tokens from one to another of the same text. @param {Token | undefined} from @param {Token} to */
function between(from, to) {
  if (!from || from.sequence !== to.sequence) return [to];
  const step = from.index <= to.index ? 1 : -1;
  const length = Math.abs(to.index - from.index) + 1;
  return Array.from({ length }, (_, at) => ({ sequence: to.sequence, index: from.index + at * step }));
}

/** The tokens between the spaces around a token. @param {Sequence} text @param {Token} token */
function wordAround({ hasSpace, length }, { sequence, index }) {
  let [first, last] = [index, index];
  while (first > 0 && !hasSpace[first]) first--;
  while (last + 1 < length && !hasSpace[last + 1]) last++;
  return between({ sequence, index: first }, { sequence, index: last });
}

/** @param {Sequence} text @param {number} index */
function tokenNode(text, index) {
  const label = text.display[index];
  /** @type {Record<string, string>} */
  const title = label.endsWith("…") ? { title: text.tokens[index].slice(0, MAX_TITLE) } : {};
  const isPart = index > 0 && text.wordOf[index] === text.wordOf[index - 1];
  const kind = text.isSpecial[index] ? "token special" : isPart ? "token part" : "token";
  return element(
    "span",
    { role: "option", class: kind, dir: "auto", "data-index": index, "aria-selected": "false", ...title },
    label,
  );
}

/**
 * What is drawn: what the focused tokens attend to (out), what attends to them (in), or the head's strongest (rest).
 * @param {import("#data/heads.js").BaseHead} head @param {number} count  Of queries. @param {Focus} focus
 */
function entriesToDraw(head, count, { queries, keys, cell }) {
  if (queries.length || keys.length) {
    const row = queries.length ? head.rows(queries) : { entries: [], loading: false };
    const column = keys.length && !cell ? head.columns(keys) : { entries: [], loading: false };
    return { rest: [], out: row.entries, in: column.entries, loading: row.loading || column.loading };
  }
  if (count > MAX_TOKENS_AT_REST) return { rest: [], out: [], in: [], loading: false };
  const rows = Array.from({ length: count }, (_, query) => head.row(query).entries);
  const strong = rows.flatMap((entries) =>
    entries.filter(({ weight }) => Math.abs(weight) >= MIN_WEIGHT_AT_REST * head.scaleEnd),
  );
  return { rest: strongest(strong, 3 * count), out: [], in: [], loading: false };
}
