"""Which words of a translation belong to which of its source, as cross-attention tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.recording import Layer, Recording
from regard.errors import InvalidArgument, InvalidType, count_problems, did_you_mean, raise_problems
from regard.text.words import is_special, words_or_tokens

Heads = Literal["mean", "best"] | Mapping[str, Sequence[int]]
"""All heads of cross-attention; those that tell most; or some, by the names of their layers."""


@dataclass(frozen=True)
class Alignment:
    """Words of a target, words of its source, and how much of each target word's attention each source word has.

    Args:
        target: The words at the rows.
        source: The words at the columns.
        weights: (target words, source words). A row sums to 1, less what marks as ``</s>`` took.
        heads: Which heads the weights are the mean of: layer and number.
    """

    target: tuple[str, ...]
    source: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    heads: tuple[tuple[str, int], ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """For each target word its strongest source word: (source, target), from 0, as Pharaoh's format has them."""
        return [(int(best), row) for row, best in enumerate(self.weights.argmax(1))] if self.source else []

    def __str__(self) -> str:
        """The pairs as a line of Pharaoh's format, ``0-0 1-2``."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align(recording: Recording, heads: Heads = "mean", *, count: int = 4, merge: bool = True) -> Alignment:
    """Align a target with its source by cross-attention.

    A target word has the mean of its pieces' rows, a source word the sum of its pieces' columns, and marks as ``</s>``
    are left out.

    Args:
        recording: Of a model with cross-attention. A row is the step that wrote its token.
        heads: ``"mean"`` takes all heads; ``"best"`` the `count` heads whose rows tell most about where they stand,
            by `mutual_information`; or name layers and their heads: ``{"cross.2": [0, 5]}``, as Whisper's
            ``alignment_heads`` do.
        count: How many are the best.
        merge: Whether pieces of words are merged: a word begins with ``▁``, and where no token has one each is a word.
            If not, rows and columns are those of the tokens, marks too: for a
            Whisper, the tokens by frames of 0.02 s, of which time stamps are made by dynamic time warping.

    Raises:
        InvalidArgument: If there is no cross-attention, no such layer or head, or layers of different sizes.

    Memory: O(target · source), for the answer, and one block of heads.

    Reference: Bahdanau et al. 2015, section 5.2.1; Garg et al. 2019, "Jointly Learning to Align and Translate with
        Transformer Models".

    Example:
        >>> import regard
        >>> from regard.analysis import align
        >>> recording = regard.generation.Translator.load().record("The cat is small.", "Die Katze ist klein.")
        >>> print(align(recording, "best"))
        0-0 1-1 2-2 3-3 4-4
    """
    cross = recording.cross
    if not cross:
        raise InvalidArgument(f"align: {recording.model or 'the model'} has no cross-attention that was recorded")
    raise_problems(count_problems(count=count))
    sizes = {layer.weights.shape[2:] for layer in cross}
    if len(sizes) > 1:
        lengths = ", ".join(f"{layer.name} ({len(layer.queries)} x {len(layer.keys)})" for layer in cross)
        raise InvalidArgument(f"align: expected cross-attention layers of one size (target x source), got {lengths}")
    chosen = _chosen(cross, heads, count)
    total = torch.zeros(*cross[0].weights.shape[2:], dtype=torch.float64)
    for layer in cross:
        numbers = [layer.head_numbers.index(head) for name, head in chosen if name == layer.name]
        for number in numbers:
            total += layer.weights.detach().at(heads=number).dense()[0, 0].double().cpu()
    weights = (total / len(chosen)).float()
    target, source = cross[0].queries, cross[0].keys
    if merge:
        rows, columns = (
            [each for each in words_or_tokens(axis) if not is_special(each[0])] for axis in (target, source)
        )
        weights = _merged(weights, [at for _, at in rows], [at for _, at in columns])
        target, source = (tuple(word for word, _ in axis) for axis in (rows, columns))
    return Alignment(target, source, weights, tuple(chosen))


def mutual_information(layer: Layer) -> Float[Tensor, " heads"]:
    """How much the row tells about the key, in nats: H(mean of the rows) − mean of H(row), of each head.

    It is large where each row looks at few keys, and different rows at different ones; 0 where all rows are the same,
    as where all look at ``</s>``.
    """
    weights = layer.weights.detach()
    found = weights.measure("entropy", "received")
    mean = (found["received"][0] / weights.shape[2]).double()  # (heads, keys)
    return torch.special.entr(mean).sum(-1) - found["entropy"][0].double().mean(-1)


def _chosen(cross: Sequence[Layer], heads: Heads, count: int) -> list[tuple[str, int]]:
    """Layers and heads, in order."""
    every = [(layer.name, head) for layer in cross for head in layer.head_numbers]
    if heads == "mean":
        return every
    if heads == "best":
        told = torch.cat([mutual_information(layer).cpu() for layer in cross])
        return [every[place] for place in sorted(told.topk(min(count, len(every))).indices.tolist())]
    if not isinstance(heads, Mapping):
        raise InvalidArgument(f"heads: expected 'mean', 'best' or heads by layers, got {heads!r}")
    names = [layer.name for layer in cross]
    raise_problems(
        [
            f"heads: no layer {name!r}{did_you_mean(name, names)} of cross-attention"
            for name in heads
            if name not in names
        ]
    )
    for name, some in heads.items():
        if isinstance(some, str) or not isinstance(some, Sequence):
            raise InvalidType(f"heads: expected a list of the heads of {name}, got {some!r:.80}")
    asked = [(name, head) for name in names for head in heads.get(name, ())]
    known = {layer.name: ", ".join(map(str, layer.head_numbers)) for layer in cross}
    beyond = [pair for pair in asked if pair not in every]
    raise_problems([f"heads: {name} has the heads {known[name]}; got {head!r}" for name, head in beyond])
    if not asked:
        raise InvalidArgument("heads: expected at least one head")
    return asked


def _merged(weights: Tensor, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]) -> Tensor:
    """Means of rows, and sums of columns."""
    if not rows or not columns:
        return weights.new_zeros(len(rows), len(columns))
    by_row = torch.stack([weights[list(at)].mean(0) for at in rows])
    return torch.stack([by_row[:, list(at)].sum(1) for at in columns], 1)
