"""Tests with a kernel that this machine does not have, such as the native one on Windows, are skipped."""

from __future__ import annotations

import os
import sys

import pytest


def pytest_collection_modifyitems(items):
    from helpers.ops.cases import CPU_KERNELS

    if os.environ.get("CI") and sys.platform != "win32":  # continuous integration builds every kernel of the CPU
        return
    missing = {kernel.name: kernel.unavailable_reason() for kernel in CPU_KERNELS if kernel.unavailable_reason()}
    for item in items:
        for value in item.callspec.params.values() if missing and hasattr(item, "callspec") else ():
            name = getattr(value, "name", value)
            if isinstance(name, str) and name in missing:
                item.add_marker(pytest.mark.skip(reason=missing[name]))
