// The share of attention on the parts of a text: of every layer, and of every head of the selected layer.

import { KIND_TITLES } from "#data/layer.js";
import { whenLoaded } from "#export/loading.js";
import { element, hint } from "#ui/elements.js";
import { toggled } from "#ui/head_grid.js";
import { addsToSelection } from "#ui/listbox.js";
import { meanShares, SegmentList, segmentLegend } from "#views/segment_list.js";

/**
 * @import { Layer, Segment } from '#data/layer.js'
 * @import { Table } from '#export/csv.js'
 * @import { View, ViewDefinition } from '#ui/view.js'
 */

const COLUMNS = ["layer", "kind", "head", "segment", "num_tokens", "share"]; // those of `segment_attention`
const HIDDEN = "Shares count all keys, hidden ones too.";

/** @type {ViewDefinition} */
export default {
  name: "segments",
  title: "Segments",
  help: "How much attention goes to each part of the text: the turns of a chat, or the first token, where many heads put attention that they do not need, the beginning, the middle, and the end or, in a decoder, the recent tokens up to each query. Each number is a share of attention, averaged over all queries. Select a row to see its layer or head in the other views.",
  unit: "token",
  isAvailable: ({ texts, layers }) => !("image" in texts) && layers.some(({ segments }) => segments?.length !== 0),
  mount: (place, view) => new SegmentsView(place, view),
};

class SegmentsView {
  /** @param {HTMLElement} place @param {View} view */
  constructor(place, view) {
    this.view = view;
    this.overview = groupLayers(view.recording.layers).map(({ title, indices }) => {
      const { layers } = view.recording;
      const names = indices.map((index) => layers[index].name);
      const list = new SegmentList(`Layers: ${title}`, names, (row) => this.selectLayer(indices[row]));
      return { title, indices, list };
    });
    this.note = element("p", { class: "note" });
    this.heading = element("h4");
    this.legend = element("div");
    this.heads = element("div");
    /** @type {SegmentList | null} */
    this.headList = null;
    this.layer = -1; // whose heads are listed
    const several = this.overview.length > 1;
    place.append(
      this.note,
      element("h4", {}, "Layers, mean over heads"),
      ...this.overview.flatMap(({ title, list }) => [...(several ? [element("h5", {}, title)] : []), list.node]),
      this.heading,
      this.legend,
      this.heads,
    );
  }

  /** Shares need no weights. */
  layers() {
    return [];
  }

  paint() {
    const { state, recording, layer } = this.view;
    this.note.textContent = state.hide.length ? HIDDEN : "";
    this.note.hidden = state.hide.length === 0;
    layer.requestSegments(); // before those of other layers
    for (const { indices, list } of this.overview) {
      for (const [row, index] of indices.entries()) {
        const segments = recording.layers[index].requestSegments();
        if (segments) list.fill(row, segments, segments.map(meanShares));
        else if (recording.disconnected) list.showMessage(row, "Not loaded: the server no longer responds.");
      }
      list.mark([indices.indexOf(state.layer)]);
    }
    this.paintHeads();
  }

  paintHeads() {
    const { state, recording, layer } = this.view;
    if (this.layer !== state.layer) {
      this.layer = state.layer;
      this.headList = null;
      this.heading.textContent = `Heads of ${layer.name}`;
      this.legend.replaceChildren();
      this.heads.replaceChildren(hint("Loading …"));
    }
    if (!this.headList && layer.segments) this.listHeads(layer.segments);
    else if (!this.headList && recording.disconnected) {
      this.heads.replaceChildren(hint("The server no longer responds."));
    }
    const isAll = state.heads.length === layer.headIndices.length && state.heads.length > 1;
    this.headList?.mark(isAll ? [layer.headIndices.length] : state.heads);
  }

  /** @param {Segment[]} segments */
  listHeads(segments) {
    const { layer } = this.view;
    if (!segments.length) return this.heads.replaceChildren(hint("All queries of this layer are padding."));
    const names = layer.headIndices.map((head) => `head ${head}`);
    const rows = [...names, "mean of heads"];
    this.headList = new SegmentList(`Heads of ${layer.name}`, rows, (row, event) => this.selectHead(row, event));
    for (const head of layer.headIndices.keys()) {
      const shares = segments.map(({ shares }) => shares[head]);
      this.headList.fill(head, segments, shares);
    }
    this.headList.fill(names.length, segments, segments.map(meanShares));
    this.legend.replaceChildren(segmentLegend(segments, layer));
    this.heads.replaceChildren(this.headList.node);
  }

  /** Select a layer, and in it the same heads. @param {number} layer */
  selectLayer(layer) {
    const count = this.view.recording.layers[layer].headIndices.length;
    const heads = this.view.state.heads.filter((head) => head < count);
    this.view.set({ layer, heads: heads.length ? heads : [0], hover: null });
  }

  /** Select a head as its thumbnail does, or all heads. @param {number} row @param {MouseEvent | KeyboardEvent} event */
  selectHead(row, event) {
    const { state, layer } = this.view;
    const all = [...layer.headIndices.keys()];
    const adds = addsToSelection(event) || event.shiftKey;
    const heads = row === all.length ? all : adds ? toggled(state.heads, row) : [row];
    this.view.set({ heads, hover: null });
  }

  /** The shares of all heads of all layers. @returns {Promise<Table>} */
  async table() {
    const { recording } = this.view;
    const { layers } = recording;
    await whenLoaded(recording, () => (layers.every((layer) => layer.requestSegments()) ? true : null));
    const rows = layers.flatMap(({ name, kind, headIndices, segments }) =>
      headIndices.flatMap((head, index) =>
        (segments ?? []).map((segment) => [name, kind, head, segment.name, segment.num_tokens, segment.shares[index]]),
      ),
    );
    return { columns: COLUMNS, rows };
  }
}

/** Layers by their kind and the text that they attend to, which has the same segments in all of them. @param {Layer[]} layers */
function groupLayers(layers) {
  /** @type {Map<string, {title: string, indices: number[]}>} */
  const groups = new Map();
  for (const [index, { kind, keySequence }] of layers.entries()) {
    const name = `${kind} ${keySequence}`;
    const group = groups.get(name) ?? { title: KIND_TITLES[kind], indices: [] };
    group.indices.push(index);
    groups.set(name, group);
  }
  return [...groups.values()];
}
