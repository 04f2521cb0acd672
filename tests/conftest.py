"""What all tests share: the ``--all`` option, one thread, and hypothesis profiles."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent

hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("all", max_examples=500, deadline=None)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run slow tests, and all cases, not a pairwise sample")


def pytest_configure(config):
    if config.getoption("--all"):
        os.environ["REGARD_TEST_ALL"] = "1"  # inherited by xdist's workers; read while tests are collected
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, which run side by side as well
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else each starts more processes
    hypothesis.settings.load_profile("all" if os.environ.get("REGARD_TEST_ALL") == "1" else "quick")


def pytest_collection_modifyitems(config, items):
    """Leave out what is slow; and rules of an example are a user's: they must not be registered as the module's."""
    if not config.getoption("--all"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs["__name__"] = "example"


def pytest_collection_finish():
    """Modules and collected tests stay to the end: a full garbage collection would visit them for most of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Workers run side by side, one on each core; sums of floats keep one order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _grad_mode():
    """A test that leaves gradients disabled fails, rather than one that runs after it."""
    import torch

    yield
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("gradients are disabled after this test")


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
