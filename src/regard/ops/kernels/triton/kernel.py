"""The Triton kernel: output and measures on GPUs."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import DifferentiableKernel, ForwardResult
from regard.ops.kernels.step_gradients import check_untracked_tensors
from regard.ops.kernels.triton.backward import Backward
from regard.ops.kernels.triton.calls import run_forward
from regard.ops.kernels.triton.gradients import has_gradients
from regard.ops.kernels.triton.kinds import DTYPES, SUPPORT
from regard.ops.kernels.triton.launch import CompilationFailed, Launcher
from regard.ops.kernels.triton.pack import LOG2E, precision
from regard.ops.measures import LogSumExp
from regard.ops.measures.base import Spec
from regard.ops.rules import Rule, has_steps

FALLBACK = Blockwise()

MIN_CAPABILITY = 8, 0
"""Oldest architecture of NVIDIA that the kernels are compiled for."""


class Triton(DifferentiableKernel):
    """Output and measures in two passes in Triton, on a GPU."""

    name = "triton"
    description = "Triton for GPUs: output and measures of rows in one pass, sums over rows in a second one"
    devices = ("cuda",)
    dtypes = DTYPES
    max_width = 256
    needs_equal_dtypes = True
    fuses_measures = True
    fallback = FALLBACK
    saves_first_result = True

    def __init__(self) -> None:
        self._launcher = Launcher()

    def unavailable_reason(self) -> str | None:
        return _unavailable_reason()

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: no GPU or no Triton."""
        if not torch.compiler.is_compiling():  # a program that runs without Triton has the fallback
            device = inputs.request.query.device
            reason = self.unavailable_reason() or (_too_old_reason(device) if device.type == "cuda" else None)
            if reason is not None:
                yield reason
        yield from super().unsupported_reasons(inputs)

    def unsupported_rules(self, inputs: KernelInputs) -> Iterator[str]:
        """Those without steps, or with steps that the passes do not have."""
        return SUPPORT.unsupported_rules(inputs)

    def supports(self, cls: type[Rule]) -> bool:
        return has_steps(cls)

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Products in float32 without TF32, whose tiles are slower than the vendor's matrix products."""
        query = inputs.request.query
        if query.dtype == torch.float32 and precision(query.dtype, query.device) == "ieee":
            yield "blocks of rows are faster in float32 without TF32"

    def saved_specs(self, inputs: KernelInputs) -> Sequence[Spec]:
        """The log-sum-exp of each row, sinks included, in units of log 2."""
        return ((inputs.request.shape[:3], torch.float32),)

    def has_gradients(self, inputs: KernelInputs, needed: Sequence[bool]) -> bool:
        return has_gradients(inputs, needed)

    def forward(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        if options.checks_untracked_tensors:
            check_untracked_tensors(inputs)
        try:
            with _on_device_of(inputs):
                return run_forward(inputs, options, self._launcher)
        except CompilationFailed:
            return self._with_fallback(inputs, options)

    def _with_fallback(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        """The forward pass of the fallback, with what this kernel saves."""
        output, results, _ = FALLBACK.forward(inputs, options)
        if not options.saves:
            return ForwardResult(output, results)
        rows = FALLBACK.forward(KernelInputs(None, inputs.request, {"lse": LogSumExp()}), RunOptions())
        return ForwardResult(output, results, (rows.results.whole("lse")[0] * LOG2E,))

    def backward(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
    ) -> list[Tensor]:
        try:
            with _on_device_of(inputs):
                return Backward(inputs, options, needed, gradients, saved, self._launcher).run()
        except CompilationFailed:
            return FALLBACK.backward(inputs, options, needed, gradients, ())


@contextmanager
def _on_device_of(inputs: KernelInputs) -> Generator[None]:
    """A context in which Triton launches on a device, and in which the error for too little memory says the sizes.

    Raises:
        OutOfMemoryError: With the sizes of the call.
    """
    query, device = inputs.request.query, inputs.request.query.device
    try:
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            yield
        else:
            with torch.cuda.device(device):
                yield
    except torch.OutOfMemoryError as error:
        sizes = dict(zip(("batch", "heads", "queries", "keys"), inputs.request.shape, strict=True))
        text = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
        results = ", ".join(inputs.measures) or "no measures"
        raise torch.OutOfMemoryError(
            f"attention of {text} in {str(query.dtype).removeprefix('torch.')} with {results}: {error}; give fewer "
            "batch entries or queries at a time, or leave out a measure whose result is large"
        ) from error


@lru_cache(maxsize=1)
def _unavailable_reason() -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no CUDA or ROCm device"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; install it with: pip install triton"
    reasons = [_too_old_reason(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    return reasons[0] if all(reasons) else None


@lru_cache(maxsize=64)
def _too_old_reason(device: torch.device) -> str | None:
    if torch.version.hip is not None:
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability >= MIN_CAPABILITY:
        return None
    return f"it needs compute capability {_version(MIN_CAPABILITY)}, the GPU has {_version(capability)}"


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
