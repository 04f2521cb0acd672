// "Start here": eight stops, each an address of this page with two sentences, from tokens to the next word.

import { fourWords } from "#live/four_words.js";
import { oneOf } from "#state/url.js";
import { button, element } from "#ui/elements.js";

/** @typedef {{title: string, text: string, address: Record<string, string>, see?: string}} Stop  `see` is what it speaks of. */

const TEXT = "The animal didn't cross the street because it was too tired.";
const IT = { layer: "encoder.2", head: "0", token: "source.9" };

const GAP = 8; // CSS pixels below a stop

/** @type {Stop[]} */
const STOPS = [
  {
    title: "What is a token?",
    text: "A model cuts a text into tokens, words or parts of words, and calculates with a list of numbers for each: here are four words with three numbers each. All that attention is follows from them below; the other stops show the same in a real translator.",
    address: {},
    see: "body",
  },
  {
    title: "From text to numbers",
    text: "This translator knows 5,000 tokens, and calculates with 256 numbers for each, which training has found. Rare words have several tokens, such as an·imal: change the sentence, and see how it is cut.",
    address: { unit: "tokens", views: "text", layer: "encoder.0" },
  },
  {
    title: "What does “it” look at?",
    text: "“it” alone says little, so it takes over information from other words: the arcs show from which ones, and the list how much. These shares are attention weights, from 0 to 1; those of one word add up to 1.",
    address: { ...IT, views: "text" },
    see: "#text",
  },
  {
    title: "Query and key",
    text: "What “it” looks for is its query, and what another token offers is its key: each is the numbers of its token times a table W, as at stop 1. Query times key, number by number and added up, is a score: the better they agree, the larger it is.",
    address: { ...IT, unit: "tokens", views: "calculation", calculation: "scores" },
    see: "#calculation",
  },
  {
    title: "From scores to weights",
    text: "A score is divided by √32, as by √3 at stop 1; e to the power of that, divided by the sum of all such powers, is a weight. So the weights of “it” add up to 1: 0.567 for ·imal and 0.026 for an are the 0.593 of “animal” at stop 3.",
    address: { ...IT, unit: "tokens", views: "calculation", calculation: "softmax" },
    see: "#calculation",
  },
  {
    title: "Many heads",
    text: "Each of the 4 layers here has 8 heads, which look at different things: the buttons count at which word “it” looks most. What a head collects are the values of tokens times their weights; those of all heads go on to the next layer.",
    address: { ...IT, views: "text", sort: "selection" },
    see: "#overview",
  },
  {
    title: "Does it matter?",
    text: "Weights say where a head looks, and not whether that matters: switch it off, so that nothing of what it collects goes on, and compare the translations. Without the head of stop 3 no word changes; without head 5 of cross.2, which looks from the translation to the text, “nicht” is lost.",
    address: { off: "cross.2.5", layer: "cross.2", head: "5", views: "text" },
  },
  {
    title: "Why did it say “es”?",
    text: "The last layer gives each of the 5,000 tokens a probability: 0.52 to “es”, as for “das Tier”, but 0.14 to “sie”, as for “die Straße”. To find out, most heads between the two texts looked at “it”, and the one below at “animal”.",
    address: { layer: "cross.2", head: "1", token: "written.10", choice: "10", views: "text" },
  },
];

/** The stop in the address. */
export const startField = oneOf(["", ...STOPS.map((_, index) => String(index + 1))]);

/** The address of a stop, or what it shows without the stop. @param {number} index @param {Record<string, string>} start */
function addressOf(index, start = { start: String(index + 1) }) {
  return `#${new URLSearchParams({ ...start, text: TEXT, ...STOPS[index].address })}`;
}

/** The address of a stop of which only the number is given, as in `#start=4`; any other as it is. @param {string} fragment */
export function wholeAddress(fragment) {
  const given = Object.fromEntries(new URLSearchParams(fragment.slice(1)));
  const stop = STOPS[Number(given.start) - 1];
  if ("layer" in given || !stop) return fragment; // what is shown always has a layer
  return `#${new URLSearchParams({ ...given, text: TEXT, ...stop.address, ...given })}`;
}

/** The stop that the address names, above the page. */
export class Start {
  constructor() {
    const about = "How attention works, in eight stops";
    this.opener = element("a", { class: "start-here", href: addressOf(0), title: about }, "Start here");
    this.title = element("h2", { id: "start-title" });
    this.text = element("p", { class: "start-text", "aria-live": "polite" });
    this.back = element("a", {}, "‹ Back");
    this.next = element("a", {});
    this.stops = STOPS.map(({ title }, index) =>
      element("a", { href: addressOf(index), title, "aria-label": `${index + 1}, ${title}` }, String(index + 1)),
    );
    const leave = button("Leave", "Leave these stops", () => this.end());
    const ways = element("div", { class: "start-ways" }, this.back, ...this.stops, this.next, leave);
    this.node = element("section", { class: "start", "aria-labelledby": this.title.id }, this.title, ways, this.text);
    this.node.addEventListener("keydown", ({ key }) => this.press(key));
    this.figure = fourWords();
    /** @type {string | null} */
    this.see = null; // what is to be scrolled to
  }

  /** @param {string} fragment  The address. */
  update(fragment) {
    const index = Number(new URLSearchParams(fragment.slice(1)).get("start")) - 1;
    const stop = STOPS[index];
    const focused = document.activeElement;
    const hasFocus = this.node.contains(focused);
    this.opener.hidden = stop !== undefined;
    this.node.hidden = stop === undefined;
    this.figure.hidden = index !== 0;
    if (hasFocus && !stop) this.opener.focus();
    if (!stop) return;
    const isLast = index === STOPS.length - 1;
    this.title.textContent = `${index + 1} ${stop.title}`;
    this.text.textContent = stop.text;
    this.back.hidden = index === 0;
    this.back.href = addressOf(Math.max(index - 1, 0));
    this.next.textContent = isLast ? "Done" : "Next ›";
    this.next.href = isLast ? addressOf(index, {}) : addressOf(index + 1);
    for (const [at, node] of this.stops.entries()) node.setAttribute("aria-current", at === index ? "step" : "false");
    const wasHidden = focused === this.opener || (focused === this.back && this.back.hidden);
    if (wasHidden) this.next.focus(); // so that arrow keys turn the stops
    this.see = stop.see ?? ".live";
  }

  /** @param {string} key */
  press(key) {
    if (key === "ArrowLeft") this.back.click();
    if (key === "ArrowRight") this.next.click();
    if (key === "Escape") this.end();
  }

  /** Leave what is shown as it is. */
  end() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    parameters.delete("start");
    location.hash = String(parameters);
  }

  /** Show what the stop speaks of, once it is drawn. */
  arrive() {
    const { see, node } = this;
    if (see === null) return;
    this.see = null;
    const isSticky = getComputedStyle(node).position === "sticky";
    const scroll = () => {
      const seen = document.querySelector(see);
      const target = seen?.closest("section") ?? seen;
      const top = (isSticky && target && target.getBoundingClientRect().top - node.offsetHeight) || -window.scrollY;
      window.scrollBy(0, top - GAP);
    };
    requestAnimationFrame(() => requestAnimationFrame(scroll));
  }
}
