"""Which head and which query of a trace a page follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.text.display import display_tokens
from regard.text.words import group_into_words, is_special

if TYPE_CHECKING:
    from torch import Tensor

    from regard.tracing.trace import Trace


@dataclass(frozen=True)
class TraceSelection:
    """The head and the query that a page opens on.

    Args:
        head: The head, from 0.
        query: The query, from 0.
        reason: Why these, without a capital and a full stop; empty if the caller chose both.
    """

    head: int
    query: int
    reason: str


def axis_tokens(trace: Trace, axis: str) -> tuple[str, ...]:
    """The names of the queries or keys of a trace as they are in its steps; numbers if they have none."""
    step = next(step for step in trace if step.name == "weights")
    index = step.axes.index(axis)
    return step.labels[index] or tuple(map(str, range(step.value.shape[index])))


def find_query(trace: Trace, query: int | str) -> int:
    """The index of a query.

    Args:
        trace: The trace.
        query: An index from 0, or the text of a token, which means its first occurrence. A str of digits is an index.

    Raises:
        InvalidArgument: If there is no such query.
        InvalidType: If it is neither an int nor a str.
    """
    tokens = axis_tokens(trace, "query")
    labels = display_tokens(tokens)
    if not isinstance(query, (int, str)) or isinstance(query, bool):
        raise InvalidType(f"query: expected an index or the text of a token, got {short_repr(query)}")
    if isinstance(query, str) and query.isdecimal():
        query = int(query)
    last = len(tokens) - 1
    if isinstance(query, int):
        if 0 <= query <= last:
            return query
        expected = f"0 to {last}, the last query of the layer" if last else "0, the only query"
        raise InvalidArgument(f"query: expected {expected}, got {query}")
    for spelled in (labels, tokens):
        if query in spelled:
            return list(spelled).index(query)
    listed = ", ".join(dict.fromkeys(labels))
    raise InvalidArgument(
        f"query: expected an index from 0 to {last} or one of the tokens {listed}; got {short_repr(query)}"
    )


def select(trace: Trace, head: int | None = None, query: int | str | None = None) -> TraceSelection:
    """The head and the query to follow.

    Without a head it is the one with the lowest mean entropy over the words, and without a query the word with the
    largest weight on another word in this head. Special tokens, punctuation and tokens that continue a word are not
    words.

    Args:
        trace: The trace.
        head: A head, from 0. Default: chosen.
        query: As for `find_query`. Default: chosen.

    Raises:
        InvalidArgument: If there is no such head or query.
        InvalidType: If the head is not an int, or the query neither an int nor a str.

    Example:
        >>> import regard
        >>> select(regard.trace())
        TraceSelection(head=0, query=3, reason='“word 4” has the largest weight of a word on another word (0.91
        on “word 3”)')
    """
    weights: Tensor = trace["weights"]
    with Checks() as checks:
        checks.integer("head", head, low=0, below=len(weights), optional=True)
    index = None if query is None else find_query(trace, query)
    words, reasons = _words(axis_tokens(trace, "query")), []
    if head is None:
        entropy = torch.special.entr(weights)[:, words].sum(-1).mean(-1)
        head = int(entropy.argmin())
        if len(weights) > 1:
            mean = f"{entropy[head]:.2f} nats, the mean over the words"
            reasons.append(f"head {head} has the lowest entropy of the {len(weights)} heads ({mean})")
    if index is None:
        index, key = _strongest_pair(trace, weights[head], words)
        query_labels, key_labels = (display_tokens(axis_tokens(trace, axis)) for axis in ("query", "key"))
        share = f"{weights[head, index, key]:.2f} on “{key_labels[key]}”"
        where = "there " if reasons else f"in head {head} " if len(weights) > 1 else ""
        reasons.append(f"{where}“{query_labels[index]}” has the largest weight of a word on another word ({share})")
    return TraceSelection(head, index, ", and ".join(reasons))


def _words(tokens: Sequence[str]) -> list[int]:
    """The positions of the tokens that begin a word; all if there are only special tokens and punctuation."""
    groups = group_into_words(tokens)
    found = [own[0] for word, own in groups if not is_special(word) and any(map(str.isalnum, word))]
    return found or list(range(len(tokens)))


def _strongest_pair(trace: Trace, weights: Tensor, words: Sequence[int]) -> tuple[int, int]:
    """The word with the largest weight (queries, keys) on another word, and the key of that weight."""
    rows, columns = torch.tensor(words, device="cpu"), torch.tensor(_words(axis_tokens(trace, "key")), device="cpu")
    candidates = torch.full_like(weights, -2.0)
    candidates[rows[:, None], columns] = weights[rows[:, None], columns]
    if trace.steps[0].axes[0] == "token":  # self-attention: a word itself only if there is no other
        candidates -= 2 * torch.eye(*weights.shape, device="cpu")
    index, key = divmod(int(candidates.argmax()), weights.shape[1])
    return index, key
