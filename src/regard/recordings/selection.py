"""The layers of one sequence of a recording, with its tokens; see `Recording.select`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops import GradientMatrix, WeightMatrix
from regard.ops.masks import Spans, to_spans
from regard.ops.scores import ScaledDotProduct
from regard.ops.tree import map_tensors
from regard.recordings.layer import Layer, LayerList, common_part, is_within

Names = tuple[str, ...] | None
"""The tokens of a sequence; None numbers them."""


def select_layers(
    layers: LayerList,
    sequence: int | None,
    entry: int | None,
    tokens: Sequence[str] | Mapping[str, Sequence[str]] | None,
    target_tokens: Sequence[str] | None,
    names: Sequence[str] | None,
) -> LayerList:
    """The layers of one sequence; see `Recording.select`."""
    with Checks() as checks:
        checks.integer("sequence", sequence, optional=True)
        checks.integer("entry", entry, low=0, optional=True)
    chosen = layers if names is None else _layers_within(layers, names, "layers")
    index = _check_sequence(chosen, sequence, is_whole=names is None)
    found = [_part(layer, index, entry) for layer in chosen]
    parts = LayerList(part for part in found if part is not None)
    if not parts:
        raise InvalidArgument(f"sequence: expected one that the layers have entries of, got {index}, which has none")
    of_layer = _tokens_by_layer(parts, tokens)
    of_target = _as_names("target_tokens", target_tokens)
    if of_target is not None and all(layer.kind == "encoder" for layer in parts):
        raise InvalidArgument("target_tokens: the recording has no decoder; pass tokens=")
    _check_counts(parts, of_layer, of_target, is_by_part=isinstance(tokens, Mapping))
    return LayerList(_with_tokens(part, of_layer[part.name], of_target) for part in parts)


def _layers_within(known: LayerList, names: Any, argument: str) -> LayerList:
    """The layers with these names, and those of the parts of the model with these names."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidType(f"{argument}: expected a list of names, got {short_repr(names)}")
    every = [layer.name for layer in known]
    with Checks() as checks:
        checks.that(bool(names), f"{argument}: expected at least one name; leave it out for all")
        for name in names:
            if not any(is_within(each, name) for each in every):
                checks.fail(
                    f"{argument}: unknown layer {short_repr(name)}{did_you_mean(name, every)}; known: "
                    f"{', '.join(every)}"
                )
    return LayerList(layer for layer in known if any(is_within(layer.name, name) for name in names))


def _check_sequence(layers: LayerList, sequence: int | None, *, is_whole: bool) -> int:
    """The index of the sequence; raises if it does not mean the same sequence in all layers."""
    counts: dict[int, str] = {}
    instead = "select layers that have one, with layers=[...], or read layer.weights.at(batch=...)"
    for layer in layers:
        axis, batch = layer.batch_axis, layer.weights.shape[0]
        if axis is not None and not axis.is_known and is_whole:
            raise InvalidArgument(
                f"sequence: expected layers whose batch is that of the model's inputs, but {layer.name} has a batch of "
                f"{batch}, and it is not known which sequence each of them belongs to; if they are the sequences, pass "
                f"batch_axis= to regard.watch, the axis of the model's first input that counts them; else {instead}"
            )
        counts.setdefault(batch if axis is None or not axis.is_known else axis.num_sequences, layer.name)
    if len(counts) > 1:
        differing = " and ".join(f"{size} ({name})" for size, name in counts.items())
        raise InvalidArgument(
            f"sequence: expected layers with one batch, got batches of {differing}; {instead}; after a beam search, "
            "call result.select_beams(output.beam_indices)"
        )
    count = next(iter(counts), 1)
    if sequence is None and count > 1:
        raise InvalidArgument(f"sequence: expected an index from 0 to {count - 1}, because there are {count}")
    if not 0 <= (sequence or 0) < count:
        raise InvalidArgument(f"sequence: expected an index from 0 to {count - 1}, got {sequence}")
    return sequence or 0


def _part(layer: Layer, sequence: int, entry: int | None) -> Layer | None:
    """What a layer has of a sequence, detached; None if it has nothing."""
    axis, weights, value = layer.batch_axis, layer.weights.detach(), layer.value
    value = None if value is None else value.detach()
    if axis is None or not axis.is_known:
        entries, axis = [sequence], None
    else:
        entries = axis.entries_of(sequence)
        if not entries:
            return None
        if entry is not None and len(entries) > 1:
            if entry >= len(entries):
                raise InvalidArgument(
                    f"entry: expected an index from 0 to {len(entries) - 1} in {layer.name}, which has "
                    f"{len(entries)} {axis.unit}s of the sequence, got {entry}"
                )
            entries = [entries[entry]]
    tokens: dict[str, Any] = {}
    if axis is not None and axis.spans is not None:
        own = slice(axis.spans[entries[0]][0], axis.spans[entries[-1]][1])
        if (own.start, own.stop) != (0, weights.shape[3]):
            weights, measured = _block(weights, own, layer.name), {}
            value = None if value is None else value[:, :, own]
            tokens = {"query_tokens": None, "key_tokens": None}
        else:
            measured = layer.measured
    else:
        if weights.shape[0] > 1:
            weights = weights.at(batch=entries)
        value = None if value is None else value[entries]
        measured = map_tensors(dict(layer.measured), lambda tensor: tensor[entries].detach())
    if axis is not None and len(entries) == 1:
        names = axis.token_names(entries[0])
        for side, count in (("query_tokens", weights.shape[2]), ("key_tokens", weights.shape[3])):
            if names is not None and len(names) == count:
                tokens[side] = names
    axis = None if axis is None else axis.only(entries)
    return layer.replace(weights=weights, measured=measured, value=value, batch_axis=axis, **tokens)


