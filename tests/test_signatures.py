"""Signatures state axes and dtypes; in a process where jaxtyping checks them, calls of every kind pass."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, install_import_hook, jaxtyped

PACKAGES = ["regard.ops", "regard.nn"]
TRITON = "regard.ops.kernels.triton.jit"  # which Triton compiles, if it is installed
ABSTRACT = {"Mask.allowed", "Measure.compute", "Score.__call__"}
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 3, 4, 2, 5, 7, 8, 6  # all differ

annotated: set[str] = set()
uncalled: set[str] = set()


def checked(function):
    """The type checker: beartype for functions with axes in their signature; records which are never called."""
    axes = list(axis_hints(function))
    if not axes:
        return function
    annotated.update(axes)
    # Each function is passed twice: once for its arguments, once also for its result.
    name = f"{function.__module__}.{function.__qualname__}({', '.join(function.__annotations__)})"
    if function.__qualname__ not in ABSTRACT:
        uncalled.add(name)
    check = beartype(function)

    @functools.wraps(function)
    def run(*args, **kwargs):
        uncalled.discard(name)
        return check(*args, **kwargs)

    return run


def axis_hints(function):
    """The arguments and the result of a function whose annotations state axes."""
    for name, hint in typing.get_type_hints(function).items():
        if "jaxtyping" in repr(hint):
            yield f"{function.__module__}.{function.__qualname__}: {name}"


def hints():
    """Those of all functions in the packages, read when every name is known."""
    for package in PACKAGES:
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if info.name.startswith(TRITON):
                continue
            module = importlib.import_module(info.name)
            for thing in vars(module).values():
                for part in vars(thing).values() if inspect.isclass(thing) else [thing]:
                    function = next(
                        (getattr(part, at) for at in ("fget", "func", "__func__") if hasattr(part, at)), part
                    )
                    if inspect.isfunction(function) and function.__module__ == info.name:
                        yield from axis_hints(function)


def call_ops():
    from helpers.ops.cases import SCORES, masks, measures
    from regard.ops import GradientMatrix, attend, dropout, weights
    from regard.ops.masks import Causal, Window
    from regard.ops.measures import (
        BlockMean,
        Diagonal,
        DistanceHistogram,
        Entropy,
        GroupPool,
        KLDivergence,
        Mass,
        MeanDistance,
        Measure,
    )
    from regard.ops.scores import Bias, ScaledDotProduct

    class SelfWeight(Measure):
        def compute(self, block):
            return (block.weights * (block.kv_idx == block.q_pos)).sum(-1)

    query = torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, requires_grad=True)
    key = torch.randn(BATCH, KV_HEADS, KEYS, HEAD_DIM, requires_grad=True)
    value = torch.randn(BATCH, 1, KEYS, VALUE_DIM, requires_grad=True)
    requested = {**measures(QUERIES, KEYS), "self weight": SelfWeight()}
    for mask in masks(BATCH, HEADS, QUERIES, KEYS).values():
        for kernel in (None, "reference", "blockwise"):
            att = attend(query, key, value, mask=mask, measure=requested, kernel=kernel, score=ScaledDotProduct())
            (att.output.sum() + att.measured["entropy"].sum()).backward()
        attend(query, key, value, mask=mask)
        check_fields(att.measured["topk"])
    for case in SCORES.values():
        tensors = case.tensors(HEADS, QUERIES, KEYS, HEAD_DIM)
        score = case.rule({name: tensor.requires_grad_() for name, tensor in tensors.items()})
        for kernel in ("reference", "blockwise"):
            att = attend(query, key, value, score=score, measure="entropy", kernel=kernel)
            (att.output.sum() + att.measured["entropy"].sum()).backward()
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    attend(query, key, value, mask=Causal() & real[:, None, None] | real[0], dropout=0.5, measure=["lse", "received"])
    attend(query.bfloat16(), key.bfloat16(), key.bfloat16())  # value has as many heads as key: SDPA
    attend(query, key, key, dropout=0.1, kernel="blockwise").output.sum().backward()
    Entropy().for_valid_queries(real)
    for dtype in (torch.float32, torch.bfloat16):
        dropout(torch.ones(2, 3, dtype=dtype, requires_grad=True), 0.5).sum().backward()

    W = weights(query, key, mask=Causal())
    W.dense(), W[0, 3, 2], W[..., 1], W[0, 0, 0, 0], W.scores[1, 2], W.scores.dense(), W[:, [1, 3], None, 2]
    (
        W.entropy(),
        W.lse(),
        W.received(),
        W.received(torch.ones(QUERIES)),
        type(W)(W.request, torch.ones(BATCH, QUERIES, dtype=torch.bool)).at(batch=0, queries=[1]).received(),
        W.received(torch.ones(BATCH, 1, QUERIES)),
        W.columns(2),
        W.columns([1, 6]),
        W.columns(slice(None)),
        W.svd(2),
        W.singular_values(),
        W.effective_rank(),
        W.mT.spectral_entropy(2),
    )
    square = weights(query, query, mask=Causal())
    square.eig(2), square.eigenvalues(2), square.spectral_gap(), square.laplacian().dense()
    square.laplacian("normalized").eigenvalues(2, largest=False).sum().backward()
    GradientMatrix.of(query, torch.randn(BATCH, 1, KEYS, HEAD_DIM)).sum(-1)
    groups = GroupPool(torch.arange(QUERIES) // 2, torch.arange(KEYS) // 3)
    divergence = KLDivergence(weights(query * 2, key, score=ScaledDotProduct() + Bias(torch.ones(KEYS))))
    W.measure(MeanDistance(), Diagonal(0), Mass(Causal()), DistanceHistogram(2), BlockMean(2), groups, divergence)
    attend(query, key, key, measure=divergence, kernel="blockwise")
    check_fields(W.topk(2)), check_fields(W.measure("max")["max"])
    strong = W > 0.1
    strong[0, 1], strong.dense(), strong.any(-1), strong.all(), strong.count_nonzero(2), strong.nonzero()
    check_fields(W.mT.topk(2)), check_fields(W.mT.topk(QUERIES + 1))
    W.at(heads=[3, 1], queries=[4, 0]).measure(Mass(Window(1, 1)), MeanDistance())
    for shape in ((QUERIES,), (QUERIES, 9), (BATCH, HEADS, QUERIES, 9)):
        (W.mT @ torch.randn(shape, requires_grad=True)).sum().backward()
    for shape in ((KEYS,), (KEYS, 9), (1, KEYS, 9), (HEADS, KEYS, 9), (BATCH, 1, KEYS, 9), (BATCH, HEADS, KEYS, 9)):
        (W @ torch.randn(shape, requires_grad=True)).sum().backward()
    from regard.ops import rotary
    from regard.ops.masks import Documents, Neighbors, to_block_mask, to_dense, to_mask_mod, to_spans
    from regard.ops.scores import Alibi, T5RelativeBias

    shape = BATCH, HEADS, QUERIES, KEYS
    to_dense(Causal(), shape), to_spans(Causal(), shape), to_mask_mod(Causal())(*(torch.tensor(0) for _ in range(4)))
    attend(query, key, value, mask=to_block_mask(Causal(), shape, BLOCK_SIZE=4))
    attend(query, key, value, mask=Causal() & Documents(torch.zeros(BATCH, KEYS, dtype=torch.int64)))
    attend(query, key, value, mask=Neighbors.from_edge_index(torch.tensor([[6, 0], [4, 0]])), kernel="sparse")
    rotary(query), rotary(query, torch.arange(QUERIES), rotary_dim=2), Alibi.for_heads(3)
    (
        rotary(query, torch.zeros(BATCH, QUERIES, dtype=torch.int64)),
        T5RelativeBias(torch.ones(8, 2)).bucket(torch.arange(5)),
    )
    part = weights(query, key, mask=real[:, None, None]).at(batch=0, heads=[3, 1], queries=slice(2)).detach().to("cpu")
    part.dense(), part @ torch.randn(KEYS)


def call_nn():
    from regard import nn
    from regard.nn.absolute_positions import sinusoids
    from regard.ops.masks import Causal, Neighbors

    x, memory = torch.randn(BATCH, QUERIES, 16), torch.randn(BATCH, KEYS, 16)
    dense = torch.ones(BATCH, 1, QUERIES, QUERIES, dtype=torch.bool)

    def attention():
        return nn.MultiHeadAttention(16, HEADS, num_kv_heads=KV_HEADS, dropout=0.1)

    for mask in (None, Causal(), dense):
        attention()(x, mask=mask, measure="entropy").output.sum().backward()
    attention()(x, memory), attention()(x, memory, memory * 2)
    padding = torch.zeros(BATCH, QUERIES, dtype=torch.bool)
    attention()(x, attn_mask=torch.zeros(QUERIES, QUERIES), key_padding_mask=padding)
    for positions in (
        nn.RelativePositions(4, 2),
        nn.RotaryPositions(nn.rotary_frequencies(4)),
        nn.AlibiPositions(HEADS),
        nn.T5Positions(HEADS, bidirectional=True),
        nn.AttentionPositions(),
    ):
        layer = nn.MultiHeadAttention(16, HEADS, num_kv_heads=KV_HEADS, positions=positions)
        layer(x, measure="entropy").output.sum().backward()
    for norm_first in (False, True):
        layers = [
            nn.TransformerLayer(attention(), nn.FeedForward(16, 32), norm_first=norm_first, dropout=0.1)
            for _ in range(2)
        ]
        encoder = nn.TransformerStack(layers)
        encoder(x, mask=dense)[0].sum().backward()
        layer = nn.TransformerLayer(
            attention(), nn.FeedForward(16, 32, activation="gelu"), cross_attention=attention(), norm_first=norm_first
        )
        layer(x, memory, mask=Causal(), memory_mask=torch.ones(KEYS, dtype=torch.bool))
        decoder = nn.TransformerStack([layer], causal=True)
        decoder(x, memory, memory_mask=torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool))[0].sum().backward()
        decode(decoder.eval(), memory)
    additive = nn.AdditiveAttention(16, 6, 5)
    memory = torch.randn(len(x), 7, 6)
    additive(x, memory, projected_key=additive.project_key(memory))
    additive.weights(x, memory)
    nn.SelfAttention2d(8)(torch.randn(2, 8, 3, 4))
    nn.SelfAttention(16)(x, mask=Causal()).output.sum().backward()
    W = attention()(x).weights
    (
        nn.entropy_loss(W, floor=1.0),
        nn.spectral_entropy_loss(W, floor=1.0),
        nn.coverage_loss(W, row_weights=torch.ones(QUERIES)),
        nn.kl_divergence_loss(W, W),
        nn.grouped_kl_loss(W, W.at(heads=[0, 1])),
        nn.score_loss(W, W),
        nn.relation_loss(torch.randn(BATCH, HEADS, KEYS, 4), torch.randn(BATCH, KV_HEADS, KEYS, 6), num_heads=4),
        nn.indexer_loss(
            W, torch.randn(BATCH, 2, QUERIES, 6), torch.randn(BATCH, QUERIES, 6), torch.randn(BATCH, 2, QUERIES)
        ),
    )
    nn.alignment_loss(W, torch.zeros(BATCH, QUERIES, dtype=torch.int64))
    nn.SinusoidalPositions(16)(x, offset=600)
    nn.NoPositions()(x)
    nn.GraphAttention(16, 4, 2)(x[0], Neighbors(*torch.arange(QUERIES).expand(2, -1)))
    nn.LearnedPositions(16, 20)(x, offset=2).sum().backward()
    sinusoids(4, 6)
    nn.FeedForward(16, 32)(x[0]), nn.Dropout(0.5)(x[0, 0])

    hidden, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((5, 16), (11, 16), 11))
    for options in ({}, {"bias": bias, "label_smoothing": 0.1, "ignore_index": 4}):
        loss = nn.linear_cross_entropy(hidden, weight, torch.arange(5), **options)
        loss.loss.backward()
        check_fields(loss)


@torch.no_grad()
def decode(decoder, memory):
    """Decode with two beams per sentence, both of which continue the first one; then one sentence ends."""
    from regard.nn import DecoderCache, SharedBeamCache

    cache, rows = SharedBeamCache(1), torch.arange(2 * BATCH)
    for tokens in (2, *[1] * 10):
        decoder(torch.randn(2 * BATCH, tokens, 16), memory, cache=cache)
        cache.reorder_cache(rows // 2 * 2)
    cache.batch_select_indices(torch.tensor([0, 2]), torch.tensor([0, 1, 4, 5]))
    decoder(torch.randn(4, 1, 16), memory[[0, 2]], cache=cache)
    own = DecoderCache(1)
    own.advance(BATCH, 2, 1, memory.device)
    own.batch_repeat_interleave(1)
    own.reorder_cache(torch.arange(BATCH))
    own.batch_select_indices(torch.tensor([0]), torch.tensor([0]))
    greedy = SharedBeamCache(1)
    for tokens in (3, 1):
        decoder(torch.randn(BATCH, tokens, 16), memory, cache=greedy)


def check_fields(result):
    """Check a named tuple, which does not check its fields itself."""
    with jaxtyped("context"):
        for name, hint in typing.get_type_hints(type(result)).items():
            assert isinstance(getattr(result, name), hint), f"{type(result).__name__}.{name} is not a {hint}"


def call_wrongly():
    """Calls that run where nothing is checked, but contradict the signature."""
    from regard import nn
    from regard.ops import dropout
    from regard.ops.measures import Block
    from regard.ops.tile import KeyRange, Tile

    with pytest.raises(TypeCheckError, match="parameter 'output'"):  # it would be broadcast
        nn.Residual(8).add_and_norm(torch.ones(2, 3, 8), torch.ones(3, 8))
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        dropout(torch.ones(2, dtype=torch.int64), 0.0)
    one = slice(0, 1)
    tile = Tile(one, one, one, KeyRange(0, 1), 0, torch.device("cpu"))
    with pytest.raises(TypeCheckError, match="parameter 'scores'"):
        Block(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2), tile, (one,) * 4, (1, 1, 1, 1))
    wide = nn.FeedForward(8, 16)
    wide.fc2 = torch.nn.Linear(16, 9)
    with pytest.raises(TypeCheckError, match="return value"):
        wide(torch.ones(2, 8))


def test_calls_of_every_kind_fit_the_signatures():
    completed = subprocess.run([sys.executable, "-W", "error", __file__], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with install_import_hook(PACKAGES, "__main__.checked"):
        for package in PACKAGES:
            importlib.import_module(package)
    unchecked = set(hints()) - annotated
    assert not unchecked, f"not checked, because a name in them was not yet defined: {sorted(unchecked)}"
    call_ops()
    call_nn()
    assert not uncalled, f"never called here: {sorted(uncalled)}"
    call_wrongly()
