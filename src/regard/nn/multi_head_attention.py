"""Multi-head attention: projections around `regard.attend`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks, describe
from regard.native.linear import Linear
from regard.nn.cache import CrossAttentionCache, KVCache
from regard.nn.from_torch import State, attention_names, attention_options, with_weights
from regard.nn.relative_positions import AttentionPositions
from regard.nn.torch_masks import check_without_positions, convert_torch_masks
from regard.ops import AttentionOutput, attend
from regard.ops.masks import MaskLike
from regard.ops.measures import MeasureLike
from regard.ops.scores import ScaledDotProduct


class MultiHeadAttention(nn.Module):
    """Attention in several heads, each with its own projection of query, key and value.

    MultiHead(q, k, v) = concat(head₁, …, head_h) W_O, headᵢ = attend(q W_Qᵢ, k W_Kᵢ, v W_Vᵢ)

    ``in_proj`` holds the three input projections in one matrix, with rows in the order query, key, value as in
    ``torch.nn.MultiheadAttention``. Self-attention then needs one matrix multiplication for all of them. `from_torch`
    makes the layer from such a module; ``attn_mask`` and ``key_padding_mask`` mean what they mean there, while True in
    ``mask`` means that a query may attend.

    Args:
        d_model: Size of query, key, value and output.
        num_heads: Number of query heads; divides d_model unless head_dim is set.
        num_kv_heads: Number of key and value heads; divides num_heads. Default: num_heads.
        bias: Whether the projections have a bias.
        out_bias: Whether the output projection has a bias. Default: as bias.
        dropout: Dropout rate for the attention weights.
        head_dim: Size of each head. Default: d_model / num_heads.
        positions: Position encoding inside self-attention, such as `RelativePositions`. Default: none.

    Raises:
        InvalidType: If a size is not an int or dropout is not a number.
        InvalidArgument: If a size is below 1, sizes do not divide each other, or dropout is not in [0, 1).

    Reference: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, "GQA" (num_kv_heads < num_heads).

    Examples:
        >>> import torch
        >>> attended = MultiHeadAttention(16, 4)(torch.randn(2, 5, 16))
        >>> attended.output.shape, attended.weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        head_dim: int | None = None,
        positions: AttentionPositions | None = None,
    ) -> None:
        super().__init__()
        with Checks() as checks:
            check_heads(checks, d_model, num_heads, num_kv_heads, head_dim)
            checks.number("dropout", dropout, low=0, below=1)
        self.d_model, self.num_heads = d_model, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = d_model // num_heads if head_dim is None else head_dim
        self.dropout = dropout
        self.positions = positions
        self.in_proj = Linear(d_model, sum(self.projection_sizes), bias=bias)
        self.out_proj = Linear(self.projection_sizes[0], d_model, bias=bias if out_bias is None else out_bias)
        self.reset_parameters()

    @classmethod
    def from_torch(
        cls, source: nn.MultiheadAttention | State, *, num_heads: int | None = None, dropout: float | None = None
    ) -> Self:
        """Make the layer that equals an ``nn.MultiheadAttention`` with ``batch_first=True``.

        Weights are copied, in their dtype and on their device; frozen ones stay frozen. Calls differ: the layer returns
        an `AttentionOutput`, and a query that may attend to no key has output 0 (before ``out_proj``), not NaN.

        Args:
            source: The module, or its state dict.
            num_heads: For a state dict: the number of heads. With a module: None.
            dropout: For a state dict: dropout rate for the weights. Default: that of the module; 0 for a state dict.

        Raises:
            InvalidType: If source is neither, or a subclass computes attention in its own way.
            InvalidArgument: If the module has an option that this layer lacks (``batch_first=False``, ``add_bias_kv``,
                ``add_zero_attn``, ``kdim``, ``vdim``), or a parameter of the state dict is missing, unknown or has a
                wrong shape.

        Examples:
            >>> import torch
            >>> module, x = torch.nn.MultiheadAttention(16, 4, batch_first=True), torch.randn(2, 5, 16)
            >>> future = torch.ones(5, 5).triu(1).bool()
            >>> output, _ = module(x, x, x, attn_mask=future)
            >>> torch.allclose(MultiHeadAttention.from_torch(module)(x, attn_mask=future).output, output, atol=1e-6)
            True
        """
        options, state = attention_options(source, num_heads, dropout)
        layer = with_weights(partial(cls, **options), state, attention_names(state))
        return layer.train(source.training) if isinstance(source, nn.Module) else layer

    @property
    def projection_sizes(self) -> tuple[int, int, int]:
        """Number of rows of the input projection for query, key and value."""
        kv_size = self.head_dim * self.num_kv_heads
        return self.head_dim * self.num_heads, kv_size, kv_size

    def reset_parameters(self) -> None:
        """Initialize the matrices with Xavier's uniform distribution, as torch and fairseq do, and biases with 0."""
        for projection in (self.in_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "batch queries d_model"],
        key: Float[Tensor, "batch keys d_model"] | None = None,
        value: Float[Tensor, "batch keys d_model"] | None = None,
        *,
        mask: MaskLike | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        measure: MeasureLike = (),
        cache: KVCache | CrossAttentionCache | None = None,
        offset: int | None = None,
    ) -> AttentionOutput:
        """Attend from query to key.

        Args:
            query: (batch, queries, d_model).
            key: (batch, keys, d_model). Default: self-attention.
            value: (batch, keys, d_model). Default: key.
            mask: As in `regard.attend`: True where a query may attend.
            attn_mask: As in ``nn.MultiheadAttention``, the opposite: (queries, keys) or (batch · heads, queries, keys),
                True where a query may not attend; or a float tensor that is added to the scores.
            key_padding_mask: As in ``nn.MultiheadAttention``: (batch, keys), True where a key is padding; or a float
                tensor that is added to the scores. What any of the three masks forbids is forbidden.
            measure: As in `regard.attend`.
            cache: In self-attention a `KVCache`, to which the keys and values of this call are appended; in
                cross-attention a `CrossAttentionCache`, which the first call fills and later calls read.
            offset: Position of the first query, as in `regard.attend`. Default: after the cached keys.

        Returns:
            AttentionOutput: ``output`` (batch, queries, d_model); ``weights`` a view (batch, num_heads, queries, keys).

        Raises:
            InvalidType: If query, key or value is not a tensor, or attn_mask or key_padding_mask is neither a bool nor
                a floating-point tensor.
            InvalidArgument: If a shape, a dtype or the type of the cache is wrong, or the layer has positions and one
                of these masks is floating-point.
        """
        self._check(query, key, value, cache)
        if key is None:
            heads = self._heads(self.in_proj(query))
            query_heads, key_heads, value_heads = heads.split(
                [self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1
            )
            if self.positions is not None:
                first = cache.length if isinstance(cache, KVCache) else 0  # position of the first new key
                query_heads = self.positions.rotate(query_heads, first if offset is None else offset)
                key_heads = self.positions.rotate(key_heads, first)
            if isinstance(cache, KVCache):
                key_heads, value_heads = cache.append(key_heads, value_heads)
        else:
            query_heads, key_heads, value_heads = self._project(query, key, value, cache)
        compute = attend if self.positions is None else self.positions  # which add a bias to the scores
        if attn_mask is not None or key_padding_mask is not None:
            shape = (query.shape[0], self.num_heads, query.shape[1], key_heads.shape[2])
            mask, bias = convert_torch_masks(mask, attn_mask, key_padding_mask, shape)
            if bias is not None:
                check_without_positions(self.positions)
                compute = partial(attend, score=ScaledDotProduct() + bias)
        attended = compute(
            query_heads.to(key_heads.dtype),  # a cache may store keys in a larger dtype
            key_heads,
            value_heads,
            mask=mask,
            offset=offset,
            dropout=self.dropout if self.training else 0.0,
            measure=measure,
        )
        heads = attended.output.to(query_heads.dtype).transpose(1, 2).flatten(2)  # (batch, queries, heads · head_dim)
        return replace(attended, output=self.out_proj(heads))

    def _project(
        self, query: Tensor, key: Tensor, value: Tensor | None, cache: KVCache | CrossAttentionCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project query, key and value of cross-attention to heads; a filled cache replaces key and value."""
        key_row, kv_size, _ = self.projection_sizes
        value_row = key_row + kv_size
        query_heads = self._heads(self.in_proj.forward_rows(query, slice(key_row)))
        if isinstance(cache, CrossAttentionCache) and cache.key_value is not None:
            return query_heads, *cache.key_value
        if value is None:
            key_heads, value_heads = self._heads(self.in_proj.forward_rows(key, slice(key_row, None))).chunk(2, dim=1)
        else:
            key_heads = self._heads(self.in_proj.forward_rows(key, slice(key_row, value_row)))
            value_heads = self._heads(self.in_proj.forward_rows(value, slice(value_row, None)))
        if isinstance(cache, CrossAttentionCache):
            key_heads, value_heads = cache.fill(key_heads, value_heads)
        return query_heads, key_heads, value_heads

    def _heads(self, projected: Tensor) -> Tensor:
        """(batch, tokens, heads · head_dim) → (batch, heads, tokens, head_dim)."""
        return projected.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def _check(self, query: Tensor, key: Tensor | None, value: Tensor | None, cache: object) -> None:
        with Checks() as checks:
            sizes, weight = {"batch": None, "tokens": None, "d_model": self.d_model}, self.in_proj.weight
            for name, x in {"query": query, "key": key, "value": value}.items():
                if x is not None or name == "query":
                    checks.input(name, x, sizes, weight)
            if self.positions is not None and key is not None:
                kind = type(self.positions).__name__
                checks.fail(f"key: expected None with {kind}, which are for self-attention, got {describe(key)}")
            cache_type, kind = (KVCache, "self") if key is None else (CrossAttentionCache, "cross")
            if cache is not None and not isinstance(cache, cache_type):
                checks.fail(f"cache: expected a {cache_type.__name__} in {kind}-attention, got {describe(cache)}")
            if value is not None and key is None:
                checks.fail(f"value: expected None without key, got {describe(value)}; pass both or neither")
            if not checks.problems and key is not None:
                if key.shape[0] != query.shape[0]:
                    checks.fail(f"key: expected the query's batch {query.shape[0]}, got {key.shape[0]}")
                if value is not None and value.shape != key.shape:
                    checks.fail(f"value: expected the key's shape {tuple(key.shape)}, got {tuple(value.shape)}")


def check_heads(
    checks: Checks, d_model: int, num_heads: int, num_kv_heads: int | None = None, head_dim: int | None = None
) -> None:
    """Check that num_heads divides d_model, unless head_dim is set, and that num_kv_heads divides num_heads."""
    valid = [
        checks.integer("d_model", d_model, low=1),
        checks.integer("num_heads", num_heads, low=1),
        checks.integer("num_kv_heads", num_kv_heads, low=1, optional=True),
        checks.integer("head_dim", head_dim, low=1, optional=True),
    ]
    if all(valid) and head_dim is None and d_model % num_heads:
        checks.fail(f"num_heads: expected a divisor of d_model={d_model}, got {num_heads}")
    if all(valid) and num_kv_heads is not None and num_heads % num_kv_heads:
        checks.fail(f"num_kv_heads: expected a divisor of num_heads={num_heads}, got {num_kv_heads}")
