"""Word alignment of a target and its source, read from cross-attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.padding import know_padding, valid_rows_and_columns
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.recordings.layer import Layer, check_head_indices, require_one_sequence
from regard.recordings.recording import Recording
from regard.text.tokens import is_special
from regard.text.words import group_into_words

HeadSelection = Literal["mean", "most_informative"] | Mapping[str, Sequence[int]]
"""All heads of cross-attention, the most informative ones, or head indices by layer name."""


@dataclass(frozen=True)
class Alignment:
    """How much of each target word's attention each source word has.

    Args:
        target: The target words, one for each row.
        source: The source words, one for each column.
        weights: (target words, source words). A row sums to 1, less the weight of special tokens such as ``</s>``.
        heads: Layer name and index of each head that the weights are the mean of.
    """

    target: tuple[str, ...]
    source: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    heads: tuple[tuple[str, int], ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(source, target), from 0: for each target word the source word with the largest weight."""
        return [(int(best), row) for row, best in enumerate(self.weights.argmax(1))] if self.source else []

    def __str__(self) -> str:
        """The pairs in Pharaoh format, ``0-0 1-2``."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def align(
    recording: Recording, heads: HeadSelection = "mean", *, num_heads: int = 4, merge_subwords: bool = True
) -> Alignment:
    """Align a target with its source by the mean of cross-attention heads.

    The row of a target word is the mean of its tokens' rows, the column of a source word the sum of its tokens'
    columns. Special tokens such as ``</s>`` and padding are left out.

    Args:
        recording: One sequence of a model with cross-attention. A row is the step that generated its token.
        heads: ``"mean"`` takes all heads; ``"most_informative"`` the `num_heads` heads with the largest
            `mutual_information`; a dict names layers and heads, ``{"cross.2": [0, 5]}``, as ``alignment_heads`` of
            Whisper do.
        num_heads: Number of most informative heads.
        merge_subwords: Whether tokens are merged into words. A word begins with ``▁``; if no token does, each token is
            a word. False keeps all tokens but padding, special ones too. For Whisper, rows are then tokens and columns
            frames of 0.02 s, the input of dynamic time warping for word timestamps.

    Raises:
        InvalidType: If the heads of a layer are not a list.
        InvalidArgument: If the recording has no cross-attention or several sequences, its cross-attention layers differ
            in size, or a layer or head is unknown.

    Memory:
        O(target * source), for one head at a time.

    Reference:
        Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", section 5.2.1;
        Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models".

    Examples:
        >>> import regard
        >>> from regard.analysis import align
        >>> recording = regard.pipelines.Translator.load().record("The cat is small.", "Die Katze ist klein.")
        >>> print(align(recording, "most_informative"))
        0-0 1-1 2-2 3-3 4-4
    """
    cross = recording.layers.cross
    if not cross:
        raise InvalidArgument(f"align: no cross-attention of {recording.model_name or 'the model'} was recorded")
    require_one_sequence(cross)
    with Checks() as checks:
        checks.integer("num_heads", num_heads, low=1, optional=True)
    if len({layer.weights.shape[2:] for layer in cross}) > 1:
        sizes = ", ".join(f"{layer.name} ({len(layer.query_tokens)} x {len(layer.key_tokens)})" for layer in cross)
        raise InvalidArgument(f"align: expected cross-attention layers of one size (target x source), got {sizes}")
    selected = _select_heads(cross, heads, num_heads)
    total = torch.zeros(*cross[0].weights.shape[2:], dtype=torch.float64, device="cpu")
    for layer in cross:
        for head in [layer.head_indices.index(head) for name, head in selected if name == layer.name]:
            total += layer.weights.detach().at(heads=head).dense()[0, 0].double().cpu()
    axes = valid_rows_and_columns(cross[0])
    weights = (total / len(selected)).float()[axes[0]][:, axes[1]]
    names = cross[0].query_tokens, cross[0].key_tokens
    target, source = (tuple(tokens[i] for i in axis) for tokens, axis in zip(names, axes, strict=True))
    if merge_subwords:
        rows, columns = (
            [word for word in group_into_words(axis) if not is_special(word[0])] for axis in (target, source)
        )
        weights = _merge_subwords(weights, [index for _, index in rows], [index for _, index in columns])
        target, source = (tuple(word for word, _ in axis) for axis in (rows, columns))
    return Alignment(target, source, weights, tuple(selected))


def mutual_information(layer: Layer) -> Float[Tensor, " heads"]:
    """The mutual information of query and key in nats, H(mean of the rows) − mean of H(row), of each head.

    It is large if each row has few keys and different rows have different ones; 0 if all rows are the same, for example
    if all attend to ``</s>``. Rows that are padding do not count.

    Args:
        layer: A layer of one sequence.

    Raises:
        InvalidArgument: If there is a batch of several sequences.
    """
    require_one_sequence([layer], "layer")
    weights = know_padding(layer.weights.detach(), is_self=layer.kind != "cross")
    rows, _ = valid_rows_and_columns(layer)
    results = weights.measure("entropy", "received")
    mean = (results["received"][0] / len(rows)).double()  # (heads, keys)
    return torch.special.entr(mean).sum(-1) - results["entropy"][0, :, rows].double().mean(-1)


def _select_heads(cross: Sequence[Layer], heads: HeadSelection, num_heads: int) -> list[tuple[str, int]]:
    """Layer name and index of each head, in order."""
    every = [(layer.name, head) for layer in cross for head in layer.head_indices]
    if heads == "mean":
        return every
    if heads == "most_informative":
        information = torch.cat([mutual_information(layer).cpu() for layer in cross])
        return [every[index] for index in sorted(information.topk(min(num_heads, len(every))).indices.tolist())]
    if not isinstance(heads, Mapping):
        raise InvalidArgument(
            f"heads: expected 'mean', 'most_informative' or a dict of head indices, got {short_repr(heads)}"
        )
    for name, indices in heads.items():
        if isinstance(indices, str) or not isinstance(indices, Sequence):
            raise InvalidType(f"heads: expected a list of head indices for {name}, got {short_repr(indices)}")
    layers = {layer.name: layer for layer in cross}
    with Checks() as checks:
        checks.that(any(heads.values()), "heads: expected at least one head")
        for name, indices in heads.items():
            if name not in layers:
                checks.fail(f"heads: no cross-attention layer {short_repr(name)}{did_you_mean(name, list(layers))}")
            else:
                check_head_indices(checks, layers[name], indices)
    return [(name, head) for name in layers for head in heads.get(name, ())]


def _merge_subwords(weights: Tensor, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]) -> Tensor:
    """The mean of the rows and the sum of the columns of each word."""
    if not rows or not columns:
        return weights.new_zeros(len(rows), len(columns))
    means = torch.stack([weights[list(indices)].mean(0) for indices in rows])
    return torch.stack([means[:, list(indices)].sum(1) for indices in columns], 1)
