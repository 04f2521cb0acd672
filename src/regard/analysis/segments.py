"""How much attention goes to each part of a text, such as the system prompt or the recent tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.segment_positions import LayerSegments, Positions, Segments, resolve_segments
from regard.analysis.tables import Columns
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.ops.masks import Padding, Window
from regard.ops.measures import Mass, Measure, Received
from regard.recordings.layer import Layer, require_one_sequence
from regard.recordings.recording import Recording


def segment_attention(
    recording: Recording | Iterable[Layer],
    segments: Segments | None = None,
    queries: Positions | None = None,
    *,
    by_query: bool = False,
) -> Columns:
    """The share of attention that each head gives to the segments of a text.

    The share of segment s is the mean over queries i of Σ_{j ∈ s} P_ij. Padding queries do not count. The shares of a
    head add up to 1, or to less if its score has sinks. In a decoder a query attends only to the tokens up to its own,
    so pass `queries` to see what the last tokens attend to.

    Without names, a text of n tokens has these segments, where k = min(64, ⌈n / 10⌉):

    ``first``
        The first token, which many heads use as a sink.
    ``recent``
        In the self-attention of a decoder: the k tokens up to the query, p_i − k < j ≤ p_i, without the first.
    ``end``
        Elsewhere: the last k tokens.
    ``beginning``
        The k tokens after the first, without those that are recent or the end.
    ``middle``
        All others.

    A chat has a segment for each turn instead (`regard.text.chat.chat_turns`), ``system``, ``user``, ``assistant``,
    without the first token.

    Args:
        recording: A recording of one sequence, or some of its layers.
        segments: Tokens by the name of their segment, as a part of the text, ``{"system": "You are helpful."}``, of
            which every occurrence counts; as a range or slice of positions; or as a list of them. Tokens in none are
            ``rest``, but in self-attention the first token is ``first``. A layer whose keys lack all of them is left
            out, such as a decoder if only its source has them. Or ``"positions"`` or ``"turns"``. Default: the turns
            of a chat if there are some, else positions.
        queries: Count only these: a part of the text, a range, slice or list of positions, or the name of a segment or
            turn. Default: all.
        by_query: Whether each query has shares of its own, such as those of the documents of a prompt in each generated
            token, instead of the mean over queries. The segments must be named or turns.

    Returns:
        Columns by name, as ``pandas.DataFrame`` takes them: ``layer``, ``kind``, ``head`` (its index in the model),
        ``segment``, ``num_tokens`` and ``share``. A row is a segment of a head. With `by_query` there are ``query``,
        its index, and ``token`` before ``segment``, and a row is a segment of a query of a head.

    Raises:
        InvalidType: If an argument has the wrong type.
        InvalidArgument: If there is no layer, or a batch of several sequences; or if segments overlap, or the
            recording lacks the tokens of one or of the queries.

    Memory:
        O(tokens), in one pass over the weights of each layer.

    Reference:
        Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks", for the first token.

    Examples:
        >>> import regard
        >>> from regard.analysis import segment_attention
        >>> recording = regard.pipelines.Translator.load().record("The cat is small.")
        >>> table = segment_attention(recording.layers.cross, {"subject": "The cat"})
        >>> table["segment"][:2], round(sum(table["share"][:2]), 3)
        (['subject', 'rest'], 1.0)
    """
    if not isinstance(by_query, bool):
        raise InvalidType(f"by_query: expected True or False, got {short_repr(by_query)}")
    all_resolved = resolve_segments(_as_layers(recording), segments, queries)
    if by_query:
        return _shares_by_query(all_resolved)
    columns: Columns = {name: [] for name in ("layer", "kind", "head", "segment", "num_tokens", "share")}
    for resolved in all_resolved:
        layer = resolved.layer
        shares, counts = segment_shares(resolved), segment_sizes(resolved)
        for number, head in enumerate(layer.head_indices):
            columns["layer"] += [layer.name] * len(counts)
            columns["kind"] += [layer.kind] * len(counts)
            columns["head"] += [head] * len(counts)
            columns["segment"] += list(counts)
            columns["num_tokens"] += list(counts.values())
            columns["share"] += [shares[name][number].item() for name in counts]
    return columns


def _shares_by_query(all_resolved: Sequence[LayerSegments]) -> Columns:
    """The table of `segment_attention` with a row for each query."""
    names = ("layer", "kind", "head", "query", "token", "segment", "num_tokens", "share")
    columns: Columns = {name: [] for name in names}
    for resolved in all_resolved:
        if resolved.num_recent:
            raise InvalidArgument(
                "by_query: expected named segments, because those by position differ between queries; pass "
                'segments={"document": "its text"}, ranges, or the turns of a chat'
            )
        layer, counts = resolved.layer, segment_sizes(resolved)
        weights = layer.weights.detach().at(queries=resolved.queries)
        is_key = torch.zeros(weights.shape[3], len(counts), dtype=weights.dtype, device=weights.device)
        for number, keys in enumerate(resolved.keys.values()):
            is_key[keys, number] = 1
        shares = (weights @ is_key)[0].tolist()  # (heads, queries, segments)
        for head, of_head in zip(layer.head_indices, shares, strict=True):
            for query, of_query in zip(resolved.queries.tolist(), of_head, strict=True):
                for (segment, count), share in zip(counts.items(), of_query, strict=True):
                    row = (layer.name, layer.kind, head, query, layer.query_tokens[query], segment, count, share)
                    for name, cell in zip(names, row, strict=True):
                        columns[name].append(cell)
    return columns


def _as_layers(recording: Any) -> list[Layer]:
    layers: Any = recording.layers if isinstance(recording, Recording) else recording
    layers = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(layer, Layer) for layer in layers):
        hint = "; pass its .recording" if hasattr(recording, "recording") else ""
        raise InvalidType(f"recording: expected a Recording or layers, got {type(recording).__name__}{hint}")
    if not layers:
        raise InvalidArgument("recording: expected at least one layer of attention, got none")
    require_one_sequence(layers)
    return layers


def segment_measures(resolved: LayerSegments) -> dict[str, Measure]:
    """What `segment_shares` needs of all weights of a layer, by name."""
    if not resolved.num_recent:
        return {"received": Received()}
    return {"received": Received(), "recent": Mass(Window(resolved.num_recent - 1, 0))}


def segment_shares(
    resolved: LayerSegments, measured: Mapping[str, Any] | None = None
) -> dict[str, Float[Tensor, " heads"]]:
    """The share of each segment of a layer by its name, in float64; see `segment_attention`.

    Args:
        resolved: The segments of a layer.
        measured: The results of `segment_measures` over all queries, if `resolved` counts all. Default: they are
            measured.
    """
    weights, count = resolved.layer.weights.detach(), len(resolved.queries)
    if count < weights.shape[2]:
        weights, measured = weights.at(queries=resolved.queries), None
    if measured is None:
        measured = weights.measure(segment_measures(resolved))
    received = measured["received"][0].cpu().double() / count  # (heads, keys)
    shares = {name: received[:, keys].sum(1) for name, keys in resolved.keys.items()}
    if not resolved.num_recent:
        return shares
    overlaps = _recent_sums(resolved)
    recent = measured["recent"][0].cpu().double().sum(1) / count
    shares["beginning"] -= overlaps["beginning"] / count
    shares["recent"] = recent - overlaps["first"] / count
    shares["middle"] = received.sum(1) - shares["first"] - shares["beginning"] - shares["recent"]
    return shares


def _recent_sums(resolved: LayerSegments) -> dict[str, Float[Tensor, " heads"]]:
    """By segment, the attention of all queries to those of its keys that are recent; only early queries have some."""
    weights, queries = resolved.layer.weights.detach(), resolved.queries
    last = max(key for keys in resolved.keys.values() for key in keys)
    queries = queries[queries + weights.request.offset < last + resolved.num_recent]
    if not len(queries):
        return {name: torch.zeros(weights.shape[1], dtype=torch.float64, device="cpu") for name in resolved.keys}
    measures = {}
    for name, keys in resolved.keys.items():
        is_key = torch.zeros(1, weights.shape[3], dtype=torch.bool, device=weights.device)
        is_key[0, keys] = True
        measures[name] = Mass(Window(resolved.num_recent - 1, 0) & Padding(is_key))
    sums = weights.at(queries=queries).measure(measures)
    return {name: mass[0].cpu().double().sum(1) for name, mass in sums.items()}


def segment_sizes(resolved: LayerSegments) -> dict[str, int]:
    """The number of tokens of each segment, by their order in the table."""
    counts = {name: len(keys) for name, keys in resolved.keys.items()}
    if not resolved.num_recent:
        return counts
    others = sum(counts.values()) + resolved.num_recent
    return counts | {"middle": max(0, resolved.num_keys - others), "recent": resolved.num_recent}
