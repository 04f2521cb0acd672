"""Checks of the kernels on the machine they run on: results against the definition, and speed. For `regard check`."""

from __future__ import annotations
