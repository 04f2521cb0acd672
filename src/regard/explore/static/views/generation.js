// The text as it was made: a timeline of the model's steps, and at each what the model attended to.

import { headOf } from "#data/combined_heads.js";
import { links } from "#data/links.js";
import { written } from "#data/recording.js";
import { beginsWord, isSpecial, label, shown } from "#data/tokens.js";
import { linksIn } from "#export/csv.js";
import { hold } from "#state/store.js";
import { position } from "#ui/color.js";
import { element } from "#ui/elements.js";

const PACE = 800; // ms for a step, while it plays
const NAMED = 3; // tokens that a step attends to most

export function mountGeneration(place, recording, store) {
  if (!recording.layers.some(({ kind }) => kind === "decoder")) return false;
  const slider = element("input", { type: "range", min: "0", step: "1", "aria-label": "Step" });
  const button = (text, name, act) => {
    const made = element("button", { type: "button", "aria-label": name, title: name }, text);
    made.addEventListener("click", act);
    return made;
  };
  const play = button("Play", "Play", () => (timer ? stop() : start()));
  const timeline = element(
    "div",
    { class: "timeline", role: "group", "aria-label": "Steps" },
    button("‹", "Previous step", () => go(now() - 1)),
    button("›", "Next step", () => go(now() + 1)),
    play,
    slider,
  );
  const note = element("p", { class: "note" });
  const source = new Line("Source");
  const text = new Line("");
  const caption = element("p", { class: "hint" });
  const current = element("p", { class: "made-token", dir: "auto" });
  const attends = element("p", { class: "hint" });
  const scroller = element(
    "div",
    { class: "scroller", tabindex: "0", role: "group", "aria-label": "The text, as far as it was made" },
    source.node,
    text.node,
  );
  place.append(
    timeline,
    note,
    element("div", { class: "making" }, scroller, element("div", { class: "made" }, caption, current, attends)),
  );
  let name = ""; // of the sequences that are laid out
  let timer = 0;
  let _asked = 0;

  /** The layer that is shown, where it takes part in the steps; and one that tells what was read at each. */
  const chosen = (state = store.get()) => {
    const layer = recording.layers[state.layer];
    const part = layer.kind !== "encoder";
    const same = ({ kind, querySequence }) => kind === "decoder" && (!part || querySequence === layer.querySequence);
    const decoder =
      layer.kind === "decoder"
        ? layer
        : (recording.layers.find(same) ?? recording.layers.find(({ kind }) => kind === "decoder"));
    const cross =
      layer.kind === "cross" && layer.querySequence === decoder.querySequence
        ? layer
        : recording.layers.find(
            ({ kind, querySequence }) => kind === "cross" && querySequence === decoder.querySequence,
          );
    return {
      layer: part && layer.querySequence === decoder.querySequence ? layer : null,
      decoder,
      cross,
      reads: decoder.querySequence === decoder.keySequence,
    };
  };
  const now = (state = store.get()) => stepOf(state, chosen(state).decoder);

  const go = (step, playing = false) => {
    if (!playing) stop();
    const { decoder } = chosen();
    const index = Math.min(Math.max(step, 0), decoder.queries.length - 1);
    store.set({ step: index, tokens: [{ sequence: decoder.querySequence, index }], hover: null });
  };
  slider.addEventListener("input", () => go(Number(slider.value)));

  const start = () => {
    const last = () => chosen().decoder.queries.length - 1;
    if (now() >= last()) go(0);
    timer = setInterval(
      () => (store.get().views.includes("generation") && now() < last() ? go(now() + 1, true) : stop()),
      PACE,
    );
    named(play, "Pause");
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    named(play, "Play");
  };

  const lay = ({ decoder, cross, reads }) => {
    const sequenceOf = (sequence) => ({ sequence, tokens: recording.sequences[sequence].tokens });
    source.lay(cross ? [sequenceOf(cross.keySequence)] : []);
    text.lay(
      reads ? [sequenceOf(decoder.keySequence)] : [sequenceOf(decoder.keySequence), sequenceOf(decoder.querySequence)],
    );
    text.name(reads ? "Read so far" : "Written so far");
    slider.max = String(decoder.queries.length - 1);
    note.textContent = reads
      ? "This model reads what it is given: each step is a token that was read, and attends to itself and to those before it."
      : "Each step wrote a token: the tint says what the model attended to in order to write it.";
  };

  const paint = () => {
    _asked = 0;
    const state = store.get();
    if (!state.views.includes("generation")) return;
    const what = chosen(state);
    const { layer, decoder, cross, reads } = what;
    const wanted = [decoder.keySequence, decoder.querySequence, cross?.keySequence].join();
    if (wanted !== name) lay(what);
    name = wanted;
    const step = now(state);
    const token = decoder.queries[step];
    slider.value = String(step);
    caption.textContent = `Step ${step + 1} of ${decoder.queries.length} ${reads ? "reads" : "writes"}`;
    current.textContent = shown(token);
    text.show(seenAt(decoder, step), reads ? -1 : step);
    text.reveal(scroller, reads ? 0 : 1, step);
    const head = layer && headOf(layer, state);
    const found = head ? head.row(step) : { links: [], left: 0, waiting: true };
    const seen = head ? links(layer, found, state) : [];
    const most = seen[0]?.weight ?? 0;
    /** @type {[number, number][]} */
    const tints = seen.map(({ key, weight }) => [key, position(weight, state.scale, most)]);
    text.tint(layer?.kind === "decoder" ? tints : []);
    source.tint(layer?.kind === "cross" ? tints : []);
    const strongest = seen
      .slice(0, NAMED)
      .map(({ key, weight }) => `${label(layer.keys[key])} ${written(weight)}`)
      .join(", ");
    const left = found.left >= 0.001 ? `; ${written(found.left)} on others, which this file does not name` : "";
    attends.textContent = !layer
      ? `${recording.layers[state.layer].name} takes no part in these steps: choose a head of the decoder, or of cross-attention, to see what they attend to.`
      : found.waiting
        ? "Reading …"
        : `attends most to ${strongest || "nothing"}${left}`;
    slider.setAttribute(
      "aria-valuetext",
      `${caption.textContent} ${label(token)}${head ? `, ${attends.textContent}` : ""}`,
    );
  };
  const soon = () => {
    _asked ||= requestAnimationFrame(paint);
  };

  /** Pointing at a token that the step attends to points at its weight; at another, at the token. */
  const point = ({ sequence, index }) => {
    const { layer } = chosen();
    const step = now();
    const cell = layer?.keySequence === sequence && (layer.kind === "cross" || index < seenAt(layer, step));
    store.set({ hover: cell ? { cell: { query: step, key: index } } : { token: { sequence, index } } });
  };
  for (const line of [source, text]) {
    line.node.addEventListener("pointerover", (event) => {
      const token = line.at(event);
      if (token) point(token);
    });
    line.node.addEventListener("pointerleave", () => store.set({ hover: null }));
    line.node.addEventListener("click", (event) => {
      const token = line.at(event);
      if (!token) return;
      const { decoder } = chosen();
      const step =
        token.sequence === decoder.querySequence
          ? token.index
          : token.sequence === decoder.keySequence
            ? token.index - firstSeen(decoder)
            : -1;
      if (step >= 0 && !event.ctrlKey && !event.metaKey) go(step);
      else hold(store, token, event.ctrlKey || event.metaKey);
    });
  }

  store.subscribe((state, before) => {
    const open = state.views.includes("generation");
    if (!open && timer) stop();
    if (open) {
      const { layer, decoder } = chosen(state);
      if (layer && !layer.ready) layer.load().then(() => store.set({}));
      // A step's token that is held in another view is the step that is shown.
      const [token] = state.tokens.length === 1 && state.tokens !== before.tokens ? state.tokens : [];
      if (token?.sequence === decoder.querySequence && token.index !== now(state))
        return store.set({ step: token.index });
    }
    soon();
  });
  return () => {
    const state = store.get();
    const { layer, decoder } = chosen(state);
    const head = layer && headOf(layer, state);
    const found = head ? links(layer, head.row(now(state)), state) : [];
    return linksIn(
      layer ?? decoder,
      found.sort((a, b) => a.key - b.key),
    );
  };
}

