"""The call of a backward pass, and which gradients it can compute.

The library computes the gradients of query, key and value, and of the tensors of steps. Those of a rule's tensors
follow by autograd: its steps are made again, from leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from regard.native.library import DTYPES, MeasureCall, NativeCall, Strided, strided
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.native.pack import MAX_SEPARATE_COLUMNS, Packer
from regard.ops.kernels.step_gradients import first_rule, steps_with_gradients, with_leaves
from regard.ops.measures.base import Spec
from regard.ops.request import AttentionRequest
from regard.ops.steps import Step
from regard.ops.tree import tensors_in

MIN_ROWS_PER_CHUNK = 1024
"""Each chunk of a head has sums of its own for keys and values."""

MAX_CHUNKS = 4


def whole_gradients(specs: Iterable[Sequence[Spec]], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of the results of measures in float32, contiguous; for each measure those of all its tensors or none.

    Args:
        specs: By measure, of its results.
        gradients: For each tensor of the results; None for zero.
    """
    rest, whole = iter(gradients), []
    for of_measure in specs:
        own = [*islice(rest, len(of_measure))]
        if any(gradient is not None for gradient in own):
            shapes = [shape for shape, _ in of_measure]
            own = [torch.zeros(shapes[i], device="cpu") if each is None else each for i, each in enumerate(own)]
            own = [each.float().contiguous() for each in own]
        whole += own
    return whole


def has_gradients(inputs: KernelInputs, needed: Sequence[bool]) -> bool:
    """Whether a backward pass can compute the gradients that are needed."""
    request, num_caps = inputs.request, 0
    for step in inputs.steps.score or ():
        num_caps += step.kind == "soft_cap"
    if num_caps > 1:
        return False
    if not any(needed[first_rule(inputs) :]):
        return True
    if request.batch is not None or request.heads is not None or request.rows is not None:
        return False
    inputs = with_leaves(inputs, needed)
    with torch.enable_grad():
        return all(_has_gradients(step, inputs.request) for _, step in steps_with_gradients(inputs))


def _has_gradients(step: Step, request: AttentionRequest) -> bool:
    if step.other is not None and any(tensor.requires_grad for tensor in tensors_in(step.other)):
        return False
    for tensor in step.tensors():
        if tensor is None or not tensor.requires_grad:
            continue
        if step.kind == "add_bias":
            # That of a bias which several queries or keys share would need a sum for each of them.
            if tensor.shape[2:] != request.shape[2:]:
                return False
        elif step.kind == "transposed":
            if tensor.shape[3] > MAX_SEPARATE_COLUMNS:
                return False
        elif step.kind not in ("add_distances", "add_relative_key", "add_relative_query", "received"):
            return False
    return True


