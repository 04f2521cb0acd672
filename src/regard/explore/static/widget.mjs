// The page in a notebook (an anywidget front-end module): in a sandboxed frame, where its own styles and policy hold and it reaches nothing of the notebook.

const SANDBOX = "allow-scripts allow-downloads"; // not same-origin: no script in the frame sees the notebook

/** @typedef {{get(name: string): any, set(name: string, value: any): void, save_changes(): void, on(event: string, listener: () => void): void, off(event: string, listener: () => void): void}} Model  Of anywidget. */

export default {
  /** @param {{model: Model, el: HTMLElement}} view */
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", SANDBOX);
    frame.title = "What attends to what";
    Object.assign(frame.style, { display: "block", width: "100%", border: "0", height: `${model.get("height")}px` });
    let content = 0; // height in pixels; 0 before the page has sent it
    const fit = () => (frame.style.height = `${Math.min(content || Infinity, model.get("height"))}px`);
    const send = () => frame.contentWindow?.postMessage({ regard: { state: model.get("state") } }, "*");
    const show = () => (frame.srcdoc = model.get("html"));
    /** @param {MessageEvent} event */
    const receive = ({ source, data }) => {
      if (source !== frame.contentWindow || !data?.regard) return;
      const { ready, state, height } = data.regard;
      if (ready && model.get("state")) send();
      if (typeof height === "number" && Math.abs(height - content) > 1) {
        content = height;
        fit();
      }
      if (typeof state === "string" && state !== model.get("state")) {
        model.set("state", state);
        model.save_changes();
      }
    };
    window.addEventListener("message", receive);
    model.on("change:state", send);
    model.on("change:height", fit);
    model.on("change:html", show);
    show();
    el.append(frame);
    return () => {
      window.removeEventListener("message", receive);
      model.off("change:state", send);
      model.off("change:height", fit);
      model.off("change:html", show);
    };
  },
};