/** The step that is shown: the one that was chosen, or else of the token that is held, or the first. */
function stepOf({ step, tokens }, { querySequence, queries }) {
  const held = tokens.find(({ sequence }) => sequence === querySequence)?.index;
  return Math.min(step ?? held ?? 0, queries.length - 1);
}

/** How many tokens are read at the first step: those before the first that was written, or itself. */
function firstSeen({ queries, keys }) {
  return Math.max(keys.length - queries.length, 0) + 1;
}

function seenAt(decoder, step) {
  return firstSeen(decoder) + step;
}

function named(button, name) {
  button.textContent = name;
  button.setAttribute("aria-label", name);
  button.title = name;
}

/** A text of one or two sequences of tokens, of which parts are seen. */
class Line {
  constructor(role) {
    this.role = element("p", { class: "role" }, role);
    this.body = element("p", { class: "made-text" });
    this.node = element("div", { class: "made-line" }, this.role, this.body);
    /** @type {HTMLElement[][]} */
    this.parts = [];
    this.sequences = [];
    this.tinted = [];
    this.revealed = -1; // the token that was scrolled to last
  }

  /** @param {{sequence: number, tokens: string[]}[]} parts */
  lay(parts) {
    this.node.hidden = parts.length === 0;
    this.sequences = parts.map(({ sequence }) => sequence);
    this.parts = parts.map(({ tokens }, part) =>
      tokens.map((token, index) =>
        element(
          "span",
          { class: isSpecial(token) ? "piece special" : "piece", dir: "auto", "data-part": part, "data-index": index },
          shown(token),
        ),
      ),
    );
    this.body.replaceChildren(
      ...parts.flatMap(({ tokens }, part) =>
        this.parts[part].flatMap((node, index) => (spaceBefore(tokens, index) ? [" ", node] : [node])),
      ),
    );
    this.tinted = [];
    this.revealed = -1;
  }

