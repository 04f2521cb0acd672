"""Rollout and relevance through windows of images and merged tokens, against dense matrices of all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.analysis import flow, relevance, rollout
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")


def swin(images=2, side=40, window=4, depths=(2, 2), **more):
    torch.manual_seed(0)
    sizes = {"image_size": side, "patch_size": 4, "embed_dim": 8, "window_size": window, **more}
    model = transformers.SwinModel(transformers.SwinConfig(**sizes, depths=depths, num_heads=[2] * len(depths)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with regard.watch(model.eval(), weight_gradients=True) as result:
        output = model(torch.randn(images, 3, side, side))
    output.pooler_output[:, 0].sum().backward()
    return model, result


def full(module: Any, weights: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The (images, tokens, tokens) matrix of a `SwinLayer` from the (windows, tokens, tokens) of its windows.

    It follows indices through the functions of the model.
    """
    from transformers.models.swin.modeling_swin import window_partition

    grid = torch.arange(1, height * width + 1.0).view(1, height, width, 1)
    grid, _ = module.maybe_pad(grid, height, width)
    windows = window_partition(module.cyclic_shift(grid), module.window_size).flatten(1).long() - 1
    result = weights.new_zeros(len(weights) // len(windows), height * width, height * width)
    for number, matrix in enumerate(weights):
        image, window = divmod(number, len(windows))
        tokens = windows[window]
        for i, row in enumerate(tokens.tolist()):
            for j, column in enumerate(tokens.tolist()):
                if row >= 0 and column >= 0:  # padding is -1
                    result[image, row, column] = matrix[i, j]
    return result


def merging(height: int, width: int) -> torch.Tensor:
    """The mean of 2 × 2 tokens, as dense matrix."""
    after = -(-height // 2), -(-width // 2)
    result = torch.zeros(after[0] * after[1], height * width)
    for row in range(height):
        for column in range(width):
            result[row // 2 * after[1] + column // 2, row * width + column] = 1
    return result / result.sum(-1, keepdim=True)


def steps(model: Any, fused: list[torch.Tensor], side: int):
    """The dense matrices of the layers and, between the stages, of their merging."""
    index = 0
    for number, stage in enumerate(model.encoder.layers):
        if number:
            yield None, merging(side, side)
            side = -(-side // 2)
        for block in stage.blocks:
            yield full(block, fused[index], side, side), None
            index += 1


FUSIONS = {"mean": lambda weights: weights.mean(1), "max": lambda weights: weights.amax(1)}


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("residual", [0.5, 0.2])
@pytest.mark.parametrize(("side", "window"), [(32, 4), (40, 4), (36, 3), (44, 4)])  # 40: padded; 44: an odd grid
def test_rollout_through_windows_is_that_of_all_tokens(fusion, residual, side, window):
    model, result = swin(side=side, window=window)
    fused = [FUSIONS[fusion](layer.weights.dense().detach()) for layer in result.layers]
    expected = torch.eye((side // 4) ** 2)
    for matrix, merged in steps(model, fused, side // 4):
        if matrix is None:
            expected = merged @ expected
        else:
            matrix = residual * torch.eye(matrix.shape[1]) + (1 - residual) * matrix
            expected = matrix / matrix.sum(-1, keepdim=True) @ expected
    actual = rollout(result.layers, head_fusion=fusion, residual_weight=residual).detach()
    assert torch.allclose(actual, expected, atol=1e-6)
    assert torch.allclose(actual.sum(-1), torch.ones(()))
    rows = rollout(result.layers, queries=[3, 0], head_fusion=fusion, residual_weight=residual).detach()
    assert torch.allclose(rows, expected[:, [3, 0]], atol=1e-6)
    image = result.recording.select(1)
    one = rollout(image.layers, head_fusion=fusion, residual_weight=residual)
    assert torch.allclose(one, expected[1:], atol=1e-6)


@pytest.mark.parametrize("side", [32, 40])
def test_relevance_through_windows_is_that_of_all_tokens(side):
    model, result = swin(side=side)
    positive = []
    for layer in result.layers:
        product = layer.weights.grad.dense() * layer.weights.dense()
        positive.append(product.clamp(min=0).mean(1).detach())
    expected = torch.eye((side // 4) ** 2)
    for matrix, merged in steps(model, positive, side // 4):
        expected = merged @ expected if matrix is None else expected + matrix @ expected
    actual = relevance(result.layers)
    assert (actual > 1e-3).any()
    assert torch.allclose(actual, expected, atol=1e-5)
    gradients = rollout(result.layers, use_gradients=True, queries=0)
    assert torch.allclose(gradients.sum(-1), torch.ones(()))


def test_windows_and_layers_of_all_tokens():
    """SAM has both."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "output_channels": 8}
    config = transformers.SamVisionConfig(
        **sizes, image_size=20, patch_size=4, window_size=3, global_attn_indexes=[1], mlp_dim=16
    )
    model = transformers.SamVisionModel(config).eval()
    with regard.watch(model) as result, torch.no_grad():
        model(torch.randn(2, 3, 20, 20))
    assert [layer.weights.shape[0] for layer in result.layers] == [8, 2, 8]
    expected = torch.eye(25)
    for layer in result.layers:
        matrix = layer.weights.dense().mean(1)
        if layer.batch_axis is not None:
            whole = torch.zeros(2, 25, 25)
            for number, window in enumerate(matrix):
                tokens = layer.batch_axis.windows.tokens[number % 4]
                inside = (tokens >= 0).nonzero().flatten()
                whole[number // 4][tokens[inside][:, None], tokens[inside]] = window[inside[:, None], inside]
            matrix = whole
        matrix = 0.5 * torch.eye(25) + 0.5 * matrix
        expected = matrix / matrix.sum(-1, keepdim=True) @ expected
    assert torch.allclose(rollout(result.layers), expected, atol=1e-6)


def test_layers_that_have_no_rollout_are_refused():
    _, result = swin(side=32)
    layers = list(result.layers)
    with pytest.raises(InvalidArgument, match="discard_ratio: expected 0 for layers of windows"):
        rollout(layers, discard_ratio=0.5)
    with pytest.raises(InvalidArgument, match="layers: flow takes layers of all tokens, not of windows; use rollout"):
        flow(layers)
    with pytest.raises(
        InvalidArgument, match="layers: expected batch 2 and 16 tokens, as in the first layer, got 2 and 64"
    ):
        rollout(layers[::-1])
    window = result.recording.select(0, entry=1)
    with pytest.raises(InvalidArgument, match=r"layers: expected all windows of an image in encoder\S+, got 1"):
        rollout(window.layers)
    assert window.select(0).layers[0].key_tokens == window.layers[0].key_tokens
    names = transformers.Sam2HieraDetConfig(
        hidden_size=8, image_size=[64, 64], blocks_per_stage=[1, 2, 1, 1], embed_dim_per_stage=[8, 16, 32, 64]
    )
    model = transformers.models.sam2.modeling_sam2.Sam2HieraDetModel(names).eval()
    with regard.watch(model) as result, torch.no_grad():
        model(torch.randn(1, 3, 64, 64))
    with pytest.raises(InvalidArgument, match="layers: expected as many queries as keys in blocks"):
        rollout(result.layers)


def test_relevance_through_a_decoder_of_windows_is_refused():
    encoder, _ = swin(images=1, side=32)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    decoder = transformers.BertLMHeadModel(
        transformers.BertConfig(**sizes, vocab_size=30, is_decoder=True, add_cross_attention=True)
    )
    model = transformers.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    with regard.watch(model, weight_gradients=True) as result:
        output = model(pixel_values=torch.randn(1, 3, 32, 32), decoder_input_ids=torch.tensor([[3, 4]]))
    output.logits[0, -1, 5].backward()
    with pytest.raises(
        InvalidArgument, match=r"is not defined for an encoder of windows, such as encoder\S+; pass result"
    ):
        relevance(result.layers)
    assert relevance(result.layers.encoder, queries=0).shape == (1, 1, 64)
    assert relevance(result.layers.decoder).shape == (1, 2, 2)
