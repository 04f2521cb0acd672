"""Multi-head attention against torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.nn import CrossAttentionCache, KVCache, MultiHeadAttention
from regard.ops.masks import Causal, Padding


def with_torch_weights(d_model: int = 32, num_heads: int = 4, bias: bool = True):
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(d_model, num_heads, bias=bias, batch_first=True)
    layer = MultiHeadAttention(d_model, num_heads, bias=bias)
    weights = {name.replace("in_proj_", "in_proj."): tensor for name, tensor in reference.state_dict().items()}
    layer.load_state_dict(weights)
    return layer, reference


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross", "values apart"])
def test_equals_torch(bias, kind):
    layer, reference = with_torch_weights(bias=bias)
    query, key, value = torch.randn(3, 5, 32), torch.randn(3, 7, 32), torch.randn(3, 7, 32)
    lengths = torch.tensor([5, 3, 1] if kind == "self" else [7, 3, 1])
    inputs = {"self": (query,), "cross": (query, key), "values apart": (query, key, value)}[kind]
    full = {"self": (query,) * 3, "cross": (query, key, key), "values apart": (query, key, value)}[kind]
    hidden_keys = torch.arange(full[1].shape[1]) >= lengths[:, None]
    output, weights = reference(*full, key_padding_mask=hidden_keys, average_attn_weights=False)
    attended = layer(*inputs, mask=Padding(lengths))
    torch.testing.assert_close(attended.output, output, rtol=0, atol=1e-5)
    torch.testing.assert_close(attended.weights.dense(), weights, rtol=0, atol=1e-5)


def test_gradients_equal_torchs():
    layer, reference = with_torch_weights()
    x, future = torch.randn(2, 6, 32), torch.ones(6, 6, dtype=torch.bool).triu(1)
    (layer(x, mask=Causal()).output ** 2).sum().backward()
    (reference(x, x, x, attn_mask=future, need_weights=False)[0] ** 2).sum().backward()
    torch.testing.assert_close(layer.in_proj.weight.grad, reference.in_proj_weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.out_proj.weight.grad, reference.out_proj.weight.grad, rtol=1e-4, atol=1e-4)


def test_grouped_heads_are_heads_that_share_key_and_value():
    torch.manual_seed(0)
    grouped, full = MultiHeadAttention(32, 4, num_kv_heads=2), MultiHeadAttention(32, 4)
    with torch.no_grad():
        for source, sink in zip(grouped.in_proj.parameters(), full.in_proj.parameters(), strict=True):
            query, key, value = source.split([32, 16, 16])
            twice = [part.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1) for part in (key, value)]
            sink.copy_(torch.cat([query, *twice]))
    full.out_proj.load_state_dict(grouped.out_proj.state_dict())
    x = torch.randn(2, 6, 32)
    torch.testing.assert_close(grouped(x, mask=Causal()).output, full(x, mask=Causal()).output)


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(32, 4, dropout=0.5), torch.randn(2, 6, 32)
    assert not torch.equal(attention(x).output, attention(x).output)
    attention.eval()
    assert torch.equal(attention(x).output, attention(x).output)


def test_measures_are_returned():
    attended = MultiHeadAttention(32, 4)(torch.randn(2, 6, 32), measure=["entropy"])
    torch.testing.assert_close(attended.measured["entropy"], attended.weights.entropy())


@torch.no_grad()
def test_step_by_step_with_a_cache_equals_all_at_once():
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(32, 4, num_kv_heads=2), torch.randn(2, 9, 32)
    full = attention(x, mask=Causal())
    cache = KVCache(capacity=2)
    steps = [attention(x[:, i : i + 3], mask=Causal(), cache=cache) for i in (0, 3, 6)]
    torch.testing.assert_close(torch.cat([step.output for step in steps], dim=1), full.output)
    torch.testing.assert_close(steps[-1].weights.dense(), full.weights.dense()[:, :, 6:])


def test_a_filled_cache_replaces_key_and_value():
    attention, x, memory = MultiHeadAttention(32, 4), torch.randn(2, 1, 32), torch.randn(2, 7, 32)
    cache = CrossAttentionCache()
    first = attention(x, memory, cache=cache).output
    torch.testing.assert_close(attention(x, torch.full_like(memory, torch.nan), cache=cache).output, first)


def test_the_wrong_cache_is_refused():
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 3, 32)
    with pytest.raises(InvalidArgument, match="cache: expected a CrossAttentionCache in cross-attention, got KVCache"):
        attention(x, x, x, cache=KVCache())
    with pytest.raises(InvalidArgument, match="cache: expected a KVCache in self-attention, got CrossAttentionCache"):
        attention(x, cache=CrossAttentionCache())


def test_another_dtype_than_that_of_the_weights_is_refused_unless_autocast_converts():
    attention, x = MultiHeadAttention(32, 4), torch.randn(2, 3, 32)
    with pytest.raises(
        InvalidArgument, match=r"query: expected the weights' dtype torch\.float32, got torch\.bfloat16"
    ):
        attention(x.bfloat16())
    with pytest.raises(InvalidArgument, match=r"key: expected the weights' dtype torch\.float32, got torch\.float64"):
        attention(x, x.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(x.bfloat16()).output.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((32, 5, None), "num_heads: expected a divisor of d_model=32, got 5"),
        ((32, 4, 3), "num_kv_heads: expected a divisor of num_heads=4, got 3"),
        ((0, 4, -1), "num_kv_heads: expected an int of at least 1, or None, got -1"),
    ],
)
def test_sizes_that_do_not_divide_are_named(sizes, words):
    d_model, num_heads, num_kv_heads = sizes
    with pytest.raises(InvalidArgument, match=words):
        MultiHeadAttention(d_model, num_heads, num_kv_heads=num_kv_heads)


def test_a_dropout_of_one_is_refused():
    with pytest.raises(InvalidArgument, match=r"dropout: expected a finite number of at least 0 and below 1, got 1\.0"):
        MultiHeadAttention(32, 4, dropout=1.0)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 3, 31),), r"query: expected shape \(batch, tokens, d_model=32\), got \(2, 3, 31\)"),
        (((2, 3, 32), (4, 5, 32)), "key: expected the query's batch 2, got 4"),
        (((2, 3, 32), (2, 5, 32), (2, 6, 32)), r"value: expected the key's shape \(2, 5, 32\), got \(2, 6, 32\)"),
        (((2, 3, 32), None, (2, 6, 32)), "value: expected None without key, got float32"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    tensors = [None if shape is None else torch.zeros(shape) for shape in shapes]
    with pytest.raises(InvalidArgument, match=words):
        MultiHeadAttention(32, 4)(*tensors)
