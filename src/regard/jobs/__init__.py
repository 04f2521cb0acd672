"""What people compute from attention weights, without eager attention."""

from __future__ import annotations

from regard.jobs.esm import contacts
from regard.jobs.whisper import word_timestamps

__all__ = ["contacts", "word_timestamps"]
