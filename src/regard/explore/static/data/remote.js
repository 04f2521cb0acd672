// A recording on a server: what is too large for a file is asked for when it is looked at, and computed then.

import { Known } from "#data/heads.js";
import { Layer } from "#data/layer.js";
import { Codes, inflate, Reader, Squares } from "#data/page_format.js";

const TILE = 256; // squares of a side (SIDE in packing.py)
const FINER = 4; // times as many cells has a side from one level to the next (FINER in answers.py)
const QUIET = 500; // ms without a question, after which the server computes what nobody waits for
const KEPT = 1200; // rows, columns and tiles of a head

/** The server that a page came from. */
class Server {
  /** @param {() => void} changed  Told when it has ended. */
  constructor(changed) {
    this.changed = changed;
    this.ended = false; // or something else answers in its place
    this.latest = 0; // when it was asked last
  }

  /** @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  ask(path) {
    this.latest = performance.now();
    return this.fetch(path);
  }

  /** Ask for what can wait: when nothing else was asked for a while. @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async askIdly(path) {
    for (let left = 1; left > 0; left = this.latest + QUIET - performance.now())
      await new Promise((resolve) => setTimeout(resolve, left));
    return this.fetch(path);
  }

  /** @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async fetch(path) {
    try {
      const answer = await fetch(path, { cache: "no-store" });
      if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
      return new Uint8Array(await answer.arrayBuffer());
    } catch (error) {
      this.ended = true;
      this.changed();
      throw error;
    }
  }
}

/** A recording of which the page holds what it is told at once: texts, tokens, layers. */
export class RemoteRecording {
  /** @param {import("#data/recording.js").Header} header */
  constructor(header) {
    this.title = header.title;
    this.model = header.model;
    this.dtype = header.dtype;
    this.texts = header.texts;
    this.picture = header.picture;
    this.error = header.error;
    this.sequences = header.sequences;
    /** @type {import("#data/recording.js").Recording | null} */
    this.beside = null;
    /** Told when what was asked for has come. @type {() => void} */
    this.changed = () => {};
    const codes = new Codes(header.codes);
    this.server = new Server(() => this.changed());
    this.layers = header.layers.map(
      (layer, index) => new RemoteLayer(layer, header.sequences, codes, index, this.server, () => this.changed()),
    );
    this.begun = this.begin(codes).catch(() => {}); // the server has ended; what is there stays
  }

  /** Whether nothing more can come. */
  get ended() {
    return this.server.ended;
  }

  /** What stands in the overview comes head by head, after the first picture. @param {Codes} codes */
  async begin(codes) {
    await new Promise((resolve) => setTimeout(resolve, 400));
    for (const [index, layer] of this.layers.entries()) {
      const [rows, columns] = layer.header.thumbnail;
      for (let head = 0; head < layer.heads.length; head++) {
        const squares = new Reader(await inflate(await this.server.askIdly(`thumbnail/${index}/${head}`))).codes(
          codes,
          1,
          [rows, columns],
        )[0];
        layer.thumbnails.push(squares);
        this.changed();
      }
    }
    for (const [index, layer] of this.layers.entries()) {
      for (let head = 0; head < layer.heads.length; head++) {
        const scores = JSON.parse(new TextDecoder().decode(await this.server.askIdly(`scores/${index}/${head}`)));
        for (const [name, score] of Object.entries(scores)) layer.scores[name].push(score);
        this.changed();
      }
    }
  }
}

/** A layer that is sent whole if it is small, and asked for by squares, rows and columns if it is not. */
class RemoteLayer extends Layer {
  /**
   * @param {import("#data/recording.js").LayerHeader} header @param {import("#data/recording.js").Sequence[]} sequences @param {Codes} codes
   * @param {number} index @param {Server} server @param {() => void} changed
   */
  constructor(header, sequences, codes, index, server, changed) {
    super(header, sequences, codes, async () => inflate(await server.ask(`block/${index}`)));
    if (header.form !== "remote") return;
    this.remote = header.heads.map((_, head) => new RemoteHead(header, codes, index, head, server, changed));
    this.numbers = /** @type {Head[]} */ (this.remote);
    this.reading = Promise.resolve();
  }

