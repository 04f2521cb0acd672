// Ranks heads by what the selected words do: where one word looks, or how much one looks at another.

import { combineCells } from "#data/heads.js";
import { formatWeight } from "#ui/format.js";

/**
 * @import { Blocks } from '#data/heads.js'
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { State, Token } from '#state/store.js'
 * @typedef {{sequence: number, indices: number[], name: string}} Word  Selected tokens of one word.
 * @typedef {{score: number, text: string, strip: Blocks, word?: string}} RankedHead
 *   `strip` is the row, `text` is written below it; `word` gets most of the row of a single word.
 */

const WORD = /[\p{L}\p{N}]/u;
const MAX_STRIP = 64; // columns of a thumbnail's row; of a longer one, the largest weights

/** The selected words, at most two, in the order in which they were selected. @param {Recording} recording @param {State} state @returns {Word[]} */
export function selectedWords({ sequences }, { tokens }) {
  /** @type {Map<string, Token[]>} */
  const groups = new Map();
  for (const token of tokens) {
    const id = `${token.sequence}.${sequences[token.sequence].wordOf[token.index]}`;
    groups.set(id, [...(groups.get(id) ?? []), token]);
  }
  const words = [...groups.values()].map((group) => {
    const { sequence } = group[0];
    const indices = group.map(({ index }) => index).sort((a, b) => a - b);
    return { sequence, indices, name: indices.map((index) => sequences[sequence].display[index]).join("") };
  });
  return words.length > 2 ? [] : words;
}

/** The question that a ranking answers; empty if none or more than two words are selected. @param {Word[]} words */
export function questionOf([from, to]) {
  if (!from) return "";
  return to ? `Which heads look from “${from.name}” to “${to.name}”?` : `Where does “${from.name}” look?`;
}

/** Whether a layer has the words where they are needed. @param {Layer} layer @param {Word[]} words */
export function layerHasWords({ querySequence, keySequence }, [from, to]) {
  return from?.sequence === querySequence && (!to || to.sequence === keySequence);
}

/**
 * What a head does with the selected words: the weight from the first to the second, or the largest weight of the only
 * one on another word. Null while it is loading.
 * @param {import("#state/unit.js").Unit} unit @param {Layer} layer @param {number} head @param {Word[]} words @returns {RankedHead | null}
 */
export function rankHead(unit, layer, head, [from, to]) {
  const source = unit.headForRows(layer, head);
  const row = source?.rows(from.indices);
  if (!source || !row || row.loading) return null;
  const { display } = layer.keys;
  const strip = stripOf(row.entries, display.length);
  if (to) {
    const cells = from.indices.flatMap((query) => to.indices.map((key) => source.cell(query, key)));
    const { state, weight, upperBound, error } = combineCells(cells, from.indices.length);
    if (state === "known") return { score: weight, text: formatWeight(weight, error), strip };
    if (state !== "unknown") return { score: 0, text: state, strip };
    const known = row.entries.reduce((sum, entry) => sum + (to.indices.includes(entry.key) ? entry.weight : 0), 0);
    const missing = (upperBound - known) / 2; // at most twice that is not stored
    return { score: known, text: formatWeight(known + missing, missing), strip };
  }
  const largest = largestWord(layer, row.entries, from);
  if (!largest) return { score: 0, text: "–", strip };
  const text = `${largest.name}\n${formatWeight(largest.weight, largest.error)}`;
  return { score: largest.weight, text, strip, word: largest.name };
}

/** In how many heads each word gets most, the most frequent first. @param {Iterable<RankedHead>} ranked @returns {[word: string, count: number][]} */
export function countWords(ranked) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { word } of ranked) if (word) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].sort(([, a], [, b]) => b - a);
}

/** The word that gets most of a row, other than the one that attends. @param {Layer} layer @param {import("#data/ranked.js").Entry[]} entries @param {Word} from */
function largestWord({ querySequence, keySequence, keys }, entries, from) {
  const own = querySequence === keySequence ? keys.wordOf[from.indices[0]] : -1;
  /** @type {Map<number, {name: string, weight: number, error: number}>} */
  const words = new Map();
  for (const { key, weight, error } of entries) {
    const index = keys.wordOf[key];
    const name = keys.wordTexts[index];
    if (index === own || keys.isSpecial[key] || !WORD.test(name)) continue;
    const word = words.get(index) ?? { name, weight: 0, error: 0 };
    words.set(index, { name, weight: word.weight + weight, error: word.error + error });
  }
  return [...words.values()].sort((a, b) => b.weight - a.weight).at(0);
}

/** A row as a picture. @param {import("#data/ranked.js").Entry[]} entries @param {number} count @returns {Blocks} */
function stripOf(entries, count) {
  const columns = Math.min(count, MAX_STRIP);
  const weights = new Float32Array(columns);
  for (const { key, weight } of entries) {
    const column = Math.floor((key * columns) / count);
    weights[column] = Math.max(weights[column], weight);
  }
  return { rows: 1, columns, size: 1, at: (_, column) => weights[column] };
}
