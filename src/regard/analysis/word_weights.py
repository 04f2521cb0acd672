"""Attention between words: mean weights over heads and layers, with subwords merged into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.padding import valid_rows_and_columns
from regard.analysis.tables import Columns
from regard.errors import InvalidArgument, did_you_mean, short_repr
from regard.ops.measures import GroupPool
from regard.recordings.layer import Layer, require_one_sequence
from regard.recordings.recording import Recording
from regard.text.display import display_tokens
from regard.text.words import group_into_words

MAX_LISTED_TOKENS = 40
"""Number of tokens that an error lists."""


@dataclass(frozen=True, eq=False)
class WordWeights:
    """Attention weights between words, as `word_weights` returns them.

    Args:
        layers: Names of the layers in the mean.
        is_cross: Whether they are cross-attention.
        num_heads: Number of heads in the mean.
        query_words: The words of the rows; each special token is a word.
        key_words: The words of the columns.
        weights: (query words, key words) float64 on the CPU; rows sum to 1.
    """

    layers: tuple[str, ...]
    is_cross: bool
    num_heads: int
    query_words: tuple[str, ...]
    key_words: tuple[str, ...]
    weights: Float[Tensor, "queries keys"]

    def find(self, word: str) -> tuple[list[int], list[int]]:
        """The rows and the columns of a word, all its occurrences.

        Raises:
            InvalidArgument: If it does not occur; the message names similar words.
        """
        rows, columns = (
            [index for index, name in enumerate(words) if name == word] for words in (self.query_words, self.key_words)
        )
        if not rows and not columns:
            expected = f"one of {_list(self.query_words)}"
            if self.is_cross:
                expected = f"a query, {expected}, or a key, one of {_list(self.key_words)}"
            hint = did_you_mean(word, (*self.query_words, *self.key_words))
            raise InvalidArgument(f"token: expected {expected}, got {short_repr(word)}{hint}")
        return rows, columns

    def columns(self, word: str | None = None) -> Columns:
        """The weights as a table, for `save_table` or ``pandas.DataFrame``.

        Args:
            word: Only the rows and columns of this word. Default: all.

        Returns:
            Columns by name: ``query``, ``key`` (positions from 0), ``query_token``, ``key_token`` and ``weight``; the
            strongest keys of each query first, then the strongest queries of each key of the word.

        Raises:
            InvalidArgument: If the word does not occur.
        """
        rows, columns = (list(range(len(self.query_words))), []) if word is None else self.find(word)
        order = self.weights.argsort(dim=1, descending=True, stable=True).tolist()
        edges = [(query, key) for query in rows for key in order[query]]
        for key in columns:
            queries = self.weights[:, key].argsort(dim=0, descending=True, stable=True).tolist()
            edges += [(query, key) for query in queries if query not in rows]
        query, key = map(list, zip(*edges, strict=True))
        return {
            "query": query,
            "key": key,
            "query_token": [self.query_words[index] for index in query],
            "key_token": [self.key_words[index] for index in key],
            "weight": self.weights[query, key].tolist(),
        }


def word_weights(recording: Recording, layer: str | None = None, *, merge: bool = True) -> WordWeights:
    """Average the attention weights of a recording over heads, and merge subwords into words.

    The weight of a word is the sum over its subwords as keys, and the mean over its subwords as queries.
    Padding is left out.

    Args:
        recording: A recording of one sequence with at least one layer.
        layer: Name of a layer. Default: the mean over all layers of cross-attention, or else of the decoder, or else of
            the encoder.
        merge: Whether to merge subwords.

    Raises:
        InvalidArgument: If there is no layer, or none of this name.

    Memory:
        O(query words * key words).

    Examples:
        >>> import regard
        >>> from regard.analysis import word_weights
        >>> words = word_weights(regard.pipelines.Translator.load().record("Thank you."), "cross.2")
        >>> words.key_words, words.weights.shape[1]
        (('Thank', 'you', '.', '</s>'), 4)
    """
    selected = _select_layers(recording, layer)
    require_one_sequence(selected)
    group = group_into_words if merge else _tokens_as_words
    first = selected[0]
    axes = zip((first.query_tokens, first.key_tokens), valid_rows_and_columns(first), strict=True)
    rows, columns = (
        [(word, [valid[index] for index in indices]) for word, indices in group([tokens[each] for each in valid])]
        for tokens, valid in axes
    )
    total = torch.zeros(len(rows), len(columns), dtype=torch.float64, device="cpu")
    for selected_layer in selected:
        weights = selected_layer.weights
        sides = zip((rows, columns), weights.shape[2:], strict=True)
        query_groups, key_groups = (_word_of_each_token(words, size).to(weights.device) for words, size in sides)
        pool = GroupPool(query_groups, key_groups)
        for head in range(weights.shape[1]):  # one at a time, which bounds the memory
            total += weights.detach().at(heads=head).measure({"words": pool})["words"][0, 0].cpu()
    num_heads = sum(each.weights.shape[1] for each in selected)
    return WordWeights(
        tuple(each.name for each in selected),
        first.kind == "cross",
        num_heads,
        tuple(word for word, _ in rows),
        tuple(word for word, _ in columns),
        total / num_heads,
    )


def _select_layers(recording: Recording, name: str | None) -> Sequence[Layer]:
    if not recording.layers:
        raise InvalidArgument("recording: expected at least one layer of attention, got none")
    names = [layer.name for layer in recording.layers]
    if name is not None and name not in names:
        raise InvalidArgument(
            f"layer: expected one of {', '.join(names)}, got {short_repr(name)}{did_you_mean(name, names)}"
        )
    if name is not None:
        return [layer for layer in recording.layers if layer.name == name]
    return next(layers for kind in ("cross", "decoder", "encoder") if (layers := recording.layers.by_kind(kind)))


def _tokens_as_words(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    return [(name, [index]) for index, name in enumerate(display_tokens(tokens, max_length=None))]


def _word_of_each_token(words: Sequence[tuple[str, Sequence[int]]], num_tokens: int) -> Tensor:
    """The number of the word of each token, (tokens,)."""
    numbers = torch.full((num_tokens,), -1, device="cpu")
    for number, (_, positions) in enumerate(words):
        numbers[list(positions)] = number
    return numbers


def _list(words: Sequence[str]) -> str:
    """The distinct words, or the first of them and the number of the others."""
    distinct = list(dict.fromkeys(words))
    more = f" and {len(distinct) - MAX_LISTED_TOKENS} more" if len(distinct) > MAX_LISTED_TOKENS else ""
    return ", ".join(distinct[:MAX_LISTED_TOKENS]) + more
