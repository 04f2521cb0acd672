"""AttentionCall: everything that the weights of one call of attention follow from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops import WeightMatrix
from regard.ops.masks import DenseMask, Mask, Spans, to_dense, to_spans
from regard.ops.measures import Measure
from regard.ops.request import AttentionRequest, make_request
from regard.ops.scores import Bias, Score
from regard.ops.tile import Shape
from regard.ops.tree import map_tensors, tensors_in

Continuation = Literal["new_tokens", "new_queries", "chunk"]
"""How a call continues the earlier calls of its layer: with new tokens, because the KV cache grew; with new queries of
the same keys; or with a chunk of the sequence that attends to itself alone."""


@dataclass(eq=False)
class AttentionCall:
    """One call of an attention function.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim), including those of a KV cache.
        mask: Which keys each query may attend to.
        score: The score, without the bias.
        bias: Broadcastable to (batch, heads, queries, keys), added to the scores.
        scale: Factor of the scores; None for the score's default.
        q_offset: Position of the first query.
        kv_offset: Position of the first key.
        valid_queries: (batch, queries) False where a query is padding; None if all are valid.
        value: (batch, kv_heads, keys, value_dim), if it is kept.
        heads: (heads,) Which heads of mask, score and bias these are; None for all.
        num_heads: Number of heads that mask, score and bias were made for; None for as many as the query has.
        extra: Number of keys at the front that are not tokens of the sequence and have positions before it: those of an
            encoder in the same softmax (T5Gemma 2), or compressed ones (DeepSeek V4). The model has them at the end.
    """

    query: Tensor
    key: Tensor
    mask: Mask | None
    score: Score
    bias: Tensor | None
    scale: float | None
    q_offset: int = 0
    kv_offset: int = 0
    valid_queries: Tensor | None = None
    value: Tensor | None = None
    heads: Tensor | None = None
    num_heads: int | None = None
    extra: int = 0

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that it holds."""
        return tensors_in((self.query, self.key, self.value, self.mask, self.score, self.bias))

    @property
    def stop(self) -> int:
        """One past the position of the last query."""
        return self.q_offset + self.query.shape[2]

    @property
    def offset(self) -> int:
        """Query i has the position of key i + offset."""
        return self.q_offset - self.kv_offset

    @property
    def request(self) -> AttentionRequest:
        """The request for its weights."""
        score = self.score if self.bias is None else self.score + Bias(self.bias)
        if self.heads is None:
            return make_request(self.query, self.key, mask=self.mask, score=score, scale=self.scale, offset=self.offset)
        plain = make_request(self.query, self.key, scale=self.scale, offset=self.offset)
        scale = score.default_scale(self.query.shape[3]) if self.scale is None else self.scale
        scale = 1.0 if scale is None else scale
        return replace(plain, mask=self.mask, score=score, scale=scale, heads=self.heads, full_shape=self._full_shape)

    @property
    def weights(self) -> WeightMatrix:
        """The weight matrix."""
        return WeightMatrix(self.request, self.valid_queries)

    def measure(self, measures: Mapping[str, Measure], weights: WeightMatrix | None = None) -> dict[str, Any]:
        """The results of measures, from the weight matrix if the caller has it."""
        return (self.weights if weights is None else weights).measure(measures) if measures else {}

    def select_heads(self, heads: Sequence[int]) -> AttentionCall:
        """Some heads, each with a key head of its own; mask, score and bias stay those of all."""
        request = self.request  # which checks that the rules fit all heads
        count, group = self.query.shape[1], self.query.shape[1] // self.key.shape[1]
        index = torch.tensor(list(heads), device=self.query.device)
        if request.heads is not None:
            index, count = request.heads[index], self.num_heads or count
        keys = self._map_keys(lambda part: part[:, [head // group for head in heads]])
        return replace(self, query=self.query[:, list(heads)], heads=index, num_heads=count, **keys)

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
        keys = self._map_keys(lambda part: part[index])
        return replace(self, query=self.query[index], mask=mask, bias=bias, valid_queries=valid, **keys)

    def to_cpu(self) -> AttentionCall:
        """With the tensors of mask, score and bias on the CPU, where query and key are."""
        mask = None if self.mask is None else self.mask.to(torch.device("cpu"))
        score = map_tensors(self.score, Tensor.cpu)
        parts = (self.bias, self.valid_queries, self.heads)
        bias, valid_queries, heads = (None if part is None else part.cpu() for part in parts)
        return replace(self, mask=mask, score=score, bias=bias, valid_queries=valid_queries, heads=heads)

    def without_unused_keys(self) -> AttentionCall:
        """Without the unused end of a static KV cache."""
        keys = self.stop - self.kv_offset
        if self.key.shape[2] <= keys:
            return self
        bias = None if self.bias is None else self.bias[..., :keys]
        spans = self._find_spans()
        if spans is None:
            mask: Mask = DenseMask(self._dense_mask()[..., :keys])
        else:
            mask = Spans(spans.starts.clamp(max=keys), spans.stops.clamp(max=keys))
        return replace(self, mask=mask, bias=bias, **self._map_keys(lambda part: part[:, :, :keys].clone()))

    def new_keys_only(self) -> AttentionCall:
        """Only the keys of its own tokens; the mask still covers all keys."""
        own = slice(max(self.offset, 0), max(self.offset, 0) + self.query.shape[2])
        return replace(self, mask=self.spans(), **self._map_keys(lambda part: part[:, :, own].clone()))

    def copy_of_cache(self) -> AttentionCall:
        """With keys and values that are not written in place later, as a static KV cache is."""
        return replace(self, **self._map_keys(lambda part: part.clone() if _was_written_to(part) else part))

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
        if isinstance(self.mask, Spans):
            return self.mask
        if self.mask is None:
            starts = torch.zeros(1, 1, self.query.shape[2], 1, dtype=torch.int32, device=self.query.device)
            return Spans(starts, starts + self.key.shape[2])
        return to_spans(self.mask, self._full_shape, self.offset, self.query.device)

    def _dense_mask(self) -> Tensor:
        """The mask as a bool tensor, (batch, heads, queries, keys)."""
        assert self.mask is not None
        return to_dense(self.mask, self._full_shape, self.offset, self.query.device)

    @property
    def _full_shape(self) -> Shape:
        """(batch, heads, queries, keys) that mask, score and bias were made for."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads if self.num_heads is None else self.num_heads, queries, self.key.shape[2]

    def _map_keys(self, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor | None]:
        """Key and value, both changed."""
        return {"key": change(self.key), "value": None if self.value is None else change(self.value)}


def _was_written_to(tensor: Tensor) -> bool:
    """Whether a tensor was written in place, and may be again; tensors of inference mode do not count writes."""
    return tensor.is_inference() or tensor._version > 0