  name(role) {
    this.role.textContent = role;
  }

  /** Where the pointer is. @returns {import("#state/store.js").Token | null} */
  at(event) {
    const { part, index } = event.target.dataset ?? {};
    return index === undefined ? null : { sequence: this.sequences[Number(part)], index: Number(index) };
  }

  /**
   * Show what has been read, and after it the token of a step and what is written later.
   * @param {number} seen  So many tokens of the first part have been read. @param {number} step  Of the second part; -1 where there is none.
   */
  show(seen, step) {
    const two = this.parts.length === 2;
    this.parts[0].forEach((node, index) => {
      setState(node, "unseen-token", two && index >= seen);
      setState(node, "later", !two && index >= seen);
      setState(node, "now", !two && index === seen - 1);
    });
    if (two) {
      this.parts[1].forEach((node, index) => {
        setState(node, "unseen-token", index < step);
        setState(node, "later", index > step);
        setState(node, "now", index === step);
      });
    }
  }

  /** @param {[number, number][]} tints  Of tokens of the first part. */
  tint(tints) {
    for (const node of this.tinted) node.style.removeProperty("--attended");
    this.tinted = tints.map(([index, place]) => {
      const node = this.parts[0][index];
      node.style.setProperty("--attended", place.toFixed(3));
      return node;
    });
  }

  /** Scroll the text, and not the page, to a token. */
  reveal(scroller, part, index) {
    if (scroller.scrollHeight <= scroller.clientHeight || index === this.revealed) return;
    this.revealed = index;
    const [frame, node] = [scroller.getBoundingClientRect(), this.parts[part][index].getBoundingClientRect()];
    if (node.top < frame.top || node.bottom > frame.bottom)
      scroller.scrollTop += node.top - frame.top - frame.height / 2;
  }
}

function setState(node, name, wanted) {
  if (node.classList.contains(name) !== wanted) node.classList.toggle(name, wanted);
}

function spaceBefore(tokens, index) {
  return beginsWord(tokens[index]) || isSpecial(tokens[index]) || (index > 0 && isSpecial(tokens[index - 1]));
}
