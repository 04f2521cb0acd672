"""Compare a kernel with the definition: the reference kernel in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from math import inf
from typing import Any

import torch

from regard.diagnostics.calls import Tensors, difference, tolerance
from regard.diagnostics.cases import MASKS, SCORES, SHAPES, Case
from regard.ops.kernels.base import Kernel
from regard.ops.kernels.reference import Reference


@dataclass(frozen=True)
class Difference:
    """A result of a kernel that was compared.

    Args:
        kernel: Name of the kernel.
        case: Name of the case.
        dtype: Dtype of query, key and value.
        result: What was compared: the output, a measure, the gradient of a tensor; "call" if the call failed.
        difference: From `difference`.
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


def in_order_of_coverage(cases: Sequence[Case], kernels: Iterable[Kernel], device: torch.device) -> list[Case]:
    """Cases such that any number of the first ones covers much: one for each kernel, then one of each kind in turn."""
    covering = {next((case for case in cases if _supports(kernel, case, device)), cases[0]): None for kernel in kernels}
    kinds: dict[tuple[bool, ...], list[Case]] = {}
    for case in cases:
        kind = case.mask is MASKS["none"], case.score is SCORES["scaled_dot"], case.shape == SHAPES["square"]
        kinds.setdefault(kind, []).append(case)
    in_turn = (case for cases_of_kinds in zip_longest(*kinds.values()) for case in cases_of_kinds if case is not None)
    return [*covering, *(case for case in in_turn if case not in covering)]


def _supports(kernel: Kernel, case: Case, device: torch.device) -> bool:
    call = case.call(dtypes_of(kernel, device)[0], device).with_measures_of(kernel)
    return not any(kernel.unsupported_reasons(call.inputs()))


def compare(kernel: Kernel, case: Case, dtype: torch.dtype, device: torch.device) -> list[Difference]:
    """The results of a kernel, compared with the definition's; empty if it does not support the case.

    Args:
        kernel: The kernel.
        case: The call.
        dtype: Dtype of query, key and value.
        device: Where the kernel runs.
    """
    call_name = kernel.name, case.name, str(dtype).removeprefix("torch.")
    try:
        call = case.call(dtype, device).with_measures_of(kernel)
        if any(kernel.unsupported_reasons(call.inputs())):
            return []
        actual = call.results(kernel)
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises belongs into the report
        return [Difference(*call_name, "call", inf, 0.0, f"{type(error).__name__}: {error}")]
    return [
        Difference(*call_name, name, difference(actual[name], exact), tolerance(actual[name], dtype, kernel))
        for name, exact in _definition(case, dtype, tuple(call.measures)).items()
        if exact.is_floating_point()  # not the indices of TopK: of two keys with equal weights, either may come first
    ]


@lru_cache(maxsize=2)  # kernels that compute the same measures are compared with the same
def _definition(case: Case, dtype: torch.dtype, names: tuple[str, ...]) -> Tensors:
    call = case.call(dtype).to(torch.float64)
    return replace(call, measures={name: call.measures[name] for name in names}).results(Reference())
