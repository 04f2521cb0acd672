// Where all heads stand: beside the text if there is room, else behind it. They are moved and not only drawn elsewhere, so that
// Tab and screen readers follow what is seen.

const WIDE = "(min-width: 62rem)"; // as in layout.css

/** Returns what arranges them, for a page that makes `main` again. @param {(id: string) => HTMLElement} find */
export function mountLayout(find) {
  const wide = window.matchMedia(WIDE);
  const arrange = () => {
    const main = find("main");
    const overview = /** @type {HTMLElement} */ (main.querySelector(".overview"));
    wide.matches ? main.prepend(overview) : main.append(overview);
  };
  wide.addEventListener("change", arrange);
  arrange();
  find("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address says what is shown
    /** @type {HTMLElement | null} */ (find("views").querySelector("[tabindex='0']"))?.focus();
  });
  return arrange;
}
