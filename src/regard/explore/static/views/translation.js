// A translation word by word: the source, the target, and as lines between them which word was translated by which.

import { Alignment, wordOfEach } from "#data/alignment.js";
import { together } from "#data/combined_heads.js";
import { hides } from "#data/links.js";
import { written } from "#data/recording.js";
import { wordsOf } from "#data/words.js";
import { ALIGNED } from "#state/store.js";
import { position } from "#ui/color.js";
import { element, svgElement } from "#ui/elements.js";

const AT_REST = 0.1; // where nothing is chosen, a line below this weight is drawn for a word's strongest alone
const LINES_AT_REST = 3; // of a word
const MOST_AT_REST = 300; // words of a text whose lines are drawn where nothing is chosen
const MOST_LINES = 24; // of a word that is chosen
const FAINTEST = 0.01; // a line below this weight is not drawn
const NUMBERED = 0.05; // from here on a weight is written beside its word
const TOLD = 4; // words that are named below
const MOST_IN_LINE = 60; // words; a longer text stands as a column

const CHOICES = {
  heads: "these heads",
  layer: "all heads of the layer, their mean",
  all: "all heads of all layers, their mean",
};
const ACROSS = { ArrowUp: "ArrowLeft", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowRight: "ArrowDown" };

export function mountTranslation(place, recording, store) {
  const cross = recording.layers.filter(({ kind }) => kind === "cross");
  if (!cross.length) return false;
  const choice = element(
    "select",
    { id: "aligned" },
    ...ALIGNED.map((value) => element("option", { value }, CHOICES[value])),
  );
  const note = element("span", { class: "hint" });
  const lines = svgElement("svg", { class: "alignment-lines", "aria-hidden": "true" });
  const stage = element("div", { class: "alignment" }, lines);
  const told = element("p", { class: "hint told", "aria-live": "polite" });
  place.append(
    element(
      "div",
      { class: "controls" },
      element("label", { class: "field", for: "aligned" }, "Aligned by ", choice),
      note,
    ),
    element("div", { class: "scroller" }, stage),
    told,
  );
  choice.addEventListener("change", () => store.set({ aligned: choice.value }));

  /** @type {{name: string, alignment: Alignment | null}} */
  const made = { name: "", alignment: null }; // what was computed last
  /** @type {[Text, Text] | []} */
  let texts = []; // source and target
  let width = 0; // for which they were last arranged
  let _asked = 0;

  /** What is aligned by: the layer that is chosen, or all where it is not of cross-attention. */
  const chosen = (state) => {
    const layer = recording.layers[state.layer];
    const own = layer.kind === "cross" && state.aligned !== "all";
    const base = layer.kind === "cross" ? layer : cross.at(-1);
    const alike = ({ querySequence, keySequence }) =>
      querySequence === base.querySequence && keySequence === base.keySequence;
    return {
      base,
      own,
      layers: own ? [base] : cross.filter(alike),
      heads: own && state.aligned === "heads" ? state.heads : null,
    };
  };

  const lay = (layer) => {
    texts = [
      new Text(layer.keySequence, wordsOf(layer.keys), "Source", "source"),
      new Text(layer.querySequence, wordsOf(layer.queries), "Translation", "target"),
    ];
    stage.replaceChildren(lines, ...texts.map(({ node }) => node));
    for (const [index, text] of texts.entries())
      listen(store, text, texts[1 - index], () => stage.classList.contains("columns"));
    made.name = "";
    width = 0;
  };

  /** Two lines where each fits into one, else two columns. */
  const arrange = () => {
    if (place.clientWidth === width) return;
    stage.classList.remove("columns");
    const long = texts.some(({ words }) => words.length > MOST_IN_LINE);
    const columns =
      long ||
      texts.some(
        ({ options }) => options[options.length - 1].offsetTop > options[0].offsetTop + options[0].offsetHeight / 2,
      );
    stage.classList.toggle("columns", columns);
    for (const { list } of texts) list.setAttribute("aria-orientation", columns ? "vertical" : "horizontal");
    width = place.clientWidth;
  };

  /** The alignment, or null while weights are on their way. @returns {Alignment | null} */
  const alignmentOf = (state, { base, layers, heads }) => {
    if (!texts.length || !layers.every((layer) => layer.head(heads ?? everyHead(layer)))) return null;
    const name = [base.name, layers.length, heads, state.hidden].join(" ");
    if (made.name !== name) {
      const head = heads ? base.head(heads) : together(layers.flatMap(({ numbers }) => numbers));
      Object.assign(made, { name, alignment: new Alignment(head, texts[1].words, texts[0].words, hides(base, state)) });
    }
    return made.alignment;
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("translation") || place.clientWidth === 0) return;
    const what = chosen(state);
    arrange();
    for (const text of texts) text.unmark(state.tokens);
    const alignment = alignmentOf(state, what);
    if (!texts.length || !alignment) return lines.replaceChildren();
    const pointed = pointedIn(recording.layers[state.layer], state);
    const [source, target] = texts.map((text) => text.wordsAt(pointed));
    texts[0].mark(source);
    texts[1].mark(target);
    const found = linksOf(alignment, target, source, MOST_LINES);
    const both = target.length > 0 && source.length > 0; // one cell, or words of both texts
    const atRest = !target.length && !source.length;
    draw(
      lines,
      texts,
      atRest
        ? what.layers.some(({ header }) => header.form === "remote")
          ? []
          : linesAtRest(alignment)
        : found.filter(({ weight, source: word }) => weight >= FAINTEST || (both && source.includes(word))),
      both ? source : null,
    );
    if (target.length + source.length === 1 || both) number(texts, target.length ? target : source, found);
    told.textContent = atRest
      ? "Point at a word, or go there with Tab and the arrow keys, to see what it is aligned with."
      : sentences(alignment, texts, source, target);
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  store.subscribe((state, before) => {
    choice.value = state.aligned;
    if (state.views.includes("translation")) {
      const { base, own, layers } = chosen(state);
      const waiting = layers.filter(({ ready }) => !ready);
      if (waiting.length) Promise.all(waiting.map((layer) => layer.load())).then(() => store.set({}));
      const old = chosen(before).base;
      if (!texts.length || base.keySequence !== old.keySequence || base.querySequence !== old.querySequence) lay(base);
      const elsewhere = recording.layers[state.layer].kind !== "cross";
      choice.disabled = elsewhere;
      if (elsewhere) choice.value = "all";
      note.textContent = elsewhere
        ? "The head that is chosen is not one of cross-attention."
        : own
          ? base.name
          : layers.map(({ name }) => name).join(", ");
    }
    soon();
  });
  new ResizeObserver(soon).observe(place);
  return () => {
    const state = store.get();
    const columns = ["target word index", "target word", "source word index", "source word", "weight"];
    const alignment = alignmentOf(state, chosen(state));
    if (!alignment) return { columns, rows: [] };
    const [source, target] = texts.map((text) => text.wordsAt(state.tokens));
    const found = linksOf(alignment, target.length || source.length ? target : [...alignment.target.keys()], source);
    const [sources, targets] = texts.map(({ words }) => words.map(({ text }) => text));
    found.sort((a, b) => a.target - b.target || a.source - b.source);
    return {
      columns,
      rows: found.map(({ target: word, source: other, weight }) => [
        word,
        targets[word],
        other,
        sources[other],
        weight,
      ]),
    };
  };
}

