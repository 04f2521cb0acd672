"""SpansTensor: a mask tensor that holds ranges of keys instead of its cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from regard.ops.masks import Spans, to_dense

SAME_CELLS = {torch.ops.aten.alias.default, torch.ops.aten.detach.default}
"""Operators whose result is their argument."""


class SpansTensor(Tensor):
    """A bool tensor, (batch, 1, queries, keys), True where a query may attend, for code that expects a dense mask.

    An attention function reads `spans`. Any other operation computes the cells and gives what it gives for a dense
    tensor.

    Args:
        spans: The ranges of keys of each query, with batch size 1 if all sequences have the same.
        shape: (batch, 1, queries, keys).
        offset: Query i has position i + offset among the keys.

    Memory:
        O(queries).
    """

    spans: Spans
    starts: Tensor
    stops: Tensor
    offset: int

    def __new__(cls, spans: Spans, shape: Sequence[int], offset: int) -> Self:
        device = spans.starts.device
        self = torch.Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=torch.bool, device=device)
        self.spans, self.starts, self.stops, self.offset = spans, spans.starts, spans.stops, offset
        return self

    def dense(self) -> Tensor:
        """The cells, as a plain tensor."""
        batch, heads, queries, keys = self.shape
        return to_dense(self.spans, (batch, heads, queries, keys), self.offset, self.device)

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["starts", "stops"], self.offset

    @classmethod
    def __tensor_unflatten__(
        cls, tensors: dict[str, Tensor], offset: int, outer_size: Sequence[int], outer_stride: Sequence[int]
    ) -> Self:
        return cls(Spans(tensors["starts"], tensors["stops"]), outer_size, offset)

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        mask = args[0]
        if func in SAME_CELLS:
            return cls(mask.spans, mask.shape, mask.offset)
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype", torch.bool) == torch.bool:
            starts, stops = (side.to(kwargs.get("device")) for side in (mask.starts, mask.stops))
            return cls(Spans(starts, stops), mask.shape, mask.offset)
        plain_args, plain_kwargs = tree_map_only(cls, cls.dense, (args, kwargs))
        return func(*plain_args, **plain_kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SpansTensor(shape={tuple(self.shape)}, device={str(self.device)!r})"