  /** As of every layer; null as long as a map is on its way. @param {number[]} heads @returns {Head | null} */
  head(heads) {
    const asked = heads.map((head) => this.remote?.[head].begin() ?? true);
    return asked.every(Boolean) ? super.head(heads) : null;
  }

  /** Ask for the squares of every head. */
  async maps() {
    await super.maps();
    for (const head of this.remote ?? []) await head.map();
  }

  /** As of every layer. @param {number} head @returns {import("#data/layer.js").Vectors[] | null} */
  vectorsOf(head) {
    return this.remote ? this.remote[head].vectors() : super.vectorsOf(head);
  }
}

/** @typedef {import("#data/heads.js").Head} Head */

/** A head of which the map is asked for first, and then what is looked at; it is shown when the map is there. */
class RemoteHead extends Known {
  /** @param {import("#data/recording.js").LayerHeader} header @param {Codes} codes @param {number} layer @param {number} head @param {Server} server @param {() => void} changed */
  constructor(header, codes, layer, head, server, changed) {
    super();
    this.header = header;
    this.codes = codes;
    this.name = `${layer}/${head}`;
    this.server = server;
    this.changed = changed;
    this.whole = false;
    this.exact = true; // each row can be known
    /** @type {Squares | null} */
    this.squares = null;
    /** @type {Map<string, any>} */
    this.kept = new Map(); // answers by path, the latest last
    /** @type {Map<string, [string, (bytes: Uint8Array<ArrayBuffer>) => Promise<any>]>} */
    this.waiting = new Map(); // what was asked for, by kind: the latest alone is worth an answer
    /** @type {Set<string>} */
    this.asking = new Set();
  }

  /** Ask for the map. Whether it is there. */
  begin() {
    this.squares ??= this.tile(this.header.size ?? 1, 0, 0);
    return this.squares !== null;
  }

  /** Query, key and, where it is kept, value; null while they are on their way. @returns {import("#data/layer.js").Vectors[] | null} */
  vectors() {
    return this.known(`vectors/${this.name}`, "vectors", async (bytes) => {
      const reader = new Reader(bytes);
      return this.header.vectors.map(([, tokens, features]) => ({
        features,
        values: reader.floats(tokens * features),
      }));
    });
  }

  /** The map, when it has come. @returns {Promise<Squares>} */
  async map() {
    const size = this.header.size ?? 1;
    this.squares ??= await this.squaresIn(await this.server.ask(`squares/${this.name}/${size}/0/0`), size, 0, 0);
    return this.squares;
  }

