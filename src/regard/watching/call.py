"""AttentionCall: one call of an attention function, as the request for its weights and what else belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops import WeightMatrix
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import prepare
from regard.ops.masks import DenseMask, Mask, Spans, to_dense, to_spans
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest
from regard.ops.scores import Bias
from regard.ops.scores.base import Sum
from regard.ops.tile import Shape
from regard.ops.tree import tensors_in
from regard.watching.output_gradient import OutputGradient, gradient_of_weights
from regard.watching.spans_tensor import SpansTensor

Continuation = Literal["new_tokens", "new_queries", "chunk"]
"""How a call continues the earlier calls of its layer: with new tokens, because the KV cache grew; with new queries of
the same keys; or with a chunk of the sequence that attends to itself alone."""


@dataclass(eq=False)
class AttentionCall:
    """One call of an attention function.

    Args:
        request: The request for its weights. Its keys include those of a KV cache.
        q_offset: Position of the first query; in cross-attention among the queries of the decoder.
        kv_offset: Position of the first key.
        valid_queries: (batch, queries) False where a query is padding; None if all are valid.
        value: (batch, kv_heads, keys, value_dim), if it is kept.
        num_prefix_keys: Number of keys at the front that are not tokens of the sequence; see `prefix_keys`.
        has_assumed_positions: Whether the model did not say the positions, so that the queries count as the last keys.
        output_gradient: The gradient of its output, if it is recorded.
        is_adapted: Whether an adapter says what query and key are, which may hold a bias as one more component.
        is_dense: Whether the scores are a bias of the size queries × keys, while query and key are 0.
    """

    request: AttentionRequest
    q_offset: int = 0
    kv_offset: int = 0
    valid_queries: Tensor | None = None
    value: Tensor | None = None
    num_prefix_keys: int = 0
    has_assumed_positions: bool = False
    output_gradient: OutputGradient | None = None
    is_dense: bool = False
    is_adapted: bool = False

    @property
    def query(self) -> Tensor:
        """(batch, heads, queries, head_dim)."""
        return self.request.query

    @property
    def key(self) -> Tensor:
        """(batch, kv_heads, keys, head_dim)."""
        return self.request.key

    @property
    def bias(self) -> Tensor | None:
        """What the mask of the call added to the scores, broadcastable to (batch, heads, queries, keys)."""
        score = self.request.score
        return score.right.tensor if isinstance(score, Sum) and isinstance(score.right, Bias) else None

    @property
    def cached(self) -> Tensor:
        """(batch, heads, keys, width) What tells the keys of a cache apart: the values if the keys are not known."""
        return self.value if self.is_dense and self.value is not None else self.key

    @property
    def stop(self) -> int:
        """One past the position of the last query."""
        return self.q_offset + self.query.shape[2]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that it holds."""
        request = self.request
        return tensors_in((request.query, request.key, self.value, request.mask, request.score))

    @property
    def weights(self) -> WeightMatrix:
        """The weight matrix."""
        return WeightMatrix(self.request, self.valid_queries)

    def weights_of(self, layer: str) -> WeightMatrix:
        """The weight matrix, with its gradient if that is recorded.

        Args:
            layer: The name of the layer, for messages.
        """
        if self.output_gradient is None:
            return self.weights
        calls = [(self.output_gradient, self.query.shape[2])]
        source = partial(gradient_of_weights, layer, calls, self.value, self.valid_queries)
        return WeightMatrix(self.request, self.valid_queries).with_gradient(source)

    def measure(
        self, measures: Mapping[str, Measure], value: Tensor | None = None
    ) -> tuple[dict[str, Any], Tensor | None]:
        """The results of measures and, if that takes no second pass, the output, (batch, heads, queries, value_dim).

        Args:
            measures: By name.
            value: (batch, kv_heads, keys, value_dim) What to compute the output from; None for measures alone.

        Raises:
            InvalidArgument: If a measure does not fit the weights.
        """
        request, checks = self.request, Checks()
        shape, head_dim, device = request.shape, request.query.shape[3], request.query.device
        for measure in measures.values():
            measure.check(checks, shape, head_dim, device)
        checks.raise_problems()
        if self.valid_queries is not None:
            measures = {name: measure.for_valid_queries(self.valid_queries) for name, measure in measures.items()}
        if value is not None and value.dtype == request.query.dtype and value.shape[:3] == request.key.shape[:3]:
            inputs = KernelInputs(value, request, measures)
            kernel = prepare(inputs)
            if kernel.fuses_measures:
                output, results = kernel.run(inputs)
                return results, output
        inputs = KernelInputs(None, request, measures)
        return prepare(inputs).run(inputs)[1], None

    def select_heads(self, heads: Sequence[int]) -> AttentionCall:
        """Some heads, each with a key head of its own."""
        index = torch.tensor(list(heads), device=self.query.device)
        value = None
        if self.value is not None:
            value = self.value[:, index // (self.query.shape[1] // self.value.shape[1])]
        if self.is_dense and self.bias is not None:  # not the scores of all heads
            call = self.with_keys(
                lambda part: part, query=self.query[:, index], mask=self.request.mask, bias=self.bias[:, index]
            )
            return replace(call, value=value)
        return replace(self, request=self.request.at(heads=index), value=value)

    def select_sequences(self, rows: Tensor) -> AttentionCall:
        """Some sequences of the batch, by index; one below 0 is empty, and its queries attend to nothing."""
        index, is_there = rows.clamp(min=0), (rows >= 0)[:, None]
        spans = self._find_spans()
        if spans is None:
            mask: Mask = DenseMask(self._dense_mask()[index] & is_there[:, :, None, None])
        else:
            starts, stops = (side.expand(len(self.query), -1, -1, -1)[index] for side in (spans.starts, spans.stops))
            mask = Spans(starts, stops * is_there[:, :, None, None])
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[index]
        valid = is_there.expand(-1, self.query.shape[2])
        valid = valid if self.valid_queries is None else self.valid_queries[index] & valid
        call = self.with_keys(lambda part: part[index], query=self.query[index], mask=mask, bias=bias)
        return replace(call, valid_queries=valid)

    def without_unused_keys(self) -> AttentionCall:
        """Without the unused end of a static KV cache."""
        keys = self.stop - self.kv_offset
        if self.key.shape[2] <= keys:
            return self
        spans = self._find_spans()
        if spans is None:
            mask: Mask = DenseMask(self._dense_mask()[..., :keys])
        else:
            mask = Spans(spans.starts.clamp(max=keys), spans.stops.clamp(max=keys))
        bias = None if self.bias is None else self.bias[..., :keys]
        return self.with_keys(lambda part: part[:, :, :keys].clone(), mask=mask, bias=bias)

    def new_keys_only(self) -> AttentionCall:
        """Only the keys of its own tokens; mask and bias still cover all keys."""
        start = max(self.request.offset, 0)
        own = slice(start, start + self.query.shape[2])
        return self.with_keys(lambda part: part[:, :, own].clone(), mask=self.spans(), bias=self.bias)

    def copy_of_cache(self) -> AttentionCall:
        """With keys and values that are not written in place later, as a static KV cache is."""
        if not _was_written_to(self.request.key) and (self.value is None or not _was_written_to(self.value)):
            return self
        return self.with_keys(
            lambda part: part.clone() if _was_written_to(part) else part, mask=self.request.mask, bias=self.bias
        )

    def without_keys(self) -> AttentionCall:
        """Without its keys, so that they are not kept again; see `with_keys_of`."""
        return self.with_keys(lambda part: part[:, :, :0], mask=self.request.mask, bias=self.bias)

    def with_keys_of(self, other: AttentionCall) -> AttentionCall:
        """With the keys and values of another call."""
        call = self.with_keys(lambda _: other.key, mask=self.request.mask, bias=self.bias)
        return replace(call, value=other.value)

    def with_keys(
        self, change: Callable[[Tensor], Tensor], *, query: Tensor | None = None, mask: Mask | None, bias: Tensor | None
    ) -> AttentionCall:
        """With key and value changed by a function, and with another query, mask and bias."""
        request = self.request
        query, key = request.query if query is None else query, change(request.key)
        score = request.score.left if self.bias is not None and isinstance(request.score, Sum) else request.score
        shape = request.full_shape and (len(query), request.full_shape[1], query.shape[2], key.shape[2])
        score = score if bias is None else score + Bias(bias)
        request = replace(request, query=query, key=key, mask=mask, score=score, full_shape=shape)
        return replace(self, request=request, value=None if self.value is None else change(self.value))

    def spans(self) -> Spans:
        """The mask as ranges of keys.

        Raises:
            InvalidArgument: If a row has too many.
        """
        spans = self._find_spans()
        if spans is None:
            raise InvalidArgument(
                "the mask has rows with too many ranges of keys to concatenate several calls; watch one call at a time"
            )
        return spans

    def may_attend(self, query: int, key: int) -> bool:
        """Whether a query may attend to a key, by index, in some sequence and head."""
        spans = self._find_spans()
        if spans is None:
            return bool(self._dense_mask()[:, :, query, key].any())
        starts, stops = spans.starts[:, :, query], spans.stops[:, :, query]
        return bool(((starts <= key) & (key < stops)).any())

    def _find_spans(self) -> Spans | None:
        """The mask as ranges of keys; None if a row has too many."""
        mask, device = self.request.mask, self.query.device
        if isinstance(mask, Spans):
            return mask
        if mask is None:
            return _all_keys(self.query.shape[2], self.key.shape[2], device, torch.is_inference_mode_enabled())
        return to_spans(mask, self._full_shape, self.request.offset, device)

    def _dense_mask(self) -> Tensor:
        """The mask as a bool tensor, (batch, heads, queries, keys)."""
        assert self.request.mask is not None
        return to_dense(self.request.mask, self._full_shape, self.request.offset, self.query.device)

    @property
    def _full_shape(self) -> Shape:
        """(batch, heads, queries, keys) that mask and score were made for."""
        return self.request.full_shape or self.request.shape


@lru_cache(maxsize=8)
def _all_keys(queries: int, keys: int, device: torch.device, _: bool) -> Spans:
    """A mask of ranges that allows all keys. The layers of a step share one; inference mode has its own."""
    starts = torch.zeros(1, 1, queries, 1, dtype=torch.int32, device=device)
    return Spans(starts, starts + keys)


class CallIdentity:
    """What the weights of a call follow from; calls that are equal here have the same weights.

    It holds the tensors, so that their memory is not reused by others while it is compared.
    """

    def __init__(self, module: nn.Module, request: AttentionRequest, mask: Tensor | None) -> None:
        functions = getattr(request.mask, "mask_mod", None), getattr(request.score, "score_mod", None)
        self.rules = module, request.scale, type(request.mask), type(request.score), functions, mask is None
        mask_tensor = mask.starts if isinstance(mask, SpansTensor) else mask
        self.tensors = request.query, request.key, request.query if mask_tensor is None else mask_tensor
        self.versions = [None if each.is_inference() else each._version for each in self.tensors]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CallIdentity)
            and (self.rules, self.versions) == (other.rules, other.versions)
            and all(map(is_same_memory, self.tensors, other.tensors))
        )


def check_inputs(name: str, *inputs: object) -> None:
    """Refuse tensors whose attention cannot be recorded.

    Raises:
        InvalidArgument: If one is nested or inside a transform of `torch.func`; it names the module.
    """
    for tensor in inputs:
        if isinstance(tensor, Tensor) and tensor.is_nested:
            raise InvalidArgument(f"{name}: nested tensors cannot be watched; pass padded ones with a mask")
        if isinstance(tensor, Tensor) and is_functorch_wrapped_tensor(tensor):
            raise InvalidArgument(f"{name}: calls under torch.vmap, torch.func.grad and the like cannot be watched")


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same elements in memory."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def _was_written_to(tensor: Tensor) -> bool:
    """Whether a tensor was written in place, and may be again; tensors of inference mode do not count writes."""
    return tensor.is_inference() or tensor._version > 0
