// Greedy and beam search, as in regard.generation.

/**
 * @import { Choice, State, Transformer } from '#model/transformer.js'
 * @typedef {{tokens: number[], score: number, end: number | null, state: State}} Hypothesis  What was generated, without the token that ended it, which is null if it is cut; the score is a log-probability, divided by the length.
 * @typedef {{score: number, token: number}} Ranked  The score is a log-probability.
 * @typedef {{beam: number, maxTokens: number, ends: number[], suppressed: number[], written?: number, pause: () => Promise<void>}} SearchOptions
 *   Token ids that end a text, and those that are never generated; how many of the tokens that are read first count as
 *   generated; `pause` is called before each token and may throw, to end the search.
 */

const CHOICES = 5; // that are kept of each step

/** What to subtract from logits for log-probabilities. @param {Float32Array} logits */
function logSumExp(logits) {
  let [largest, sum] = [-Infinity, 0];
  for (let token = 0; token < logits.length; token++) largest = Math.max(largest, logits[token]);
  for (let token = 0; token < logits.length; token++) sum += Math.exp(logits[token] - largest);
  return largest + Math.log(sum);
}

/** The most probable next tokens with their log-probabilities, without those that are never generated. @param {Float32Array} logits @param {number} count @param {number[]} suppressed @returns {Ranked[]} */
function rank(logits, count, suppressed) {
  const shift = logSumExp(logits);
  let lowest = -Infinity;
  /** @type {Ranked[]} */
  const found = [];
  for (let token = 0; token < logits.length; token++) {
    const score = logits[token] - shift;
    if (score <= lowest || suppressed.includes(token)) continue;
    let place = found.length;
    while (place > 0 && found[place - 1].score < score) place--;
    found.splice(place, 0, { token, score });
    if (found.length > count) found.pop();
    if (found.length === count) lowest = found[count - 1].score;
  }
  return found;
}

/** @param {Ranked[]} ranked @returns {Choice[]} */
const asChoices = (ranked) =>
  ranked.slice(0, CHOICES).map(({ token, score }) => ({ token, probability: Math.exp(score) }));

/** The most probable next tokens. @param {Float32Array} logits @param {{suppressed: number[]}} options */
export const choicesOf = (logits, { suppressed }) => asChoices(rank(logits, CHOICES, suppressed));

/** The best sequence that a beam search finds; a beam of 1 is greedy search. @param {Transformer} model @param {State} start @param {number[]} inputs  What it reads first. @param {SearchOptions} options @returns {Promise<Hypothesis>} */
export async function search(model, start, inputs, options) {
  const { beam, maxTokens, ends, suppressed, written = 0, pause } = options;
  const given = start.tokens.length + inputs.length - written;
  const most = (1 + ends.length) * beam; // candidates of a row, of which some go on
  await pause();
  const fresh = inputs.map(() => start);
  const hidden = model.step(inputs, fresh);
  let logits = model.logits(hidden.subarray((inputs.length - 1 - written) * model.config.d_model));
  for (const row of logits.slice(0, written)) start.choices.push(choicesOf(row, options));
  logits = logits.slice(written);
  let [states, scores] = [[start], [0]];
  /** @type {Hypothesis[]} */
  let finished = [];
  for (let length = written + 1; ; length++) {
    const ranked = logits.map((row) => rank(row, Math.max(most, CHOICES), suppressed));
    for (const [row, state] of states.entries()) state.choices.push(asChoices(ranked[row]));
    const candidates = ranked
      .flatMap((each, row) =>
        each.slice(0, most).map(({ token, score }) => ({ token, row, score: scores[row] + score })),
      )
      .sort((a, b) => b.score - a.score);
    for (const { score, row, token } of candidates.slice(0, beam)) {
      const [state, tokens] = [states[row], states[row].tokens.slice(given)];
      if (ends.includes(token)) finished.push({ tokens, score: score / length, end: token, state });
    }
    finished = finished.sort((a, b) => b.score - a.score).slice(0, beam);
    const going = candidates.filter(({ token }) => !ends.includes(token)).slice(0, beam);
    const isDone = finished.length === beam && finished[beam - 1].score >= going[0].score / length;
    if (isDone || length >= maxTokens) {
      const [{ score, row, token }] = going;
      const tokens = [...states[row].tokens.slice(given), token];
      return finished[0] ?? { tokens, score: score / length, end: null, state: states[row] };
    }
    states = going.map(({ row }) => states[row].copy()); // several may continue one
    scores = going.map(({ score }) => score);
    await pause();
    const next = going.map(({ token }) => token);
    logits = model.logits(model.step(next, states));
  }
}
