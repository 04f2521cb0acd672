// What all views share: they load the layers they show, and paint once for each frame in which something has changed.

/**
 * @import { Layer } from '#data/layer.js'
 * @import { Recording } from '#data/recording.js'
 * @import { Table } from '#export/csv.js'
 * @import { State } from '#state/store.js'
 * @import { Unit, Units } from '#state/unit.js'
 * @typedef {{paint(): void, update?(state: State, before: State): void, layers?(): Layer[], table?(): Table | Promise<Table>}} Painter  What a view's `mount` returns.
 *   `paint` draws the current state; `update` is called at once on every change, for controls; `layers` are loaded before
 *   painting (default: the selected layer); `table` gives the numbers that are shown, for a CSV file.
 * @typedef {{name: string, title: string, help: string, unit?: "token" | "word" | "either" | ((recording: Recording) => "token" | "either"),
 *   showsGradients?: boolean, urlFields?: import("#state/url.js").Fields, isAvailable?(recording: Recording): boolean,
 *   mount(place: HTMLElement, view: View): Painter}} ViewDefinition  A view, which is one file in `views/`.
 *   `name` is its id, in the URL too. `unit`: whether it shows tokens, words, or what the reader chooses (default). `urlFields`
 *   are fields of the state that it adds. `isAvailable`: for which recordings (default: all). `showsGradients`: whether it shows
 *   gradients when these are chosen (default: always weights).
 */

/** What a view is mounted on: the recording, and what is selected of it, in tokens or words. */
export class View {
  /** @param {HTMLElement} place @param {Recording} recording @param {Units} units @param {{unit?: ViewDefinition["unit"], showsGradients?: boolean, isOpen?: () => boolean}} options */
  constructor(place, recording, units, { unit = "either", showsGradients = false, isOpen = () => true } = {}) {
    this.place = place;
    this.recording = recording;
    this.units = units;
    this.unitName = typeof unit === "function" ? unit(recording) : unit;
    this.showsGradients = showsGradients;
    this.isOpen = isOpen;
    this.frame = 0;
    /** @type {Painter | null} */
    this.painter = null;
  }

  /** @param {(place: HTMLElement, view: View) => Painter} mount @returns {Painter} */
  mount(mount) {
    const painter = mount(this.place, this);
    this.painter = painter;
    this.units.store.subscribe((state, before) => {
      painter.update?.(state, before);
      if (this.isOpen()) this.loadLayers();
      this.schedulePaint();
    });
    const paint = () => this.schedulePaint();
    new ResizeObserver(paint).observe(this.place);
    window.addEventListener("resize", paint, { signal: this.signal }); // some views are no higher than the window
    return painter;
  }

  loadLayers() {
    const layers = this.painter?.layers?.() ?? [this.layer];
    const waiting = layers.filter(({ isLoaded }) => !isLoaded);
    if (waiting.length) Promise.all(waiting.map((layer) => layer.load())).then(() => this.units.store.set({}));
  }

  /** Paint in the next frame, if the view is open. */
  schedulePaint() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.isOpen() && this.place.clientWidth > 0) this.painter?.paint();
    });
  }

  /** @returns {Unit} */
  get unit() {
    if (this.unitName === "either") return this.units.current();
    return this.unitName === "word" ? this.units.words : this.units.tokens;
  }

  /** Aborted when the view is no longer on the page. */
  get signal() {
    return this.units.store.signal;
  }

  /** The store as this view sees it: positions are of tokens or of words. */
  get store() {
    return this.unit.store;
  }

  get state() {
    return this.store.get();
  }

  /** @param {Partial<State>} change */
  set(change) {
    this.store.set(change);
  }

  get layer() {
    return this.recording.layers[this.state.layer];
  }

  /** The text at the rows. */
  get queries() {
    return this.unit.text(this.layer.queries);
  }

  /** The text at the columns. */
  get keys() {
    return this.unit.text(this.layer.keys);
  }

  /** What it shows of the layer: weights, or what is chosen instead. */
  get shown() {
    return this.showsGradients ? this.layer.shown(this.state.show) : "weights";
  }

  /** The selected heads as one; null while they are loading. */
  get head() {
    return this.unit.head(this.layer, this.state.heads, this.shown);
  }
}
