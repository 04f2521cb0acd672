"""A view is one file: the example of the documentation works, and a served page shows an edited file on reload."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import expect

from helpers.explore.javascript import HERE, missing
from helpers.explore.serving import served
from regard.explore import static_files
from regard.explore.opening import opening_head

ROOT = Path(__file__).parents[2]
VIEWS = ROOT / "docs" / "extending" / "views.md"
EXAMPLE = re.search(r"^```js\n(.*?)^```$", VIEWS.read_text("utf-8"), re.DOTALL | re.MULTILINE)[1]
TITLE, HELP = (re.search(rf'^  {name}: "(.*)",$', EXAMPLE, re.MULTILINE)[1] for name in ("title", "help"))


@pytest.fixture
def static(tmp_path, monkeypatch) -> Path:
    """A copy of the page's folder, with the example as one more view; pages are built from it."""
    folder = tmp_path / "static"
    shutil.copytree(static_files.STATIC, folder)
    monkeypatch.setattr(static_files, "STATIC", folder)
    (folder / "views/first_row.js").write_text(EXAMPLE, "utf-8")
    index = folder / "views/index.js"
    lines = index.read_text("utf-8").replace("VIEWS = [", "VIEWS = [firstRow, ")
    index.write_text(f'import firstRow from "#views/first_row.js";\n{lines}', "utf-8")
    return folder


def first_row(recording) -> list[str]:
    """The weights of the first row of the head on which a page opens, as the page writes exact ones."""
    opening = opening_head(recording)
    row = recording.layers[opening.layer].weights.at(heads=opening.head, queries=0).dense().flatten()
    weights = row.sort(descending=True).values.tolist()
    return [f"{weight:.3f}" if weight >= 0.1 else f"{weight:.4f}" for weight in weights]


def test_the_example_has_a_button_a_help_text_and_the_weights_of_python(static, recording, open_page):
    page = open_page(recording)
    button = page.get_by_role("button", name=TITLE, exact=True)
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    view = page.get_by_role("region", name=TITLE)
    view.get_by_text("What am I looking at?").click()
    expect(view.get_by_text(HELP)).to_be_visible()
    number = view.get_by_role("button", name="Next weight")
    for weight in first_row(recording)[:3]:
        expect(number).to_have_text(weight)
        number.click()


def test_its_field_is_in_the_url_and_survives_a_reload(static, recording, take_page):
    with served(recording) as address:
        page = take_page()
        page.goto(address)
        page.get_by_role("button", name=TITLE, exact=True).click()
        page.get_by_role("button", name="Next weight").click()
        page.wait_for_url("**rank=1**")
        page.reload()
        expect(page.get_by_role("button", name="Next weight")).to_have_text(first_row(recording)[1])


def test_a_served_page_shows_an_edited_file_after_a_reload(static, recording, take_page):
    with served(recording) as address:
        page = take_page()
        page.goto(f"{address}#views=first_row")
        expect(page.get_by_role("heading", name=TITLE)).to_be_visible()
        view = static / "views/first_row.js"
        view.write_text(EXAMPLE.replace(f'title: "{TITLE}"', 'title: "Edited"'), "utf-8")
        page.reload()
        expect(page.get_by_role("heading", name="Edited")).to_be_visible()


def test_the_example_is_formatted():
    biome = HERE / "node_modules/.bin/biome"
    if not biome.exists():
        missing(f"there is no Biome: `npm ci --prefix {HERE}` installs it")
    command = [biome, "format", f"--config-path={HERE / 'biome_options.json'}"]
    command += ["--stdin-file-path=src/regard/explore/static/views/first_row.js"]
    completed = subprocess.run(command, input=EXAMPLE, cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == EXAMPLE
