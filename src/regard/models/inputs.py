"""Checks of the inputs of models: token ids, lengths, labels.

Values are checked on the CPU only, because on other devices that would be a synchronization, and not in compiled or
exported models, which cannot branch on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from regard.checks import Checks, describe
from regard.nn.linear_cross_entropy import IGNORE_INDEX

INDICES = (torch.int64, torch.int32)
INTEGERS = (*INDICES, torch.int16, torch.int8, torch.uint8)


def check_ids(checks: Checks, name: str, ids: Tensor, size: int, limit: str = "vocab_size") -> bool:
    """Check a batch of ids, (batch, tokens), below a size, which messages call `limit`."""
    if not checks.tensor(name, ids):
        return False
    if ids.ndim != 2 or 0 in ids.shape:
        return checks.fail(f"{name}: expected shape (batch, tokens) without an empty axis, got {tuple(ids.shape)}")
    if ids.dtype not in INDICES:
        return checks.fail(f"{name}: expected the dtype int64 or int32, got {describe(ids)}; convert it with .long()")
    return _check_values(checks, name, ids, 0, size - 1, f"{limit} - 1 = {size - 1}")


def check_integers(
    checks: Checks,
    name: str,
    values: Tensor,
    batch: int,
    low: int,
    high: int,
    limit: str,
    dtypes: Collection[torch.dtype] = INTEGERS,
) -> bool:
    """Check one integer from `low` to `high`, which messages call `limit`, for each entry of a batch."""
    if not checks.tensor(name, values):
        return False
    if values.shape != (batch,) or values.dtype not in dtypes:
        return checks.fail(f"{name}: expected {batch} integers (batch,), got {describe(values)}")
    return _check_values(checks, name, values, low, high, limit)


def check_lengths(checks: Checks, name: str, lengths: Tensor | None, of: str, tokens: Tensor, low: int = 0) -> bool:
    """Check the lengths of sequences (batch, tokens, ...), which messages call `of`; None is valid."""
    if lengths is None:
        return True
    if not isinstance(tokens, Tensor) or tokens.ndim < 2:
        return checks.tensor(name, lengths)
    batch, width = tokens.shape[:2]
    return check_integers(checks, name, lengths, batch, low, width, f"the {width} tokens of {of}")


def check_labels(checks: Checks, labels: Tensor, shape: Sequence[int], size: int) -> None:
    """Check labels, ids below a size or `IGNORE_INDEX`, of a shape."""
    if not checks.tensor("labels", labels, shapes={"of the positions": shape}):
        return
    if labels.dtype != torch.int64:
        checks.fail(f"labels: expected the dtype int64, got {describe(labels)}; convert them with .long()")
        return
    _check_values(checks, "labels", labels[labels != IGNORE_INDEX], 0, size - 1, f"{size - 1}, or {IGNORE_INDEX}")


def _check_values(checks: Checks, name: str, values: Tensor, low: int, high: int, limit: str) -> bool:
    if values.device.type == "cpu" and values.numel() and not torch.compiler.is_compiling():
        smallest, largest = (int(bound) for bound in values.aminmax())
        if smallest < low or largest > high:
            wrong = smallest if smallest < low else largest
            return checks.fail(f"{name}: expected values from {low} to {limit}, got {wrong}")
    return True
