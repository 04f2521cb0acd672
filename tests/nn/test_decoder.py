"""The decoder: step by step equals at once."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.nn import FeedForward, MultiHeadAttention, SharedBeamCache, TransformerLayer, TransformerStack
from regard.ops.masks import Padding


def make_decoder(norm: str) -> TransformerStack:
    torch.manual_seed(0)
    layers = [
        TransformerLayer(
            MultiHeadAttention(16, 4),
            FeedForward(16, 32),
            cross_attention=MultiHeadAttention(16, 4),
            norm_first=norm == "pre",
        )
        for _ in range(2)
    ]
    return TransformerStack(layers, causal=True)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 3], [7]])
@torch.no_grad()
def test_any_steps_with_a_cache_equal_all_at_once(norm, steps):
    decoder, hidden, memory = make_decoder(norm), torch.randn(4, 7, 16), torch.randn(2, 6, 16)
    mask, cache = Padding(torch.tensor([6, 3])), SharedBeamCache(2)
    full, _, crosses = decoder(hidden, memory, memory_mask=mask, output_attentions=True)
    outputs = [decoder(part, memory, memory_mask=mask, cache=cache)[0] for part in hidden.split(steps, dim=1)]
    torch.testing.assert_close(torch.cat(outputs, dim=1), full)
    assert cache.length == 7
    assert crosses[0].weights.shape == (2, 4, 14, 6)


def test_self_attention_sees_no_later_token():
    decoder = make_decoder("post")
    _, attentions, _ = decoder(torch.randn(2, 7, 16), torch.randn(2, 6, 16), output_attentions=True)
    assert (attentions[1].weights.dense().triu(1) == 0).all()


def test_a_stack_has_layers_and_all_are_alike():
    with pytest.raises(InvalidArgument, match="layers: expected at least one layer, got none"):
        TransformerStack([])
    with pytest.raises(
        InvalidArgument, match=r"layers\[1\]: expected d_model=16 and norm_first=False.* got 16 and True"
    ):
        TransformerStack([make_decoder("post").layers[0], make_decoder("pre").layers[0]])


def test_parts_of_unequal_width_are_refused():
    with pytest.raises(InvalidArgument) as caught:
        TransformerLayer(MultiHeadAttention(16, 4), FeedForward(8, 32), cross_attention=MultiHeadAttention(12, 4))
    for part in (
        "feed_forward: expected d_model=16, as self_attention has, got 8",
        "cross_attention: expected d_model=16",
    ):
        assert part in str(caught.value)


def test_rows_must_be_a_multiple_of_the_sentences():
    decoder, hidden, memory = make_decoder("post"), torch.randn(3, 4, 16), torch.randn(2, 6, 16)
    for module in (decoder, decoder.layers[0]):  # 12 tokens could be divided, but would mix sentences
        with pytest.raises(InvalidArgument, match="hidden: expected a multiple of 2 rows, the memory's batch, got 3"):
            module(hidden, memory)


def test_a_memory_is_for_cross_attention():
    decoder, layer = make_decoder("post"), TransformerLayer(MultiHeadAttention(16, 4), FeedForward(16, 32))
    with pytest.raises(InvalidArgument, match="memory: expected a tensor for cross-attention, got None"):
        decoder(torch.randn(2, 4, 16))
    with pytest.raises(InvalidArgument, match="memory: expected None without cross-attention, got float32"):
        layer(torch.randn(2, 4, 16), torch.randn(2, 4, 16))