/** One text: a list of its words. */
class Text {
  /** @param {number} sequence @param {import("#data/words.js").Word[]} words */
  constructor(sequence, words, name, side) {
    this.sequence = sequence;
    this.words = words;
    this.wordOf = wordOfEach(words);
    this.current = 0;
    this.options = words.map(({ text, special }, index) =>
      element(
        "span",
        {
          role: "option",
          class: special ? "word special" : "word",
          dir: "auto",
          "data-index": index,
          "aria-selected": "false",
          tabindex: index === 0 ? "0" : "-1",
        },
        text,
      ),
    );
    this.list = element(
      "div",
      { role: "listbox", class: "words", "aria-multiselectable": "true", "aria-label": `${name}, word by word` },
      ...this.options,
    );
    this.node = element(
      "div",
      { class: `side ${side}` },
      element("p", { class: "role", "aria-hidden": "true" }, name),
      this.list,
    );
  }

  /** The words that tokens are pieces of. @param {import("#state/store.js").Token[]} tokens */
  wordsAt(tokens) {
    return [
      ...new Set(tokens.filter(({ sequence }) => sequence === this.sequence).map(({ index }) => this.wordOf[index])),
    ];
  }

  tokens(word) {
    return this.words[word].pieces.map((index) => ({ sequence: this.sequence, index }));
  }