  /** A tile of squares, or null while it is on its way. @param {number} size @param {number} row @param {number} column @returns {Squares | null} */
  tile(size, row, column) {
    return this.known(`squares/${this.name}/${size}/${row}/${column}`, `${size}/${row}/${column}`, (bytes) =>
      this.squaresIn(bytes, size, row, column),
    );
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes @param {number} size @param {number} row @param {number} column */
  async squaresIn(bytes, size, row, column) {
    const { queries, keys } = /** @type {{queries: number, keys: number}} */ (this.header.shape);
    const [rows, columns] = [queries, keys].map((count, axis) =>
      Math.min(TILE, Math.ceil(count / size) - TILE * (axis ? column : row)),
    );
    return new Reader(await inflate(bytes)).codes(this.codes, 1, [rows, columns], size)[0];
  }

  /**
   * The tiles that a part of the matrix lies in, as fine as its cells are large; those that are there.
   * @param {number} cell  CSS pixels. @param {{row: number, column: number}} from @param {{row: number, column: number}} to
   */
  finer(cell, from, to) {
    const coarsest = this.header.size ?? 1;
    let size = 1;
    while (size * cell < 1 && size < coarsest) size *= FINER;
    if (size >= coarsest) return [];
    const found = [];
    const side = TILE * size;
    for (let row = Math.floor(from.row / side); row * side < to.row; row++) {
      for (let column = Math.floor(from.column / side); column * side < to.column; column++) {
        const squares = this.tile(size, row, column);
        if (squares) found.push({ squares, row: row * side, column: column * side });
      }
    }
    return found;
  }

  /** @param {number} query @param {number} key @returns {import("#data/heads.js").Cell} */
  cell(query, key) {
    const row = this.numbersOf(`row/${this.name}/${query}`, "row");
    const weight = row ? row[key] : this.ofTile(query, key);
    if (weight === null) return { state: "unknown", weight: NaN, most: 1 };
    return { state: Number.isNaN(weight) ? "masked" : "known", weight, most: weight };
  }

  /** Ask for a row that is about to be shown. @param {number} query */
  prepare(query) {
    this.numbersOf(`row/${this.name}/${query}`, "row");
  }

  /** The weight of a cell of a tile that is there. @param {number} query @param {number} key @returns {number | null} */
  ofTile(query, key) {
    const [row, column] = [Math.floor(query / TILE), Math.floor(key / TILE)];
    const squares = this.kept.get(`squares/${this.name}/1/${row}/${column}`);
    return squares ? squares.at(query - row * TILE, key - column * TILE) : null;
  }

  /** Whether the mask forbids a cell, as far as it is known without asking. @param {number} query @param {number} key */
  isMasked(query, key) {
    const weight = this.ofTile(query, key);
    return weight !== null && Number.isNaN(weight);
  }

  /** @param {number} query @returns {import("#data/heads.js").Some} */
  row(query) {
    return this.some(`row/${this.name}/${query}`, "row", (key, weight) => ({ query, key, weight }));
  }

  /** @param {number} key @returns {import("#data/heads.js").Some} */
  column(key) {
    return this.some(`column/${this.name}/${key}`, "column", (query, weight) => ({ query, key, weight }));
  }

  /**
   * Links of the numbers that a path gives.
   * @param {string} path @param {string} kind @param {(index: number, weight: number) => import("#data/heads.js").Link} link @returns {import("#data/heads.js").Some}
   */
  some(path, kind, link) {
    const ranked = `ranked ${path}`;
    if (!this.kept.has(ranked)) {
      const numbers = this.numbersOf(path, kind);
      if (!numbers) return { links: [], left: 0, waiting: true };
      const links = [];
      for (let index = 0; index < numbers.length; index++)
        if (numbers[index] > 0) links.push(link(index, numbers[index]));
      links.sort((a, b) => b.weight - a.weight);
      this.keep(ranked, { links, left: 0 });
    }
    return this.kept.get(ranked);
  }

  /** @param {string} path @param {string} kind @returns {Float32Array | null} */
  numbersOf(path, kind) {
    return this.known(path, kind, async (bytes) => numbersIn(bytes));
  }

  /**
   * An answer that is there; or null, and it is asked for: of one kind one after the other, and only the latest.
   * @param {string} path @param {string} kind @param {(bytes: Uint8Array<ArrayBuffer>) => Promise<any>} read
   */
  known(path, kind, read) {
    const found = this.kept.get(path);
    if (found || this.server.ended) return found ?? null;
    if (this.asking.has(kind)) {
      this.waiting.set(kind, [path, read]);
      return null;
    }
    this.asking.add(kind);
    this.server
      .ask(path)
      .then(read)
      .then((answer) => this.keep(path, answer))
      .finally(() => {
        this.asking.delete(kind);
        const next = this.waiting.get(kind);
        this.waiting.delete(kind);
        if (next && !this.kept.has(next[0])) this.known(next[0], kind, next[1]);
        this.changed();
      })
      .catch(() => {}); // the server has ended; what is there stays
    return null;
  }

  /** Ask for rows and columns, until all are there. @param {number[]} queries @param {number[]} keys */
  async ask(queries, keys = []) {
    for (const path of [
      ...queries.map((query) => `row/${this.name}/${query}`),
      ...keys.map((key) => `column/${this.name}/${key}`),
    ]) {
      if (!this.kept.has(path)) this.keep(path, numbersIn(await this.server.ask(path)));
    }
  }

  /** What some rows give to some columns, each from the first to the last; null while it is on its way. @param {[number, number]} queries @param {[number, number]} keys @returns {number | null} */
  sum(queries, keys) {
    return (
      this.known(`sum/${this.name}/${[...queries, ...keys].join("/")}`, "sum", async (bytes) =>
        numbersIn(bytes),
      )?.[0] ?? null
    );
  }

  /** @param {string} path @param {any} answer */
  keep(path, answer) {
    this.kept.set(path, answer);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value ?? "");
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
function numbersIn(bytes) {
  return new Reader(bytes).floats(bytes.length / 4);
}
