"""The matrix product of a softmax and values: which axis is which."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import torch
from torch import Size, Tensor, nn

from regard.watching.module_inspection import is_named_attention

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "num_head", "nb_heads", "h")
"""Attributes in which modules have their number of heads."""

GATES = re.compile("gate|router|routing|expert|moe(?![a-z])|mixture", re.IGNORECASE)
"""Names of modules that choose between experts."""

SPARSE = re.compile("sparse", re.IGNORECASE)
"""Names of modules that compute attention for some of the queries or keys."""


@dataclass(frozen=True)
class NotAttention:
    """A product that is not one of weights and values over keys.

    Args:
        reason: What it is instead, if it may be attention of another form.
    """

    reason: str = ""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of weights and values.

    Args:
        arrange: Turns a tensor with the axes of the weights into (*lead, queries, keys).
        arrange_output: Turns the result of the product into (*lead, queries, value_dim).
        values: (*lead, keys, value_dim), where axes of the lead may be 1.
        heads: The number of heads that the module says that it has, if it does.
    """

    arrange: Callable[[Tensor], Tensor]
    arrange_output: Callable[[Tensor], Tensor]
    values: Tensor
    heads: int | None


def read_product(
    keys: int | None,
    shape: Size,
    position: int,
    operands: Sequence[Tensor],
    equation: Any,
    module: nn.Module,
    name: str,
) -> Product | NotAttention:
    """What a product of two tensors is, one of which holds the result of a softmax.

    Args:
        keys: The axis of the softmax; None if its entries were changed, perhaps divided by their sum over another axis.
        shape: The shape that its result had.
        position: Which of the two it is.
        operands: The two.
        equation: The first argument of an ``einsum``; None for a matrix product.
        module: The module that computes it.
        name: The module's name.
    """
    weights, values = operands[position], operands[1 - position]
    if min(weights.ndim, values.ndim) < 2:
        return NotAttention()
    terms = _terms_of_matmul(*operands) if equation is None else _terms(equation, operands)
    if terms is None:
        return NotAttention("multiplies by its softmax in an equation that is not known")
    of_weights, of_values, of_output = terms[position], terms[1 - position], terms[2]
    is_named = is_named_attention(type(module))
    summed = [axis for axis in of_weights if axis not in of_output]
    if len(summed) != 1 or summed[0] not in of_values or (keys is not None and of_weights[keys] != summed[0]):
        return NotAttention("sums over another axis than its softmax")
    rows = [axis for axis in of_weights if axis in of_output and axis not in of_values]
    shared = [axis for axis in of_weights if axis in of_output and axis in of_values]
    if shared and of_weights[0] in rows:  # values of each query, as those of relative positions
        return NotAttention()
    if not is_named:
        is_gate = len(rows) == 1 and weights.shape[of_weights.index(rows[0])] == 1
        is_gate &= weights.ndim > len(shape) or 1 not in shape or _is_gate(module, name)  # an axis that was inserted
        if not rows or not shared or is_gate:  # gates of experts, or a mean of the rows of a table
            return NotAttention()
    if SPARSE.search(type(module).__name__):
        return NotAttention("computes some of its queries or keys")
    query = rows[-1:]
    if equation is not None and len(rows) > 1:  # heads that share values, or queries with two axes
        count = head_count(module)
        sizes = dict(zip(of_weights, weights.shape, strict=True))
        of_heads = [axis for axis in rows if sizes[axis] == count]
        if not of_heads and count is not None:  # groups of heads that share a key
            of_heads = [axis for axis in rows if any(sizes[axis] * sizes[other] == count for other in shared)]
        if len(rows) > 2 or len(of_heads) != 1:
            return NotAttention("has several axes that may be its queries")
        query = [axis for axis in rows if axis not in of_heads]
    lead = [axis for axis in of_weights if axis not in (*query, summed[0])]
    widths = [axis for axis in of_values if axis not in of_weights]

    def arrange(tensor: Tensor) -> Tensor:
        tensor = _permute(tensor, of_weights, [*lead, *query, summed[0]])
        return tensor if query else tensor.unsqueeze(-2)

    def arrange_output(tensor: Tensor) -> Tensor:
        tensor = _permute(tensor, of_output, [*lead, *query, *widths])
        tensor = tensor if query else tensor.unsqueeze(len(lead))
        return tensor.flatten(len(lead) + 1) if widths else tensor.unsqueeze(-1)

    arranged = _permute(values, of_values, [*lead, summed[0], *widths])
    arranged = arranged.flatten(len(lead) + 1) if widths else arranged.unsqueeze(-1)
    return Product(arrange, arrange_output, arranged, head_count(module))


def head_count(module: nn.Module) -> int | None:
    """The number of heads that a module says that it has."""
    for name in HEAD_COUNTS:
        count = getattr(module, name, None)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
    return None


