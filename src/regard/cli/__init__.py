"""The command line: one thin file a verb; each imports what it needs when it runs."""

from __future__ import annotations
