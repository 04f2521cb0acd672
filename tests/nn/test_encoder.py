"""The encoder."""

from __future__ import annotations

import torch
from torch import nn

from regard.nn import Encoder, EncoderLayer, FeedForward, MultiHeadAttention
from regard.ops import Padding


def make_encoder(norm: str, dropout: float = 0.0) -> Encoder:
    return Encoder(
        [EncoderLayer(MultiHeadAttention(16, 4), FeedForward(16, 32), norm=norm, dropout=dropout) for _ in range(3)]
    )


def test_only_pre_norm_ends_in_one_more_norm():
    assert isinstance(make_encoder("pre").norm, nn.LayerNorm)
    assert isinstance(make_encoder("post").norm, nn.Identity)


def test_each_layer_tells_its_attention():
    hidden, attentions = make_encoder("post")(torch.randn(2, 5, 16), mask=Padding(torch.tensor([5, 3])))
    assert hidden.shape == (2, 5, 16)
    assert [attended.weights.shape for attended in attentions] == [(2, 4, 5, 5)] * 3
    assert (attentions[2].weights.dense()[1, :, :, 3:] == 0).all()


def test_dropout_reaches_both_sublayers():
    layer = make_encoder("pre", dropout=0.4).layers[0]
    assert [layer.attention_residual.dropout.p, layer.feed_forward_residual.dropout.p] == [0.4, 0.4]
