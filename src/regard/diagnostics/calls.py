"""A call that several kernels compute: its output, measures and gradients, and how far two results differ.

`regard check`, `regard.testing.check` and the tests of the kernels compare in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from regard.ops import attend
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.measures import Measure
from regard.ops.request import make_request

Tensors = dict[str, Tensor]

TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference by the dtype of a result, relative to its largest entry or 1; several times what is usual."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of `attend` that several kernels compute.

    Args:
        tensors: Those that get gradients: query, key, value, and those of the rules.
        rules: The options of `attend` that are rules and numbers, from the tensors.
        measures: By name.
    """

    tensors: Tensors
    rules: Callable[[Tensors], dict[str, Any]]
    measures: Mapping[str, Measure]

    def to(self, dtype: torch.dtype, device: torch.device | str | None = None) -> Call:
        """The same call with its tensors in a dtype and on a device, as leaves of a new graph."""
        tensors = {name: tensor.detach().to(dtype).to(device or tensor.device) for name, tensor in self.tensors.items()}
        return replace(self, tensors={name: tensor.requires_grad_() for name, tensor in tensors.items()})

    def with_measures_of(self, kernel: Kernel) -> Call:
        """The same call with those measures alone that a kernel supports."""
        supported = {name: measure for name, measure in self.measures.items() if kernel.supports(type(measure))}
        return replace(self, measures=supported)

    def inputs(self) -> KernelInputs:
        """What a kernel gets."""
        request = make_request(self.tensors["query"], self.tensors["key"], **self.rules(self.tensors))
        return KernelInputs(self.tensors["value"], request, self.measures)

    def results(self, kernel: Kernel, differentiable: Collection[str] | None = None) -> Tensors:
        """Output, measures and gradients, by name.

        Args:
            kernel: The kernel.
            differentiable: Names of the results that have gradients. Default: those that require grad.
        """
        query, key, value = (self.tensors[name] for name in ("query", "key", "value"))
        att = attend(query, key, value, **self.rules(self.tensors), measure=self.measures, kernel=kernel)
        return with_gradients({"output": att.output, **parts_of(att.measured)}, self.tensors, differentiable)


def parts_of(measured: Mapping[str, Any]) -> Tensors:
    """The tensors of measures by name; those of a tuple have their place in it as well: ``max[1]``."""
    tensors: Tensors = {}
    for name, result in measured.items():
        parts = {f"{name}[{i}]": part for i, part in enumerate(result)} if isinstance(result, tuple) else {name: result}
        tensors |= parts
    return tensors


def with_gradients(results: Tensors, leaves: Tensors, differentiable: Collection[str] | None = None) -> Tensors:
    """The results, and the gradients of a number that depends on each finite entry of those that are differentiable."""
    if differentiable is None:
        differentiable = [name for name, part in results.items() if part.requires_grad]
    losses = [_weighted_sum(results[name]) for name in differentiable]
    gradients = torch.autograd.grad(losses, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return results | {f"gradient of {name}": part for name, part in zip(leaves, gradients, strict=True)}


def _weighted_sum(result: Tensor) -> Tensor:
    """With factors from 0.5 to 1.5 that every dtype holds exactly."""
    factors = (torch.arange(result.numel(), device=result.device) % 9 + 4).to(result.dtype) / 8
    return (result.masked_fill(~result.isfinite(), 0.0) * factors.view(result.shape)).sum()


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest entry or 1; infinite if shapes or the places of infinity and NaN differ."""
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    finite = expected.isfinite()
    if actual.shape != expected.shape:
        return inf
    if not torch.allclose(actual[~finite], expected[~finite], rtol=0, atol=0, equal_nan=True):
        return inf
    if not finite.any():
        return 0.0
    largest = (actual - expected)[finite].abs().max().item()
    return largest / max(1.0, expected[finite].abs().max().item()) if largest < inf else inf


def tolerance(result: Tensor, dtype: torch.dtype, kernel: Kernel) -> float:
    """How much a result of a kernel may differ if query, key and value have a dtype; sums are in float32 or float64."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    of_sums = TOLERANCES[torch.promote_types(dtype, torch.float32)]
    return max(TOLERANCES.get(result.dtype, 0.0), of_sums) * (kernel.tolerance_factor if is_half else 1.0)
