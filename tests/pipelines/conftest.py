"""The small models of the decoding tests."""

from __future__ import annotations

from generation.conftest import fresh, model, models, sources

__all__ = ["fresh", "model", "models", "sources"]
