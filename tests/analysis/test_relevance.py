"""Relevance and gradient-weighted rollout against the published formulas, on dense attention in float64."""

from __future__ import annotations

import sys

import pytest
import torch

import regard
from helpers import weight_gradients_in_little_memory
from helpers.forked import start
from helpers.model_zoo.families import FAMILIES, attentions, built, eager
from regard.analysis import relevance, rollout
from regard.errors import InvalidArgument, InvalidType
from regard.ops import GradientMatrix, weights
from regard.ops.row_blocks import RowBlocks

pytest.importorskip("transformers")
QUERY = {"bert": 0, "vit": 0, "gpt2": -1, "bart": 3, "t5": 6, "marian": 0, "whisper": 4}
"""The token from which a loss is computed."""


def run(name):
    """The layers that are watched with SDPA, and the weights and gradients of dense attention."""
    model = built(name).double()
    torch.manual_seed(1)
    inputs = {key: each.double() if each.is_floating_point() else each for key, each in FAMILIES[name].inputs().items()}

    def loss(output):
        return output.logits_per_image[0, 1] if name == "clip" else output[0][:, QUERY[name], 5].sum()

    dense = eager(model).double()
    output = dense(**inputs, output_attentions=True)
    cells = attentions(output)
    for each in cells:
        each.retain_grad()
    loss(output).backward()
    with regard.watch(model, weight_gradients=True) as result:
        loss(model(**inputs)).backward()
    return result, [each.detach() for each in cells], [each.grad for each in cells]


def average_heads(weights, gradient):
    """Ā of Chefer et al., equation 5, of one sequence: (queries, keys)."""
    return (gradient * weights).clamp(min=0).mean(0)


