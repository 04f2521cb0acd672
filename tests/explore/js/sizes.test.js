// No function of the page is longer than a screen, and no file holds two ideas.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const MAX_FUNCTION_LINES = 60;
const MAX_FILE_LINES = 400;
const STATIC = new URL("../../../src/regard/explore/static/", import.meta.url);
const ts = await import("typescript").then(
  (module) => module.default,
  () => null,
);
const skip = ts ? false : "TypeScript is not installed";

const files = readdirSync(STATIC, { recursive: true })
  .map(String)
  .filter((name) => /\.m?js$/.test(name))
  .sort();
const sourceOf = (/** @type {string} */ name) => readFileSync(new URL(name, STATIC), "utf-8");

/** Each function of a source, with its name and its number of lines. */
function functionsOf(source) {
  const tree = ts.createSourceFile("a.js", source, ts.ScriptTarget.Latest, true);
  const found = [];
  const visit = (node) => {
    if (ts.isFunctionLike(node) && node.body) {
      const [first, last] = [node.getStart(tree), node.end].map((at) => tree.getLineAndCharacterOfPosition(at).line);
      found.push({ name: (node.name ?? node.parent.name)?.getText(tree) ?? "(anonymous)", lines: last - first + 1 });
    }
    ts.forEachChild(node, visit);
  };
  visit(tree);
  return found;
}

test("functions are found and measured", { skip }, () => {
  const source = "function a() {\n}\nclass B {\n  c() {\n    return () => 1;\n  }\n}\nconst d = async (x) => {\n\n};\n";
  const found = functionsOf(source).map(({ name, lines }) => `${name} ${lines}`);
  assert.deepEqual(found, ["a 2", "c 3", "(anonymous) 1", "d 3"]);
});

test(`no function is longer than ${MAX_FUNCTION_LINES} lines`, { skip }, () => {
  const all = files.flatMap((file) => functionsOf(sourceOf(file)).map((each) => ({ file, ...each })));
  assert.ok(all.length > 500);
  assert.deepEqual(
    all.filter(({ lines }) => lines > MAX_FUNCTION_LINES),
    [],
  );
});

test(`no file is longer than ${MAX_FILE_LINES} lines`, () => {
  const long = files.map((file) => ({ file, lines: sourceOf(file).split("\n").length - 1 }));
  assert.deepEqual(
    long.filter(({ lines }) => lines > MAX_FILE_LINES),
    [],
  );
});