  /** As at rest, with what is held. */
  unmark(tokens) {
    const held = new Set(this.wordsAt(tokens));
    this.options.forEach((node, word) => {
      node.classList.remove("at");
      node.removeAttribute("data-weight");
      node.style.removeProperty("--share");
      node.setAttribute("aria-selected", String(held.has(word)));
    });
  }

  mark(words) {
    for (const word of words) this.options[word].classList.add("at");
  }
}

const everyHead = ({ heads }) => heads.map((_, head) => head);

function listen(store, text, other, inColumns) {
  const { list, options } = text;
  const at = (event) => Number(event.target.dataset?.index ?? -1);
  const point = (word) => store.set({ hover: { token: text.tokens(word)[0] } });
  const go = (to, { options: all } = text) => all[Math.min(Math.max(to, 0), all.length - 1)].focus();
  const toggle = (event, word) => holdWord(store, text.tokens(word), event.ctrlKey || event.metaKey);
  list.addEventListener("pointerover", (event) => at(event) >= 0 && point(at(event)));
  list.addEventListener("pointerleave", () => store.set({ hover: null }));
  list.addEventListener("focusout", () => store.set({ hover: null }));
  list.addEventListener("focusin", (event) => {
    options[text.current].tabIndex = -1;
    text.current = at(event);
    options[text.current].tabIndex = 0;
    point(text.current);
  });
  list.addEventListener("click", (event) => at(event) >= 0 && toggle(event, at(event)));
  list.addEventListener("keydown", (event) => {
    const word = at(event);
    switch (inColumns() ? (ACROSS[event.key] ?? event.key) : event.key) {
      case "ArrowLeft":
        go(word - 1);
        break;
      case "ArrowRight":
        go(word + 1);
        break;
      case "ArrowUp":
      case "ArrowDown":
        go(other.current, other);
        break;
      case "Home":
        go(0);
        break;
      case "End":
        go(options.length - 1);
        break;
      case "Enter":
      case " ":
        toggle(event, word);
        break;
      case "Escape":
        store.set({ tokens: [] });
        break;
      default:
        return;
    }
    event.preventDefault();
  });
}

/** Hold all pieces of a word alone, or let them go if they were; with `more`, beside what is held. */
function holdWord(store, pieces, more) {
  const { tokens } = store.get();
  const among = (all, { sequence, index }) => all.some((each) => each.sequence === sequence && each.index === index);
  const held = pieces.every((piece) => among(tokens, piece));
  const others = tokens.filter((token) => !among(pieces, token));
  if (more) store.set({ tokens: held ? others : [...others, ...pieces] });
  else store.set({ tokens: held && !others.length ? [] : pieces });
}

/** The tokens that are pointed at, in whatever view, or else held. */
function pointedIn({ querySequence, keySequence }, { hover, tokens }) {
  if (hover?.cell)
    return [
      { sequence: querySequence, index: hover.cell.query },
      { sequence: keySequence, index: hover.cell.key },
    ];
  return hover?.token ? [hover.token] : tokens;
}

/** What some target words are aligned with, each with at most so many words; where there are none, some source words. */
function linksOf(alignment, target, source, most = Infinity) {
  const first = ({ aligned }) => aligned.slice(0, most);
  return target.length
    ? target.flatMap((word) =>
        first(alignment.row(word)).map((link) => ({
          target: word,
          source: link.word,
          weight: link.weight,
          direction: "out",
        })),
      )
    : source.flatMap((word) =>
        first(alignment.column(word)).map((link) => ({
          target: link.word,
          source: word,
          weight: link.weight,
          direction: "in",
        })),
      );
}

/** For each target word its strongest source words. */
function linesAtRest(alignment) {
  if (alignment.target.length > MOST_AT_REST) return [];
  return alignment.target.flatMap((_, target) =>
    alignment
      .row(target)
      .aligned.filter(({ weight }, rank) => rank === 0 || (rank < LINES_AT_REST && weight >= AT_REST))
      .map(({ word, weight }) => ({ target, source: word, weight, direction: "rest" })),
  );
}

