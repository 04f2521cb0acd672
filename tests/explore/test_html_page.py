"""The file: its size, its policy, its parts as they are, and that it is written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regard.errors import InvalidFile
from regard.explore import static_files
from regard.explore.html_page import to_html, write_html
from regard.explore.static_files import module_scripts, module_sources

STATIC = Path(static_files.__file__).parent / "static"


class Scripts(HTMLParser):
    """Every script and style of a page, with its attributes, and the policy."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict, str]] = []
        self.policy = ""
        self.open: tuple[str, dict] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]
        self.open = (tag, attributes) if tag in ("script", "style") else None
        if self.open:
            self.found.append((tag, attributes, ""))

    def handle_data(self, data):
        if self.open:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def handle_endtag(self, tag):
        self.open = None


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_thirty_tokens_fit_in_less_than_a_megabyte(make_recording, tmp_path):
    tokens = tuple(f"▁wörtchen{index}" for index in range(30))
    path = write_html(make_recording(tokens, tokens, encoders=4, decoders=3, heads=8), tmp_path / "a.html")
    assert path.stat().st_size < 1_000_000
    largest = make_recording(tokens, tokens, encoders=12, decoders=12, heads=16)
    assert write_html(largest, tmp_path / "b.html").stat().st_size < 3_500_000
    smallest = make_recording(("▁a",), ("▁a",), encoders=1, decoders=0, heads=1)
    assert write_html(smallest, tmp_path / "c.html").stat().st_size < 250_000


def test_the_policy_allows_what_is_in_the_page_and_nothing_else(recording):
    scripts = Scripts(to_html(recording))
    rules = dict(rule.strip().split(" ", 1) for rule in scripts.policy.split(";"))
    run = [text for tag, attributes, text in scripts.found if tag == "script" and "type" not in attributes]
    style = [text for tag, _, text in scripts.found if tag == "style"]
    assert rules["script-src"].split() == [sha256(text) for text in (*run, *stored_scripts(scripts).values())]
    assert rules["style-src"].split() == [*map(sha256, style)]
    del rules["script-src"], rules["style-src"]
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",  # the icon
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def stored_scripts(scripts: Scripts) -> dict[str, str]:
    """What boot.js runs, by name."""
    (block,) = [text for _, attributes, text in scripts.found if attributes.get("id") == "modules"]
    return json.loads(zlib.decompress(base64.b64decode(block)))


def test_the_page_has_every_module_after_those_that_it_imports(recording):
    names = list(stored_scripts(Scripts(to_html(recording))))
    files = {str(path.relative_to(STATIC)): path.read_text("utf-8") for path in STATIC.rglob("*.js")}
    others = ("live/", "model/")
    entries = {"boot.js", "calculation/main.js"}
    assert set(names) == {name for name in files if name not in entries and not name.startswith(others)}
    playground = {*module_sources("live/main.js"), *module_sources("model/worker.js")}
    assert playground >= {name for name in files if name.startswith(("live/", "model/"))}
    for name in names:
        for other in re.findall(r'from "#([^"]+)"', files[name]):
            assert names.index(other) < names.index(name)


def without_types(source: str) -> str:
    return re.sub(r"/\*[\s\S]*?\*/", lambda comment: "\n" * comment[0].count("\n"), source)


@pytest.mark.parametrize("entry", ["main.js", "calculation/main.js", "live/main.js", "model/worker.js"])
def test_a_script_is_its_module_line_by_line(entry):
    for name, script in module_scripts(entry).items():
        source, lines = without_types((STATIC / name).read_text("utf-8")).splitlines(), script.splitlines()
        assert "@param" not in script
        assert lines[0].endswith(source[0])
        assert not [line for line in lines if re.match(r"(import|export)\b", line)]
        pairs = zip(source[1:], lines[1 : len(source)], strict=True)
        changed = [
            line for line, other in pairs if line != without_types(other)
        ]  # of those in a template, types are left
        assert all(re.match(r'(import|export) |.*\} from "#|  \w+ as \w+,$', line) for line in changed)
        assert lines[-1] == f"//# sourceURL=regard/{name}"


def test_no_address_leads_out_of_the_page(recording):
    text = to_html(recording) + "".join(module_scripts("main.js").values())
    names = {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/XML/1998/namespace",
    }  # of namespaces, which are not requested
    assert set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s'\"<)]*", text)) == names


def test_a_title_is_text(make_recording):
    text = to_html(make_recording(title="</title><script>alert(1)</script> & {{boot}} {{weights}}"))
    assert (
        "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; {{boot}} {{weights}} · Regard</title>" in text
    )
    assert text.count("<script>alert") == 0


def test_no_token_can_end_the_block_that_holds_it(make_recording):
    tokens = ("</script", "</script >", "<!--", "<script>", "&lt;", "</s>")
    scripts = Scripts(to_html(make_recording(tokens, tokens)))
    (block,) = [text for _, attributes, text in scripts.found if attributes.get("id") == "recording"]
    assert not set("<>&") & set(block)
    assert tuple(json.loads(block)["sequences"][0]["tokens"]) == tokens


def test_lone_surrogates_are_accepted(make_recording, tmp_path):
    path = write_html(make_recording(title="\ud800", source=("\ud800", "</s>")), tmp_path / "a.html")
    assert b'"tokens": ["\\ud800", ' in path.read_bytes()


def test_the_page_is_a_file_like_any_other(recording, tmp_path):
    mask = os.umask(0o022)
    try:
        path = write_html(recording, str(tmp_path / "attention.html"))
    finally:
        os.umask(mask)
    assert path == tmp_path / "attention.html"
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text("utf-8") == to_html(recording)


def test_whoever_reads_the_old_page_is_not_disturbed(recording, tmp_path):
    path = tmp_path / "attention.html"
    path.write_text("the old page")
    with path.open() as reader:
        write_html(recording, path)
        assert reader.read() == "the old page"


def test_devices_are_written_to_and_links_stay(recording, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_text, "utf-8")
        write_html(recording, pipe)
        assert read.result(timeout=10) == to_html(recording)
    assert pipe.is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "a.html")
    assert write_html(recording, tmp_path / "link") == tmp_path / "link"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.html").read_text("utf-8") == to_html(recording)


def test_a_place_that_is_not_there_is_named(recording, tmp_path):
    path = tmp_path / "nowhere" / "attention.html"
    with pytest.raises(InvalidFile, match=re.escape(f"{path}: could not be written: there is no folder")):
        write_html(recording, path)


@pytest.mark.parametrize("width", [400, 1280])
def test_a_title_as_long_as_a_text_leaves_room_for_what_is_shown(open_page, make_recording, width):
    page = open_page(make_recording(title="A long sentence. " * 400), width=width)
    first = page.locator("#head-heading" if width == 400 else "#overview-heading")
    assert first.bounding_box()["y"] < 600
