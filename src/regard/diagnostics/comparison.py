"""Compare a kernel with the definition: the reference kernel in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from regard.diagnostics.cases import CheckCase
from regard.ops import attend
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.reference import Reference
from regard.ops.request import make_request

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """A result of a kernel that was compared.

    Args:
        kernel: Name of the kernel.
        case: Name of the case.
        dtype: Dtype of query, key and value.
        result: What was compared: the output, a measure, the gradient of a tensor; "call" if the call failed.
        difference: The largest difference, relative to the largest entry of the definition's result or 1; infinite if
            shapes differ, or the places of infinity and NaN.
        tolerance: The largest difference that rounding explains.
        error: What the call raised, if it failed.
    """

    kernel: str
    case: str
    dtype: str
    result: str
    difference: float
    tolerance: float
    error: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it differs by more than the tolerance."""
        return not self.difference <= self.tolerance

    def as_dict(self) -> dict[str, Any]:
        """As plain data; numbers that JSON does not have are strings."""
        return asdict(self) | ({} if self.difference < inf else {"difference": str(self.difference)})

    def __str__(self) -> str:
        call = f"kernel {self.kernel}, case '{self.case}', {self.dtype}"
        if self.error:
            return f"{call}: {self.error}"
        return f"{call}: {self.result} differs by {self.difference:.1e}, tolerance {self.tolerance:.0e}"


def runs_on(kernel: Kernel, device: torch.device) -> bool:
    """Whether a kernel can run on a device of this machine."""
    return kernel.unavailable_reason() is None and (kernel.devices is None or device.type in kernel.devices)


def dtypes_of(kernel: Kernel, device: torch.device) -> list[torch.dtype]:
    """The dtypes that a kernel supports on a device."""
    return [dtype for dtype in kernel.dtypes if device.type != "mps" or dtype != torch.float64]


def compare(kernel: Kernel, case: CheckCase, dtype: torch.dtype, device: torch.device) -> list[Difference]:
    """Output, measures and gradients of a kernel, compared; empty if it does not support the case.

    Args:
        kernel: The kernel.
        case: The call.
        dtype: Dtype of query, key and value.
        device: Where the kernel runs.
    """
    names = tuple(name for name, measure in case.measures(device).items() if kernel.supports(type(measure)))
    kernel_name, dtype_name = kernel.name, str(dtype).removeprefix("torch.")
    try:
        if not _is_supported(kernel, case, dtype, device, names):
            return []
        ours = _results(case, dtype, device, names, kernel)
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises belongs into the report
        message = f"{type(error).__name__}: {error}"
        return [Difference(kernel_name, case.name, dtype_name, "call", inf, 0.0, message)]
    differences: list[Difference] = []
    for name, exact in _definition(case, dtype, names).items():
        tolerance = kernel.tolerances[ours[name].dtype]
        difference = _difference(ours[name], exact)
        differences.append(Difference(kernel_name, case.name, dtype_name, name, difference, tolerance))
    return differences


def _inputs(case: CheckCase, dtype: torch.dtype, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Query, key, value and the tensor of the score; mask and score."""
    tensors = {name: tensor.detach().to(dtype).to(device).requires_grad_() for name, tensor in case.tensors().items()}
    rules: dict[str, Any] = {"mask": case.mask(device)}
    if case.score is not None:
        rules["score"] = case.score(tensors.get("score", tensors["query"]))
    return tensors, rules


def _is_supported(
    kernel: Kernel, case: CheckCase, dtype: torch.dtype, device: torch.device, names: Collection[str]
) -> bool:
    tensors, rules = _inputs(case, dtype, device)
    measures = {name: measure for name, measure in case.measures(device).items() if name in names}
    request = make_request(tensors["query"], tensors["key"], **rules)
    return not any(kernel.unsupported_reasons(KernelInputs(tensors["value"], request, measures)))


def _results(
    case: CheckCase,
    dtype: torch.dtype,
    device: torch.device,
    names: Collection[str],
    kernel: Kernel,
    exact: bool = False,
) -> Results:
    """Output, measures and gradients, on the CPU; if `exact`, from the same numbers in float64."""
    tensors, rules = _inputs(case, dtype, device)
    if exact:
        tensors = {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}
        if case.score is not None:
            rules["score"] = case.score(tensors.get("score", tensors["query"]))
    measures = {name: measure for name, measure in case.measures(device).items() if name in names}
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    att = attend(query, key, value, **rules, measure=measures, kernel=kernel)
    results = {"output": att.output}
    for name, result in att.measured.items():
        # Not the indices of TopK: of two keys with equal weights, either may come first.
        parts = zip(result._fields, result, strict=True) if isinstance(result, tuple) else [("", result)]  # pyright: ignore[reportAttributeAccessIssue]
        results |= {f"{name}.{part}".strip("."): tensor for part, tensor in parts if tensor.is_floating_point()}
    losses = [_weighted_sum(part) for part in results.values()]
    gradients = torch.autograd.grad(losses, list(tensors.values()), allow_unused=True, materialize_grads=True)
    results |= {f"gradient of {name}": part for name, part in zip(tensors, gradients, strict=True)}
    return {name: part.detach().cpu() for name, part in results.items()}


def _weighted_sum(result: Tensor) -> Tensor:
    """A number that depends on each finite entry, with factors that every dtype holds exactly."""
    factors = (torch.arange(result.numel(), device=result.device) % 7 - 3).to(result.dtype) / 4
    return (result.masked_fill(~result.isfinite(), 0.0) * factors.view(result.shape)).sum()


@lru_cache(maxsize=2)  # kernels that compute the same measures are compared with the same
def _definition(case: CheckCase, dtype: torch.dtype, names: tuple[str, ...]) -> Results:
    return _results(case, dtype, torch.device("cpu"), names, Reference(), exact=True)


def _difference(ours: Tensor, exact: Tensor) -> float:
    ours, finite = ours.double(), exact.isfinite()
    if ours.shape != exact.shape or not torch.equal(ours[~finite], exact[~finite]):
        return inf
    if not finite.any():
        return 0.0
    difference = (ours - exact)[finite].abs().max().item()
    return difference / max(1.0, exact[finite].abs().max().item()) if difference < inf else inf
