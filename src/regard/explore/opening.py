"""The head and the token on which an explorer opens: where a newcomer sees most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.analysis.padding import valid_rows_and_columns
from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.recordings.layer import Layer, require_one_sequence
from regard.recordings.recording import Recording
from regard.text.tokens import is_special

MAX_QUERIES = 32
"""Rows of a layer that are read; of a longer text, rows at equal distances."""
MAX_CELLS = 2**21
"""Weights that are held at once: 8 MiB in float32."""
MIN_CONTRAST = 0.005
"""The smallest contrast that counts: it is not 0.00 when it is rounded."""


@dataclass(frozen=True)
class OpeningHead:
    """The head on which an explorer opens.

    Args:
        layer: Index of the layer in the recording.
        head: Index of the head among the recorded heads of the layer.
        reason: Why, in a sentence.
    """

    layer: int
    head: int
    reason: str


def opening_head(recording: Recording) -> OpeningHead:
    """The head in which different words attend most clearly to different words.

    It has the largest mean over the words i of max_j contrast_ij over words j ∈ C_i, where:

        contrast_ij = P_ij − mean of P_kj over the other words k

    A word is any token that is neither special nor punctuation nor, in self-attention, the first. In self-attention,
    C_i leaves out i and its neighbors i ± 1. So heads whose tokens all attend to the first token or to ``[SEP]``, to
    themselves or to the token before do not count, however low their entropy is. If there is cross-attention, only its
    heads count. Only if no head connects other words do neighbors count; if they do not help either, it is the head
    with the lowest entropy.

    Args:
        recording: A recording of one sequence with at least one layer.

    Raises:
        InvalidArgument: If there is no layer, or a batch of several sequences.

    Memory:
        O(tokens): at most 32 rows of each head are read.

    Examples:
        >>> import regard
        >>> from regard.explore.opening import opening_head
        >>> recording = regard.pipelines.Translator.load().record("The cat is small.")
        >>> recording.layers[opening_head(recording).layer].kind
        'cross'
    """
    if not recording.layers:
        raise InvalidArgument("recording: expected at least one layer of attention, got none")
    require_one_sequence(recording.layers)
    layers = list(recording.layers.cross or recording.layers)
    count = sum(layer.weights.shape[1] for layer in layers)
    for neighbors in (False, True):
        contrasts = [_mean(_contrasts(layer, neighbors=neighbors)[1]) for layer in layers]
        number, head = _largest(contrasts)
        contrast = contrasts[number][head].item()
        if contrast >= MIN_CONTRAST:
            unit, units = ("patch", "patches") if _is_image(layers[number]) else ("word", "words")
            what = units if neighbors or layers[number].kind == "cross" else f"{units} that are not neighbors"
            reason = f"connects {what} most clearly of {count} heads: on average, a {unit} gives its strongest key "
            reason += f"{contrast:.2f} more attention than other {units} do."
            break
    else:
        rows = [_sample(torch.tensor(valid_rows_and_columns(layer)[0], device="cpu")) for layer in layers]
        matrices = [layer.weights.detach().at(queries=each) for layer, each in zip(layers, rows, strict=True)]
        entropies = [_mean(matrix.entropy()[0].cpu()) for matrix in matrices]
        number, head = _largest([-entropy for entropy in entropies])
        reason = f"has the lowest entropy of {count} heads, {entropies[number][head].item():.2f} nats."
    layer = layers[number]
    index = [each.name for each in recording.layers].index(layer.name)
    return OpeningHead(index, head, f"Head {layer.head_indices[head]} of {layer.name} {reason}")


def opening_token(layer: Layer, head: int) -> int:
    """The query of a head on which views of one query open: the word with the largest contrast with a key.

    Words and contrast are those of `opening_head`; of equal ones it is the first. Without contrasts it is the first
    word, or else the first token that is not special, or else the first token.

    Args:
        layer: A layer of one sequence.
        head: Index of the head among the recorded heads of the layer.

    Raises:
        InvalidArgument: If there is no such head, or a batch of several sequences.

    Memory:
        O(tokens): at most 32 rows are read.

    Examples:
        >>> import regard
        >>> from regard.explore.opening import opening_token
        >>> layer = regard.pipelines.Translator.load().record("The cat is small.").layers.cross[2]
        >>> layer.query_tokens[opening_token(layer, 5)] in ("▁Die", "▁Katze", "▁ist", "▁klein")
        True
    """
    require_one_sequence([layer], "layer")
    with Checks() as checks:
        checks.integer("head", head, low=0, below=layer.weights.shape[1])
    for neighbors in (False, True):
        queries, contrasts = _contrasts(layer, [head], neighbors=neighbors)
        if (contrasts >= MIN_CONTRAST).any():
            return int(queries[contrasts[0].argmax()])
    if len(queries):
        return int(queries[0])
    rows, _ = valid_rows_and_columns(layer)
    return next((row for row in rows if not is_special(layer.query_tokens[row])), rows[0] if rows else 0)


def _contrasts(
    layer: Layer, heads: Sequence[int] | None = None, *, neighbors: bool
) -> tuple[Int[Tensor, " queries"], Float[Tensor, "heads queries"]]:
    """The words of a layer, or a sample of them, and the largest contrast of each with a key, 0 if there is none."""
    queries, is_key = _words(layer)
    weights, keys = layer.weights.detach(), len(is_key)
    heads = range(weights.shape[1]) if heads is None else heads
    if not len(queries):
        return queries, torch.zeros(len(heads), 0, device="cpu")
    is_compared = is_key.expand(len(queries), keys)
    if layer.kind != "cross":
        distance = torch.arange(keys, device="cpu") - (queries + weights.request.offset)[:, None]
        is_compared = is_compared & (distance.abs() > (0 if neighbors else 1))
    step, parts = max(1, MAX_CELLS // (len(queries) * keys)), []
    for start in range(0, len(heads), step):
        rows = weights.at(heads=heads[start : start + step], queries=queries).dense()[0].cpu()
        of_others = (rows.sum(1, keepdim=True) - rows) / max(1, len(queries) - 1)
        parts.append((rows - of_others).where(is_compared, 0.0).amax(2).clamp(min=0))
    return queries, torch.cat(parts).round(decimals=5)  # equal ones stay equal where a processor rounds otherwise


def _words(layer: Layer) -> tuple[Int[Tensor, " queries"], Bool[Tensor, " keys"]]:
    """The queries that are words, or a sample of them, and whether each key is one."""
    is_query, is_key = (torch.tensor(_are_words(each), device="cpu") for each in (layer.query_tokens, layer.key_tokens))
    valid = [torch.tensor(axis, dtype=torch.int64, device="cpu") for axis in valid_rows_and_columns(layer)]
    for is_word, axis in zip((is_query, is_key), valid, strict=True):
        is_word &= torch.isin(torch.arange(len(is_word), device="cpu"), axis)
    if layer.kind != "cross":
        first = int(valid[1][0]) if len(valid[1]) else 0  # after padding on the left
        is_key[first] = False
        is_query &= torch.arange(len(is_query), device="cpu") + layer.weights.request.offset != first
    return _sample(is_query.nonzero().flatten()), is_key


@lru_cache(4)  # layers have the same tokens
def _are_words(tokens: tuple[str, ...]) -> list[bool]:
    return [not is_special(token) and any(map(str.isalnum, token)) for token in tokens]


def _is_image(layer: Layer) -> bool:
    """Whether the keys are patches, named ``row,column``, and special tokens."""
    tokens = layer.key_tokens or ("",)
    return all(is_special(token) or re.fullmatch(r"\d+,\d+", token) for token in tokens)


def _sample(rows: Int[Tensor, " rows"]) -> Int[Tensor, " sample"]:
    """The rows, or `MAX_QUERIES` of them at equal distances."""
    if len(rows) <= MAX_QUERIES:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, MAX_QUERIES, device="cpu").round().long()]


def _mean(rows: Float[Tensor, "heads rows"]) -> Float[Tensor, " heads"]:
    return rows.sum(1) / max(1, rows.shape[1])


def _largest(scores: Sequence[Float[Tensor, " heads"]]) -> tuple[int, int]:
    """Index of the layer and of the head of the highest score; of equal ones, the first."""
    best = max(range(len(scores)), key=lambda number: scores[number].max().item())
    return best, int(scores[best].argmax())
