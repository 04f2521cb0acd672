"""The tokens of segments: the beginning, middle and end of a text, chat turns, parts of the text, and positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from regard.analysis.padding import valid_rows_and_columns
from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.recordings.layer import Layer
from regard.text.chat import chat_turns
from regard.text.token_search import find_tokens

Positions = str | slice | Sequence[int]
"""Tokens: a part of the text, which is searched for; a slice of the tokens; or their positions, from 0."""

Segments = Mapping[str, Positions] | Literal["positions", "turns"]
"""Tokens by the name of their segment; or the parts of a text by position; or the turns of a chat."""

MAX_EDGE = 64
"""Largest number of tokens at the edges of a text: of ``beginning``, ``end`` and ``recent``."""


@dataclass(frozen=True)
class LayerSegments:
    """The segments of a layer.

    Args:
        layer: The layer.
        queries: (queries,) The rows that count.
        keys: The keys of each segment, by its name.
        num_keys: The number of keys that are not padding.
        num_recent: If not 0, ``recent`` has this many keys, up to each query, that no other segment but ``first`` has,
            and ``middle`` has what remains.
    """

    layer: Layer
    queries: Int[Tensor, " queries"]
    keys: dict[str, list[int]]
    num_keys: int
    num_recent: int = 0


def resolve_segments(
    layers: Sequence[Layer], segments: Segments | None, queries: Positions | None
) -> list[LayerSegments]:
    """The segments of each layer that has some; arguments and errors are those of `segment_attention`."""
    with Checks() as checks:
        _check_arguments(checks, segments, queries)
    turns = {layer.name: _turns(layer) for layer in layers}
    if segments == "turns" and not any(turns.values()):
        raise InvalidArgument(
            "segments: expected tokens of a chat template, such as <|im_start|>, to split into turns, got none; pass a "
            "dict of texts or ranges"
        )
    resolved, with_queries = [], 0
    for layer in layers:
        named: Any = segments if isinstance(segments, Mapping) else turns[layer.name]
        by_position = segments == "positions" or (segments is None and not named)
        rows = _rows(layer, queries, {} if by_position else named)
        with_queries += len(rows) > 0
        made = _by_position(layer, rows) if by_position else _by_name(layer, rows, named)
        if len(rows) and made.keys:
            resolved.append(made)
    if isinstance(segments, Mapping):
        with Checks() as checks:
            for name, value in segments.items():
                found = any(_positions(value, layer.key_tokens) for layer in layers)
                checks.that(found, f"segments[{short_repr(name)}]: {_not_found(value, layers, 3)}")
    if not with_queries:
        raise InvalidArgument(f"queries: {_not_found(queries, layers, 2)}")
    return resolved


def _turns(layer: Layer) -> dict[str, list[int]]:
    """The turns of a chat without the first token, which many heads use as a sink."""
    if layer.kind == "cross":
        return {}
    others = {*valid_rows_and_columns(layer)[1][1:]}
    turns = chat_turns(layer.key_tokens).items()
    return {name: kept for name, turn in turns if (kept := [key for key in turn if key in others])}


def _check_arguments(checks: Checks, segments: Any, queries: Any) -> None:
    if isinstance(segments, Mapping):
        checks.that(bool(segments), "segments: expected at least one segment, got an empty dict")
        for name, value in segments.items():
            if not isinstance(name, str) or not name:
                checks.fail_type(f"segments: expected names as keys, got {short_repr(name)}")
            elif name == "rest":
                checks.fail("segments: expected another name than 'rest', which names what no segment has")
            _check_positions(checks, f"segments[{short_repr(name)}]", value)
    elif segments is not None and segments not in ("positions", "turns"):
        checks.fail_type(
            f"segments: expected a dict of texts or ranges, 'positions' or 'turns', got {short_repr(segments)}"
        )
    if queries is not None:
        _check_positions(checks, "queries", queries)


def _check_positions(checks: Checks, name: str, value: Any) -> None:
    if isinstance(value, str):
        checks.that(bool(value.strip()), f"{name}: expected a text, got {short_repr(value)}")
        return
    items = [value.start, value.stop, value.step] if isinstance(value, slice) else value
    is_list = isinstance(items, Sequence) and not isinstance(items, bytes)
    allowed = (int, type(None)) if isinstance(value, slice) else int
    if not is_list or any(isinstance(item, bool) or not isinstance(item, allowed) for item in items):
        checks.fail_type(f"{name}: expected a text, a range, a slice or a list of positions, got {short_repr(value)}")


def _not_found(value: Any, layers: Sequence[Layer], axis: int) -> str:
    if isinstance(value, str):
        return f"expected a text that occurs in the recording, got {short_repr(value)}"
    sizes = " or ".join(str(size) for size in sorted({layer.weights.shape[axis] for layer in layers}))
    if isinstance(value, slice):
        shown = ":".join("" if each is None else str(each) for each in (value.start, value.stop))
        shown += "" if value.step is None else f":{value.step}"
        return f"expected a range with at least one of the {sizes} tokens, got {shown}"
    return f"expected positions below {sizes}, the number of tokens, got {short_repr(value)}"


def _positions(value: Positions, tokens: Sequence[str]) -> list[int]:
    """The positions of tokens, in order; none if a text does not occur or a position is out of range."""
    if isinstance(value, str):
        return sorted({position for occurrence in find_tokens(tokens, value) for position in occurrence})
    count = len(tokens)
    if isinstance(value, slice):
        return sorted(range(*value.indices(count)))
    positions = {position + count if position < 0 else position for position in value}
    return sorted(positions) if all(0 <= position < count for position in positions) else []


def _rows(layer: Layer, queries: Positions | None, named: Mapping[str, Positions]) -> Int[Tensor, " queries"]:
    """The rows of some queries, or of the tokens of a segment; those that are padding are left out."""
    valid = torch.tensor(valid_rows_and_columns(layer)[0], dtype=torch.int64, device="cpu")
    count = layer.weights.shape[2]
    if queries is None:
        return valid
    is_name, offset = isinstance(queries, str) and queries in named, 0
    value = named[queries] if isinstance(queries, str) and is_name else queries
    tokens: Sequence[str] = layer.query_tokens
    if not isinstance(value, str):
        if layer.kind == "cross" and is_name:  # positions of keys
            return torch.zeros(0, dtype=torch.int64, device="cpu")
        offset = 0 if layer.kind == "cross" else layer.weights.request.offset
        tokens = [""] * (offset + count)
    rows = torch.tensor(_positions(value, tokens), dtype=torch.int64, device="cpu") - offset
    return rows[torch.isin(rows, valid)]


def _by_position(layer: Layer, rows: Tensor) -> LayerSegments:
    """First token, beginning, middle, and the end of the text or, in a decoder, what is recent for each query."""
    valid = valid_rows_and_columns(layer)[1]
    if not valid:
        return LayerSegments(layer, rows, {}, 0)
    first, *others = valid
    edge = min(MAX_EDGE, -(-(1 + len(others)) // 10))
    if layer.kind == "decoder":
        keys = {"first": [first], "beginning": others[:edge]}
        return LayerSegments(layer, rows, keys, 1 + len(others), edge)
    end = others[-edge:]
    beginning = others[: min(edge, len(others) - len(end))]
    middle = others[len(beginning) : len(others) - len(end)]
    keys = {"first": [first], "beginning": beginning, "middle": middle, "end": end}
    return LayerSegments(layer, rows, keys, 1 + len(others))


def _by_name(layer: Layer, rows: Tensor, named: Mapping[str, Positions]) -> LayerSegments:
    """Segments of a user or of a chat; in self-attention the first token is one, too, as far as no other has it."""
    valid = valid_rows_and_columns(layer)[1]
    keys = {name: _positions(value, layer.key_tokens) for name, value in named.items()}
    keys = {name: kept for name, positions in keys.items() if (kept := sorted({*positions} & {*valid}))}
    if not keys:
        return LayerSegments(layer, rows, {}, len(valid))
    with Checks() as checks:
        for (name, positions), (other, others) in combinations(keys.items(), 2):
            if common := sorted({*positions} & {*others}):
                token = layer.key_tokens[common[0]]
                checks.fail(
                    f"segments: expected segments without common tokens, got {short_repr(name)} and "
                    f"{short_repr(other)}, which both have token {common[0]}, {short_repr(token)}, of {layer.name}"
                )
    used = {position for positions in keys.values() for position in positions}
    if layer.kind != "cross" and "first" not in keys and valid[0] not in used:
        keys = {"first": valid[:1], **keys}
        used.add(valid[0])
    rest = [position for position in valid if position not in used]
    return LayerSegments(layer, rows, keys | ({"rest": rest} if rest else {}), len(valid))
