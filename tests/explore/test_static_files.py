"""Modules as inline scripts: they do what ES modules do in node, or are refused with file and line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from helpers.explore.javascript import missing
from regard.errors import InvalidFile
from regard.explore import static_files
from regard.explore.static_files import module_scripts

OTHER = """export const one = 1, hidden = 0;
export function two() { return 2; }
export async function three() {}
export class Four { value = 4; }
export const $five = 5;
export default { six: 6 };
"""
BUNDLED = {
    "named": 'import { one, two as zwei } from "#other.js";\nshow(one, zwei());',
    "over lines": 'import {\n  one,\n  two,\n} from "#other.js";\nshow(one + two());',
    "classes, functions": 'import { Four, three } from "#other.js";\nshow(new Four().value, three.constructor.name);',
    "a dollar": 'import { $five as $ } from "#other.js";\nshow($);',
    "default": 'import other from "#other.js";\nshow(other.six);',
    "default as a name": 'import { default as other, one } from "#other.js";\nshow(other.six, one);',
    "two on a line": 'import { one } from "#other.js"; import { two } from "#other.js";\nshow(one, two());',
    "behind its use": 'show(one);\nimport { one } from "#other.js";',
    "in a comment": '// import "x";\n/*\nexport { a }; */\nimport { one } from "#other.js";\nshow(one);',
    "in texts": 'show(`\nexport let a = ${1}`, \'import "x"\', "export *", `\\`\nimport b`);',
    "after regular expressions": "show(/[/\"`]/.test('`'), ['a'].map((a) => /\"/.test(a)), 6 / 2 / 3);\n"
    "const f = () => {\n  return /\"/.test('\"');\n};\n"
    "export const a = 1;",
    "properties": "const a = { imports: 1, exported: 2 };\nshow(a.imports, a.exported, a.import, a.export);",
    "exports": "export default [1].length;\nexport function f() {}\nexport const g = 2;\nshow(f.name, g);",
}
REFUSED = {
    'import * as other from "#other.js";': 1,
    'import other, { one } from "#other.js";': 1,
    'import other, * as all from "#other.js";': 1,
    'import "#other.js";': 1,
    'import { one } from "./other.js";': 1,
    "import { one } from '#other.js';": 1,
    'import { one } from "#other.js"\nshow(one);': 1,
    'import data from "#data.json" with { type: "json" };': 1,
    '\nconst other = await import("#other.js");': 2,
    "const here = 1;\nshow(here, import.meta.url);": 2,
    "const a = 1;\nexport { a };": 2,
    "const a = 1;\n\nexport { a as b, a as default };": 3,
    'export { one } from "#other.js";': 1,
    'export * from "#other.js";': 1,
    'export * as other from "#other.js";': 1,
    "export let a = 1;": 1,
    "export var a = 1;": 1,
    "export const { a } = { a: 1 };": 1,
    "export const [a] = [1];": 1,
    "export function* a() {}": 1,
    "export async function* a() {}": 1,
    "export default function a() {}": 1,
    "export default async function () {}": 1,
    "export default class A {}": 1,
    "if (1) show(1); export { show };": 1,
    "// one\nexport\nconst a = 1;": 2,
    '// one\nimport { nothing, one } from "#other.js";': 2,
    '/* one\n*/ import { hidden } from "#other.js";': 2,
    'import { one } from "#nowhere.js";': 1,
    'import { a } from "#main.js";\nexport const a = 1;': 1,
    'import { b } from "#circle.js";\nexport const a = 1;': 2,  # of circle.js
}
CIRCLE = '\nimport { a } from "#main.js";\nexport const b = a;\n'
RUNNER = """
import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";
const shown = [];
globalThis.show = (...values) => shown.push(values);
for (const folder of process.argv.slice(2)) {
  await import(`${folder}/main.js`);
  for (const source of JSON.parse(readFileSync(`${folder}/scripts.json`))) runInThisContext(source);
}
console.log(JSON.stringify(shown));
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a main module to a folder of its own, and read static files from there."""

    def to(name: str, main: str):
        folder = tmp_path / re.sub(r"\W", "_", name)
        folder.mkdir()
        files = {
            "main.js": main,
            "other.js": OTHER,
            "circle.js": CIRCLE,
            "package.json": '{"imports": {"#*": "./*"}, "type": "module"}',
        }
        for file, text in files.items():
            (folder / file).write_text(text, "utf-8")
        monkeypatch.setattr(static_files, "STATIC", folder)
        return folder

    return to


def test_scripts_show_what_their_modules_show(write, tmp_path):
    node = shutil.which("node") or missing("no node was found")
    folders = []
    for name, main in BUNDLED.items():
        folder = write(name, main)
        (folder / "scripts.json").write_text(json.dumps([*module_scripts("main.js").values()]))
        folders.append(folder)
    (tmp_path / "runner.mjs").write_text(RUNNER)
    output = subprocess.run([node, tmp_path / "runner.mjs", *folders], capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    shown = json.loads(output.stdout)
    assert len(shown) == 2 * len(BUNDLED)
    for name, module, script in zip(BUNDLED, shown[::2], shown[1::2], strict=True):
        assert script == module, name


@pytest.mark.parametrize(("main", "line"), REFUSED.items())
def test_what_cannot_be_bundled_is_refused_with_file_and_line(write, main, line):
    write("main", main)
    file = "circle.js" if "circle" in main else "main.js"
    with pytest.raises(InvalidFile, match=rf"^{file}:{line}: expected .*, got "):
        module_scripts("main.js")
