"""Relevance: how much each input token matters to what a loss measures, from weights and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis.fused_weights import FusedWeights, check_self_attention, gradient_times_weights, matrices_of
from regard.analysis.padding import valid_queries
from regard.analysis.token_grids import merging_before, result_shape, windows_of
from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.ops import WeightMatrix
from regard.ops.indexing import Selection, resolve_index
from regard.recordings.layer import Layer


def relevance(
    layers: Sequence[Layer | WeightMatrix], *, queries: Selection = None
) -> Float[Tensor, "batch queries keys"]:
    """Gradient-weighted relevance of the input tokens, layer by layer as R ← R + Ā R, from R = I.

    Ā is the mean over heads of the positive part of ∇W · W, the weights times their gradients, cell by cell. In a model
    with encoder and decoder, self-attention of the decoder changes R of its own tokens, S, and that of the source
    tokens, Q ← Q + Ā Q; cross-attention adds Q ← Q + S̄ᵀ Ā Ē, where S̄ = I + (S − I) with rows that sum to 1 and Ē is
    the same of the encoder's R. A row of S − I or R − I without relevance stays 0. Layers of windows, and stages that
    merge tokens, count as in `rollout`.

    Args:
        layers: The layers of ``regard.watch(model, weight_gradients=True)`` after a backward pass, from the input on:
            those of self-attention in one part of a model, such as ``result.layers.encoder`` or
            ``result.layers.within("vision_model")``, or all layers of a model with encoder and decoder.
        queries: Tokens of the last layer, of the decoder if there is one: an int, several, bools or a slice. Usually
            the one that the loss is computed from, such as 0 for a class token. Default: all.

    Returns:
        (batch, queries, tokens): for each query, the relevance of the tokens of the input, of the encoder if there is
        one; for those of the decoder, pass ``result.layers.decoder`` alone. 0 for queries that are padding. It has no
        gradients.

    Raises:
        InvalidType: If the layers are neither `Layer`s nor weight matrices.
        InvalidArgument: If a layer has no gradient, tokens do not fit, or an index is out of range.

    Memory:
        O(tokens * queries): each layer is multiplied by the rows, in blocks of rows. With a decoder of n layers, it
        takes about n² / 2 passes over its matrices.

    Reference:
        Chefer, Gur, Wolf 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
        Transformers", equations 5 to 10.

    Examples:
        >>> import regard, torch, transformers
        >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99)
        >>> model = transformers.BertForSequenceClassification(config).eval()
        >>> with regard.watch(model, weight_gradients=True) as result:
        ...     model(torch.randint(99, (1, 10))).logits[0, 1].backward()
        >>> regard.analysis.relevance(result.layers, queries=0).shape
        torch.Size([1, 1, 10])
    """
    matrices = matrices_of(layers)
    kinds = [layer.kind if isinstance(layer, Layer) else "encoder" for layer in layers]
    has_cross = "cross" in kinds
    fused = [
        FusedWeights(gradient_times_weights(layer, number), _mean_of_positive, windows=windows_of(layer))
        for number, layer in enumerate(layers)
    ]
    last = [i for i, kind in enumerate(kinds) if kind != "encoder" or not has_cross]
    rows = _check(layers, matrices, kinds, queries)
    of_queries = matrices[last[0]]
    batch, tokens = (of_queries.shape[0], of_queries.shape[2]) if has_cross else result_shape(layers)
    start = torch.eye(tokens, dtype=of_queries.dtype, device=of_queries.device)[:, rows].expand(batch, -1, -1)
    with torch.no_grad():
        if has_cross:
            encoder = [each for each, kind in zip(fused, kinds, strict=True) if kind == "encoder"]
            decoder = [(fused[i], kinds[i] == "cross") for i in last]
            result = _of_source(encoder, decoder, start)
        else:
            result = start
            for number in reversed(range(len(fused))):
                result = result + fused[number].transposed_times(result)
                merging = merging_before(layers, number)
                result = result if merging is None else merging.transposed_times(result)
        if any(windows_of(layer) is not None for layer in layers):
            return result.mT
        return result.mT * valid_queries(of_queries, is_self=True)[:, rows, None]


def _mean_of_positive(block: Tensor) -> Tensor:
    return block.clamp(min=0).mean(1)


def _transposed_chain(layers: Sequence[FusedWeights], columns: Tensor) -> Tensor:
    """The product of Rᵀ with columns, for R = (I + Ā_L) … (I + Ā_1): the rows of R, if these are those of I."""
    for layer in reversed(layers):
        columns = columns + layer.transposed_times(columns)
    return columns


def _chain(layers: Sequence[FusedWeights], columns: Tensor) -> Tensor:
    """The product of R with columns, for R = (I + Ā_L) … (I + Ā_1)."""
    for layer in layers:
        columns = columns + layer.times(columns)
    return columns


def _of_source(
    encoder: Sequence[FusedWeights], decoder: Sequence[tuple[FusedWeights, bool]], columns: Tensor
) -> Tensor:
    """The rows of Q as columns, (batch, source tokens, queries).

    Args:
        encoder: The self-attention of the encoder.
        decoder: The layers of the decoder, and whether each is cross-attention.
        columns: (batch, tokens, queries) The queries, as columns of I.
    """
    attended: Tensor | None = None  # what the cross-attention of all layers adds, before Ē
    for number in reversed(range(len(decoder))):
        layer, is_cross = decoder[number]
        if not is_cross:
            columns = columns + layer.transposed_times(columns)
            continue
        before = [each for each, cross in decoder[:number] if not cross]
        ones = columns.new_ones(*columns.shape[:2], 1)
        product = _chain(before, torch.cat([columns, ones], 2))
        added = _divided(product[..., :-1] - columns, product[..., -1:] - 1)
        part = layer.transposed_times(columns + added)
        attended = part if attended is None else attended + part
    assert attended is not None
    ones = attended.new_ones(*attended.shape[:2], 1)
    shares = _divided(attended, _chain(encoder, ones) - 1)
    return attended + _transposed_chain(encoder, shares) - shares


def _divided(relevances: Tensor, sums: Tensor) -> Tensor:
    """Relevances divided by the sums of their rows; 0 where there is none."""
    return (relevances / sums.where(sums > 0, 1.0)) * (sums > 0)


def _check(
    layers: Sequence[Layer | WeightMatrix], matrices: Sequence[WeightMatrix], kinds: Sequence[str], queries: Selection
) -> list[int]:
    """The indices of the queries; raises every problem."""
    has_cross = "cross" in kinds
    with Checks() as checks:
        by_kind = {kind: [m for m, k in zip(matrices, kinds, strict=True) if k == kind] for kind in kinds}
        if not has_cross:
            check_self_attention(checks, layers)
        else:
            for layer in layers:
                if isinstance(layer, Layer) and windows_of(layer) is not None:
                    raise InvalidArgument(
                        "layers: relevance through a decoder is not defined for an encoder of windows, such as "
                        f"{layer.name}; pass result.layers.encoder or result.layers.decoder"
                    )
            for kind in ("encoder", "decoder"):
                if kind in by_kind:
                    check_self_attention(checks, by_kind[kind])
            source = by_kind["encoder"][0].shape[2] if "encoder" in by_kind else by_kind["cross"][0].shape[3]
            target = by_kind["decoder"][0].shape[2] if "decoder" in by_kind else by_kind["cross"][0].shape[2]
            for weights in by_kind["cross"]:
                expected = (matrices[0].shape[0], target, source)
                actual = (weights.shape[0], *weights.shape[2:])
                if actual != expected:
                    checks.fail(
                        f"layers: expected cross-attention with (batch, queries, keys) = {expected}, as self-attention "
                        f"has, got {actual}"
                    )
        tokens = target if has_cross else result_shape(layers)[1]
        rows = resolve_index(checks, "queries", slice(None) if queries is None else queries, tokens, matrices[0].device)
    assert rows is not None
    return rows.tolist()
