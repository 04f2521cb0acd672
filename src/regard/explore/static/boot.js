// Starts the page: inflates its modules, which are in dependency order in one block, and runs each as a script.

(async () => {
  const text = atob(document.getElementById("modules")?.textContent ?? "");
  const bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  /** @type {Record<string, string>} */
  const scripts = await new Response(stream).json();
  for (const source of Object.values(scripts)) {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
  }
})();
