// Starts the page: inflates its modules, which lie in dependency order in one block, and makes each a blob: URL.
// A parser-inserted module would be refused by the policy's 'strict-dynamic'; a script that this one inserts is trusted.

(async () => {
  const base64 = document.getElementById("modules")?.textContent ?? "";
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  /** @type {Record<string, string>} */
  const sources = JSON.parse(await new Response(stream).text());
  /** @type {Record<string, string>} */
  const urls = {};
  for (const [name, source] of Object.entries(sources)) {
    const linked = source.replaceAll(
      /^(import [^;]*?|\} from )"#([\w/]+\.js)";/gm,
      (_, /** @type {string} */ start, /** @type {string} */ other) => `${start}"${urls[other]}";`,
    );
    const text = `${linked}\n//# sourceURL=regard/${name}\n`;
    urls[name] = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  }
  const main = document.createElement("script");
  main.type = "module";
  main.src = urls["main.js"];
  document.head.append(main);
})();