class BackwardPacker(Packer):
    """Also allocates the sums that become the gradients of steps' tensors.

    Attributes:
        sums_batch: Whether a sum is over the batch, so that a task must have all of it.
        sums_heads: The same for heads.
    """

    def __init__(self, request: AttentionRequest, chunks: int) -> None:
        super().__init__()
        self.sums_batch = self.sums_heads = False
        self._shape, self._chunks = request.shape, chunks
        self._tensors: list[Tensor] = []
        self._sums: list[tuple[Tensor, bool]] = []

    def gradient(self, kind: str, tensor: Tensor | None) -> Tensor | None:
        """Zeros; if they are (batch, heads, chunks, ...), the gradient is their sum over chunks."""
        if tensor is None or not tensor.requires_grad:
            return None
        batch, heads, queries, _ = self._shape
        by_chunk = False
        if kind == "add_bias":
            shape = tensor.shape
            self.sums_batch |= shape[0] < batch
            self.sums_heads |= shape[1] < heads
        elif kind in ("received", "transposed"):
            shape = batch, heads, queries, tensor.shape[3]
        else:
            by_chunk, shape = True, (batch, heads, self._chunks, *tensor.shape[2:])
        sums = torch.zeros(shape, dtype=torch.float32, device=tensor.device)
        self._tensors.append(tensor)
        self._sums.append((sums, by_chunk))
        return sums

    def gradients(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the tensors that the steps were made from, after the call has run."""
        if not self._tensors:
            return [torch.zeros_like(leaf) for leaf in leaves]
        totals = [
            (sums.sum(2) if by_chunk else sums).sum_to_size(tensor.shape).to(tensor.dtype)
            for tensor, (sums, by_chunk) in zip(self._tensors, self._sums, strict=True)
        ]
        return list(torch.autograd.grad(self._tensors, leaves, totals, allow_unused=True, materialize_grads=True))


class BackwardCall:
    """The call of a backward pass, and the gradients that it fills.

    Args:
        inputs: As in the forward pass.
        needed: For each tensor of `tensors_in(inputs)`, whether it needs a gradient.
        gradients: For the output, if there is a value, and each tensor of the results; None for zero.
        lse: The log-sum-exp of each row, which the forward pass saved.
        seed: Of dropout.
    """

    def __init__(
        self,
        inputs: KernelInputs,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        lse: Tensor,
        seed: int,
    ) -> None:
        first = first_rule(inputs)
        *needs_value, needs_query, needs_key = needed[:first]
        of_rules = any(needed[first:])
        if of_rules:
            inputs = with_leaves(inputs, needed)
        request, value = inputs.request, inputs.value
        _, heads, queries, _ = request.shape
        self._shape = request.shape
        self._chunks = max(1, min(MAX_CHUNKS, queries // MIN_ROWS_PER_CHUNK))
        self._leaves = [tensor for tensor in tensors_in(inputs)[first:] if tensor.requires_grad] if of_rules else []
        self.packer = packer = BackwardPacker(request, self._chunks)
        output_gradient, result_gradients = (None, gradients) if value is None else (gradients[0], gradients[1:])
        if output_gradient is not None and output_gradient.dtype not in DTYPES:
            output_gradient = output_gradient.float()

        with torch.set_grad_enabled(of_rules):
            measures = self._measures(inputs, result_gradients)
            matrix = packer.matrix(inputs)
            sinks = packer.gradient("sinks", request.score.sinks)
        self._query = self._allocate(request.query, needs_query)
        self._key, keys_by_chunk = self._allocate_by_chunk(request.key, needs_key)
        self._value = values_by_chunk = None
        if value is not None and output_gradient is None:
            self._value = torch.zeros_like(value, dtype=torch.float32) if needs_value[0] else None
        elif value is not None:
            self._value, values_by_chunk = self._allocate_by_chunk(value, needs_value[0])
        self.call = NativeCall(
            matrix=matrix,
            value_heads=heads if value is None else value.shape[1],
            value_dim=0 if value is None else value.shape[3],
            value=Strided() if value is None else strided(value),
            measure_count=len(measures),
            measures=packer.array(MeasureCall, measures),
            dropout=inputs.dropout,
            seed=seed,
            chunks=self._chunks,
            chunk_rows=-(-queries // self._chunks),
            sums_batch=packer.sums_batch,
            sums_heads=packer.sums_heads,
            saved_lse=packer.pointer(lse, torch.float32),
            output_gradient=Strided() if output_gradient is None else strided(packer.keep(output_gradient)),
            query_gradient=_address(self._query),
            key_gradient=_address(keys_by_chunk),
            value_gradient=_address(values_by_chunk),
            sinks_gradient=_address(sinks),
            key_total=_address(self._key),
            value_total=None if values_by_chunk is None else _address(self._value),
        )

    def results(self) -> list[Tensor]:
        """The gradients of the tensors that need one, after the call has run."""
        own = [total for total in (self._value, self._query, self._key) if total is not None]
        return [*own, *self.packer.gradients(self._leaves)]

    def _allocate(self, tensor: Tensor, is_needed: bool) -> Tensor | None:
        """Memory for a gradient, in float32, contiguous."""
        return torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device) if is_needed else None

    def _allocate_by_chunk(self, tensor: Tensor, is_needed: bool) -> tuple[Tensor | None, Tensor | None]:
        """Memory for the gradient of keys or values, in all, and by head and chunk."""
        total = self._allocate(tensor, is_needed)
        batch, heads, _, _ = self._shape
        if total is None or tensor.shape[1] == heads * self._chunks:
            return total, total
        shape = batch, heads, self._chunks, *tensor.shape[2:]
        self.packer.scratch.append(torch.empty(shape, dtype=torch.float32, device=tensor.device))
        return total, self.packer.scratch[-1]

    def _measures(self, inputs: KernelInputs, gradients: Sequence[Tensor | None]) -> list[MeasureCall]:
        specs = [measure.result_specs(self._shape, torch.float32) for measure in inputs.measures.values()]
        rest = iter(whole_gradients(specs, gradients))
        calls: list[MeasureCall] = []
        for steps, of_measure in zip(inputs.steps.measures, specs, strict=True):
            filled = [gradient for gradient in islice(rest, len(of_measure)) if gradient is not None]
            self.packer.kept += filled
            for step in steps or () if filled else ():
                for call in self.packer.measure(step, filled, 1):
                    call.gradient, call.second_gradient = call.result, call.second
                    call.result = call.second = None
                    calls.append(call)
        return calls


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
