// A recording on a server, which computes rows, columns, tiles and sums exactly when they are looked at.

import { BaseHead } from "#data/heads.js";
import { Layer } from "#data/layer.js";
import { BlockMap, inflate } from "#data/page_format.js";
import { strongestFirst } from "#data/ranked.js";
import { Recording } from "#data/recording.js";

/**
 * @import { Cell, Corner, RegionRows } from '#data/heads.js'
 * @import { LayerHeader, Segment, Vectors } from '#data/layer.js'
 * @import { Entry, Ranked } from '#data/ranked.js'
 * @import { Header } from '#data/recording.js'
 * @import { Sequence } from '#data/sequence.js'
 * @typedef {{maxMapSize: number, levelFactor: number}} Tiling  Rows and columns of a tile, and the ratio of neighboring levels.
 */

const IDLE = 500; // ms without a request, after which thumbnails and scores are loaded
const FIRST_PICTURE = 400; // ms that the page has for its first picture before that
const UPDATE_PAUSE = 100; // ms without a further row or column, after which views are painted again
const CACHED_VALUES = 2 ** 25; // of rows and columns of a head, 128 MB
const MIN_CACHED = 1200; // rows, columns and tiles of a head, however long these are
const MAX_RANKED = 64; // rows and columns whose order is kept

/** The server that the page came from. */
class Server {
  /** @param {() => void} onDisconnect */
  constructor(onDisconnect) {
    this.onDisconnect = onDisconnect;
    this.disconnected = false;
    this.lastRequest = 0;
    this.isLoadingSegments = false;
  }

  /** @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  load(path) {
    this.lastRequest = performance.now();
    return this.fetch(path);
  }

  /** Load what can wait, when nothing else was requested for a while. @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async loadWhenIdle(path) {
    for (let wait = 1; wait > 0; wait = this.lastRequest + IDLE - performance.now()) {
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
    return this.fetch(path);
  }

  /** @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async fetch(path) {
    try {
      const response = await fetch(path, { cache: "no-store" });
      if (!response.ok) throw new Error(`${path}: ${response.status}`);
      return new Uint8Array(await response.arrayBuffer());
    } catch (error) {
      this.disconnected = true;
      this.onDisconnect();
      throw error;
    }
  }
}

/** A recording that the page holds without its weights: texts, tokens and the list of layers. */
export class RemoteRecording extends Recording {
  /** @param {Header} header */
  constructor(header) {
    const server = new Server(() => this.onUpdate());
    const tiling = { maxMapSize: header.max_map_size ?? 1, levelFactor: header.level_factor ?? 1 };
    super(
      header,
      (layer, index, sequences) => new RemoteLayer(layer, sequences, index, tiling, server, () => this.onUpdate()),
    );
    this.isServed = true;
    this.server = server;
    this.thumbnailsLoaded = this.loadThumbnails().catch(() => {}); // disconnected: what is loaded stays
  }

  get disconnected() {
    return this.server.disconnected;
  }

  /** Thumbnails and head scores come head by head, after the first picture. */
  async loadThumbnails() {
    await new Promise((resolve) => setTimeout(resolve, FIRST_PICTURE));
    for (const [index, layer] of this.layers.entries()) {
      const [rows, columns] = layer.header.thumbnail;
      for (let head = 0; head < layer.headIndices.length; head++) {
        const values = floats(await this.server.loadWhenIdle(`thumbnail/${index}/${head}`));
        layer.thumbnails.push(new BlockMap(values, rows, columns, 1));
        this.onUpdate();
      }
    }
    for (const [index, layer] of this.layers.entries()) {
      for (let head = 0; head < layer.headIndices.length; head++) {
        const bytes = await this.server.loadWhenIdle(`scores/${index}/${head}`);
        const scores = JSON.parse(new TextDecoder().decode(bytes));
        for (const [name, score] of Object.entries(scores)) layer.scores[name].push(score);
        this.onUpdate();
      }
    }
  }
}

/** A layer that is loaded whole if it is small, and in tiles, rows and columns if it is not. */
class RemoteLayer extends Layer {
  /** @param {LayerHeader} header @param {Sequence[]} sequences @param {number} index @param {Tiling} tiling @param {Server} server @param {() => void} onUpdate */
  constructor(header, sequences, index, tiling, server, onUpdate) {
    super(header, sequences, 0, async () => inflate(await server.load(`block/${index}`)));
    this.index = index;
    this.server = server;
    this.onUpdate = onUpdate;
    this.segments = null;
    /** @type {RemoteHead[]} */
    this.remoteHeads = [];
    if (!this.isRemote) return;
    const remote = (show = "weights") =>
      header.heads.map((_, head) => new RemoteHead(this, index, head, tiling, server, onUpdate, show));
    this.remoteHeads = remote();
    this.heads = this.remoteHeads;
    for (const show of header.has_gradient ? ["gradient", "gradient_times_weights"] : [])
      this.shownHeads.set(show, remote(show));
    this.loadPromise = Promise.resolve();
  }

