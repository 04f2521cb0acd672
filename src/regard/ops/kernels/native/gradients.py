"""The call of a backward pass, and which gradients it can compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.native.encode import Encoder, by_distance, full_shape, score_order
from regard.ops.kernels.native.encode_measures import MAX_SEPARATE_COLUMNS, encode_measure
from regard.ops.kernels.native.library import DTYPES, Call, MeasureCall, Strided, strided
from regard.ops.kernels.results import builtin_layouts
from regard.ops.measures import Max, Measure, Received, TransposedProduct
from regard.ops.scores import Alibi, Bias, RelativeKey, Score, SoftCap, T5RelativeBias
from regard.ops.tree import map_tensors, tensors_in

MIN_ROWS_PER_CHUNK = 1024
"""Each chunk of a head has sums of its own for keys and values."""

MAX_CHUNKS = 4


def differentiable_tensors(inputs: KernelInputs) -> list[Tensor]:
    """The tensors of mask, score and measures whose gradient a backward pass can compute."""
    request = inputs.request
    if request.batch is not None or request.heads is not None or request.rows is not None:
        return []
    order = score_order(request.score) or []
    tensors = [tensor for score in order if (tensor := _tensor_of(score)) is not None and _has_gradient(inputs, score)]
    if request.score.sinks is not None:
        tensors.append(request.score.sinks)
    tensors += [tensor for measure in inputs.measures.values() if (tensor := _rows_of(measure)) is not None]
    return tensors


def _tensor_of(score: Score) -> Tensor | None:
    if isinstance(score, Bias):
        return score.tensor
    if isinstance(score, Alibi):
        return score.slopes
    return score.table if isinstance(score, (T5RelativeBias, RelativeKey)) else None


def _has_gradient(inputs: KernelInputs, score: Score) -> bool:
    """A bias that several queries or keys share has none: its gradient would need a sum for each of them."""
    return not isinstance(score, Bias) or score.tensor.shape[-2:] == inputs.request.shape[2:]


def _rows_of(measure: Measure) -> Tensor | None:
    if isinstance(measure, Received):
        return measure.row_weights
    if isinstance(measure, TransposedProduct) and measure.rows.shape[3] <= MAX_SEPARATE_COLUMNS:
        return measure.rows
    return None


def has_gradients(inputs: KernelInputs, needed: Sequence[bool]) -> bool:
    """Whether a backward pass can compute the gradients that are needed."""
    request = inputs.request
    if sum(isinstance(score, SoftCap) for score in score_order(request.score) or []) > 1:
        return False
    wanted = [tensor for tensor, need in zip(tensors_in(inputs), needed, strict=True) if need]
    # A tensor can occur twice, as the key of a call and of the matrix that a divergence compares with.
    supported = Counter(id(t) for t in (request.query, request.key, inputs.value, *differentiable_tensors(inputs)))
    supported.subtract(id(t) for t in wanted)
    return all(supported[id(t)] >= 0 for t in wanted)


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
        self._tensors = tensors_in(inputs)
        if len({id(tensor) for tensor in self._tensors}) < len(self._tensors):  # a tensor is both query and key
            self._tensors = [tensor.detach() for tensor in self._tensors]
            rest = iter(self._tensors)
            inputs = map_tensors(inputs, lambda _: next(rest))
        self._needed = {id(tensor) for tensor, need in zip(self._tensors, needed, strict=True) if need}
        self._results: dict[int, Callable[[], Tensor]] = {}
        self._request = request = inputs.request
        value = inputs.value
        batch, heads, queries, _ = request.shape
        self._sums_batch = self._sums_heads = False
        self._chunks = max(1, min(MAX_CHUNKS, queries // MIN_ROWS_PER_CHUNK))
        of_output, of_results = (None, gradients) if value is None else (gradients[0], gradients[1:])
        if of_output is not None and of_output.dtype not in DTYPES:
            of_output = of_output.float()

        self.encoder = Encoder(self._score_gradients())
        measures = list(self._measures(inputs, of_results))
        of_query = self._add(request.query, torch.empty, request.query.shape)
        of_sinks = None
        if request.score.sinks is not None:
            of_sinks = self._add(
                request.score.sinks, torch.zeros, (batch, heads, self._chunks), lambda x: x.sum((0, 2))
            )
        of_keys, keys_total = self._by_part(request.key)
        of_values, values_total = (None, None) if value is None else self._by_part(value, is_zero=of_output is None)
        self.call = Call(
            matrix=self.encoder.matrix(request),
            value_heads=heads if value is None else value.shape[1],
            value_dim=0 if value is None else value.shape[3],
            value=Strided() if value is None else strided(value),
            measure_count=len(measures),
            measures=self.encoder.array(MeasureCall, measures),
            dropout=inputs.dropout,
            seed=seed,
            chunks=self._chunks,
            chunk_rows=-(-queries // self._chunks),
            sums_batch=self._sums_batch,
            sums_heads=self._sums_heads,
            saved_lse=self.encoder.pointer(lse, torch.float32),
            output_gradient=Strided() if of_output is None else strided(self.encoder.keep(of_output)),
            query_gradient=_address(of_query),
            key_gradient=_address(of_keys),
            value_gradient=_address(of_values),
            sinks_gradient=_address(of_sinks),
            key_total=_address(keys_total),
            value_total=_address(values_total),
        )

    def results(self) -> list[Tensor]:
        """The gradients of the tensors that need one, after the call has run."""
        return [self._results[id(t)]() for t in self._tensors if id(t) in self._needed]

    def _add(
        self,
        tensor: Tensor,
        allocate: Callable[..., Tensor],
        shape: Sequence[int],
        finish: Callable[[Tensor], Tensor] = lambda sums: sums,
    ) -> Tensor | None:
        """Memory for the gradient of a tensor, if it needs one, and what makes the gradient of it."""
        if id(tensor) not in self._needed:
            return None
        sums = allocate(shape, dtype=torch.float32, device="cpu")
        self._results[id(tensor)] = lambda: finish(sums)
        return sums

    def _by_part(self, tensor: Tensor, is_zero: bool = False) -> tuple[Tensor | None, Tensor | None]:
        """The gradient of keys or values by head and chunk, and in all."""
        if is_zero:
            self._add(tensor, torch.zeros, tensor.shape)
            return None, None
        total = self._add(tensor, torch.empty, tensor.shape)
        batch, heads = self._request.shape[:2]
        if total is None or tensor.shape[1] == heads * self._chunks:
            return total, total
        return self.encoder.keep(
            torch.empty(batch, heads, self._chunks, *tensor.shape[2:], dtype=torch.float32, device="cpu")
        ), total

    def _score_gradients(self) -> dict[int, Tensor]:
        request, found = self._request, {}
        batch, heads, queries, keys = request.shape
        by_part = batch, heads, self._chunks
        for score in score_order(request.score) or []:
            sums = None
            if isinstance(score, Bias):
                shape = (1,) * (4 - score.tensor.ndim) + tuple(score.tensor.shape)
                sums = self._add(score.tensor, torch.zeros, shape, lambda x, to=score.tensor.shape: x.view(to))
                if sums is not None:
                    self._sums_batch |= shape[0] < batch
                    self._sums_heads |= shape[1] < heads
            elif isinstance(score, RelativeKey):
                shape = score.table.shape
                finish = partial(_fold_parts, shape=shape)
                sums = self._add(score.table, torch.zeros, (*by_part, *shape[-2:]), finish)
            elif isinstance(score, (T5RelativeBias, Alibi)):
                tensor, shape = _tensor_of(score), (*by_part, queries + keys - 1)
                assert tensor is not None
                sums = self._add(tensor, torch.zeros, shape, partial(self._from_distances, score))
            if sums is not None:
                found[id(score)] = sums
        return found

    def _from_distances(self, score: Score, sums: Tensor) -> Tensor:
        """The gradient of what a bias by distance is made from."""
        with torch.enable_grad():
            score = map_tensors(score, lambda tensor: tensor.detach().requires_grad_())
            values = by_distance(score, full_shape(self._request), self._request.offset)
            tensor = _tensor_of(score)
            assert tensor is not None
            return torch.autograd.grad(values, tensor, sums.sum((0, 2)))[0]

    def _measures(self, inputs: KernelInputs, gradients: Sequence[Tensor | None]) -> Iterator[MeasureCall]:
        rest, layouts = iter(gradients), builtin_layouts(inputs)
        shape, dtype = self._request.shape, torch.float32
        for name, measure in inputs.measures.items():
            own = [next(rest) for _ in range(layouts[name][1])]
            rows, of_rows = _rows_of(measure), None
            if rows is not None:
                columns = 1 if isinstance(measure, Received) else rows.shape[3]
                size = (*shape[:3], columns)
                with_columns = rows.shape if isinstance(measure, TransposedProduct) else (*rows.shape, 1)
                finish = partial(_fold, shape=with_columns)
                of_rows = self._add(rows, torch.zeros, size, lambda x, f=finish, to=rows.shape: f(x).view(to))
            if all(gradient is None for gradient in own):
                continue
            specs = measure.result_specs(shape, dtype)
            parts = [
                torch.zeros(size, dtype=dtype, device="cpu") if gradient is None else gradient.to(dtype).contiguous()
                for gradient, (size, _) in zip(own, specs, strict=True)
            ]
            self.encoder.keep(parts)
            for number, call in enumerate(encode_measure(self.encoder, measure, parts, self._request, 1)):
                call.gradient, call.result = call.result, None
                if isinstance(measure, Max):
                    call.second_gradient = call.second
                if of_rows is not None:
                    call.values_gradient = of_rows.data_ptr() + 4 * number
                yield call


def _fold(sums: Tensor, shape: Sequence[int]) -> Tensor:
    """Sums of a whole shape as those of a shape that was broadcast to it."""
    missing = sums.ndim - len(shape)
    return sums.sum_to_size((1,) * missing + tuple(shape)).view(shape)


def _fold_parts(sums: Tensor, shape: Sequence[int]) -> Tensor:
    """The same for sums by head and chunk, (batch, heads, chunks, ...), over batch and chunks."""
    return _fold(sums.sum((0, 2)), shape)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
