"""Masks in the sense of ``nn.MultiheadAttention``, where True forbids a key and a float is added to the score."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidArgument
from regard.ops.masks import MaskLike, Padding, as_mask
from regard.ops.scores import Bias, Score
from regard.ops.tile import Shape


def convert_torch_masks(
    mask: MaskLike | None, attn_mask: Tensor | None, key_padding_mask: Tensor | None, shape: Shape
) -> tuple[MaskLike | None, Score | None]:
    """Combine a mask in Regard's sense with masks in torch's.

    Args:
        mask: As in `regard.attend`: True where a query may attend.
        attn_mask: (queries, keys) or (batch · heads, queries, keys). Bool: True where a query may not attend. Float:
            added to the scores.
        key_padding_mask: (batch, keys). Bool: True where no query may attend. Float: added to the scores.
        shape: (batch, heads, queries, keys).

    Returns:
        The mask, and the bias that is added to the scores; None for none.

    Raises:
        InvalidType: If a mask is neither bool nor floating-point.
        InvalidArgument: If its shape is wrong.
    """
    batch, heads, queries, keys = shape
    with Checks() as checks:
        per_head = {
            "(queries, keys)": (queries, keys),
            "(batch · heads, queries, keys)": (batch * heads, queries, keys),
        }
        _check(checks, "attn_mask", attn_mask, per_head)
        _check(checks, "key_padding_mask", key_padding_mask, {"(batch, keys)": (batch, keys)})
    bias: Score | None = None
    rule = None if mask is None else as_mask(mask)
    if attn_mask is not None:
        attn_mask = attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.unflatten(0, (batch, heads))
        if attn_mask.is_floating_point():
            bias = Bias(attn_mask)
        else:
            allowed = as_mask(~attn_mask)
            rule = allowed if rule is None else rule & allowed
    if key_padding_mask is not None:
        if key_padding_mask.is_floating_point():
            padding = Bias(key_padding_mask[:, None, None])
            bias = padding if bias is None else bias + padding
        else:
            allowed = Padding(~key_padding_mask)
            rule = allowed if rule is None else rule & allowed
    return rule, bias


def check_without_positions(positions: object) -> None:
    """Refuse a float mask with positions inside attention, which have a score of their own.

    Raises:
        InvalidArgument: If there are positions.
    """
    if positions is not None:
        name = type(positions).__name__
        raise InvalidArgument(f"attn_mask, key_padding_mask: expected bool masks with {name}, got a float mask")


def _check(checks: Checks, name: str, mask: Tensor | None, shapes: dict[str, tuple[int, ...]]) -> None:
    if mask is None or not checks.tensor(name, mask, shapes=shapes):
        return
    if mask.dtype != torch.bool and not mask.is_floating_point():
        checks.fail_type(f"{name}: expected a bool or floating-point tensor, got {describe(mask)}")