  /** Null as long as a map is loading. @param {number[]} heads @param {string} reduce @param {string} show */
  head(heads, reduce = "mean", show = "weights") {
    const all = this.isRemote ? /** @type {RemoteHead[]} */ (this.shownHeads.get(show) ?? this.remoteHeads) : [];
    const loaded = heads.map((head) => all[head]?.requestMap() ?? true);
    return loaded.every(Boolean) ? super.head(heads, reduce, show) : null;
  }

  async loadBlocks() {
    await super.loadBlocks();
    for (const head of this.remoteHeads) await head.loadMap();
  }

  /** They take a pass over all weights, so the server computes one layer at a time. @returns {Segment[] | null} */
  requestSegments() {
    const { server } = this;
    if (this.segments || server.disconnected || server.isLoadingSegments) return this.segments;
    server.isLoadingSegments = true;
    server
      .load(`segments/${this.index}`)
      .then((bytes) => {
        this.segments = JSON.parse(new TextDecoder().decode(bytes));
      })
      .catch(() => {}) // disconnected: what is loaded stays
      .finally(() => {
        server.isLoadingSegments = false;
        this.onUpdate();
      });
    return null;
  }

  /** @param {number} head @returns {Vectors[] | null} */
  vectors(head) {
    return this.isRemote ? this.remoteHeads[head].vectors() : super.vectors(head);
  }
}

/** A head that loads its map first, and then what the reader looks at. */
class RemoteHead extends BaseHead {
  /** @param {Layer} layer @param {number} index @param {number} head @param {Tiling} tiling @param {Server} server @param {() => void} onUpdate @param {string} show */
  constructor(layer, index, head, tiling, server, onUpdate, show) {
    super(layer.keys.length);
    this.layer = layer;
    this.path = `${index}/${head}`;
    this.isSigned = show !== "weights";
    this.prefix = this.isSigned ? `${show}/` : "";
    this.tiling = tiling;
    this.server = server;
    this.onUpdate = onUpdate;
    this.isRemote = true;
    /** @type {BlockMap | null} */
    this.map = null;
    /** @type {Map<string, any>} */
    this.cache = new Map(); // by path, the latest last
    const longest = Math.max(layer.queries.length, layer.keys.length);
    this.maxCached = Math.max(MIN_CACHED, Math.floor(CACHED_VALUES / longest));
    /** @type {Map<string, Ranked>} */
    this.ranked = new Map();
    /** @type {Map<string, [string, (bytes: Uint8Array<ArrayBuffer>) => any]>} */
    this.waiting = new Map(); // by kind: of each only the latest request is worth a response
    /** @type {Set<string>} */
    this.loadingKinds = new Set();
    this.updateTimer = 0;
    this.isFetching = false;
  }

  get blocks() {
    if (!this.map) throw new Error("the map is loaded before a head is shown");
    return this.map;
  }

  get scaleEnd() {
    return this.isSigned ? this.largestSize : 1;
  }

