"""Matplotlib figures of head scores and of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from regard.analysis.head_scores import HEAD_SCORES, SPECTRAL_SCORES
from regard.analysis.padding import valid_rows_and_columns
from regard.analysis.tables import Columns
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, require, short_repr
from regard.ops import WeightMatrix
from regard.ops.measures import GroupPool
from regard.recordings.layer import Layer, check_head_indices, require_one_sequence
from regard.text.tokens import is_special

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MAX_PIXELS = 1024
"""`plot_weights` shows up to so many queries and keys one by one, and of more the means of squares."""
MAX_TICK_LABELS = 40
"""Axes with more entries are numbered."""
MAX_LAYER_LABEL = 12
"""Layers with a longer name, in characters, are numbered."""
UNITS = {"entropy": " (nats)", "mean_distance": " (tokens)"}
"""Units of the scores that are not shares."""


def plot_head_scores(scores: Columns, which: str | Sequence[str] | None = None) -> Figure:
    """A heat map of each score, with a row for each layer and a column for each head.

    Args:
        scores: What `head_scores` returns.
        which: Names of the scores to show. Default: all that are not NaN.

    Returns:
        A figure, which notebooks display; ``figure.savefig("heads.png")`` writes it.

    Raises:
        InvalidType: If ``scores`` has no layers and heads.
        InvalidArgument: If a score is unknown, or there is none to show.
        MissingExtra: If matplotlib is not installed.
    """
    missing = [name for name in ("layer", "head") if not isinstance(scores, Mapping) or name not in scores]
    if missing:
        raise InvalidType(
            f"scores: expected what `head_scores` returns, got {type(scores).__name__} without {short_repr(missing[0])}"
        )
    known = [name for name in (*HEAD_SCORES, *SPECTRAL_SCORES) if name in scores]
    available = [name for name in known if not np.isnan(scores[name]).all()]
    shown = available if which is None else [which] if isinstance(which, str) else list(which)
    with Checks() as checks:
        lengths = {len(scores[name]) for name in ("layer", "head", *known)}
        checks.that(len(lengths) == 1, "scores: expected columns of one length")
        for name in shown:
            checks.that(name in available, f"which: unknown score {short_repr(name)}{did_you_mean(name, available)}")
        checks.that(bool(shown), "scores: there are no scores to show")
    layers = list(dict.fromkeys(scores["layer"]))
    heads = max(scores["head"]) + 1
    size = max(2.4, 0.22 * heads + 1.2), max(1.8, 0.22 * len(layers) + 0.9)
    figure, panels = _figure(len(shown), 3, size)
    for panel, name in zip(panels, shown, strict=True):
        grid = np.full((len(layers), heads), np.nan)
        for layer, head, value in zip(scores["layer"], scores["head"], scores[name], strict=True):
            grid[layers.index(layer), head] = value
        image = panel.imshow(grid, vmin=0, vmax=None if name in UNITS else 1, cmap="viridis", aspect="auto")
        panel.set(title=name.replace("_", " ") + UNITS.get(name, ""), xlabel="head", ylabel="layer")
        panel.xaxis.get_major_locator().set_params(integer=True)
        if len(layers) <= MAX_TICK_LABELS and max(map(len, layers)) <= MAX_LAYER_LABEL:
            panel.set_yticks(range(len(layers)), layers, fontsize=7)
        else:
            panel.yaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=panel)
    return figure


def plot_weights(
    layer: Layer,
    heads: Sequence[int] | None = None,
    *,
    special_tokens: bool = True,
    scale: Literal["sqrt", "linear"] = "sqrt",
    cmap: str | Colormap = "viridis",
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Figure:
    """A heat map of the weights of each head, with queries down and keys across.

    Args:
        layer: A layer with one sequence.
        heads: Indices of the heads to show. Default: all.
        special_tokens: Whether to show rows and columns of special tokens, such as ``[SEP]``, which can receive most of
            the attention. The other weights stay as they are.
        scale: How colors grow with weights: with their square root, which tells small weights apart, or linearly. The
            color bar has the weights.
        cmap: A color map of matplotlib, or its name.
        figsize: Width and height in inches. Default: what the tokens need.
        ax: Axes to draw one head into, in a figure of your own.

    Returns:
        The figure, which notebooks display, and ``figure.savefig("head.pdf")`` writes as PDF, SVG or PNG. It leaves out
        the rows and columns of padding. Of more than 1,024 tokens, a cell is the mean of a square.

    Raises:
        InvalidType: If ``layer`` is not a layer, or the heads are not a list.
        InvalidArgument: If a head is unknown, there is none to show, or another argument is wrong.
        MissingExtra: If matplotlib is not installed.

    Examples:
        >>> import regard
        >>> recording = regard.pipelines.Translator.load().record("The cat is small.")
        >>> figure = regard.analysis.plot_weights(recording.layers.cross[2], [4], special_tokens=False)
        >>> [ax.get_title() for ax in figure.axes][0]
        'cross.2, head 4'
    """
    if not isinstance(layer, Layer):
        raise InvalidType(f"layer: expected a Layer of a recording, got {type(layer).__name__}")
    if heads is not None and (isinstance(heads, str) or not isinstance(heads, Sequence)):
        raise InvalidType(f"heads: expected a list of head indices, got {short_repr(heads)}")
    require_one_sequence([layer], "layer")
    shown = layer.head_indices if heads is None else heads
    with Checks() as checks:
        checks.that(len(shown) > 0, "heads: expected at least one head")
        check_head_indices(checks, layer, shown)
        checks.choice("scale", scale, ("sqrt", "linear"))
        if ax is not None:
            checks.that(len(shown) == 1, f"ax: expected one of the heads, as in heads=[0], got {len(shown)}")
            checks.that(figsize is None, "figsize: expected None with ax, whose figure has a size")
    weights = layer.weights.detach().at(heads=[layer.head_indices.index(head) for head in shown])
    rows, columns = valid_rows_and_columns(layer)
    if not special_tokens:
        rows = [each for each in rows if not is_special(layer.query_tokens[each])]
        columns = [each for each in columns if not is_special(layer.key_tokens[each])]
        if not rows or not columns:
            raise InvalidArgument("special_tokens: expected True, got False, but there are no other tokens")
    queries, keys = len(rows), len(columns)
    size = -(-max(queries, keys) // MAX_PIXELS)
    maps = weights.dense()[..., rows, :][..., columns] if size == 1 else _block_means(weights, rows, columns, size)
    is_labelled = size == 1 and max(queries, keys) <= MAX_TICK_LABELS
    side = 2.6 + (0.12 * max(queries, keys) if is_labelled else 0)
    figure, panels = _figure(len(shown), 4, (side, side), figsize) if ax is None else (cast("Figure", ax.figure), [ax])
    from matplotlib.colors import PowerNorm

    for panel, head, values in zip(panels, shown, maps[0].float().cpu().numpy(), strict=True):
        norm = PowerNorm(0.5 if scale == "sqrt" else 1.0, vmin=0, vmax=1 if size == 1 else None)
        image = panel.imshow(values, norm=norm, cmap=cmap, aspect="auto")
        unit = "" if is_labelled else " (position)" if size == 1 else f" (squares of {size})"
        panel.set(title=f"{layer.name}, head {head}", xlabel=f"key{unit}", ylabel=f"query{unit}")
        if is_labelled:
            panel.set_xticks(
                range(keys), _escape_mathtext([layer.key_tokens[each] for each in columns]), rotation=90, fontsize=7
            )
            panel.set_yticks(range(queries), _escape_mathtext([layer.query_tokens[each] for each in rows]), fontsize=7)
        panel.figure.colorbar(image, ax=panel, label="weight")
    return figure


def _block_means(weights: WeightMatrix, rows: Sequence[int], columns: Sequence[int], size: int) -> Tensor:
    """The means of squares of some rows and columns, (batch, heads, squares, squares)."""
    groups = []
    for selected, count in zip((rows, columns), weights.shape[2:], strict=True):
        group = torch.full((count,), -1, device="cpu")
        group[selected] = torch.arange(len(selected), device="cpu") // size
        groups.append(group.to(weights.device))
    sums = weights.measure({"squares": GroupPool(*groups)})["squares"]
    return sums / groups[1][groups[1] >= 0].bincount()


def _escape_mathtext(tokens: Sequence[str]) -> list[str]:
    """Tokens as matplotlib shows them unchanged: a dollar sign would begin a formula."""
    return [token.replace("$", r"\$") for token in tokens]


def _figure(
    count: int, max_columns: int, size: tuple[float, float], figsize: tuple[float, float] | None = None
) -> tuple[Figure, list[Any]]:
    """A figure with panels of a size in inches, or of a size of its own, in rows of up to `max_columns`."""
    require("matplotlib.figure", extra="plot", needed_by="plots")
    from regard.analysis.notebook_figure import NotebookFigure

    columns = min(max_columns, count)
    rows = -(-count // columns)
    figure = NotebookFigure(figsize=figsize or (size[0] * columns, size[1] * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[count:]:
        panel.set_axis_off()
    return figure, list(panels[:count])
