"""Positions in self-attention against the papers' equations and against transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.nn import (
    AlibiPositions,
    KVCache,
    MultiHeadAttention,
    RelativePositions,
    RotaryPositions,
    T5Positions,
    rotary_frequencies,
)
from regard.ops import attend, rotary
from regard.ops.masks import Causal, Padding

HEADS, HEAD_DIM = 4, 8


def make(kind: str, causal: bool = True) -> nn.Module:
    positions = {
        "relative": lambda: RelativePositions(HEAD_DIM, max_distance=3),
        "rotary": lambda: RotaryPositions(rotary_frequencies(HEAD_DIM)),
        "alibi": lambda: AlibiPositions(HEADS),
        "t5": lambda: T5Positions(HEADS, bidirectional=not causal, num_buckets=8, max_distance=12),
    }[kind]()
    torch.manual_seed(0)
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    return positions


KINDS = ["relative", "rotary", "alibi", "t5"]


def heads_of(layer: MultiHeadAttention, x: torch.Tensor) -> list[torch.Tensor]:
    return [part.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2) for part in layer.in_proj(x).chunk(3, dim=2)]


@pytest.mark.parametrize("reach", [0, 1, 3, 40])
def test_relative_positions_are_equations_3_to_5_of_the_paper(reach):
    torch.manual_seed(0)
    positions = RelativePositions(HEAD_DIM, max_distance=reach)
    layer, x = MultiHeadAttention(32, HEADS, positions=positions).double(), torch.randn(2, 9, 32).double()
    query, key, value = heads_of(layer, x)
    distance = (torch.arange(9)[None] - torch.arange(9)[:, None]).clamp(-reach, reach) + reach  # (queries, keys)
    a, b = positions.key_embedding[distance], positions.value_embedding[distance]  # (queries, keys, head_dim)
    scores = torch.einsum("bhid,bhijd->bhij", query, key[:, :, None] + a) / HEAD_DIM**0.5
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    heads = torch.einsum("bhij,bhijd->bhid", weights, value[:, :, None] + b)
    attended = layer(x, mask=Causal(), measure=["entropy"])
    torch.testing.assert_close(attended.output, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(attended.weights.dense(), weights)
    assert list(attended.measured) == ["entropy"]
    expected = torch.autograd.grad(layer.out_proj(heads.transpose(1, 2).flatten(2)).square().sum(), layer.parameters())
    output = torch.autograd.grad(attended.output.square().sum(), layer.parameters())
    for actual, other in zip(output, expected, strict=True):
        torch.testing.assert_close(actual, other)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_t5s(bidirectional):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=32, d_kv=HEAD_DIM, num_heads=HEADS, is_decoder=not bidirectional, dropout_rate=0.0)
    torch.manual_seed(0)
    reference = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    positions = T5Positions(HEADS, bidirectional=bidirectional)
    layer, x = MultiHeadAttention(32, HEADS, bias=False, positions=positions), torch.randn(2, 200, 32)
    with torch.no_grad():
        positions.weight.copy_(reference.relative_attention_bias.weight.normal_())
        query = reference.q.weight * HEAD_DIM**0.5  # T5 does not scale
        layer.in_proj.weight.copy_(torch.cat([query, reference.k.weight, reference.v.weight]))
        layer.out_proj.weight.copy_(reference.o.weight)
        mask = None if bidirectional else torch.ones(200, 200).tril().log()[None, None]
        expected = reference(x, mask=mask)[0]
    torch.testing.assert_close(layer(x, mask=None if bidirectional else Causal()).output, expected, rtol=0, atol=2e-5)


def test_rotation_is_llamas():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=32, num_attention_heads=4, rope_theta=5000.0))
    query, key = torch.randn(2, 1, HEADS, 700, HEAD_DIM)
    cos, sin = rotary(query, torch.arange(700)[None])
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    base = rotary.config.rope_parameters["rope_theta"]
    positions = RotaryPositions(rotary_frequencies(HEAD_DIM, base))
    for x, turned in zip((query, key), expected, strict=True):
        torch.testing.assert_close(
            positions.rotate(x, 0), turned, rtol=0, atol=2e-4
        )  # transformers computes angles in float32
        torch.testing.assert_close(positions.rotate(x[:, :, 600:], 600), positions.rotate(x, 0)[:, :, 600:])


def test_biases_are_those_of_bloom():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 3, 4, 12):
        alibi = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # slopes times key positions
        torch.testing.assert_close(AlibiPositions(heads).slopes, alibi[:, 0, 1])
    layer, x = MultiHeadAttention(32, HEADS, positions=AlibiPositions(HEADS)), torch.randn(1, 6, 32)
    query, key, _ = heads_of(layer, x)
    expected = query @ key.mT / HEAD_DIM**0.5 + build_alibi_tensor(torch.ones(1, 6), HEADS, torch.float32)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    weights = expected.masked_fill(future, -torch.inf).softmax(-1)  # which adds the same to all of a row
    torch.testing.assert_close(layer(x, mask=Causal()).weights.dense(), weights)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_step_by_step_with_a_cache_equals_all_at_once(kind):
    layer, x = MultiHeadAttention(32, HEADS, positions=make(kind)), torch.randn(2, 9, 32)
    full = layer(x, mask=Causal())
    cache = KVCache(capacity=2)
    steps = [layer(x[:, i : i + 3], mask=Causal(), cache=cache) for i in (0, 3, 6)]
    torch.testing.assert_close(torch.cat([step.output for step in steps], dim=1), full.output)
    torch.testing.assert_close(steps[-1].weights.dense(), full.weights.dense()[:, :, 6:])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_right_and_grouped_heads_change_nothing(kind):
    layer = MultiHeadAttention(32, HEADS, num_kv_heads=2, positions=make(kind, causal=False))
    x = torch.randn(2, 9, 32)
    padded = layer(x, mask=Padding(torch.tensor([9, 5]))).output
    torch.testing.assert_close(padded[1:, :5], layer(x[1:, :5]).output)


@pytest.mark.parametrize("kind", KINDS)
def test_order_matters_and_under_bfloat16_little_changes(kind):
    layer, x = MultiHeadAttention(32, HEADS, positions=make(kind, causal=False)), torch.randn(2, 9, 32)
    output = layer(x).output
    turned = layer(x.roll(3, 1)).output.roll(-3, 1)
    assert (turned - output).abs().max() > 1e-3
    plain = MultiHeadAttention(32, HEADS)
    torch.testing.assert_close(plain(x.roll(3, 1)).output.roll(-3, 1), plain(x).output)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x).output
    assert (low - output).norm() < 0.05 * output.norm()


def test_invalid_arguments_are_named():
    layer, x = MultiHeadAttention(32, HEADS, positions=make("alibi")), torch.randn(2, 9, 32)
    with pytest.raises(InvalidArgument, match="key: expected None with AlibiPositions, which are for self-attention"):
        layer(x, x)
    with pytest.raises(InvalidArgument, match="max_distance: expected an int of at least 0, got -1"):
        RelativePositions(8, -1)
    with pytest.raises(InvalidArgument, match="dims: expected an even int, got 7"):
        rotary_frequencies(7)
    with pytest.raises(
        InvalidArgument, match="heads: expected head_dim of at least 16, twice the number of frequencies, got 8"
    ):
        RotaryPositions(rotary_frequencies(16)).rotate(torch.zeros(1, 1, 1, 8), 0)
    with pytest.raises(InvalidArgument, match="frequencies: expected at least one, got none"):
        RotaryPositions([])
    with pytest.raises(InvalidArgument, match=r"T5RelativeBias\.max_distance: expected an int of at least 9 .*, got 5"):
        T5Positions(4, bidirectional=True, max_distance=5)


def test_an_offset_turns_queries_and_not_keys():
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, HEADS, positions=make("rotary"))
    x = torch.randn(2, 9, 32)
    query, key, value = heads_of(layer, x)
    places = torch.arange(9)
    expected = attend(rotary(query, places + 3), rotary(key, places), value, mask=Causal(), offset=3)
    actual = layer(x, mask=Causal(), offset=3)
    torch.testing.assert_close(actual.weights.dense(), expected.weights.dense())
    torch.testing.assert_close(actual.output, layer.out_proj(expected.output.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("tokens", "offset"), [(1, -1), (2, -5)])  # which would slice the table from its end
def test_rotary_positions_refuse_an_offset_below_0(tokens, offset):
    layer = MultiHeadAttention(32, HEADS, positions=make("rotary"))
    with pytest.raises(
        InvalidArgument, match=f"offset: expected an int of at least 0 with rotary positions, got {offset}"
    ):
        layer(torch.randn(1, tokens, 32), offset=offset)