  /** Request the map, and where the colors of a signed one end. Whether both are there. */
  requestMap() {
    this.map ??= this.tile(this.layer.blockSize, 0, 0);
    if (this.isSigned) {
      const path = `${this.prefix}largest/${this.path}`;
      this.largestSize ||= this.request(path, "largest", (bytes) => Number(new TextDecoder().decode(bytes)) || 1);
    }
    return this.map !== null && (!this.isSigned || this.largestSize > 0);
  }

  /** @returns {Promise<BlockMap>} */
  async loadMap() {
    const size = this.layer.blockSize;
    this.map ??= this.readTile(await this.server.load(`${this.prefix}tile/${this.path}/${size}/0/0`), size, 0, 0);
    return this.map;
  }

  /** Null while it is loading. @param {number} size @param {number} row @param {number} column @returns {BlockMap | null} */
  tile(size, row, column) {
    const path = `${size}/${row}/${column}`;
    return this.request(`${this.prefix}tile/${this.path}/${path}`, path, (bytes) =>
      this.readTile(bytes, size, row, column),
    );
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes @param {number} size @param {number} row @param {number} column */
  readTile(bytes, size, row, column) {
    const side = this.tiling.maxMapSize;
    const [rows, columns] = [this.layer.queries, this.layer.keys].map(({ length }, axis) =>
      Math.min(side, Math.ceil(length / size) - side * (axis ? column : row)),
    );
    return new BlockMap(floats(bytes), rows, columns, size);
  }

  /** The loaded tiles of a part of the matrix, as fine as its cells are large. @param {number} cell  CSS pixels. @param {Corner} from @param {Corner} to */
  tiles(cell, from, to) {
    let size = 1;
    while (size * cell < 1 && size < this.layer.blockSize) size *= this.tiling.levelFactor;
    if (size >= this.layer.blockSize) return [];
    const tiles = [];
    const side = this.tiling.maxMapSize * size;
    for (let row = Math.floor(from.row / side); row * side < to.row; row++) {
      for (let column = Math.floor(from.column / side); column * side < to.column; column++) {
        const blocks = this.tile(size, row, column);
        if (blocks) tiles.push({ blocks, row: row * side, column: column * side });
      }
    }
    return tiles;
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cell(query, key) {
    const column = this.cache.get(`${this.prefix}column/${this.path}/${key}`);
    const weight = column?.[query] ?? this.numbers("row", query)?.[key] ?? this.weightInTile(query, key);
    if (weight === null) return { state: "unknown", weight: NaN, upperBound: 1, error: 0 };
    return { state: Number.isNaN(weight) ? "masked" : "known", weight, upperBound: weight, error: 0 };
  }

  /** @param {number} query */
  prefetch(query) {
    this.numbers("row", query);
  }

  /** The weight of a cell in a loaded tile. @param {number} query @param {number} key @returns {number | null} */
  weightInTile(query, key) {
    const side = this.tiling.maxMapSize;
    const [row, column] = [Math.floor(query / side), Math.floor(key / side)];
    const blocks = this.cache.get(`${this.prefix}tile/${this.path}/1/${row}/${column}`);
    return blocks ? blocks.at(query - row * side, key - column * side) : null;
  }

  /** @param {number} query @param {number} key */
  isMasked(query, key) {
    return Number.isNaN(this.weightInTile(query, key) ?? 0);
  }

  /** @param {number} query @returns {Ranked} */
  row(query) {
    const ranked = this.rank("row", query, (key, weight) => ({ query, key, weight, error: 0 }));
    return { ...ranked, total: this.isSigned || this.layer.header.has_sinks ? null : ranked.entries.length ? 1 : 0 };
  }

  /** @param {number} key @returns {Ranked} */
  column(key) {
    return this.rank("column", key, (query, weight) => ({ query, key, weight, error: 0 }));
  }

  /** @param {"row" | "column"} kind @param {number} index @param {(index: number, weight: number) => Entry} entry @returns {Ranked} */
  rank(kind, index, entry) {
    const name = `${kind} ${index}`;
    const cached = this.ranked.get(name);
    if (cached) return cached;
    const numbers = this.numbers(kind, index);
    if (!numbers) return { entries: [], rest: 0, loading: true };
    const entries = strongestFirst(numbers).map((place) => entry(place, numbers[place]));
    const ranked = { entries, rest: 0, isComplete: true };
    if (this.ranked.size >= MAX_RANKED) this.ranked.clear();
    this.ranked.set(name, ranked);
    return ranked;
  }

  /** A row or column; null while it is loading. @param {"row" | "column"} kind @param {number} index @returns {Float32Array | null} */
  numbers(kind, index) {
    return this.request(`${this.prefix}${kind}/${this.path}/${index}`, kind, floats);
  }

  /** Query, key and, if it was recorded, value; null while they are loading. @returns {Vectors[] | null} */
  vectors() {
    return this.request(`qkv/${this.path}`, "qkv", (bytes) => {
      let start = 0;
      return this.layer.header.qkv.map(([, tokens, features]) => {
        const values = floats(bytes).subarray(start, start + tokens * features);
        start += tokens * features;
        return { features, values };
      });
    });
  }

  /** @param {number[]} queries @param {number[]} keys */
  requestAll(queries, keys) {
    const paths = this.pathsOf(queries, keys);
    if (paths.every((path) => this.cache.has(path))) return true;
    if (this.isFetching || this.server.disconnected || 2 * paths.length > this.maxCached) return false;
    this.isFetching = true;
    this.fetch(queries, keys)
      .catch(() => {}) // disconnected: what is loaded stays
      .finally(() => {
        this.isFetching = false;
      });
    return false;
  }

  /** Load rows and columns, and keep all of them until they are read. @param {number[]} queries @param {number[]} keys */
  async fetch(queries, keys) {
    const paths = this.pathsOf(queries, keys);
    for (const path of paths) {
      const values = this.cache.get(path) ?? floats(await this.server.load(path));
      this.cache.delete(path); // to make it the latest
      this.keep(path, values, this.maxCached + paths.length);
    }
    clearTimeout(this.updateTimer);
    this.updateTimer = setTimeout(() => this.onUpdate(), UPDATE_PAUSE);
  }

  /** @param {number[]} queries @param {number[]} keys */
  pathsOf(queries, keys) {
    const rows = queries.map((query) => `${this.prefix}row/${this.path}/${query}`);
    return [...rows, ...keys.map((key) => `${this.prefix}column/${this.path}/${key}`)];
  }

  /** @param {[number, number]} queries @param {[number, number]} keys @param {number[]} hidden @returns {RegionRows} */
  regionRows(queries, keys, hidden) {
    const path = `${this.prefix}region/${this.path}/${[...queries, ...keys].join("/")}`;
    const rows = this.request(hidden.length ? `${path}?hidden=${hidden.join(",")}` : path, "region", (bytes) =>
      Float64Array.from(floats(bytes)),
    );
    return { rows, error: 0, approximate: false };
  }

  /**
   * A response that is there; or null, and it is requested: those of one kind one after the other, and only the latest.
   * @param {string} path @param {string} kind @param {(bytes: Uint8Array<ArrayBuffer>) => any} read
   */
  request(path, kind, read) {
    const cached = this.cache.get(path);
    if (cached || this.server.disconnected) return cached ?? null;
    if (this.loadingKinds.has(kind)) {
      this.waiting.set(kind, [path, read]);
      return null;
    }
    this.loadingKinds.add(kind);
    this.server
      .load(path)
      .then((bytes) => this.keep(path, read(bytes)))
      .finally(() => {
        this.loadingKinds.delete(kind);
        const next = this.waiting.get(kind);
        this.waiting.delete(kind);
        if (next && !this.cache.has(next[0])) this.request(next[0], kind, next[1]);
        this.onUpdate();
      })
      .catch(() => {}); // disconnected: what is loaded stays
    return null;
  }

  /** @param {string} path @param {any} response @param {number} limit */
  keep(path, response, limit = this.maxCached) {
    this.cache.set(path, response);
    if (this.cache.size > limit) this.cache.delete(this.cache.keys().next().value ?? "");
  }
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
function floats(bytes) {
  return new Float32Array(bytes.buffer);
}