def _block(weights: WeightMatrix, part: slice, name: str) -> WeightMatrix:
    """The queries and keys of a part of the tokens, which attend to one another alone.

    Raises:
        InvalidArgument: If they attend to others, or the score depends on the position.
    """
    request, device = weights.request, weights.device
    spans = None if request.mask is None else to_spans(request.mask, request.shape, request.offset, device)
    if spans is not None and type(request.score) is ScaledDotProduct and request.full_shape is None:
        starts, stops = (side[:, :, part].to(torch.int64) for side in (spans.starts, spans.stops))
        is_empty = stops <= starts
        if bool((((starts >= part.start) & (stops <= part.stop)) | is_empty).all()):
            starts, stops = ((side - part.start).masked_fill(is_empty, 0) for side in (starts, stops))
            query, key = (tensor[:, :, part] for tensor in (request.query, request.key))
            valid = None if weights.valid_queries is None else weights.valid_queries[:, part]
            block = WeightMatrix(replace(request, query=query, key=key, mask=Spans(starts, stops)), valid)
            gradient = weights.grad
            return block if gradient is None else block.with_gradient(_gradient_block(gradient, part))
    raise InvalidArgument(
        f"sequence: the tokens of {name} are those of several sequences, and attend to more than their own; read "
        "layer.weights"
    )


def _gradient_block(gradient: GradientMatrix, part: slice) -> GradientMatrix:
    request, valid = gradient.request, gradient.valid_queries
    return GradientMatrix.of(
        request.query[:, :, part], request.key[:, :, part], None if valid is None else valid[:, part]
    )


def _tokens_by_layer(layers: LayerList, tokens: Any) -> dict[str, Names]:
    """The tokens of each layer: the same for all, or those of the innermost part of the model that names it."""
    if not isinstance(tokens, Mapping):
        names = _as_names("tokens", tokens)
        return {layer.name: names for layer in layers}
    found: dict[str, tuple[str, Names]] = {layer.name: ("", None) for layer in layers}
    for part, of_part in tokens.items():
        if not isinstance(part, str):
            raise InvalidType(f"tokens: expected names of parts of the model, got {short_repr(part)}")
        names = _as_names(f"tokens[{short_repr(part)}]", of_part)
        for layer in _layers_within(layers, part, "tokens"):
            if len(part) >= len(found[layer.name][0]):
                found[layer.name] = part, names
    return {name: names for name, (_, names) in found.items()}


def _sides(layer: Layer, tokens: Names, target_tokens: Names) -> list[tuple[str, Names, int]]:
    """The argument that names the queries, its names, and their number; and the same for the keys."""
    _, _, queries, keys = layer.weights.shape
    of_source, of_target = ("tokens", tokens), ("target_tokens", target_tokens)
    if target_tokens is None or layer.kind == "encoder":
        of_target = of_source
    argument, names = of_source if layer.kind == "cross" else of_target
    return [(*of_target, queries), (argument, names, keys)]


def _check_counts(layers: LayerList, tokens: Mapping[str, Names], target_tokens: Names, *, is_by_part: bool) -> None:
    """Check that there are as many names as tokens in each layer."""
    sides = {layer.name: _sides(layer, tokens[layer.name], target_tokens) for layer in layers}
    fitting = [
        name for name, each in sides.items() if all(names is None or len(names) == size for _, names, size in each)
    ]
    for layer in layers:
        batch, axis = layer.weights.shape[0], layer.batch_axis
        for argument, names, size in sides[layer.name]:
            if names is None:
                continue
            if len(names) != size:
                hint = ""
                if len(names) == size + 1 and not fitting:
                    hint = "; leave out the last one, which a generation wrote but did not read"
                elif argument == "tokens" and layer.kind == "cross":
                    hint = "; pass target_tokens= for those of the decoder"
                elif fitting and not is_by_part:
                    part = common_part(fitting, [name for name in sides if name not in fitting])
                    instead = "[...]" if part is None else f"[{part!r}], or tokens={{{part!r}: [...]}}"
                    hint = f"; to name only the layers with {len(names)}, pass layers={instead}"
                raise InvalidArgument(f"{argument}: expected {size} tokens for {layer.name}, got {len(names)}{hint}")
            if batch > 1 and axis is not None:
                raise InvalidArgument(
                    f"{argument}: {layer.name} has {batch} {axis.unit}s of the sequence; select one with entry=0, or "
                    "name the tokens of other layers with tokens={part of the model: tokens}"
                )


def _with_tokens(layer: Layer, tokens: Names, target_tokens: Names) -> Layer:
    """A layer with the names of its tokens."""
    given = [names for _, names, _ in _sides(layer, tokens, target_tokens)]
    named = {
        side: names for side, names in zip(("query_tokens", "key_tokens"), given, strict=True) if names is not None
    }
    return layer.replace(**named) if named else layer


def _as_names(argument: str, tokens: Any) -> Names:
    """Tokens as texts; ids become numbers."""
    if tokens is None:
        return None
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(listed, str) or not isinstance(listed, Sequence) or any(isinstance(each, list) for each in listed):
        raise InvalidType(
            f"{argument}: expected a list with a name for each token of one sequence, got {short_repr(tokens)}"
        )
    return tuple(map(str, listed))
