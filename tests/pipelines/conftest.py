"""The small models of the decoding tests."""

from __future__ import annotations

from helpers.small_translators import fresh, model, models, sources

__all__ = ["fresh", "model", "models", "sources"]
