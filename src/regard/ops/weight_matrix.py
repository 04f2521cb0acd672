"""WeightMatrix: the weights after softmax, any part of which is computed on demand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops.gradient_matrix import GradientMatrix, GradientSource, select_gradient
from regard.ops.indexing import Selection, resolve_index
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import slices
from regard.ops.kernels.dispatch import prepare
from regard.ops.linear_operator import as_columns, linear_operator, require_one_head
from regard.ops.masks import Causal, Window
from regard.ops.masks.base import find_part
from regard.ops.matrix import Matrix, ScoreMatrix
from regard.ops.measures import Measure, MeasureLike, Received, TopK, TopKResult, TransposedProduct, as_measures
from regard.ops.request import in_dtype_of_sums
from regard.ops.tensor_functions import DENSE_LIMIT, MaxOverKeys, TensorFunctions, check_cells
from regard.ops.tile import KeyRange
from regard.ops.tree import tensors_in

CELLS_PER_STEP = 2**22
"""Numbers that a block of columns holds at once: 16 MiB in float32."""


class WeightMatrix(Matrix):
    """The weights after softmax, computed on demand, exactly and with gradients.

    It holds query, key, mask and score, and nothing of size queries × keys. Weights are per query head, also where
    heads share their keys. After an in-place change of query, key, mask or score it raises `StaleView`; what `at`
    selected is a copy of the queries and keys.

    The weights of a watched model know which queries are padding (`valid_queries`): these add nothing to `received`,
    nor to losses. Their rows stay what the model computed.

    Examples:
        >>> import regard, torch
        >>> query, key = torch.randn(2, 1, 8, 2000, 64).unbind(0)
        >>> W = regard.weights(query, key, mask=regard.Causal())
        >>> W  # doctest: +NORMALIZE_WHITESPACE
        WeightMatrix(batch=1, heads=8, queries=2000, keys=2000, mask=Causal(), float32, cpu,
            holds 8.2 MB instead of 128.0 MB)
        >>> torch.allclose(W[0, 3, 120].sum(), torch.tensor(1.0))
        True
        >>> W.topk(3).indices.shape
        torch.Size([1, 8, 2000, 3])
    """

    _source = "weights"
    _gradient: GradientSource = None

    def with_gradient(self, gradient: GradientSource) -> Self:
        """Set what `grad` returns, and return the matrix."""
        self._gradient = gradient
        return self

    @property
    def grad(self) -> GradientMatrix | None:
        """The gradient of a loss with respect to the weights, as lazy as they are.

        It is recorded by ``regard.watch(model, weight_gradients=True)``. None for other matrices, and for layers that
        the loss does not depend on.

        Raises:
            InvalidArgument: If a watch waits for the backward pass, or cannot give the gradient of this layer.
        """
        gradient = select_gradient(self._gradient)
        if isinstance(gradient, str):
            raise InvalidArgument(gradient)
        return gradient

    def at(self, batch: Selection = None, heads: Selection = None, queries: Selection = None) -> Self:
        part = super().at(batch, heads, queries)
        if isinstance(self._gradient, GradientMatrix):
            part._gradient = self._gradient.at(batch, heads, queries)
        elif self._gradient is not None:
            part._gradient = partial(select_gradient, self._gradient, batch, heads, queries)
        return part

    def on_device(self, device: torch.device) -> Self:
        matrix, gradient = super().on_device(device), select_gradient(self._gradient)
        matrix._gradient = gradient.on_device(device) if isinstance(gradient, GradientMatrix) else None
        return matrix

    def detach(self) -> Self:
        """The same matrix, detached from the graph of its tensors, with the gradient that it has now."""
        matrix, gradient = super().detach(), select_gradient(self._gradient)
        matrix._gradient = gradient if isinstance(gradient, GradientMatrix) else None
        return matrix

    @property
    def is_triangular(self) -> bool:
        """Whether no query may attend to a key after its own index."""
        request = self.request
        windows = [find_part(request.mask, each) for each in (Causal, Window)]
        limits = [window.right for window in windows if window is not None and window.right is not None]
        return request.rows is None and any(right + request.offset <= 0 for right in limits)

    @property
    def scores(self) -> ScoreMatrix:
        """The matrix before softmax."""
        self._check_unchanged()
        return ScoreMatrix(self.request, self.valid_queries, self.kernel)

    def measure(self, *measures: str | Measure | MeasureLike) -> dict[str, Any]:
        """Compute measures in one pass.

        Args:
            measures: Names and measures, or one dict that names the results, as in `attend`.

        Returns:
            The results by name, in float32 (float64 for float64).

        Raises:
            InvalidArgument: If a name is unknown or occurs twice, or an argument does not fit the matrix.
            InvalidType: If something is neither a name nor a measure.

        Memory:
            O(queries + keys), forward and backward.

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(1, 8, 50, 16), torch.randn(1, 8, 60, 16))
            >>> {name: tuple(result.shape) for name, result in W.measure("entropy", "received").items()}
            {'entropy': (1, 8, 50), 'received': (1, 8, 60)}
        """
        named = as_measures(measures[0] if len(measures) == 1 else measures)  # pyright: ignore[reportArgumentType]
        if not named:
            return {}
        checks = Checks()
        for measure in named.values():
            measure.check(checks, self.request.shape, self.request.query.shape[3], self.device)
        checks.raise_problems()
        self._check_unchanged()
        if self.valid_queries is not None:
            named = {name: measure.for_valid_queries(self.valid_queries) for name, measure in named.items()}
        return self._evaluate(self.request, named)

    def entropy(self) -> Float[Tensor, "batch heads queries"]:
        """Entropy of each row in nats, (batch, heads, queries); see `Entropy`."""
        return self.measure("entropy")["entropy"]

    def lse(self) -> Float[Tensor, "batch heads queries"]:
        """Log-sum-exp of the scores of each row, (batch, heads, queries); see `LogSumExp`."""
        return self.measure("lse")["lse"]

    def received(self, row_weights: Tensor | None = None) -> Float[Tensor, "batch heads keys"]:
        """Attention that each key receives, (batch, heads, keys), padding queries left out if known; see `Received`."""
        return self.measure(Received(row_weights))["received"]

    def topk(self, k: int, dim: int = -1, largest: bool = True, *rest: bool, **options: bool) -> Any:
        """The k strongest keys of each row: values and indices, (batch, heads, queries, k); see `TopK`.

        Args:
            k: Number of keys.
            dim: The axis; over batch and heads, the dense matrix is computed.
            largest: Whether to return the largest; for the smallest, the dense matrix is computed.
            rest: ``sorted``, as in ``torch.topk``; they always are.
            options: The same.
        """
        if not largest or dim not in (2, 3, -1, -2):
            return super().topk(k, dim, largest, *rest, **options)
        if dim in (2, -2):
            return TopKResult(*(part.mT for part in self.mT.topk(k)))
        return self.measure(TopK(k))["topk"]

    def max(self, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
        """The largest weight; with an axis, the largest weights and their indices, as ``dense().max(dim)``."""
        if options or dim not in (3, -1):
            return super().max(dim, keepdim, **options)
        values, indices = self.topk(1)
        top = MaxOverKeys(values, indices.clamp(min=0))
        return top if keepdim else MaxOverKeys(*(part.squeeze(-1) for part in top))

    def reduce_axes(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """By measures, which need no block of the matrix, where they say what a sum over queries or keys is."""
        self._check_unchanged()
        if name == "sum" and 3 in dims:
            ones = torch.ones(self.shape[3], dtype=self.dtype, device=self.device)
            parts = self.__matmul__(ones)[..., None]
        elif name == "sum" and 2 in dims:
            parts = self._evaluate(self.request, as_measures("received"))["received"][:, :, None]
        elif name == "amax" and 3 in dims:
            parts = self._evaluate(self.request, as_measures("max"))["max"].weight[..., None]
        else:
            return super().reduce_axes(name, dims)
        rest = tuple(dim for dim in dims if parts.shape[dim] > 1)
        return getattr(torch, name)(parts, rest, keepdim=True) if rest else parts

    def columns(self, keys: Selection) -> Float[Tensor, "batch heads queries columns"]:
        """The columns of some keys, (batch, heads, queries, columns).

        Args:
            keys: An int, several, bools or a slice.

        Raises:
            InvalidArgument: If a key is out of range, none is selected, or the result has more cells than `dense`
                computes by default.
            InvalidType: If it is not an index.

        Memory:
            O(queries * columns + keys).

        Examples:
            >>> import regard, torch
            >>> W = regard.weights(torch.randn(1, 8, 50, 16), torch.randn(1, 8, 60, 16))
            >>> torch.allclose(W.columns([3, 5]), W[..., [3, 5]])
            True
        """
        checks = Checks()
        indices = resolve_index(checks, "keys", slice(None) if keys is None else keys, self.shape[3], self.device)
        checks.raise_problems()
        assert indices is not None
        self._check_unchanged()
        check_cells(self.shape[0] * self.shape[1] * self.shape[2] * len(indices), DENSE_LIMIT, self.dtype)
        unique, place = indices.unique(return_inverse=True)
        breaks = ((unique.diff() != 1).nonzero().flatten() + 1).tolist()
        bounds = [0, *breaks, len(unique)]
        runs = [slice(int(unique[first]), int(unique[last - 1]) + 1) for first, last in pairwise(bounds)]
        return torch.cat(list(self.column_blocks(runs)), -1)[..., place]

    def column_blocks(self, runs: list[slice]) -> Iterator[Tensor]:
        """The columns of ranges of keys in parts of limited size, (batch, heads, queries, columns) each.

        The largest weight of each row, from which `MaxResult.weights_of` computes the others, takes one pass.
        """
        request = self.request.in_dtype_of_sums()
        strongest = self._evaluate(request, as_measures("max"))["max"]
        batch, heads, queries, head_dim = request.query.shape
        step = max(1, CELLS_PER_STEP // (batch * heads * queries * request.score.workspace_per_cell(head_dim)))
        for part in (part for run in runs for part in slices(run, step)):
            yield strongest.weights_of(request.scores_of_keys(KeyRange(part.start, part.stop)))

    def topk_of_columns(self, k: int) -> TopKResult:
        """The k strongest queries of each key; see `Transposed.topk`."""
        self._check_unchanged()
        batch, heads, queries, keys = self.shape
        count = min(k, queries)
        check_cells(batch * heads * keys * count, DENSE_LIMIT, self.dtype)
        with torch.no_grad():
            top = [block.topk(count, 2) for block in self.column_blocks([slice(0, keys)])]
        values, indices = (
            torch.cat([part[which].mT for part in top], 2) for which in (0, 1)
        )  # (batch, heads, keys, k)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(self.request)):
            key = torch.arange(keys, device=self.device)[:, None]
            rows = (torch.arange(batch * heads, device=self.device) * queries).view(batch, heads, 1, 1) + indices
            values = self._cells(rows, key.expand_as(rows))
        indices = indices.masked_fill(values == 0, -1)
        missing = (0, k - count)
        return TopKResult(torch.nn.functional.pad(values, missing), torch.nn.functional.pad(indices, missing, value=-1))

    def __matmul__(
        self, x: Float[Tensor, " keys"] | Float[Tensor, "... keys columns"]
    ) -> Float[Tensor, "batch heads queries"] | Float[Tensor, "batch heads queries columns"]:
        """The product with a vector or a matrix, as ``dense() @ x``.

        Args:
            x: (keys,), (keys, columns), or (..., keys, columns) broadcastable to batch and heads; where query heads
                share key heads, it may have as many heads as the key.

        Returns:
            (batch, heads, queries) or (batch, heads, queries, columns), in the dtype of x.

        Raises:
            InvalidArgument: If x does not fit.
            InvalidType: If it is not a floating-point tensor.
        """
        x = x.dense_for("matmul") if isinstance(x, TensorFunctions) else x
        value = as_columns("W @ x", x, self.shape, 3, self.device, self.request.key.shape[1])
        self._check_unchanged()
        if x.requires_grad and len(value) < self.shape[0]:  # its gradient is a sum over the batch
            value = in_dtype_of_sums(value, self.dtype)
        inputs = KernelInputs(value.expand(self.shape[0], -1, -1, -1), self.request, {})
        output, _ = prepare(inputs, self.kernel).run(inputs)
        assert output is not None
        return (output[..., 0] if x.ndim == 1 else output).to(x.dtype)

    def transposed_product(self, y: Tensor) -> Tensor:
        return self.measure({"product": TransposedProduct(y)})["product"]

    def linear_operator(self) -> Any:
        """One head's weights as `scipy.sparse.linalg.LinearOperator`, for singular values and the like.

        Returns:
            An operator of shape (queries, keys) on NumPy arrays.

        Raises:
            InvalidArgument: If this is not one head of one batch entry; select it by ``W.at(batch=0, heads=3)``.
            MissingExtra: If SciPy is not installed.

        Examples:
            >>> import regard, torch
            >>> from scipy.sparse.linalg import svds
            >>> _ = torch.manual_seed(0)
            >>> W = regard.weights(torch.randn(1, 8, 500, 64), torch.randn(1, 8, 500, 64))
            >>> largest = svds(W.at(heads=3).linear_operator(), k=2, return_singular_vectors=False, rng=0)
            >>> bool(abs(largest.max() - torch.linalg.svdvals(W[0, 3])[0]) < 1e-4)
            True
        """
        require_one_head("linear_operator", self.shape)
        weights = self.detach()
        return linear_operator(weights.__matmul__, weights.mT.__matmul__, self.shape[2:], self.dtype, self.device)
