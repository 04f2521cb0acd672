"""Public signatures tell axes and dtypes; in a process of its own, where they are checked, all kinds of calls pass."""

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
ABSTRACT = {"Mask.allowed", "Measure.of", "Score.__call__"}
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 3, 4, 2, 5, 7, 8, 6  # all differ

told: set[str] = set()
uncalled: set[str] = set()


def checked(function):
    """The type checker: beartype for what tells the axes of a tensor, with an account of what was never checked."""
    axes = list(axes_told(function))
    if not axes:
        return function
    told.update(axes)
    # There are two of each function: one takes the arguments, one also what was returned.
    name = f"{function.__module__}.{function.__qualname__}({', '.join(function.__annotations__)})"
    if function.__qualname__ not in ABSTRACT:
        uncalled.add(name)
    check = beartype(function)

    @functools.wraps(function)
    def run(*args, **kwargs):
        uncalled.discard(name)
        return check(*args, **kwargs)

    return run


def axes_told(function):
    """The arguments of a function, and what it returns, whose annotations tell axes."""
    for name, hint in typing.get_type_hints(function).items():
        if "jaxtyping" in repr(hint):
            yield f"{function.__module__}.{function.__qualname__}: {name}"


def hints():
    """All of them in the packages, read when every name is known."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            module = importlib.import_module(found.name)
            for thing in vars(module).values():
                for part in vars(thing).values() if inspect.isclass(thing) else [thing]:
                    function = next(
                        (getattr(part, at) for at in ("fget", "func", "__func__") if hasattr(part, at)), part
                    )
                    if inspect.isfunction(function) and function.__module__ == found.name:
                        yield from axes_told(function)


def call_ops():
    from ops.rules import SCORES, masks, measures
    from regard.ops import attend, dropout, weights
    from regard.ops.masks import Causal
    from regard.ops.measures import Measure
    from regard.ops.scores import ScaledDotProduct

    class OnItself(Measure):
        def compute(self, block):
            return (block.weights * (block.kv_idx == block.q_pos)).sum(-1)

    query = torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, requires_grad=True)
    key = torch.randn(BATCH, KV_HEADS, KEYS, HEAD_DIM, requires_grad=True)
    value = torch.randn(BATCH, 1, KEYS, VALUE_DIM, requires_grad=True)
    asked = {**measures(QUERIES, KEYS), "on itself": OnItself()}
    for mask in masks(BATCH, HEADS, QUERIES, KEYS).values():
        for kernel in (None, "reference", "blockwise"):
            att = attend(query, key, value, mask=mask, measure=asked, kernel=kernel, score=ScaledDotProduct())
            (att.output.sum() + att.measured["entropy"].sum()).backward()
        attend(query, key, value, mask=mask)
        check_fields(att.measured["topk"])
    for case in SCORES.values():
        held = {name: tensor.requires_grad_() for name, tensor in case.tensors(HEADS, QUERIES, KEYS, HEAD_DIM).items()}
        for kernel in ("reference", "blockwise"):
            att = attend(query, key, value, score=case.rule(held), measure="entropy", kernel=kernel)
            (att.output.sum() + att.measured["entropy"].sum()).backward()
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    attend(query, key, value, mask=Causal() & real[:, None, None] | real[0], dropout=0.5, measure=["lse", "received"])
    attend(query.bfloat16(), key.bfloat16(), key.bfloat16())  # heads of value as of key: SDPA
    attend(query, key, key, dropout=0.1).output.sum().backward()  # the kernel for short sequences
    for dtype in (torch.float32, torch.bfloat16):
        dropout(torch.ones(2, 3, dtype=dtype, requires_grad=True), 0.5).sum().backward()

    W = weights(query, key, mask=Causal())
    W.dense(), W[0, 3, 2], W[..., 1], W[0, 0, 0, 0], W.scores[1, 2], W.scores.dense(), W[:, [1, 3], None, 2]
    (
        W.entropy(),
        W.lse(),
        W.mean_distance(),
        W.diagonal(),
        W.mass(Causal()),
        W.distance_histogram(2),
        W.block_mean(2),
        W.received(),
        W.received(torch.ones(QUERIES)),
        W.received(torch.ones(BATCH, 1, QUERIES)),
    )
    check_fields(W.topk(2)), check_fields(W.max()), W.group_pool(torch.arange(QUERIES) // 2, torch.arange(KEYS) // 3)
    for shape in ((QUERIES,), (QUERIES, 9), (BATCH, HEADS, QUERIES, 9)):
        (W.mT @ torch.randn(shape, requires_grad=True)).sum().backward()
    for shape in ((KEYS,), (KEYS, 9), (1, KEYS, 9), (HEADS, KEYS, 9), (BATCH, 1, KEYS, 9), (BATCH, HEADS, KEYS, 9)):
        (W @ torch.randn(shape, requires_grad=True)).sum().backward()
    from regard.ops import rotary
    from regard.ops.masks import Documents, to_block_mask, to_dense, to_mask_mod, to_spans
    from regard.ops.scores import Alibi, T5RelativeBias

    shape = BATCH, HEADS, QUERIES, KEYS
    to_dense(Causal(), shape), to_spans(Causal(), shape), to_mask_mod(Causal())(*(torch.tensor(0) for _ in range(4)))
    attend(query, key, value, mask=to_block_mask(Causal(), shape, BLOCK_SIZE=4))
    attend(query, key, value, mask=Causal() & Documents(torch.zeros(BATCH, KEYS, dtype=torch.int64)))
    rotary(query), rotary(query, torch.arange(QUERIES), rotary_dim=2), Alibi.for_heads(3)
    (
        rotary(query, torch.zeros(BATCH, QUERIES, dtype=torch.int64)),
        T5RelativeBias(torch.ones(8, 2)).bucket(torch.arange(5)),
    )
    part = weights(query, key, mask=real[:, None, None]).at(batch=0, heads=[3, 1], queries=slice(2)).detach().to("cpu")
    part.dense(), part @ torch.randn(KEYS)


def call_nn():
    from regard import nn
    from regard.nn.positions import sinusoids
    from regard.ops.masks import Causal, Neighbours

    x, memory = torch.randn(BATCH, QUERIES, 16), torch.randn(BATCH, KEYS, 16)
    dense = torch.ones(BATCH, 1, QUERIES, QUERIES, dtype=torch.bool)

    def attention():
        return nn.MultiHeadAttention(16, HEADS, num_kv_heads=KV_HEADS, dropout=0.1)

    for mask in (None, Causal(), dense):
        attention()(x, mask=mask, measure="entropy").output.sum().backward()
    attention()(x, memory), attention()(x, memory, memory * 2)
    for told in (
        nn.RelativePositions(4, 2),
        nn.RotaryPositions(nn.rotary_frequencies(4)),
        nn.AlibiPositions(HEADS),
        nn.BucketPositions(HEADS, bidirectional=True),
        nn.AttentionPositions(),
    ):
        layer = nn.MultiHeadAttention(16, HEADS, num_kv_heads=KV_HEADS, positions=told)
        layer(x, measure="entropy").output.sum().backward()
    for norm in ("post", "pre"):
        encoder = nn.Encoder(
            [nn.EncoderLayer(attention(), nn.FeedForward(16, 32), norm=norm, dropout=0.1) for _ in range(2)]
        )
        encoder(x, mask=dense)[0].sum().backward()
        layer = nn.DecoderLayer(
            attention(), nn.FeedForward(16, 32, activation="gelu"), cross_attention=attention(), norm=norm
        )
        layer(x, memory, mask=Causal(), memory_mask=torch.ones(KEYS, dtype=torch.bool))
        decoder = nn.Decoder([layer])
        decoder(x, memory, memory_mask=torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool))[0].sum().backward()
        decode(decoder.eval(), memory)
    additive = nn.AdditiveAttention(16, 6, 5)
    memory = torch.randn(len(x), 7, 6)
    additive(x, memory, projected_key=additive.project_key(memory))
    additive.weights(x, memory)
    nn.SelfAttention2d(8)(torch.randn(2, 8, 3, 4))
    nn.SelfAttention(16)(x, mask=Causal()).output.sum().backward()
    W = attention()(x).weights
    nn.entropy_loss(W, floor=1.0), nn.coverage_loss(W, row_weights=torch.ones(QUERIES)), nn.divergence_loss(W, W)
    nn.alignment_loss(W, torch.zeros(BATCH, QUERIES, dtype=torch.int64))
    nn.SinusoidalPositions(16)(x, offset=600)
    nn.NoPositions()(x)
    nn.GraphAttention(16, 4, 2)(x[0], Neighbours(*torch.arange(QUERIES).expand(2, -1)))
    nn.LearnedPositions(16, 20)(x, offset=2).sum().backward()
    sinusoids(4, 6)
    nn.FeedForward(16, 32)(x[0]), nn.Dropout(0.5)(x[0, 0])

    hidden, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((5, 16), (11, 16), 11))
    for given in ({}, {"bias": bias, "label_smoothing": 0.1, "ignore_index": 4}):
        loss = nn.linear_cross_entropy(hidden, weight, torch.arange(5), **given)
        loss.loss.backward()
        check_fields(loss)


@torch.no_grad()
def decode(decoder, memory):
    """Two beams a sentence, of which one goes on in two, until what the other saw is dropped; then a sentence ends."""
    from regard.nn import DecoderCache

    cache, rows = DecoderCache(1), torch.arange(2 * BATCH)
    for tokens in (2, *[1] * 10):
        decoder(torch.randn(2 * BATCH, tokens, 16), memory, cache=cache)
        cache.reorder(rows // 2 * 2)
    cache.keep(torch.tensor([0, 2]), torch.tensor([0, 1, 4, 5]))
    decoder(torch.randn(4, 1, 16), memory[[0, 2]], cache=cache)
    greedy = DecoderCache(1)
    for tokens in (3, 1):
        decoder(torch.randn(BATCH, tokens, 16), memory, cache=greedy)


def check_fields(answer):
    """Named tuples check nothing when they are made."""
    with jaxtyped("context"):
        for name, hint in typing.get_type_hints(type(answer)).items():
            assert isinstance(getattr(answer, name), hint), f"{type(answer).__name__}.{name} is no {hint}"


def call_wrongly():
    """What runs where nothing is checked, and is not what the signature says."""
    from regard import nn
    from regard.ops import dropout
    from regard.ops.measures import Block
    from regard.ops.tile import Tile

    with pytest.raises(TypeCheckError, match="parameter 'change'"):  # it would be broadcast
        nn.Residual(8).leave(torch.ones(2, 3, 8), torch.ones(3, 8))
    with pytest.raises(TypeCheckError, match="parameter 'x'"):
        dropout(torch.ones(2, dtype=torch.int64), 0.0)
    one = slice(0, 1)
    cells = Tile(one, one, one, (0, 1), 0, torch.device("cpu"))
    with pytest.raises(TypeCheckError, match="parameter 'scores'"):
        Block(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2), cells, (one,) * 4, (1, 1, 1, 1))
    wide = nn.FeedForward(8, 16)
    wide.contract = torch.nn.Linear(16, 9)
    with pytest.raises(TypeCheckError, match="return value"):
        wide(torch.ones(2, 8))


def test_calls_of_every_kind_are_as_the_signatures_say():
    done = subprocess.run([sys.executable, "-W", "error", __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with install_import_hook(PACKAGES, "__main__.checked"):
        for package in PACKAGES:
            importlib.import_module(package)
    lost = set(hints()) - told
    assert not lost, f"not checked, as they hold a name that is not known yet where they stand: {sorted(lost)}"
    call_ops()
    call_nn()
    assert not uncalled, f"nothing here calls {sorted(uncalled)}"
    call_wrongly()
