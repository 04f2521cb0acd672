"""The native kernel: forward and backward pass in C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard.checks import Checks
from regard.native.cache_size import second_level_bytes
from regard.native.library import DTYPES, Library, library
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import DifferentiableKernel, ForwardResult
from regard.ops.kernels.native.choices import is_sdpa_faster, steps_for
from regard.ops.kernels.native.forward import forward_call
from regard.ops.kernels.native.gradients import BackwardCall, has_gradients
from regard.ops.kernels.native.pack import SUPPORT, Packer
from regard.ops.kernels.native.prepared import PreparedCall
from regard.ops.kernels.results import MeasureResults
from regard.ops.kernels.step_gradients import check_untracked_tensors
from regard.ops.measures.base import Spec
from regard.ops.rules import Rule, has_steps


@dataclass(frozen=True)
class Native(DifferentiableKernel):
    """Output and measures in one pass in C++, on a CPU.

    Args:
        level: The instruction set, one of `LEVELS`. Default: the best that the processor has, or `REGARD_ISA`.
        cache_bytes: Bytes of a core's second-level cache, for which blocks are made. Default: those of the processor.
    """

    name = "native"
    description = "C++ for CPUs: output and measures in one pass"
    devices = ("cpu",)
    dtypes = tuple(DTYPES)
    fuses_measures = True
    fallback = Blockwise()

    level: str | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        with Checks() as checks:
            checks.integer("cache_bytes", self.cache_bytes, low=1, below=2**63, optional=True)

    def unavailable_reason(self) -> str | None:
        found = library(self.level)
        return found if isinstance(found, str) else None

    def variant(self) -> str:
        found = library(self.level)
        return "" if isinstance(found, str) else found.level

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: the library."""
        if not torch.compiler.is_compiling():  # which cannot trace how the library is found, and has a fallback
            reason = self.unavailable_reason()
            if reason is not None:
                yield reason
        yield from super().unsupported_reasons(inputs)

    def unsupported_rules(self, inputs: KernelInputs) -> Iterator[str]:
        """Those without steps, or with steps that the library does not have."""
        return SUPPORT.unsupported_rules(inputs)

    def supports(self, cls: type[Rule]) -> bool:
        return has_steps(cls)

    def has_gradients(self, inputs: KernelInputs, needed: Sequence[bool]) -> bool:
        return has_gradients(inputs, needed)

    def saved_specs(self, inputs: KernelInputs) -> Sequence[Spec]:
        """The log-sum-exp of each row, sinks included."""
        return ((inputs.request.shape[:3], torch.float32),)

    def forward(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        if options.checks_untracked_tensors:
            check_untracked_tensors(inputs)
        query, results = inputs.request.query, MeasureResults(inputs)
        output = None if inputs.value is None else inputs.new_output()
        packer = Packer()  # holds the tensors that the call points to
        seed = 0 if options.seed is None else int(options.seed)
        lse = query.new_empty(query.shape[:3], dtype=torch.float32) if options.saves else None
        call = forward_call(packer, inputs, output, results, lse, seed)
        call.cache_bytes = self.cache_bytes or second_level_bytes()
        self._library().run(call)
        preparation = getattr(inputs, "preparation", None)
        if preparation is not None:
            prepared = partial(PreparedCall, self, self._library(), inputs, packer, call, output, results, lse)
            preparation.prepare(prepared)
        return ForwardResult(output, results, () if lse is None else (lse,))

    def backward(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
    ) -> list[Tensor]:
        seed = 0 if options.seed is None else int(options.seed)
        backward = BackwardCall(inputs, needed, gradients, saved[0], seed)
        self._library().run(backward.call, backward=True)
        return backward.results()

    def is_slower_than_sdpa(self, inputs: KernelInputs) -> bool:
        """Whether SDPA computes the output alone faster on this processor, for a call that both can compute.

        If a gradient is needed, the backward pass counts, too.
        """
        query, key, found = inputs.request.query, inputs.request.key, library(self.level)
        if isinstance(found, str) or query.dtype not in DTYPES:
            return False
        work = 2 * query.shape[1:].numel() * key.shape[2]  # of a sequence: the batch must not decide
        cache_bytes = self.cache_bytes or second_level_bytes()
        tensors = query, key, *(() if inputs.value is None else (inputs.value,))
        has_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        steps = steps_for(found.level, cache_bytes, str(query.dtype).removeprefix("torch."), has_gradients)
        return is_sdpa_faster(steps, work)

    def _library(self) -> Library:
        found = library(self.level)
        assert isinstance(found, Library), found
        return found
