"""Weights times the norms of what they weigh: how much of each token's value reaches a query."""

from __future__ import annotations

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType
from regard.ops import WeightMatrix
from regard.ops.indexing import Selection, resolve_index
from regard.ops.row_blocks import RowBlocks
from regard.ops.tensor_functions import DENSE_LIMIT
from regard.recordings.layer import Layer


class WeightedValues(RowBlocks):
    """The norms ‖Pᵢⱼ f(xⱼ)‖ = Pᵢⱼ · ‖f(xⱼ)‖, (batch, heads, queries, keys); `weighted_values` makes it.

    It is read as a `WeightMatrix` is, by rows, cells, ``sum``, ``mean``, ``topk``, ``@`` and `dense`, and holds nothing
    of size queries × keys.

    Args:
        weights: (batch, heads, queries, keys).
        norms: (batch, heads, keys) ‖f(xⱼ)‖.
    """

    def __init__(self, weights: WeightMatrix, norms: Float[Tensor, "batch heads keys"]) -> None:
        self.weights, self.norms = weights, norms

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return self.weights.shape

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights."""
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        """That of the weights."""
        return self.weights.device

    @property
    def requires_grad(self) -> bool:
        """Whether weights or norms require a gradient."""
        return self.weights.requires_grad or self.norms.requires_grad

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)})"

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        """Select a part of the matrix, as lazy as the whole, still with four axes. Arguments: `WeightMatrix.at`."""
        weights, norms = self.weights.at(batch, heads, queries), self.norms
        for axis, (name, selected) in enumerate((("batch", batch), ("heads", heads))):
            if selected is not None:
                index = resolve_index(Checks(), name, selected, norms.shape[axis], norms.device)
                assert index is not None  # `weights` took it
                norms = norms.index_select(axis, index)
        return type(self)(weights, norms)

    def __getitem__(self, index: Any) -> Tensor:
        """`dense()[index]`, computing only the rows that it needs."""
        return self.weights[index] * self.norms[:, :, None].expand(self.shape)[index]

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The whole matrix, (batch, heads, queries, keys).

        Args:
            limit: Largest number of cells; 2**28 by default, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are more.
        """
        return self.weights.dense(limit) * self.norms[:, :, None]

    def product(self, columns: Tensor) -> Tensor:
        return self.weights @ (self.norms[..., None] * columns)

    def transposed_product(self, y: Tensor) -> Tensor:
        return self.norms[..., None] * (self.weights.mT @ y.to(self.dtype).expand(*self.shape[:2], -1, -1))

    def in_dtype_of_sums(self) -> Self:
        """The same matrix, in whose gradients those of several blocks are added up before they are rounded."""
        return type(self)(self.weights.in_dtype_of_sums(), self.norms)

    def on_device(self, device: torch.device) -> Self:
        """The same matrix on another device."""
        return type(self)(self.weights.on_device(device), self.norms.to(device))

    def detach(self) -> Self:
        """The same matrix, detached from the graph of its tensors."""
        return type(self)(self.weights.detach(), self.norms.detach())


def weighted_values(layer: Layer, projection: Float[Tensor, "d_model width"] | None = None) -> WeightedValues:
    """The norm of what each key adds to the output of a query, ‖Pᵢⱼ f(xⱼ)‖ with f(x) = W_O (W_V x + b_V), by head.

    A weight says how much a value counts, not how large it is: a token with a large weight and a small value, as that
    of an attention sink, adds little.

    Args:
        layer: A layer of ``regard.watch(model, keep_values=True)``.
        projection: W_O, (d_model, heads · value_dim) as in ``nn.Linear.weight``, such as
            ``model.encoder.layer[0].attention.output.dense.weight``; for ``Conv1D`` in GPT-2, its transpose. Default:
            the norms of the values alone.

    Returns:
        WeightedValues: (batch, heads, queries, keys), computed on demand.

    Raises:
        InvalidType: If an argument has the wrong type.
        InvalidArgument: If the layer has no values, or the projection does not fit.

    Memory:
        O(tokens · d_model).

    Reference:
        Kobayashi, Kuribayashi, Yokoi, Inui 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector
        Norms", section 3.1.

    Examples:
        >>> import regard, torch, transformers
        >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=99)
        >>> model = transformers.BertModel(config).eval()
        >>> with regard.watch(model, keep_values=True) as result, torch.no_grad():
        ...     output = model(torch.randint(99, (1, 10)))
        >>> projection = model.encoder.layer[0].attention.output.dense.weight.detach()
        >>> regard.analysis.weighted_values(result.layers[0], projection)
        WeightedValues(shape=(1, 4, 10, 10))
    """
    if not isinstance(layer, Layer):
        raise InvalidType(f"layer: expected a layer of a recording, got {type(layer).__name__}")
    if projection is not None and not isinstance(projection, Tensor):
        raise InvalidType(f"projection: expected a tensor or None, got {describe(projection)}")
    value, weights = layer.value, layer.weights
    if value is None:
        raise InvalidArgument(f"layer: {layer.name} has no values; watch with keep_values=True")
    batch, heads, _, _ = weights.shape
    value = value.to(weights.dtype).expand(batch, -1, -1, -1)
    value = value.repeat_interleave(heads // value.shape[1], 1)
    if projection is None:
        return WeightedValues(weights, value.norm(dim=-1))
    width, last = value.shape[3], max(layer.head_indices)
    if projection.ndim != 2 or projection.shape[1] % width or projection.shape[1] // width <= last:
        raise InvalidArgument(
            f"projection: expected shape (d_model, heads · {width}) with more than {last} heads, as the weight of a "
            f"linear layer, got {tuple(projection.shape)}"
        )
    parts = projection.to(value).unflatten(1, (-1, width))  # (d_model, heads, value_dim)
    of_heads = zip(value.unbind(1), layer.head_indices, strict=True)
    norms = [(each @ parts[:, head].mT).norm(dim=-1) for each, head in of_heads]
    return WeightedValues(weights, torch.stack(norms, 1))
