"""The files in ``static/``: templates, style sheets with what they import, and modules as scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from regard.errors import InvalidFile, short_repr

STATIC = files("regard.explore") / "static"
_CSS_IMPORT = re.compile(r'^@import "(\w+)\.css";$', re.MULTILINE)
_CODE = re.compile(
    r"""//.*|/\*[\s\S]*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\[\s\S]|[^`\\])*`"""
    r"""|(?:(?<=[(\[!=:,&|?])|(?<=[(=:,&|?>] )|(?<=\n)|(?<=return ))/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/"""
    r"""|(?<![.\w$])(?P<word>import|export)(?![\w$])"""
)
"""What may hold the words import and export as text, and the words themselves."""
_IMPORT = re.compile(r'import (?:(?P<default>[\w$]+)|\{(?P<names>[^}]*)\}) from "#(?P<module>[\w/]+\.js)";')
_EXPORT = re.compile(
    r"export (?:(?P<default>default) (?!(?:async )?(?:function|class)\b)"
    r"|(?P<kind>(?:async )?function|class|const) (?P<name>[\w$]+))"
)
_FORMS = {
    "import": (_IMPORT, '`import name from "#module.js";` or `import { name, name as other } from "#module.js";`'),
    "export": (
        _EXPORT,
        "`export function`, `async function`, `class` or `const` with a name, or `export default value`",
    ),
}


class _Module(NamedTuple):
    """A module as it is bundled."""

    imports: tuple[tuple[str, tuple[str, ...], str], ...]
    """The module of each import, the names that it has there, and `FILE:LINE`."""
    exports: tuple[str, ...]
    script: str
    """The module as an inline script."""


def static(name: str) -> str:
    """The text of a file in ``static/``. Read on each call, so that a served page shows an edit on reload."""
    return (STATIC / name).read_text(encoding="utf-8")


def style_sheet(name: str) -> str:
    """A style sheet of ``static/styles``, with those that it imports in their places."""
    return _CSS_IMPORT.sub(lambda rule: style_sheet(rule[1]), static(f"styles/{name}.css"))


def module_sources(entry: str) -> dict[str, str]:
    """The sources of a module and of all that it imports, by name; each is after those that it imports.

    Raises:
        InvalidFile: If one imports or exports in a form that cannot be bundled, imports what there is not, or imports
            itself by way of others; the message has the file and the line.
    """
    sources: dict[str, str] = {}
    open_modules: list[str] = []

    def visit(name: str) -> None:
        open_modules.append(name)
        source = static(name)
        for module, names, where in _parse(name, source).imports:
            if module in open_modules:
                raise InvalidFile(
                    f"{where}: expected modules that do not import each other, got {short_repr(module)} again"
                )
            if not (STATIC / module).is_file():
                raise InvalidFile(
                    f"{where}: expected a module of {STATIC}, got {short_repr(module)}, which is not there"
                )
            if module not in sources:
                visit(module)
            exports = _parse(module, sources[module]).exports
            if missing := [each for each in names if each not in exports]:
                raise InvalidFile(f"{where}: expected names that {module!r} exports, got {', '.join(missing)}")
        sources[name] = source
        open_modules.pop()

    visit(entry)
    return sources


def module_scripts(entry: str) -> dict[str, str]:
    """The modules as inline scripts, to be run in this order. A page loads them in a tenth of the time of modules.

    Each script adds the exports of its module to the global object ``regard``. Lines keep their numbers, without
    comments of types, and the developer tools show the script as ``regard/NAME``.
    """
    return {name: _parse(name, source).script for name, source in module_sources(entry).items()}


def inert_json(value: object) -> str:
    """JSON in which no character can end the script element that holds it; lone surrogates stay escaped."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=256)
def hash_of(source: str) -> str:
    """Name an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode('ascii')}'"


@lru_cache(maxsize=256)  # a server builds its page for each request
def _parse(name: str, source: str) -> _Module:
    imports, values, exports, changes = [], [], {}, []
    for token in _CODE.finditer(source):
        if token["word"] is None:
            if token[0].startswith("/*"):  # of types: a third of the modules
                changes.append((*token.span(), "\n" * token[0].count("\n")))
            continue
        where = f"{name}:{source.count(chr(10), 0, token.start()) + 1}"
        form, expected = _FORMS[token["word"]]
        statement = form.match(source, token.start())
        if statement is None:
            line = source[token.start() :].split("\n", 1)[0]
            raise InvalidFile(f"{where}: expected {expected}, got {short_repr(line)}")
        changed = ""
        if token["word"] == "export":
            exports[statement["name"] or "default"] = statement["name"] or "default_"
            changed = f"{statement['kind']} {statement['name']}" if statement["name"] else "const default_ = "
        else:  # the values of all imports are there before the first statement
            names = [
                each.split(" as ") for each in (statement["names"] or f"default as {statement['default']}").split(",")
            ]
            pairs = [(pair[0].strip(), pair[-1].strip()) for pair in names if pair[0].strip()]
            imports.append((statement["module"], tuple(pair[0] for pair in pairs), where))
            values.append(f'const {{ {", ".join(map(": ".join, pairs))} }} = regard["{statement["module"]}"]; ')
            changed = f"/*{statement[0]}*/"
        changes.append((statement.start(), statement.end(), changed))
    body = source
    for start, end, changed in reversed(changes):
        body = body[:start] + changed + body[end:]
    script = (
        f'"use strict"; (globalThis.regard ??= {{}})["{name}"] = (() => {{ {"".join(values)}{body}\n'
        f"return {{ {', '.join(map(': '.join, exports.items()))} }}; }})();\n//# sourceURL=regard/{name}\n"
    )
    return _Module(tuple(imports), tuple(exports), script)
