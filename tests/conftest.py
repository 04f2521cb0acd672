"""What all tests share: the ``--all`` option, one thread, hypothesis profiles, and the time that each suite took."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("all", max_examples=500, deadline=None)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run whole products of cases instead of a pairwise sample")
    parser.addini("budgets", "seconds of one core that each suite may take", type="linelist")


def pytest_configure(config):
    if config.getoption("--all"):
        os.environ["REGARD_TEST_ALL"] = "1"  # inherited by xdist's workers; read while tests are collected
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, which run side by side as well
    hypothesis.settings.load_profile("all" if os.environ.get("REGARD_TEST_ALL") == "1" else "quick")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Workers run side by side, one on each core; sums of floats keep one order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where continuous integration runs, there is a browser: a browser test that is skipped there has failed."""
    report = yield
    if report.skipped and item.get_closest_marker("browser") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must run where CI=true, but was skipped: {report.longrepr[-1]}"
    return report


def pytest_terminal_summary(terminalreporter):
    """The time that each suite took, beside its budget."""
    budgets = {
        name.strip(): float(seconds)
        for name, seconds in (line.split("=") for line in terminalreporter.config.getini("budgets"))
    }
    taken: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                taken[_suite(report.nodeid, budgets)] += report.duration
    if len(taken) > 1:
        terminalreporter.section("seconds of each suite")
        for name in sorted(taken):
            over = "  OVER BUDGET" if taken[name] > budgets[name] else ""
            terminalreporter.write_line(f"{name:12}{taken[name]:8.1f} of {budgets[name]:.0f}{over}")


def _suite(nodeid: str, suites: Collection[str]) -> str:
    top, _, rest = nodeid.partition("/")
    folder = rest.partition("/")[0]
    return "doctests" if top == "src" else folder if folder in suites else "others"
