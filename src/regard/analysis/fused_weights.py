"""FusedWeights: the heads of a layer as one matrix, multiplied by vectors without ever being dense."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.token_grids import image_shape, merging_before
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import ProductMatrix, WeightMatrix
from regard.ops.row_blocks import RowBlocks
from regard.ops.tensor_functions import DENSE_LIMIT, check_cells
from regard.recordings.batch_axis import Windows
from regard.recordings.layer import Layer, common_part

Fusion = Callable[[Tensor], Tensor]
"""Makes one matrix of the heads of a block of rows: (batch, heads, rows, keys) → (batch, rows, keys)."""


@dataclass(frozen=True, eq=False)
class FusedWeights:
    """The heads of a layer as one matrix, (batch, queries, keys).

    Args:
        matrix: (batch, heads, queries, keys).
        fuse: How the heads become one; None for their mean, which needs no cells.
        discard_ratio: Which share of the cells, the smallest ones, is set to 0; but not the first cell.
        windows: How images were cut into the entries of the batch. Products then are those of (images, tokens, tokens)
            matrices of all tokens of an image, without those of padding.
    """

    matrix: RowBlocks
    fuse: Fusion | None = None
    discard_ratio: float = 0.0
    windows: Windows | None = None

    def times(self, columns: Float[Tensor, "batch keys columns"]) -> Float[Tensor, "batch queries columns"]:
        """The product with columns."""
        columns = self._cut(columns)
        if self.is_mean:
            return self._join((self.matrix @ columns[:, None]).mean(1))
        result = columns.new_zeros(len(columns), self.matrix.shape[2], columns.shape[2])
        for rows, part in self.blocks():
            result[:, rows] = part @ columns
        return self._join(result)

    def transposed_times(self, columns: Float[Tensor, "batch queries columns"]) -> Float[Tensor, "batch keys columns"]:
        """The product of the transpose with columns."""
        columns = self._cut(columns)
        if self.is_mean:
            return self._join((self.matrix.mT @ columns[:, None]).mean(1))
        batch, _, _, keys = self.matrix.shape
        total = columns.new_zeros(batch, keys, columns.shape[2])
        for rows, part in self.blocks():
            total = total + part.mT @ columns[:, rows]
        return self._join(total)

    def _cut(self, columns: Tensor) -> Tensor:
        """Columns of all tokens as those of the entries of the batch, 0 for padding."""
        if self.windows is None:
            return columns
        padded = torch.nn.functional.pad(columns, (0, 0, 0, 1))  # padding has the last index, -1
        return padded[:, self.windows.tokens.to(columns.device)].flatten(0, 1)

    def _join(self, columns: Tensor) -> Tensor:
        """The opposite of `_cut`."""
        if self.windows is None:
            return columns
        tokens = self.windows.tokens.flatten().to(columns.device)
        found = columns.unflatten(0, (-1, self.windows.count)).flatten(1, 2)[:, tokens >= 0]
        return torch.zeros_like(found).index_copy(1, tokens[tokens >= 0], found)

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean of the heads, whose products are the means of theirs."""
        return self.fuse is None and not self.discard_ratio

    def _fused_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for rows in self.matrix.query_blocks():
            block = self.matrix[:, :, rows]
            yield rows, block.mean(1) if self.fuse is None else self.fuse(block)

    @cached_property
    def _threshold(self) -> Tensor | None:
        """(batch, 1, 1) The largest cell that is discarded; None if none is."""
        batch, _, queries, keys = self.matrix.shape
        count = int(queries * keys * self.discard_ratio)
        if not count:
            return None
        check_cells(batch * queries * keys, DENSE_LIMIT, self.matrix.dtype)
        with torch.no_grad():
            cells = torch.cat([part.flatten(1) for _, part in self._fused_blocks()], 1)
            return cells.kthvalue(count).values[:, None, None]

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows, (batch, rows, keys), without the cells that are discarded."""
        threshold = self._threshold
        for rows, part in self._fused_blocks():
            if threshold is not None:
                is_kept = part > threshold
                if rows.start == 0:
                    is_kept[:, 0, 0] = True
                part = part * is_kept
            yield rows, part


def matrices_of(layers: Sequence[Layer | WeightMatrix]) -> list[WeightMatrix]:
    """The weight matrices of layers.

    Raises:
        InvalidType: If they are neither layers nor weight matrices.
        InvalidArgument: If there is none.
    """
    if not isinstance(layers, Sequence) or not all(isinstance(layer, (Layer, WeightMatrix)) for layer in layers):
        raise InvalidType(
            "layers: expected a list of layers or of weight matrices from the input on, as recording.layers.encoder, "
            f"got {type(layers).__name__}"
        )
    if not layers:
        raise InvalidArgument("layers: expected at least one layer, got none")
    return [layer.weights if isinstance(layer, Layer) else layer for layer in layers]


def check_self_attention(checks: Checks, layers: Sequence[Layer | WeightMatrix]) -> None:
    """Check that layers are the self-attention of one part of a model, with the same tokens as queries and as keys."""
    first, tokens = image_shape(layers[0])
    known = [layer for layer in layers if isinstance(layer, Layer)]
    problems: list[str] = []
    kinds = {layer.kind: layer.name for layer in known}
    if len(kinds) > 1:
        found = " and ".join(f"{kind} ({name})" for kind, name in kinds.items())
        problems.append(f"layers: expected the self-attention of one part of the model, got layers of kind {found}")
    for number, weights in enumerate(matrices_of(layers)):
        (batch, rows), name = image_shape(layers[number]), _name(layers, number)
        queries, keys = weights.shape[2:]
        if queries != keys:
            problems.append(f"layers: expected as many queries as keys in {name}, got {queries} and {keys}")
        merging, before = merging_before(layers, number), tokens
        tokens = tokens if merging is None else rows
        if (batch, rows) != (first, tokens):
            expected = f"expected batch {first} and {before} tokens, as in the first layer"
            problems.append(f"layers: {expected}, got {batch} and {rows} in {name}")
        axis = layers[number].batch_axis if isinstance(layers[number], Layer) else None
        if axis is not None and axis.unit == "window" and axis.windows is None:
            problems.append(f"layers: expected all windows of an image in {name}, got {len(weights.request.query)}")
    instead = _instead(known) if problems else ""
    for problem in problems[:1] if instead else problems:
        checks.fail(problem + instead)


def _name(layers: Sequence[Layer | WeightMatrix], number: int) -> str:
    layer = layers[number]
    return layer.name if isinstance(layer, Layer) else f"layer {number}"


def _instead(layers: Sequence[Layer]) -> str:
    """Which layers to pass instead of those of several parts of a model; empty if these are not known."""
    if any(layer.kind == "cross" for layer in layers):
        return "; pass result.layers.encoder or result.layers.decoder"
    groups: dict[tuple[str, int, int], list[str]] = {}
    for layer in layers:
        groups.setdefault((layer.kind, *image_shape(layer)), []).append(layer.name)
    names = [layer.name for layer in layers]
    parts = [common_part(group, [name for name in names if name not in group]) for group in groups.values()]
    if len(parts) < 2 or None in parts:
        return ""
    return "; pass " + " or ".join(f"result.layers.within({part!r})" for part in parts)


def gradient_times_weights(layer: Layer | WeightMatrix, number: int) -> ProductMatrix:
    """The weights of a layer times their gradients, cell by cell; both count as constants.

    Raises:
        InvalidArgument: If it has no gradient.
    """
    weights = layer.weights if isinstance(layer, Layer) else layer
    gradient = weights.grad
    if gradient is None:
        name = layer.name if isinstance(layer, Layer) else f"layer {number}"
        raise InvalidArgument(
            f"layers: {name} has no gradient; record it with regard.watch(model, weight_gradients=True), and call "
            "backward() on a loss that depends on the layer"
        )
    return ProductMatrix(gradient, weights).detach()
