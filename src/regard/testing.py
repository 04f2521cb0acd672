"""Check a mask, score or measure of your own against the reference kernel."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from regard.diagnostics.calls import Call, difference, tolerance
from regard.diagnostics.cases import MASKS, Case, Shape
from regard.errors import InvalidArgument, RegardError
from regard.ops.kernels.blocks import BlockSizes
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import NATIVE
from regard.ops.kernels.reference import Reference
from regard.ops.masks import Mask, as_mask
from regard.ops.measures import Entropy, Max, Measure, Received
from regard.ops.rules import Rule
from regard.ops.scores import Score
from regard.ops.tree import map_float_tensors, tensors_in

SHAPES = ((1, 2, 9, 9), (2, 2, 7, 12), (1, 2, 1, 5), (2, 4, 33, 33))
"""(batch, heads, queries, keys)."""

SLACK = 5
"""How many times as much the results of a user's rule may differ in float32 and float64: it may lose more digits."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


class RuleMismatch(RegardError, AssertionError):
    """A rule gives another result in blocks than for the whole matrix."""


def check(
    rule: Mask | Score | Measure | Any, *, shapes: Sequence[tuple[int, int, int, int]] | None = None, head_dim: int = 8
) -> None:
    """Compare what a rule gives in small blocks with the reference kernel, which computes the whole matrix at once.

    A rule with `steps` that the native kernel knows is compared there, too: the steps must say what the class computes.

    The comparison covers the output, the measures ``"entropy"``, ``"received"`` and ``"max"``, or the rule itself if it
    is a measure, and the gradients with respect to query, key, value and the rule's tensors, for several masks, shapes
    and dtypes. It finds hints such as `Mask.key_range` that do not fit `Mask.allowed`, indices that are relative to a
    block, and tensors that get no gradient.

    Args:
        rule: A mask (or what `attend` takes as one), score or measure.
        shapes: (batch, heads, queries, keys) of the matrices. Default: four small ones. Pass one shape if the rule's
            tensors fit only that.
        head_dim: Size of queries and keys.

    Raises:
        RuleMismatch: At the first difference; the message names the result, the shape, the dtype and the mask.
        InvalidArgument: If the rule does not fit a shape.

    Examples:
        >>> import regard, torch
        >>> from regard.ops.masks import Mask
        >>> class Strided(Mask):
        ...     def allowed(self, tile):
        ...         return (tile.q_pos - tile.kv_idx) % 2 == 0
        >>> regard.testing.check(Strided())
        >>> class Wrong(Strided):
        ...     def allowed(self, tile):
        ...         return super().allowed(tile) & (tile.kv_idx > 0)
        ...     def full_key_range(self, tile):
        ...         return tile.keys
        >>> regard.testing.check(Wrong())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        regard.testing.RuleMismatch: Wrong: output of the kernel 'blockwise' differs from the reference by ...
    """
    rule = rule if isinstance(rule, Rule) else as_mask(rule)
    for shape in SHAPES if shapes is None else shapes:
        in_blocks = Blockwise(BlockSizes(rows=3, max_rows=3, elements=3 * shape[3], elements_per_head=2**22))
        for dtype, mask in product(DTYPES, ("none", "causal", "and")):
            try:
                call = _call(rule, Case(mask, MASKS[mask], shape=Shape.of(shape, head_dim)), dtype)
                expected = call.results(Reference())
                differentiable = [name for name, exact in expected.items() if exact.requires_grad]  # not counts
                kernels = [in_blocks] if any(NATIVE.unsupported_reasons(call.inputs())) else [in_blocks, NATIVE]
                results = [(kernel, call.results(kernel, differentiable)) for kernel in kernels]
            except (IndexError, RuntimeError) as error:
                raise InvalidArgument(
                    f"rule: {type(rule).__name__} failed for (batch, heads, queries, keys) = {shape} with "
                    f"{type(error).__name__}: {error}; if its tensors fit one shape only, pass shapes=[...]"
                ) from error
            for (kernel, actual), (name, exact) in product(results, expected.items()):
                largest, limit = difference(actual[name], exact), tolerance(actual[name], dtype, kernel)
                if not largest <= limit * (1 if exact.itemsize == 2 else SLACK):
                    raise RuleMismatch(
                        f"{type(rule).__name__}: {name} of the kernel '{kernel.name}' differs from the reference by "
                        f"{largest:.2g} for (batch, heads, queries, keys) = {shape}, "
                        f"{str(dtype).removeprefix('torch.')}, mask '{mask}'"
                    )


def _call(rule: Rule, case: Case, dtype: torch.dtype) -> Call:
    """The call of a case, with a rule added to it."""
    rule = map_float_tensors(rule, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
    learned = [tensor for tensor in tensors_in(rule) if tensor.requires_grad]
    call = case.call(dtype)
    options: dict[str, Any] = call.rules(call.tensors)
    measures: dict[str, Measure] = {"entropy": Entropy(), "received": Received(), "max": Max()}
    if isinstance(rule, Mask):
        options["mask"] = rule if options["mask"] is None else rule & options["mask"]
    elif isinstance(rule, Score):
        options["score"] = rule
    elif isinstance(rule, Measure):
        measures = {"result": rule}
    tensors = call.tensors | {f"tensor {number} of the rule": tensor for number, tensor in enumerate(learned)}
    return Call(tensors, lambda _: options, measures)
