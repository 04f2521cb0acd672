"""The decoder: step by step equals at once."""

from __future__ import annotations

import pytest
import torch

from regard.nn import Decoder, DecoderCache, DecoderLayer, FeedForward, MultiHeadAttention
from regard.ops import Padding


def make_decoder(norm: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(
        [
            DecoderLayer(
                MultiHeadAttention(16, 4), FeedForward(16, 32), cross_attention=MultiHeadAttention(16, 4), norm=norm
            )
            for _ in range(2)
        ]
    )


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 3], [7]])
def test_any_steps_with_a_cache_equal_all_at_once(norm, steps):
    decoder, hidden, memory = make_decoder(norm), torch.randn(4, 7, 16), torch.randn(2, 6, 16)
    mask, cache = Padding(torch.tensor([6, 3])), DecoderCache(2)
    whole, _, crosses = decoder(hidden, memory, memory_mask=mask)
    outputs = [decoder(part, memory, memory_mask=mask, cache=cache)[0] for part in hidden.split(steps, dim=1)]
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole)
    assert cache.length == 7
    assert crosses[0].weights.shape == (2, 4, 14, 6)


def test_self_attention_sees_no_later_token():
    decoder = make_decoder("post")
    _, attentions, _ = decoder(torch.randn(2, 7, 16), torch.randn(2, 6, 16))
    assert (attentions[1].weights.dense().triu(1) == 0).all()
