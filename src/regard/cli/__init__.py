"""The command line: one file per command; each imports what it needs when it runs."""

from __future__ import annotations
