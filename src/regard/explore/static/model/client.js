// The page's side of the worker.

import { bytesOfBase64, inflateBase64 } from "#data/page_format.js";

/**
 * @import { ModelHeader } from '#model/computed.js'
 * @import { Reply, Request, TraceRequest } from '#model/worker.js'
 */

/** The bytes of an inert block. @param {Document} page @param {string} id */
function takeBytes(page, id) {
  const element = page.getElementById(id);
  const bytes = bytesOfBase64(element?.textContent ?? "");
  element?.remove(); // to free its memory
  return bytes;
}

/** The model of the page, in a worker. */
export class ModelClient {
  /** @param {ModelHeader} header @param {Document} page @param {boolean} wasm */
  constructor(header, page, wasm = true) {
    /** @type {Map<number, {resolve: (reply: Reply) => void, reject: (error: unknown) => void}>} */
    this.waiting = new Map();
    this.count = 0;
    this.worker = this.start(header, page, wasm);
  }

  /** @param {ModelHeader} model @param {Document} page @param {boolean} wasm */
  async start(model, page, wasm) {
    const script = await inflateBase64(page.getElementById("worker")?.textContent ?? "");
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.onmessage = ({ data }) => {
      this.waiting.get(data.id)?.resolve(data);
      this.waiting.delete(data.id);
    };
    worker.onerror = ({ message }) => this.fail(new Error(message || "the browser starts no worker from a page"));
    const weights = takeBytes(page, "block-0");
    worker.postMessage({ model, weights, wasm }, [weights.buffer]);
    return worker;
  }

  /** @param {unknown} error */
  fail(error) {
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  /** No result if another request came in the meantime. @param {Request} request @returns {Promise<Reply>} */
  run(request) {
    return this.send({ request });
  }

  /** Every number of a layer. @param {TraceRequest} trace @returns {Promise<Reply>} */
  trace(trace) {
    return this.send({ trace });
  }

  /** @param {{request: Request} | {trace: TraceRequest}} message @returns {Promise<Reply>} */
  async send(message) {
    const id = ++this.count;
    const reply = new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
    this.worker.then((worker) => worker.postMessage({ id, ...message })).catch((error) => this.fail(error));
    const answer = /** @type {Reply} */ (await reply);
    if (answer.error) throw new Error(answer.error);
    return answer;
  }
}
