"""The commit and the machine of a result."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent


def machine_info() -> dict[str, Any]:
    """Commit, CPU and versions."""
    return {
        "commit": commit(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    """As Linux calls the processor; elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text(encoding="utf-8")) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The current commit, marked as dirty if files other than results have changed since."""
    results = (":!benchmarks/results", ":!docs/results", ":!docs/results.md")
    changed = "-dirty" if _git("status", "--porcelain", "--", *results) else ""
    return (_git("rev-parse", "--short", "HEAD") or "none") + changed


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
