"""The encoder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.nn import FeedForward, MultiHeadAttention, TransformerLayer, TransformerStack
from regard.ops.masks import Padding


def make_encoder(norm: str, dropout: float = 0.0) -> TransformerStack:
    return TransformerStack(
        [
            TransformerLayer(MultiHeadAttention(16, 4), FeedForward(16, 32), norm_first=norm == "pre", dropout=dropout)
            for _ in range(3)
        ]
    )


def test_only_pre_norm_has_a_final_norm():
    assert isinstance(make_encoder("pre").norm, nn.LayerNorm)
    assert isinstance(make_encoder("post").norm, nn.Identity)


def test_each_layer_returns_its_attention():
    hidden, attentions, _ = make_encoder("post")(
        torch.randn(2, 5, 16), mask=Padding(torch.tensor([5, 3])), output_attentions=True
    )
    assert hidden.shape == (2, 5, 16)
    assert [attended.weights.shape for attended in attentions] == [(2, 4, 5, 5)] * 3
    assert (attentions[2].weights.dense()[1, :, :, 3:] == 0).all()


def test_dropout_reaches_both_sublayers():
    layer = make_encoder("pre", dropout=0.4).layers[0]
    assert [layer.self_attention_residual.dropout.p, layer.feed_forward_residual.dropout.p] == [0.4, 0.4]


def test_a_stack_has_layers_and_all_are_alike():
    with pytest.raises(InvalidArgument, match="layers: expected at least one layer, got none"):
        TransformerStack([])
    layers = [
        TransformerLayer(MultiHeadAttention(width, 4), FeedForward(width, 32), norm_first=norm == "pre")
        for width, norm in ((16, "post"), (8, "post"), (16, "pre"))
    ]
    with pytest.raises(InvalidArgument) as caught:
        TransformerStack(layers)
    for part in (
        "layers[1]: expected d_model=16 and norm_first=False, as layers[0] has, got 8 and False",
        "layers[2]: expected d_model=16 and norm_first=False, as layers[0] has, got 16 and True",
    ):
        assert part in str(caught.value)


def test_parts_of_unequal_width_are_refused():
    with pytest.raises(InvalidArgument, match="feed_forward: expected d_model=16, as self_attention has, got 8"):
        TransformerLayer(MultiHeadAttention(16, 4), FeedForward(8, 32))
