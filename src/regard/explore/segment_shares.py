"""The share of attention on parts of a text, of every head, as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.analysis.segment_positions import LayerSegments, resolve_segments
from regard.analysis.segments import segment_measures, segment_shares, segment_sizes
from regard.explore.page_format import SegmentHeader
from regard.ops.measures import Measure
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

DECIMALS = 8
"""Of a share. The page prints three, which are those of the share itself: float32 has fewer than eight."""


def layer_segments(recording: Recording) -> dict[str, LayerSegments]:
    """The segments of each layer by its name; none of an image, and of a layer whose queries are all padding."""
    if "image" in recording.texts:
        return {}
    layers = [layer for layer in recording.layers if _has_queries(layer)]
    return {resolved.layer.name: resolved for resolved in resolve_segments(layers, None, None)} if layers else {}


def _has_queries(layer: Layer) -> bool:
    valid = layer.weights.valid_queries
    return 0 not in layer.weights.shape and (valid is None or bool(valid.any()))


def measures_of_segments(resolved: LayerSegments | None) -> dict[str, Measure]:
    """What to measure of a layer for its segments."""
    return {} if resolved is None else segment_measures(resolved)


def segment_headers(resolved: LayerSegments | None, measured: Mapping[str, Any] | None = None) -> list[SegmentHeader]:
    """The ``segments`` field of a layer's header.

    Args:
        resolved: The segments of the layer.
        measured: The results of `measures_of_segments`. Default: they are measured.
    """
    if resolved is None:
        return []
    shares = segment_shares(resolved, measured)
    return [
        {
            "name": name,
            "num_tokens": size,
            "ranges": None if resolved.num_recent and name in ("middle", "recent") else _runs(resolved.keys[name]),
            "shares": [round(share, DECIMALS) for share in shares[name].tolist()],
        }
        for name, size in segment_sizes(resolved).items()
    ]


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of consecutive positions."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        start = runs.pop()[0] if runs and runs[-1][1] == position - 1 else position
        runs.append((start, position))
    return runs
