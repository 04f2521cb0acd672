// A page that a notebook holds in a frame: such a page has no address, so what is chosen is told to the frame's owner, and heard from there.

import { fromFragment, toFragment } from "#state/store.js";

const PAUSE = 100; // ms

/**
 * @typedef {import("#state/store.js").Store} Store
 * @typedef {import("#data/recording.js").Recording} Recording
 */

/** Whether this page lies in a frame's `srcdoc`. */
export function inFrame(place = window) {
  return place.location.protocol === "about:";
}

/** Keep the owner's state, a fragment, and the store the same, both ways; and say how tall the page is. @param {Store} store @param {Recording} recording */
export function bindHost(store, recording, place = window) {
  // A sandboxed frame does not learn whose it is, so messages go to any owner; they hold a fragment and a height.
  const tell = (message) => place.parent.postMessage({ regard: message }, "*");
  let told = toFragment(store.get(), recording);
  let timer = 0;
  store.subscribe((state, before) => {
    if (state === before) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const fragment = toFragment(store.get(), recording);
      if (fragment === told) return;
      told = fragment;
      tell({ state: told });
    }, PAUSE);
  });
  place.addEventListener("message", ({ source, data }) => {
    const fragment = data?.regard?.state;
    if (source !== place.parent || typeof fragment !== "string" || fragment === told) return;
    told = fragment; // what of it does not exist is answered by what is shown in its place
    store.set({ ...fromFragment(fragment, recording), hover: null });
  });
  const body = place.document.body;
  new ResizeObserver(() => tell({ height: Math.ceil(body.getBoundingClientRect().height) })).observe(body);
  tell({ ready: true });
}
