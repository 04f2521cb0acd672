"""Where the native kernel's library was not built, as on Windows, tests with this kernel are skipped."""

from __future__ import annotations

import os
import sys

import pytest


def pytest_collection_modifyitems(items):
    from regard.ops.kernels.native.kernel import Native
    from regard.ops.kernels.native.library import library

    missing = library()
    if isinstance(missing, str) and (sys.platform == "win32" or not os.environ.get("CI")):
        for item in items:
            inputs = item.callspec.params.values() if hasattr(item, "callspec") else ()
            if any(isinstance(value, Native) or (isinstance(value, str) and value == "native") for value in inputs):
                item.add_marker(pytest.mark.skip(reason=missing))
