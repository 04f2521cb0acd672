"""Masks whose rows are a few ranges of keys: most masks are, and take memory linear in the queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor

from regard.checks import Checks
from regard.ops.masks.base import Mask, MaskLike
from regard.ops.masks.convert import check_mask
from regard.ops.steps import Place, Step
from regard.ops.tile import Index, KeyRange, Shape, Tile


class Spans(Mask):
    """Each query attends to a few ranges of keys: key j is visible if starts <= j < stops for one of them.

    Args:
        starts: (batch or 1, heads or 1, queries, spans) integers: the first key of each range.
        stops: The same shape: one past its last key. A range with ``stops <= starts`` is empty.

    Raises:
        InvalidType: If they are not integers.
        InvalidArgument: If their shapes differ or have other axes.

    Memory:
        O(queries * spans).

    Examples:
        >>> import regard, torch
        >>> starts, stops = torch.tensor([[0], [1]]), torch.tensor([[2], [4]])
        >>> x = torch.ones(1, 1, 4, 8)
        >>> mask = regard.ops.masks.Spans(starts[None, None], stops[None, None])
        >>> regard.weights(x[:, :, :2], x, mask=mask)[0, 0]
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.3333, 0.3333, 0.3333]])
    """

    starts: Integer[Tensor, "#batch #heads queries spans"]
    stops: Integer[Tensor, "#batch #heads queries spans"]

    def __post_init__(self) -> None:
        checks = Checks()
        valid = [
            checks.tensor(name, value, "integer")
            for name, value in (("Spans.starts", self.starts), ("Spans.stops", self.stops))
        ]
        if all(valid) and (self.starts.ndim != 4 or self.starts.shape != self.stops.shape or not self.starts.shape[3]):
            checks.fail(
                "Spans: expected starts and stops of shape (batch or 1, heads or 1, queries, spans), with at least one "
                f"span, got {tuple(self.starts.shape)} and {tuple(self.stops.shape)}"
            )
        checks.raise_problems()

    def allowed(self, tile: Tile) -> Bool[Tensor, "..."]:
        starts, stops = tile.slice_rows(self.starts), tile.slice_rows(self.stops)
        allowed = torch.zeros((), dtype=torch.bool, device=starts.device)
        for start, stop in zip(starts.unbind(-1), stops.unbind(-1), strict=True):
            allowed = allowed | ((tile.kv_idx >= start[..., None]) & (tile.kv_idx < stop[..., None]))
        return allowed

    def summarize(self) -> tuple[Int[Tensor, " queries"], ...]:
        """Per query, on the CPU: first key, one past the last, and the same of the range that all heads see whole."""
        starts, stops = torch.stack((self.starts, self.stops)).cpu().to(torch.int64)
        empty = stops <= starts
        first = starts.masked_fill(empty, torch.iinfo(torch.int64).max).amin((0, 1, 3))
        last = stops.masked_fill(empty, 0).amax((0, 1, 3))
        longest = (stops - starts).argmax(3, keepdim=True)
        return first, last, starts.gather(3, longest).amax((0, 1, 3)), stops.gather(3, longest).amin((0, 1, 3))

    def key_range(self, tile: Tile) -> KeyRange:
        first, last, _, _ = (each[_on_cpu(tile.rows)] for each in tile.summary(self))
        start, stop = int(first.min()), int(last.max())
        return tile.clip(start, stop) if start < stop else tile.no_keys

    def full_key_range(self, tile: Tile) -> KeyRange:
        _, _, first, last = (each[_on_cpu(tile.rows)] for each in tile.summary(self))
        start, stop = int(first.max()), int(last.min())
        return tile.clip(start, stop) if start < stop else tile.no_keys

    def steps(self, place: Place) -> list[Step]:
        steps: list[Step] = []
        for span in range(self.starts.shape[3]):
            steps += [Step("ranges", tensors=partial(self._span, span)), Step("or")]
        return [steps[0], *steps[2:]]

    def _span(self, number: int) -> tuple[Tensor, Tensor]:
        """First key and stop of a span of each row, (batch or 1, heads or 1, queries, 1)."""
        only = slice(number, number + 1)
        return self.starts[..., only].to(torch.int64), self.stops[..., only].to(torch.int64)

    def check(self, checks: Checks, shape: Shape, head_dim: int, device: torch.device) -> None:
        batch, heads, queries, _ = shape
        sizes = self.starts.shape[:3]
        if sizes[0] not in (1, batch) or sizes[1] not in (1, heads) or sizes[2] != queries:
            checks.fail(
                "Spans: expected starts and stops for (batch or 1, heads or 1, queries) = "
                f"{(batch, heads, queries)}, got {tuple(sizes)}"
            )
        checks.device("Spans", self.starts, device)


def to_spans(
    mask: MaskLike,
    shape: Shape,
    offset: int | None = None,
    device: str | torch.device = "cpu",
    max_spans: int = 64,
    max_cells: int = 2**22,
) -> Spans | None:
    """Convert a mask to ranges of keys.

    Args:
        mask: Any mask that `attend` takes.
        shape: (batch, heads, queries, keys).
        offset: Query i has position i + offset. Default: keys - queries.
        device: Device of the mask's tensors.
        max_spans: Largest number of ranges per row.
        max_cells: Largest number of cells of the mask that are computed at once; at least one row of each head is.

    Returns:
        Spans: With batch or head size 1 where the mask does not depend on them. None if a row needs more ranges.

    Raises:
        InvalidArgument: If the mask does not fit the shape.
        InvalidType: If shape or offset are not integers, or the mask is not one.

    Memory:
        O(queries), and one block of the mask at a time.

    Examples:
        >>> import regard
        >>> from regard.ops.masks import to_spans
        >>> to_spans(regard.Causal(), (2, 8, 3, 3)).stops.tolist()
        [[[[1], [2], [3]]]]
    """
    rule, offset = check_mask(mask, shape, offset, torch.device(device))
    batch, heads, queries, keys = shape
    step = max(1, max_cells // (batch * heads * keys))

    def blocks() -> Iterator[Tensor]:
        for first in range(0, queries, step):
            rows = slice(first, min(first + step, queries))
            tile = Tile(slice(0, batch), slice(0, heads), rows, KeyRange(0, keys), offset, torch.device(device))
            allowed = rule.allowed(tile)
            lead = (1,) * (4 - allowed.ndim) + tuple(allowed.shape)
            yield allowed.reshape(lead).expand(*lead[:2], rows.stop - rows.start, keys)

    return spans_of_rows(blocks(), max_spans)


def spans_of_rows(blocks: Iterable[Bool[Tensor, "batch heads rows keys"]], max_spans: int = 64) -> Spans | None:
    """The ranges of keys in blocks of rows of a dense mask; None if a row has more than `max_spans`."""
    parts: list[tuple[Tensor, Tensor]] = []
    for allowed in blocks:
        steps = torch.nn.functional.pad(allowed.to(torch.int8), (1, 1)).diff()  # 1 where a range starts, −1 after it
        count = int((steps > 0).sum(-1).max())
        if count > max_spans:
            return None
        parts.append((_indices(steps > 0, count), _indices(steps < 0, count)))
    width = max(1, *(starts.shape[-1] for starts, _ in parts))
    sides = (torch.cat([_pad(each, width) for each in side], 2) for side in zip(*parts, strict=True))
    return Spans(*sides)


def _indices(marked: Tensor, count: int) -> Tensor:
    """The keys at which each row is marked, (..., count), padded with 0."""
    at = marked.nonzero()
    indices = torch.zeros(*marked.shape[:-1], count, dtype=torch.int32, device=marked.device)
    rank = marked.cumsum(-1)[tuple(at.T)] - 1
    indices[(*at[:, :-1].T, rank)] = at[:, -1].to(torch.int32)
    return indices


def _pad(indices: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(indices, (0, width - indices.shape[-1]))


def _on_cpu(index: Index) -> Index:
    return index if isinstance(index, slice) else index.cpu()
