"""Figures of heads and of layers, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.analysis.heads import HEAD_SCORES, Columns
from regard.analysis.recording import Layer
from regard.errors import InvalidArgument, InvalidType, MissingExtra, did_you_mean, raise_problems
from regard.ops.measures import BlockMean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 1024
"""How many rows and keys `plot_weights` shows as they are; of more it shows means of squares."""
NAMED = 40
"""How many tokens are named at an axis."""
SHORT = 12
"""How many letters the name of a layer has at most where it is an axis's."""


def plot_heads(scores: Columns, names: Sequence[str] | None = None) -> Figure:
    """What heads do: for each score a map, a row for each layer and a column for each head.

    Args:
        scores: As `head_scores` gives them.
        names: Which scores to show. Default: all that are told.

    Returns:
        A figure: ``figure.savefig("heads.png")``.

    Raises:
        InvalidType: If these are no scores.
        InvalidArgument: If a score is unknown, or there is nothing to show.
        MissingExtra: If matplotlib is not installed.
    """
    missing = [name for name in ("layer", "head") if not isinstance(scores, Mapping) or name not in scores]
    if missing:
        raise InvalidType(
            f"scores: expected what `head_scores` gives, got {type(scores).__name__} without {missing[0]!r}"
        )
    lengths = {len(scores[name]) for name in ("layer", "head", *HEAD_SCORES) if name in scores}
    raise_problems(["scores: expected columns of one length"] if len(lengths) > 1 else [])
    told = [name for name in HEAD_SCORES if name in scores and not np.isnan(scores[name]).all()]
    names = [names] if isinstance(names, str) else names
    raise_problems([f"names: no score {name!r}{did_you_mean(name, told)}" for name in names or () if name not in told])
    shown = told if names is None else list(names)
    if not shown:
        raise InvalidArgument("scores: there is nothing to show")
    layers = list(dict.fromkeys(scores["layer"]))
    heads = max(scores["head"]) + 1
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    size = max(2.4, 0.22 * heads + 1.2), max(1.8, 0.22 * len(layers) + 0.9)
    figure = _figure((size[0] * columns, size[1] * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, name in zip(panels, shown, strict=False):
        grid = np.full((len(layers), heads), np.nan)
        for layer, head, value in zip(scores["layer"], scores["head"], scores[name], strict=True):
            grid[layers.index(layer), head] = value
        whole = name in ("entropy", "distance")  # the others are shares
        image = panel.imshow(grid, vmin=0, vmax=None if whole else 1, cmap="viridis", aspect="auto")
        unit = {"entropy": " (nats)", "distance": " (tokens)"}.get(name, "")
        panel.set(title=name + unit, xlabel="head", ylabel="layer")
        panel.xaxis.get_major_locator().set_params(integer=True)
        if len(layers) <= NAMED and max(map(len, layers)) <= SHORT:
            panel.set_yticks(range(len(layers)), layers, fontsize=7)
        else:
            panel.yaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=panel)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    return figure


def plot_weights(layer: Layer, heads: Sequence[int] | None = None) -> Figure:
    """The weights of a layer: a map for each head, queries down and keys across.

    Args:
        layer: Of a recording.
        heads: Which. Default: all.

    Returns:
        A figure. Of more than 1,024 tokens a cell is the mean of a square.

    Raises:
        InvalidType: If it is no layer.
        InvalidArgument: If there is no such head.
        MissingExtra: If matplotlib is not installed.
    """
    if heads is not None and (isinstance(heads, str) or not isinstance(heads, Sequence)):
        raise InvalidType(f"heads: expected a list of numbers, got {heads!r:.80}")
    if not isinstance(layer, Layer):
        raise InvalidType(f"layer: expected one of a recording, got {type(layer).__name__}")
    weights = layer.weights.detach()
    queries, keys = weights.shape[2:]
    known = layer.head_numbers
    numbers = list(known) if heads is None else list(heads)
    raise_problems(
        [
            f"heads: {layer.name} has the heads {', '.join(map(str, known))}; got {head!r}"
            for head in numbers
            if head not in known
        ]
    )
    if not numbers:
        raise InvalidArgument("heads: expected at least one")
    square = -(-max(queries, keys) // LARGEST)
    chosen = weights.at(heads=[known.index(head) for head in numbers])
    maps = (chosen.dense() if square == 1 else chosen.measure(BlockMean(square))["block_mean"])[0].float().cpu().numpy()
    columns = min(4, len(numbers))
    rows = -(-len(numbers) // columns)
    named = square == 1 and max(queries, keys) <= NAMED
    side = 2.6 + (0.12 * max(queries, keys) if named else 0)
    figure = _figure((side * columns, side * rows))
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, head, values in zip(panels, numbers, maps, strict=False):
        image = panel.imshow(values, vmin=0, vmax=1 if square == 1 else None, cmap="viridis", aspect="auto")
        panel.set(title=f"{layer.name}, head {head}")
        if named:
            panel.set_xticks(range(keys), _plain(layer.keys), rotation=90, fontsize=7)
            panel.set_yticks(range(queries), _plain(layer.queries), fontsize=7)
        else:
            unit = "" if square == 1 else f" (squares of {square})"
            panel.set(xlabel=f"key{unit}", ylabel=f"query{unit}")
        figure.colorbar(image, ax=panel)
    for panel in panels[len(numbers) :]:
        panel.set_axis_off()
    return figure


def _plain(tokens: Sequence[str]) -> list[str]:
    """Tokens as text: a dollar sign would begin a formula."""
    return [token.replace("$", r"\$") for token in tokens]


def _figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("figures need matplotlib: install it with `pip install 'regard[plot]'`") from None
    return Figure(figsize=size, layout="constrained")
