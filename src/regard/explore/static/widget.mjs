// The page in a notebook (an anywidget front-end module): in a sandboxed frame, where its own styles and policy hold and it reaches nothing of the notebook.

const SANDBOX = "allow-scripts allow-downloads"; // not same-origin: no script in the frame sees the notebook

export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", SANDBOX);
    frame.title = "What attends to what";
    Object.assign(frame.style, { display: "block", width: "100%", border: "0", height: `${model.get("height")}px` });
    let content = 0; // pixels; 0 before the page has told
    const fit = () => (frame.style.height = `${Math.min(content || Infinity, model.get("height"))}px`);
    const send = () => frame.contentWindow?.postMessage({ regard: { state: model.get("state") } }, "*");
    const show = () => (frame.srcdoc = model.get("page"));
    const hear = ({ source, data }) => {
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
    window.addEventListener("message", hear);
    model.on("change:state", send);
    model.on("change:height", fit);
    model.on("change:page", show);
    show();
    el.append(frame);
    return () => {
      window.removeEventListener("message", hear);
      model.off("change:state", send);
      model.off("change:height", fit);
      model.off("change:page", show);
    };
  },
};
