"""Check a mask, score or measure of your own against the reference kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument, RegardError
from regard.ops import attend
from regard.ops.kernels.base import Kernel
from regard.ops.kernels.blocks import BlockSizes
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference
from regard.ops.masks import Causal, Mask, Padding, Window, as_mask
from regard.ops.measures import Measure
from regard.ops.rules import Rule
from regard.ops.scores import Score
from regard.ops.tree import map_float_tensors, tensors_in

SHAPES = ((1, 2, 9, 9), (2, 2, 7, 12), (1, 2, 1, 5), (2, 4, 33, 33))
"""(batch, heads, queries, keys)."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-3}
"""Largest difference by dtype, relative to the largest entry; kernels add up in different orders."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


class RuleMismatch(RegardError, AssertionError):
    """A rule gives another result in blocks than for the whole matrix."""


def check(
    rule: Mask | Score | Measure | Any, *, shapes: Sequence[tuple[int, int, int, int]] | None = None, head_dim: int = 8
) -> None:
    """Compare what a rule gives in small blocks with the reference kernel, which computes the whole matrix at once.

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
        regard.testing.RuleMismatch: Wrong: output differs from the reference kernel by ...
    """
    rule = rule if isinstance(rule, Rule) else as_mask(rule)
    for shape in SHAPES if shapes is None else shapes:
        for dtype in DTYPES:
            for mask in _masks(shape[0], shape[3]):
                try:
                    _compare(rule, mask, shape, dtype, head_dim)
                except (IndexError, RuntimeError) as error:
                    raise InvalidArgument(
                        f"rule: {type(rule).__name__} failed for (batch, heads, queries, keys) = {shape} with "
                        f"{type(error).__name__}: {error}; if its tensors fit one shape only, pass shapes=[...]"
                    ) from error


def _masks(batch: int, keys: int) -> Iterator[Mask | None]:
    yield None
    yield Causal()
    yield Window(2, 1) & Padding(torch.tensor([max(1, keys - 3 * number) for number in range(batch)]))


def _compare(
    rule: Rule, mask: Mask | None, shape: tuple[int, int, int, int], dtype: torch.dtype, head_dim: int
) -> None:
    reference, has_gradient = _results(rule, mask, shape, dtype, head_dim, Reference())
    in_blocks = Blockwise(BlockSizes(rows=3, max_rows=3, elements=3 * shape[3], elements_per_head=2**22))
    ours, _ = _results(rule, mask, shape, dtype, head_dim, in_blocks, has_gradient)
    for (name, actual), expected in zip(ours.items(), reference.values(), strict=True):
        tolerance = max(TOLERANCES.get(each, 0.0) for each in (dtype, actual.dtype))
        size = max(1.0, expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0)
        if actual.shape != expected.shape or not torch.allclose(
            actual.double(), expected.double(), rtol=0, atol=tolerance * size, equal_nan=True
        ):
            difference = (
                (actual.double() - expected.double()).abs().max().item() if actual.shape == expected.shape else "shape"
            )
            raise RuleMismatch(
                f"{type(rule).__name__}: {name} differs from the reference kernel by {difference} for (batch, heads, "
                f"queries, keys) = {shape}, {str(dtype).removeprefix('torch.')}, mask {mask!r}"
            )


def _results(
    rule: Rule,
    mask: Mask | None,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    head_dim: int,
    kernel: Kernel,
    has_gradient: Collection[str] | None = None,
) -> tuple[dict[str, Tensor], list[str]]:
    """Output, measures and gradients of a kernel, and which of them were differentiated.

    Pass `has_gradient`, as the reference kernel returned it, for other kernels: a measure may return counts, which have
    no gradient.
    """
    batch, heads, queries, keys = shape
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(batch, heads, tokens, head_dim, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
        for tokens in (queries, keys, keys)
    )
    rule = map_float_tensors(rule, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
    options: dict[str, Any] = {"mask": mask, "measure": ["entropy", "received", "max"]}
    if isinstance(rule, Mask):
        options["mask"] = rule if mask is None else rule & mask
    elif isinstance(rule, Score):
        options["score"] = rule
    else:
        options["measure"] = {"result": rule}
    att = attend(query, key, value, **options, kernel=kernel)
    results = {"output": att.output}
    for name, result in att.measured.items():
        parts = result if isinstance(result, tuple) else (result,)
        results |= {name if len(parts) == 1 else f"{name}[{i}]": part for i, part in enumerate(parts)}
    leaves = {"query": query, "key": key, "value": value}
    learned = [tensor for tensor in tensors_in(rule) if tensor.requires_grad]
    leaves |= {f"tensor {number} of the rule": tensor for number, tensor in enumerate(learned)}
    if has_gradient is None:
        has_gradient = [name for name, part in results.items() if part.requires_grad]
    parts = [results[name] for name in has_gradient]
    losses = [part.masked_fill(~part.isfinite(), 0.0).double().square().sum() for part in parts]
    gradients = torch.autograd.grad(losses, list(leaves.values()), allow_unused=True, materialize_grads=True)
    results |= {f"the gradient of {name}": part for name, part in zip(leaves, gradients, strict=True)}
    return results, list(has_gradient)