def normalize(R):
    """R̄ of equations 8 and 9, where a row without relevance stays 0."""
    rest = R - torch.eye(len(R), dtype=R.dtype)
    return (rest / rest.sum(-1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0) + torch.eye(len(R), dtype=R.dtype)


def published_self(averages):
    R = torch.eye(averages[0].shape[0], dtype=torch.float64)
    for A in averages:
        R = R + A @ R  # equation 6
    return R


def published_both(encoder, decoder):
    """The relevance of the source; `decoder` has self- and cross-attention in turn."""
    R_qq = published_self(encoder)
    tokens, source = decoder[1].shape
    R_ss, R_sq = torch.eye(tokens, dtype=torch.float64), torch.zeros(tokens, source, dtype=torch.float64)
    for A, cross in zip(decoder[::2], decoder[1::2], strict=True):
        R_ss, R_sq = R_ss + A @ R_ss, R_sq + A @ R_sq  # equations 6 and 7
        R_sq = R_sq + normalize(R_ss).T @ cross @ normalize(R_qq)  # equation 10
    return R_sq, R_ss


def close(actual, expected, tolerance=1e-6):
    """To the rounding of float32, in which some models of dense attention compute the softmax."""
    atol = tolerance * float(expected.detach().abs().max().clamp(min=1))
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows."""
    blocks = RowBlocks.query_blocks
    monkeypatch.setattr(RowBlocks, "query_blocks", lambda matrix: blocks(matrix, 200))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_one_part(name, small_blocks):
    result, cells, gradients = run(name)
    actual = relevance(result.layers)
    for sequence in range(2):
        averages = [average_heads(W[sequence], G[sequence]) for W, G in zip(cells, gradients, strict=True)]
        close(actual[sequence], published_self(averages))
    assert (actual[:, QUERY[name]] > 0).sum() > 5
    close(relevance(result.layers, queries=[QUERY[name], 2]), actual[:, [QUERY[name], 2]])
    close(relevance([layer.weights for layer in result.layers]), actual)
    close(relevance(result.recording.select(1).layers), actual[1:])


def test_models_of_images_and_texts(small_blocks):
    result, cells, gradients = run("clip")
    for part, first in (("vision_model", 0), ("text_model", 2)):
        layers = [layer for layer in result.layers if layer.name.startswith(part)]
        averages = [average_heads(cells[i][0], gradients[i][0]) for i in (first, first + 1)]
        close(relevance(layers)[0], published_self(averages))


@pytest.mark.parametrize("name", ["bart", "t5", "marian", "whisper"])
def test_encoder_and_decoder(name, small_blocks):
    result, cells, gradients = run(name)
    actual = relevance(result.layers)
    for sequence in range(2):
        averages = [average_heads(W[sequence], G[sequence]) for W, G in zip(cells, gradients, strict=True)]
        kinds = [layer.kind for layer in result.layers]
        encoder = [A for A, kind in zip(averages, kinds, strict=True) if kind == "encoder"]
        of_source, of_target = published_both(encoder, averages[len(encoder) :])
        close(actual[sequence], of_source)
        close(relevance(result.layers.decoder)[sequence], of_target)
    assert (actual[:, QUERY[name]] > 0).all()
    close(relevance(result.layers, queries=QUERY[name]), actual[:, [QUERY[name]]])


def published_rollout(cells, gradients, fusion, ratio, residual=0.5):
    """vit-explain's rollout of one sequence, with rows that are divided by their sums."""
    tokens = cells[0].shape[-1]
    product = torch.eye(tokens, dtype=torch.float64)
    for number, W in enumerate(cells):
        W = W if gradients is None else gradients[number] * W
        fused = {"mean": W.mean(0), "max": W.amax(0), "min": W.amin(0)}[fusion]
        fused = fused if gradients is None else fused.clamp(min=0)
        flat = fused.flatten().clone()
        lowest = flat.topk(int(len(flat) * ratio), -1, False).indices
        flat[lowest[lowest != 0]] = 0
        A = (1 - residual) * flat.view(tokens, tokens) + residual * torch.eye(tokens, dtype=torch.float64)
        product = A / A.sum(-1, keepdim=True) @ product
    return product


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_of_vit_explain(fusion, ratio, weighted, small_blocks):
    result, cells, gradients = run("vit")
    actual = rollout(result.layers, head_fusion=fusion, discard_ratio=ratio, use_gradients=weighted)
    for sequence in range(2):
        of_sequence = [[each[sequence] for each in part] for part in (cells, gradients)]
        expected = published_rollout(of_sequence[0], of_sequence[1] if weighted else None, fusion, ratio)
        close(actual[sequence], expected)
    row = rollout(result.layers, queries=0, head_fusion=fusion, discard_ratio=ratio, use_gradients=weighted)
    close(row, actual[:, :1])


def test_some_heads_and_padding():
    model = built("bert").double()
    ids = torch.randint(3, 90, (2, 11))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    with regard.watch(model, weight_gradients=True) as result:
        model(ids, attention_mask=mask)[0][:, 0].sin().sum().backward()
    with regard.watch(model, weight_gradients=True) as alone:
        model(ids[1:, :7])[0][:, 0].sin().sum().backward()
    for function in (relevance, lambda layers: rollout(layers, use_gradients=True, head_fusion=[1, 3])):
        padded = function(result.layers)
        assert not padded[1, 7:].any()
        assert not padded[1, :7, 7:].any()
        close(padded[1:, :7, :7], function(alone.layers))
    with regard.watch(model, weight_gradients=True, heads=[3, 1]) as some:
        model(ids, attention_mask=mask)[0][:, 0].sin().sum().backward()
    close(
        rollout(some.layers, use_gradients=True, head_fusion=[1]),
        rollout(result.layers, use_gradients=True, head_fusion=[1]),
    )


def test_what_is_refused():
    query, key = torch.randn(2, 1, 2, 5, 4).unbind()
    plain = weights(query, key)
    W = weights(query, key).with_gradient(GradientMatrix.of(query, key))
    message = (
        r"^layers: layer 1 has no gradient; record it with regard.watch\(model, weight_gradients=True\), and call "
        r"backward\(\) on a loss that depends on the layer$"
    )
    for function in (relevance, lambda layers: rollout(layers, use_gradients=True)):
        with pytest.raises(InvalidArgument, match=message):
            function([W, plain])
    with pytest.raises(InvalidArgument, match=r"^layers: expected at least one layer, got none$"):
        relevance([])
    with pytest.raises(InvalidType, match=r"^layers: expected a list of layers or of weight matrices"):
        relevance(W)
    with pytest.raises(InvalidArgument, match=r"^queries: expected indices from -5 to 4, got 5$"):
        relevance([W], queries=5)
    with pytest.raises(InvalidArgument, match=r"discard_ratio: expected .* below 1, got 1"):
        rollout([W], discard_ratio=1)
    with pytest.raises(InvalidType, match=r"^use_gradients: expected True or False, got 'yes'$"):
        rollout([W], use_gradients="yes")
    model = built("bert")
    with regard.watch(model, weight_gradients=True) as result:
        model(torch.randint(3, 90, (1, 5)))
    with pytest.raises(InvalidArgument, match="no backward pass has reached the recorded layers yet"):
        relevance(result.layers)


def test_layers_that_do_not_fit():
    result, _, _ = run("bart")
    decoder = result.layers.decoder[0]
    with pytest.raises(InvalidArgument, match=r"layers: expected cross-attention with \(batch, queries, keys\) = "):
        relevance([*result.layers.encoder, decoder.replace(kind="cross")])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_memory_is_linear(tmp_path):
    process = start(weight_gradients_in_little_memory.relevance_of_row, 220 * 10**6, errors=tmp_path / "errors")
    process.join(300)
    assert (tmp_path / "errors").read_text() == "ran\n"
    assert process.exitcode == 0
