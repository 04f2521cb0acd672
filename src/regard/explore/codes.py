"""Weights as codes of nine bits, and numbers as bytes that compress well."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

FINE = 2e-4
"""The step between codes below `COARSE`."""
COARSE = 0.01
"""From here on codes stand for multiples of `GROWTH`."""
GROWTH = 1.02
LINEAR = round(COARSE / FINE)
LAST = LINEAR + math.ceil(math.log(1 / COARSE) / math.log(GROWTH))
MASKED = 511
"""The code of a cell, or of a square of cells, that the mask forbids."""
ERROR = (0.01, 1e-4)
"""How far a weight that is read may be from what was computed: this share of it, or so much, whichever is more."""


def encode(weights: Tensor) -> Tensor:
    """The code of each weight, in int16.

    A weight w up to 0.01 has the code round(w / 0.0002), a larger one 50 + round(log(w / 0.01) / log(1.02)), at most
    283. So what `decode` gives is within 1 % of w, or within 0.0001.

    Args:
        weights: From 0 to 1.
    """
    steps = (weights / FINE).round_()
    powers = (weights / COARSE).clamp_(min=1.0).log_().div_(math.log(GROWTH)).round_().add_(LINEAR)
    return steps.where(weights < COARSE, powers).clamp_(0, LAST).to(torch.int16)


def decode(codes: np.ndarray) -> np.ndarray:
    """The weights that codes stand for, as a page reads them; NaN for `MASKED`."""
    return TABLE[codes]


def _table() -> np.ndarray:
    codes = np.arange(MASKED + 1)
    weights = np.where(codes < LINEAR, codes * FINE, np.minimum(COARSE * GROWTH ** (codes - LINEAR), 1.0))
    weights[LAST + 1 :] = np.nan
    return weights


TABLE = _table()


def planes(numbers: np.ndarray | Tensor, width: int) -> bytes:
    """Unsigned integers of some bytes each, the lowest bytes of all first: bytes of one rank are alike and compress."""
    values = np.ascontiguousarray(numbers).reshape(-1)
    return b"".join((values >> (8 * rank)).astype(np.uint8).tobytes() for rank in range(width))
