// Greedy and beam search, as in regard.generation.

/**
 * @import { Encoded, State, Transformer } from '#model/transformer.js'
 * @typedef {{tokens: number[], score: number, finished: boolean, state: State}} Hypothesis  Its tokens without BOS and EOS; the score is a log-probability, divided by the length in a beam search.
 * @typedef {{score: number, row: number, token: number}} Candidate
 */

/** What to subtract from logits for log-probabilities. @param {Float32Array} logits */
function logSumExp(logits) {
  let [largest, sum] = [-Infinity, 0];
  for (let token = 0; token < logits.length; token++) largest = Math.max(largest, logits[token]);
  for (let token = 0; token < logits.length; token++) sum += Math.exp(logits[token] - largest);
  return largest + Math.log(sum);
}

/** The best candidates of one row, without tokens that are never generated. @param {Float32Array} logits @param {number[]} suppressed @param {number} count @param {number} row @param {number} total  Score of the row. */
function best(logits, suppressed, count, row, total) {
  const shift = total - logSumExp(logits);
  let lowest = -Infinity;
  /** @type {Candidate[]} */
  const found = [];
  for (let token = 0; token < logits.length; token++) {
    const score = logits[token] + shift;
    if (score <= lowest || suppressed.includes(token)) continue;
    let place = found.length;
    while (place > 0 && found[place - 1].score < score) place--;
    found.splice(place, 0, { score, row, token });
    if (found.length > count) found.pop();
    if (found.length === count) lowest = found[count - 1].score;
  }
  return found;
}

/**
 * The best sequence that a beam search finds; a beam of 1 is greedy search with the mean log-probability as score.
 * @param {Transformer} model @param {Encoded} source @param {{beam: number, maxTokens: number, pause: () => Promise<void>}} options
 *   `pause` is called before each token and may throw, to end the search.
 * @returns {Promise<Hypothesis>}
 */
export async function beamSearch(model, source, { beam, maxTokens, pause }) {
  const { bos_id: bos, eos_id: eos, pad_id: pad } = model.config;
  /** @type {Hypothesis[]} */
  let finished = [];
  let states = [model.start(source)];
  let [inputs, scores] = [[bos], [0]];
  for (let length = 1; ; length++) {
    await pause();
    const logits = model.step(inputs, states);
    const candidates = logits
      .flatMap((row, index) => best(row, [pad, bos], 2 * beam, index, scores[index]))
      .sort((a, b) => b.score - a.score)
      .slice(0, 2 * beam);
    const ended = candidates.slice(0, beam).filter(({ token }) => token === eos);
    for (const { score, row } of ended) {
      const tokens = states[row].tokens.slice(1);
      finished.push({ tokens, score: score / length, finished: true, state: states[row] });
    }
    finished = finished.sort((a, b) => b.score - a.score).slice(0, beam);
    const going = candidates.filter(({ token }) => token !== eos).slice(0, beam);
    const isDone = finished.length === beam && finished[beam - 1].score >= going[0].score / length;
    if (isDone || length >= maxTokens) {
      const [{ score, row, token }] = going;
      const cut = { tokens: [...states[row].tokens.slice(1), token], score: score / length, finished: false };
      return finished[0] ?? { ...cut, state: states[row] };
    }
    states = continued(states, going);
    inputs = going.map(({ token }) => token);
    scores = going.map(({ score }) => score);
  }
}

/** The state of each candidate; one that several continue is copied. @param {State[]} states @param {Candidate[]} candidates */
function continued(states, candidates) {
  return candidates.map(({ row }) => states[row].copy());
}
