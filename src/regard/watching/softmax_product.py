"""The matrix product of a softmax and values: which axis is which."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Size, Tensor, nn

from regard.watching.matrix_products import without_broadcast
from regard.watching.module_inspection import is_named_attention
from regard.watching.softmax_axis import GATES, ProductAxes, head_count, is_gate, other_axis
from regard.watching.softmax_result import Followed

SPARSE = re.compile("sparse", re.IGNORECASE)
"""Names of modules that compute attention for some of the queries or keys."""


@dataclass(frozen=True)
class NotAttention:
    """A product that is not one of weights and values over keys.

    Args:
        reason: What it is instead, if it may be attention of another form.
        is_certain: Whether that matters if another product of the same softmax is attention.
    """

    reason: str = ""
    is_certain: bool = True


@dataclass(frozen=True, eq=False)
class Product:
    """A product of weights and values.

    Args:
        arrange: Turns a tensor with the axes of the weights into (*lead, queries, keys).
        arrange_output: Turns the result of the product into (*lead, queries, value_dim).
        values: (*lead, keys, value_dim), where axes of the lead may be 1.
        heads: The number of heads that the module says that it has, if it does.
        queries: The axis of the queries in the result, if there is one.
        features: What is known of the axes of the lead; see `feature_axes`.
    """

    arrange: Callable[[Tensor], Tensor]
    arrange_output: Callable[[Tensor], Tensor]
    values: Tensor
    heads: int | None
    queries: int | None
    features: str = ""


def read_product(
    known: Followed,
    position: int,
    operands: Sequence[Tensor],
    terms: tuple[str, str, str] | None,
    is_einsum: bool,
    module: nn.Module,
    name: str,
    inputs: Sequence[Size],
) -> Product | NotAttention:
    """What a product of two tensors is, one of which holds the result of a softmax.

    Args:
        known: What is known of that one.
        position: Which of the two it is.
        operands: The two.
        terms: The axes of both and of the product; None if they are not known.
        is_einsum: Whether their order says nothing, as that of a matrix product does.
        module: The module that computes it.
        name: The module's name.
        inputs: The shapes of the module's inputs; see `input_shapes`.
    """
    weights, values = operands[position], operands[1 - position]
    is_named = is_named_attention(type(module))
    if min(weights.ndim, values.ndim) < 2:
        return NotAttention("multiplies a vector by its softmax" if is_named else "", is_certain=False)
    if terms is None:
        return NotAttention("multiplies by its softmax in an equation that is not known")
    of_weights, of_values, of_output = terms[position], terms[1 - position], terms[2]
    # Of weights that were changed, perhaps divided by their sum over another axis, only the product says the keys.
    keys = None if known.is_changed and is_named else known.keys
    summed = [axis for axis in of_weights if axis not in of_output]
    if len(summed) != 1 or summed[0] not in of_values or (keys is not None and of_weights[keys] != summed[0]):
        return NotAttention("sums over another axis than its softmax")
    own = without_broadcast(of_values, values, of_weights, weights)
    rows = [axis for axis in of_weights if axis in of_output and axis not in own]
    shared = [axis for axis in of_weights if axis in of_output and axis in own]
    queries = _queries_by_roles(known.roles, of_weights, summed[0])
    if queries is None:
        return NotAttention("has a softmax over an axis that its queries and keys share", is_certain=False)
    is_relative = not any(axis in rows for axis in queries) if queries else bool(shared) and of_weights[0] in rows
    if is_relative:
        return NotAttention("multiplies values of each query by its softmax", is_certain=False)
    sizes = dict(zip(of_weights, weights.shape, strict=True))
    widths = [axis for axis in of_values if axis not in of_weights]
    shape, width = known.softmax.shape, prod(values.shape[of_values.index(axis)] for axis in widths)
    features = dict(zip(of_weights, known.features or "?" * weights.ndim, strict=True))
    axes = ProductAxes(sizes, summed[0], rows, shared, width, features, known.roles is not None, len(shape) == 2)
    if is_gate(axes, module, known.softmax.module, inputs):
        reason = "multiplies values of each token by a softmax, as a gate or a convolution does"
        return NotAttention(reason if is_named else "", is_certain=False)
    other = other_axis(axes, module, inputs)
    if other:
        return NotAttention(other, is_certain=False)
    if not is_named:
        is_single = len(rows) == 1 and sizes[rows[0]] == 1
        is_inserted = is_single and (weights.ndim > len(shape) or 1 not in shape or _is_named_gate(module, name))
        if not rows or all(axis not in of_values for axis in of_weights if axis in of_output) or is_inserted:
            return NotAttention()  # gates of experts, or a mean of the rows of a table
    if SPARSE.search(type(module).__name__):
        return NotAttention("computes some of its queries or keys")
    query = [axis for axis in rows if axis in queries] if queries else rows[-1:]
    if len(query) > 1 or (not queries and len(rows) > 1):  # heads that share values, or queries with two axes
        count = head_count(module)
        of_heads = [axis for axis in rows if features[axis] == "f"] or [axis for axis in rows if sizes[axis] == count]
        if not of_heads and count is not None:  # groups of heads that share a key
            of_heads = [axis for axis in rows if any(sizes[axis] * sizes[other] == count for other in shared)]
        if len(rows) == 2 and len(of_heads) == 1:
            query = [axis for axis in rows if axis not in of_heads]
        elif is_einsum:
            return NotAttention("has several axes that may be its queries")
        else:
            query = rows[-1:]
    lead = [axis for axis in of_weights if axis not in (*query, summed[0])]

    def arrange(tensor: Tensor) -> Tensor:
        tensor = _permute(tensor, of_weights, [*lead, *query, summed[0]])
        return tensor if query else tensor.unsqueeze(-2)

    def arrange_output(tensor: Tensor) -> Tensor:
        tensor = _permute(tensor, of_output, [*lead, *query, *widths])
        tensor = tensor if query else tensor.unsqueeze(len(lead))
        return tensor.flatten(len(lead) + 1) if widths else tensor.unsqueeze(-1)

    values = values.squeeze(tuple(place for place, axis in enumerate(of_values) if axis not in own))
    arranged = _permute(values, own, [*lead, summed[0], *widths])
    arranged = arranged.flatten(len(lead) + 1) if widths else arranged.unsqueeze(-1)
    place = of_output.index(query[0]) if query else None
    return Product(
        arrange, arrange_output, arranged, head_count(module), place, "".join(features[axis] for axis in lead)
    )


def _queries_by_roles(roles: str | None, axes: str, keys: str) -> list[str] | None:
    """The axes of the queries, by the roles that all axes have in the scores; none if that is not known.

    None if the axis of the keys is one that queries and keys share.
    """
    role = "?" if roles is None else roles[axes.index(keys)]
    others = {"l": "r", "r": "l"}.get(role)
    return None if role == "s" else [axis for axis, each in zip(axes, roles or "", strict=False) if each == others]


def _is_named_gate(module: nn.Module, name: str) -> bool:
    return any(map(GATES.search, (type(module).__name__, name.rpartition(".")[2])))


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
    def of(
        cls, lead: Sequence[int], module: nn.Module, merged_axes: Collection[MergedAxes], features: str = ""
    ) -> HeadAxes:
        """Find them.

        With two axes or more, it is the only one that is known to be features; else the one of the size that the module
        says, if the last is not; else the last. A single axis is split as the module merged it: where that is not
        known, its entries are sequences with one head, or the heads of one sequence if they are features.

        Args:
            lead: The sizes of the leading axes.
            module: The module.
            merged_axes: The axes that the module merged.
            features: What is known of the leading axes; see `feature_axes`.
        """
        count, lead = head_count(module), tuple(lead)
        if features.count("f") == 1:
            return cls(lead, features.index("f"))
        if len(lead) > 1:
            first = 0 if len(lead) == 2 else 1  # of more axes, the first is the batch
            places = [axis for axis in range(first, len(lead)) if lead[axis] == count]
            has_groups = not places and len(lead) == 3 and lead[1] * lead[2] == count
            return cls(lead, places[-1] if places else len(lead) - 1, has_groups=has_groups)
        pairs = [
            each for each in merged_axes if lead and each.outer * each.inner == lead[0] and count in each.head_counts
        ]
        if not pairs:
            return cls(lead, None)
        pair = next((each for each in pairs if each.inner == count and each.heads != 0), pairs[0])
        heads = (1 if pair.inner == count else 0) if pair.heads is None else pair.heads
        return cls(lead, heads, (pair.outer, pair.inner))

    def split(self, tensor: Tensor) -> Tensor:
        """(*lead, x, y) as (batch, heads, x, y)."""
        if self.has_groups:
            return tensor.flatten(1, 2)
        if self.heads is None:
            return tensor.unsqueeze(-3) if self.lead else tensor[None, None]
        tensor = tensor if self.merged is None else tensor.unflatten(0, self.merged)
        tensor = tensor.movedim(self.heads, -3)
        return tensor.flatten(0, -4) if tensor.ndim > 3 else tensor[None]


@dataclass(frozen=True)
class MergedAxes:
    """Two axes that a module merged into one, of which one is the batch and one may be the heads.

    Args:
        outer: The size of the first.
        inner: The size of the second.
        heads: Which of them is the heads, 0 or 1; None if it is not known.
    """

    outer: int
    inner: int
    heads: int | None = None

    @property
    def head_counts(self) -> tuple[int, ...]:
        """The possible numbers of heads."""
        sizes = self.outer, self.inner
        return sizes if self.heads is None else (sizes[self.heads],)


def merged_axes(before: Size, after: Size, features: str | None) -> MergedAxes | None:
    """The two axes that a change of shape makes the first axis, or part of the second from the last; or None.

    (batch, heads, tokens, width) becomes (batch · heads, tokens, width), or (tokens, batch, heads · width) becomes
    (tokens, batch · heads, width).

    Args:
        before: The sizes before.
        after: The sizes after.
        features: What is known of the axes before; see `feature_axes`.
    """
    if len(before) == 4 and len(after) == 3 and before[0] * before[1] == after[0]:
        of_both = (features or "??")[:2]
        return MergedAxes(before[0], before[1], of_both.index("f") if of_both.count("f") == 1 else None)
    if len(before) == len(after) == 3 and before[0] == after[0] and before[1] and not after[1] % before[1]:
        heads = after[1] // before[1]
        return MergedAxes(before[1], heads, 1) if heads > 1 and after[2] * heads == before[2] else None
    return None


def input_shapes(inputs: Sequence[Any]) -> list[Size]:
    """The shapes of the inputs of a module that may hold the states of tokens."""
    return [each.shape for each in inputs if isinstance(each, Tensor) and each.is_floating_point() and each.ndim]