def _is_gate(module: nn.Module, name: str) -> bool:
    return any(map(GATES.search, (type(module).__name__, name.rpartition(".")[2])))


def _terms_of_matmul(one: Tensor, other: Tensor) -> tuple[str, str, str]:
    """A matrix product as an equation: the axes of both, and of the result."""
    lead = ascii_letters[: max(one.ndim, other.ndim) - 2]
    of_one, of_other = lead[len(lead) - one.ndim + 2 :], lead[len(lead) - other.ndim + 2 :]
    return f"{of_one}XY", f"{of_other}YZ", f"{lead}XZ"


def _terms(equation: Any, operands: Sequence[Tensor]) -> tuple[str, str, str] | None:
    """The axes of two operands of an ``einsum``, and of the result; None if it is not written as ``"bij,bjd->bid"``."""
    if not isinstance(equation, str):
        return None
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if not arrow or len(parts) != 2:
        return None
    spare = [letter for letter in ascii_letters if letter not in equation]
    counts = [each.ndim - len(part) + 3 if "..." in part else 0 for part, each in zip(parts, operands, strict=True)]
    lead = "".join(spare[: max(counts)])
    terms = [part.replace("...", lead[len(lead) - count :]) for part, count in zip(parts, counts, strict=True)]
    terms.append(output.replace("...", lead))
    return None if any(len(set(term)) < len(term) for term in terms) else (terms[0], terms[1], terms[2])


def _permute(tensor: Tensor, axes: str, order: Sequence[str]) -> Tensor:
    """The tensor with its named axes in another order, and of size 1 where it lacks one."""
    tensor = tensor.permute([axes.index(axis) for axis in order if axis in axes])
    for place, axis in enumerate(order):
        tensor = tensor if axis in axes else tensor.unsqueeze(place)
    return tensor


@dataclass(frozen=True)
class HeadAxes:
    """Which of the leading axes of weights are batch and heads.

    Args:
        lead: Their sizes.
        heads: The axis of the heads; None for one head.
        merged: (outer, inner) sizes of a leading axis that has both, the heads inner unless `heads` is 0; or None.
        has_groups: Whether the last two axes are the heads, in groups that share a key.
    """

    lead: tuple[int, ...]
    heads: int | None
    merged: tuple[int, int] | None = None
    has_groups: bool = False

    @classmethod
    def of(cls, lead: Sequence[int], module: nn.Module, merged_axes: Collection[tuple[int, int]]) -> HeadAxes:
        """Find them.

        With two axes or more, it is the one of the size that the module says, if the last is not; else the last. A
        single axis is split as the module merged it: where that is not known, its entries are sequences with one head.

        Args:
            lead: The sizes of the leading axes.
            module: The module.
            merged_axes: Sizes of axes that the module merged.
        """
        count, lead = head_count(module), tuple(lead)
        if len(lead) > 1:
            first = 0 if len(lead) == 2 else 1  # of more axes, the first is the batch
            places = [axis for axis in range(first, len(lead)) if lead[axis] == count]
            has_groups = not places and len(lead) == 3 and lead[1] * lead[2] == count
            return cls(lead, places[-1] if places else len(lead) - 1, has_groups=has_groups)
        pairs = [pair for pair in merged_axes if lead and pair[0] * pair[1] == lead[0] and count in pair]
        if not pairs:
            return cls(lead, None)
        pair = next((each for each in pairs if each[1] == count), pairs[0])
        return cls(lead, 1 if pair[1] == count else 0, pair)

    def split(self, tensor: Tensor) -> Tensor:
        """(*lead, x, y) as (batch, heads, x, y)."""
        if self.has_groups:
            return tensor.flatten(1, 2)
        if self.heads is None:
            return tensor.unsqueeze(-3) if self.lead else tensor[None, None]
        tensor = tensor if self.merged is None else tensor.unflatten(0, self.merged)
        tensor = tensor.movedim(self.heads, -3)
        return tensor.flatten(0, -4)


def merged_axes(before: Size, after: Size) -> tuple[int, int] | None:
    """The sizes of two axes that a change of shape makes the first axis, or part of the second from the last; or None.

    (batch, heads, tokens, width) becomes (batch · heads, tokens, width), or (tokens, batch, heads · width) becomes
    (tokens, batch · heads, width).
    """
    if len(before) == 4 and len(after) == 3 and before[0] * before[1] == after[0]:
        return before[0], before[1]
    if len(before) == len(after) == 3 and before[0] == after[0] and before[1] and not after[1] % before[1]:
        heads = after[1] // before[1]
        return (before[1], heads) if heads > 1 and after[2] * heads == before[2] else None
    return None


def flat_tokens(args: Sequence[Any]) -> int | None:
    """The number of tokens in the first input of a module: the entries of all its axes but the last."""
    first = next((each for each in args if isinstance(each, torch.Tensor) and each.is_floating_point()), None)
    return None if first is None or not first.ndim else first.numel() // max(first.shape[-1], 1)
