"""Rollout and flow against their dense definitions."""

from __future__ import annotations

import itertools

import networkx
import pytest
import torch

from regard.analysis import flow, rollout
from regard.errors import InvalidArgument, InvalidType
from regard.ops import WeightMatrix, weights
from regard.ops.masks import Causal, Window
from regard.ops.scores import ScaledDotProduct, Sinks
from regard.recordings import Layer, Recording


def layers(count=3, batch=2, heads=4, tokens=7, mask=None, sinks=False):
    random = torch.Generator().manual_seed(1)
    score = Sinks(ScaledDotProduct(), torch.randn(heads, generator=random, dtype=torch.float64)) if sinks else None
    inputs = torch.randn(count, 2, batch, heads, tokens, 5, generator=random, dtype=torch.float64).requires_grad_()
    return [weights(query, key, mask=mask, score=score) for query, key in inputs], inputs


def dense(layers, fuse, residual):
    """(batch, tokens, tokens): the product of the layers as the paper writes it."""
    tokens = layers[0].shape[2]
    product = torch.eye(tokens, dtype=torch.float64)
    for layer in layers:
        augmented = residual * torch.eye(tokens, dtype=torch.float64) + (1 - residual) * fuse(layer.dense())
        product = augmented / augmented.sum(-1, keepdim=True) @ product
    return product


EMPTY = torch.arange(7)[:, None] != 2
FUSIONS = {
    "mean": lambda heads: heads.mean(1),
    "max": lambda heads: heads.amax(1),
    (1, -1): lambda heads: heads[:, [1, 3]].mean(1),
}


@pytest.mark.parametrize("residual", [0.5, 0.1])
@pytest.mark.parametrize(("mask", "sinks"), [(None, False), (Causal(), True), (EMPTY, False)])
@pytest.mark.parametrize("fusion", FUSIONS, ids=str)
def test_rollout_is_the_product_of_the_layers(fusion, mask, sinks, residual, monkeypatch):
    blocks = WeightMatrix.query_blocks
    monkeypatch.setattr(WeightMatrix, "query_blocks", lambda W: blocks(W, 2 * 4 * 7 * 3))  # three rows at a time
    matrices, inputs = layers(mask=mask, sinks=sinks)
    expected = dense(matrices, FUSIONS[fusion], residual)
    actual = rollout(matrices, head_fusion=fusion, residual_weight=residual)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual.sum(-1), torch.ones(2, 7, dtype=torch.float64))
    torch.testing.assert_close(
        rollout(matrices, queries=[5, -7], head_fusion=fusion, residual_weight=residual), expected[:, [5, 0]]
    )
    gradients = [torch.autograd.grad(each[:, 3].square().sum(), inputs)[0] for each in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_flow_is_the_minimum_cut():
    matrices, _ = layers(count=2, batch=1, tokens=3)
    actual = flow(matrices, queries=[2, 0])[0]
    width = [0.5 * torch.eye(3) + 0.5 * layer.detach().dense()[0].mean(0) for layer in matrices]
    for row, start in enumerate((2, 0)):
        for end in range(3):
            # For every set of tokens of the middle layer on the side of the start, the edges that leave it are cut.
            cuts = []
            for side in itertools.product((True, False), repeat=3):
                inside = torch.tensor(side)
                cuts.append(float(width[1][start][~inside].sum() + width[0][inside, end].sum()))
            assert actual[row, end] == pytest.approx(min(cuts))


def test_flow_agrees_with_another_algorithm():
    matrices, _ = layers(count=3, batch=1, tokens=4, mask=Causal())
    graph = networkx.DiGraph()
    for depth, layer in enumerate(matrices):
        width = 0.5 * torch.eye(4) + 0.5 * layer.detach().dense()[0].mean(0)
        graph.add_weighted_edges_from(
            (((depth + 1, i), (depth, j), float(width[i, j])) for i in range(4) for j in range(i + 1)),
            weight="capacity",
        )
    expected = networkx.maximum_flow_value(graph, (3, 3), (0, 1), flow_func=networkx.algorithms.flow.edmonds_karp)
    actual = flow(matrices)
    assert actual[0, 3, 1] == pytest.approx(expected)
    assert actual[0, 1, 3] == 0


def test_all_invalid_arguments_are_listed_in_one_error():
    matrices, _ = layers()
    other, _ = layers(1, tokens=6)
    with pytest.raises(InvalidArgument) as error:
        rollout([*matrices, *other], queries=[0, 7], head_fusion=[4], residual_weight=1.0)
    for message in (
        "layers: expected batch 2 and 7 tokens, as in the first layer, got 2 and 6 in layer 3",
        "head_fusion in layer 0: expected indices from -4 to 3, got [4]",
        "residual_weight: expected a finite number of at least 0 and below 1, got 1.0",
        "queries: expected indices from -7 to 6, got [0, 7]",
    ):
        assert message in str(error.value)
    with pytest.raises(InvalidArgument, match="expected as many queries as keys in layer 0, got 5 and 6"):
        rollout([weights(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 6, 2))])
    with pytest.raises(InvalidArgument, match="expected at least one layer, got none"):
        rollout([])
    with pytest.raises(InvalidArgument, match="expected 'mean', 'max', 'min' or indices of heads, got 'median'"):
        rollout(matrices, head_fusion="median")
    with pytest.raises(InvalidType, match="expected a list of layers or of weight matrices"):
        rollout(matrices[0])
    x = torch.zeros(1, 1, 600, 2)
    with pytest.raises(InvalidArgument, match=r"3 layers of 600 tokens have 1,080,000 edges, more than 1,000,000"):
        flow([weights(x, x)] * 3)


def test_rows_and_heads_are_selected_as_in_a_matrix():
    matrices, _ = layers()
    several = rollout(matrices, queries=[0, 2], head_fusion=[1])
    for rows in (torch.tensor([0, 2]), [True, False, True] + [False] * 4, slice(0, 3, 2)):
        assert torch.equal(rollout(matrices, queries=rows, head_fusion=1), several)
    with pytest.raises(InvalidArgument, match=r"queries: expected integers or 7 bools, got \[1.9\]"):
        rollout(matrices, queries=[1.9])
    with pytest.raises(InvalidType, match=r"residual_weight: .* at least 0 and below 1, got 'a'"):
        rollout(matrices, residual_weight="a")


def test_nothing_flows_to_or_from_a_token_without_edges():
    x = torch.zeros(1, 1, 3, 4)
    actual = flow([weights(x, x, mask=Window(None, -1))], residual_weight=0.0)
    torch.testing.assert_close(actual[0], torch.tensor([[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]))


def test_layers_of_a_recording_are_taken():
    matrices, _ = layers(count=2, batch=1)
    recording = Recording("", "", [Layer(f"layer.{n}", "encoder", W) for n, W in enumerate(matrices)])
    assert torch.equal(rollout(recording.layers), rollout(matrices))
    with pytest.raises(InvalidType, match=r"as recording\.layers\.encoder, got Recording"):
        rollout(recording)
