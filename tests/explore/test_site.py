"""The documentation site: it builds without a warning, and its search works from disk, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    command += ["--config-file", "docs/site/mkdocs.yml"]
    completed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return folder


def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").exists()
    assert "regard.WeightMatrix" in (site / "reference" / "attention.html").read_text("utf-8")
    assert "--length-penalty" in (site / "command_line.html").read_text("utf-8")


@pytest.mark.browser
def test_search_works_from_disk(browser, site):
    context = browser.new_context()
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto((site / "index.html").as_uri())
    page.locator("[data-md-component=search-query]").fill("topk")
    page.locator(".md-search-result__link", has_text="TopK").first.wait_for()
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    context.close()
