"""The numbers that a page displays, computed from the dense weights in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from regard.recordings.layer import Layer
from regard.text.tokens import is_special
from regard.text.words import word_indices


def displayed_weights(
    layer: Layer,
    heads: Sequence[int],
    *,
    reduce: str = "mean",
    hide: Sequence[str] = (),
    rescale: bool = False,
    words: bool = False,
) -> np.ndarray:
    """The weights that a page displays, (queries, keys) of tokens or words; NaN where masked or hidden."""
    dense = layer.weights.dense()[0, list(heads)].double().numpy()
    allowed = np.broadcast_to(layer.weights.scores.dense()[0, list(heads)].numpy() > -np.inf, dense.shape).any(0)
    weights = dense.mean(0)
    hidden = np.array(
        [(k == 0 and "first" in hide) or ("special" in hide and is_special(t)) for k, t in enumerate(layer.key_tokens)]
    )
    if rescale:
        share = 1 - weights[:, hidden].sum(1, keepdims=True)
        weights = np.where(share > 0.001, weights / np.where(share > 0.001, share, 1), weights)
    visible = allowed & ~hidden
    if words:
        rows, columns = (one_hot(word_indices(tokens)) for tokens in (layer.query_tokens, layer.key_tokens))
        weights = (rows / rows.sum(1, keepdims=True)) @ np.where(visible, weights, 0) @ columns.T
        visible = (rows @ visible @ columns.T) > 0
    if reduce == "sum":
        weights = weights * len(heads)
    return np.where(visible, weights, np.nan)


def one_hot(indices: Sequence[int]) -> np.ndarray:
    """(words, tokens)."""
    return (np.arange(max(indices) + 1)[:, None] == np.array(indices)).astype(float)


def assert_printed(text: str, exact: float, error: float = 0.0) -> None:
    """A printed number is the exact number rounded, which may itself be off by an error.

    A number marked with ≈ may have another last digit, and bounds, such as ``0.2–0.5``, have the number between them.
    """
    if bound := re.fullmatch(r"< (\d\.\d+)", text):
        limit = float(bound[1])  # of an exact number, which alone has four decimals, half of it
        assert exact <= (limit / 2 if limit < 0.001 else limit) + error, (text, exact)
    elif bounds := re.fullmatch(r"(\d\.\d)–(\d\.\d)", text):
        assert float(bounds[1]) - error <= exact <= float(bounds[2]) + error, (text, exact)
    else:
        decimals = len(text.partition(".")[2])
        half = (1 if text.startswith("≈ ") else 0.5000001) * 10.0**-decimals
        assert abs(float(text.removeprefix("≈ ").replace("−", "-")) - exact) <= half + error, (text, exact)