/** Draw lines, the strongest on top; `among` are the source words whose lines are meant where others stand beside them. */
function draw(svg, [source, target], found, among) {
  const frame = svg.getBoundingClientRect();
  const columns = svg.parentElement.classList.contains("columns");
  const box = (node) => {
    const { left, right, top, bottom } = node.getBoundingClientRect();
    return { left: left - frame.left, right: right - frame.left, top: top - frame.top, bottom: bottom - frame.top };
  };
  const boxes = new Map();
  const boxOf = (node) => boxes.get(node) ?? boxes.set(node, box(node)).get(node);
  const path = (link) => {
    const [from, to] = [boxOf(target.options[link.target]), boxOf(source.options[link.source])];
    const beside = among && !among.includes(link.source) ? " beside" : "";
    return svgElement(
      "path",
      {
        d: columns ? across(to, from) : upright(to, from),
        class: `aligned ${link.direction}${beside}`,
        "stroke-width": (0.7 + 5.3 * link.weight).toFixed(2),
        "stroke-opacity": (0.15 + 0.85 * position(link.weight)).toFixed(3),
        "data-source": link.source,
        "data-target": link.target,
        "data-weight": link.weight.toFixed(5),
      },
      svgElement(
        "title",
        {},
        `${target.words[link.target].text} – ${source.words[link.source].text}: ${written(link.weight)}`,
      ),
    );
  };
  svg.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  svg.replaceChildren(...[...found].sort((a, b) => a.weight - b.weight).map(path));
}

/** From a word down to one of the line below. */
function upright(upper, lower) {
  const [x1, x2] = [(upper.left + upper.right) / 2, (lower.left + lower.right) / 2];
  const bend = (upper.bottom + lower.top) / 2;
  return `M${x1.toFixed(1)} ${upper.bottom.toFixed(1)}C${x1.toFixed(1)} ${bend.toFixed(1)} ${x2.toFixed(1)} ${bend.toFixed(1)} ${x2.toFixed(1)} ${lower.top.toFixed(1)}`;
}

/** From a word of the left column to one of the right. */
function across(left, right) {
  const [y1, y2] = [(left.top + left.bottom) / 2, (right.top + right.bottom) / 2];
  const bend = (left.right + right.left) / 2;
  return `M${left.right.toFixed(1)} ${y1.toFixed(1)}C${bend.toFixed(1)} ${y1.toFixed(1)} ${bend.toFixed(1)} ${y2.toFixed(1)} ${right.left.toFixed(1)} ${y2.toFixed(1)}`;
}

/** Write the weights beside the words that one word is aligned with. */
function number([source, target], words, found) {
  if (words.length !== 1) return;
  for (const { weight, direction, ...ends } of found) {
    const node = direction === "out" ? source.options[ends.source] : target.options[ends.target];
    node.style.setProperty("--share", position(weight).toFixed(3));
    if (weight >= NUMBERED) node.setAttribute("data-weight", written(weight));
  }
}

/** What the chosen words are aligned with, in words. */
function sentences(alignment, [source, target], sourceWords, targetWords) {
  const list = (some, words) =>
    some
      .slice(0, TOLD)
      .map(({ word, weight }) => `${words[word].text} ${written(weight)}`)
      .join(", ") || "none";
  const unknown = ({ left, waiting }) =>
    waiting ? ", reading …" : left >= 0.001 ? `; ${written(left)} on others, which this file does not name` : "";
  if (targetWords.length && sourceWords.length) {
    const pairs = targetWords.flatMap((row) =>
      sourceWords.map((column) => pair(alignment, target.words[row].text, source.words[column].text, row, column)),
    );
    return pairs.slice(0, TOLD).join(" ");
  }
  const rows = targetWords.map((word) => [target.words[word].text, alignment.row(word), source.words]);
  const columns = sourceWords.map((word) => [source.words[word].text, alignment.column(word), target.words]);
  return [...rows, ...columns]
    .slice(0, TOLD)
    .map(([text, some, words]) => `${text}: ${list(some.aligned, words)}${unknown(some)}.`)
    .join(" ");
}

function pair(alignment, name, other, row, column) {
  const { aligned, left, waiting } = alignment.row(row);
  if (waiting) return `${name} – ${other}: reading …`;
  const weight = aligned.find(({ word }) => word === column)?.weight ?? 0;
  if (left < 0.001) return `${name} – ${other}: ${written(weight)}.`;
  return `${name} – ${other}: ${written(weight)} to ${written(Math.min(weight + left, 1))}, as this file does not name all.`;
}
