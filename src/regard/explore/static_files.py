"""The files in ``static/``: templates, style sheets with what they import, and modules as scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import lru_cache
from importlib.resources import files

STATIC = files("regard.explore") / "static"
_CSS_IMPORT = re.compile(r'^@import "(\w+)\.css";$', re.MULTILINE)
_IMPORT = re.compile(
    r'^import (?:(?P<default>\w+)|\{(?P<names>[^}]*)\}) from "#(?P<module>[\w/]+\.js)";$', re.MULTILINE
)
_EXPORT = re.compile(
    r"^export (?P<default>default )?(?P<kind>(?:async function|function|class|const) (?P<name>\w+))?", re.M
)


def static(name: str) -> str:
    """The text of a file in ``static/``. Read on each call, so that a served page shows an edit on reload."""
    return (STATIC / name).read_text(encoding="utf-8")


def style_sheet(name: str) -> str:
    """A style sheet of ``static/styles``, with those that it imports in their places."""
    return _CSS_IMPORT.sub(lambda rule: style_sheet(rule[1]), static(f"styles/{name}.css"))


def module_sources(entry: str) -> dict[str, str]:
    """The sources of a module and of all that it imports, by name; each is after those that it imports."""
    sources: dict[str, str] = {}

    def visit(name: str) -> None:
        source = static(name)
        for statement in _IMPORT.finditer(source):
            if statement["module"] not in sources:
                visit(statement["module"])
        sources[name] = source

    visit(entry)
    return sources


def module_scripts(entry: str) -> dict[str, str]:
    """The modules as inline scripts, to be run in this order. A page loads them in a tenth of the time of modules.

    Each script adds the exports of its module to the global object ``regard``. Lines keep their numbers, and the
    developer tools show the script as ``regard/NAME``.
    """
    return {name: _script(name, source) for name, source in module_sources(entry).items()}


def inert_json(value: object) -> str:
    """JSON in which no character can end the script element that holds it; lone surrogates stay escaped."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=256)
def hash_of(source: str) -> str:
    """Name an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode('ascii')}'"


@lru_cache(maxsize=256)  # a server builds its page for each request
def _script(name: str, source: str) -> str:
    exports: list[str] = []

    def import_(statement: re.Match[str]) -> str:
        names = statement["names"] or f" default: {statement['default']} "
        return f'const {{{names.replace(" as ", ": ")}}} = regard["{statement["module"]}"];'

    def export(statement: re.Match[str]) -> str:
        exports.append("default" if statement["default"] else statement["name"])
        return "const default_ = " if statement["default"] else statement["kind"]

    body = _EXPORT.sub(export, _IMPORT.sub(import_, source))
    names = ", ".join("default: default_" if each == "default" else each for each in exports)
    return (
        f'"use strict"; (globalThis.regard ??= {{}})["{name}"] = (() => {{ {body}\n'
        f"return {{ {names} }}; }})();\n//# sourceURL=regard/{name}\n"
    )
