"""The largest of many numbers, without sorting them."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64


def top_words(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest logits of each row and where they stand, as ``logits.topk(count)``.

    The largest numbers stand in those groups of words whose own largest number is among the largest. Finding these
    costs one pass of maxima, and what is left to be sorted is small.

    Args:
        logits: (rows, vocab).
        count: How many.

    Returns:
        Values and words, (rows, count) each, the largest first.

    Example:
        >>> top_words(torch.tensor([[3.0, 1.0, 4.0, 1.5]]), 2)
        (tensor([[4., 3.]]), tensor([[2, 0]]))
    """
    rows, vocab = logits.shape
    groups, rest = divmod(vocab, GROUP)
    if logits.device.type != "cpu" or groups < 4 * count:
        values, words = logits.topk(count, dim=1)
        return values, words
    grouped = logits[:, : groups * GROUP].unflatten(1, (groups, GROUP))
    chosen = grouped.amax(2).topk(count, dim=1, sorted=False).indices  # (rows, count)
    members = grouped[torch.arange(rows)[:, None], chosen].flatten(1)  # (rows, count · GROUP)
    if rest:  # words behind the last whole group
        members = torch.cat([members, logits[:, groups * GROUP :]], dim=1)
    values, places = members.topk(count, dim=1)
    words = chosen.gather(1, (places // GROUP).clamp_(max=count - 1)) * GROUP + places % GROUP
    return values, torch.where(places < count * GROUP, words, places + (groups - count) * GROUP) if rest else words
