"""Rollout and flow against their dense definitions."""

from __future__ import annotations

import itertools

import networkx
import pytest
import torch

from regard.analysis import flow, rollout
from regard.errors import InvalidArgument, InvalidType
from regard.ops import weights
from regard.ops.masks import Causal, Window
from regard.ops.scores import ScaledDotProduct, Sinks


def layers(count=3, batch=2, heads=4, tokens=7, mask=None, sinks=False):
    random = torch.Generator().manual_seed(1)
    score = Sinks(ScaledDotProduct(), torch.randn(heads, generator=random, dtype=torch.float64)) if sinks else None
    made = torch.randn(count, 2, batch, heads, tokens, 5, generator=random, dtype=torch.float64).requires_grad_()
    return [weights(query, key, mask=mask, score=score) for query, key in made], made


def dense(layers, fuse, residual):
    """(batch, tokens, tokens): the product of the layers as the paper writes it."""
    tokens = layers[0].shape[2]
    found = torch.eye(tokens, dtype=torch.float64)
    for layer in layers:
        augmented = residual * torch.eye(tokens, dtype=torch.float64) + (1 - residual) * fuse(layer.dense())
        found = augmented / augmented.sum(-1, keepdim=True) @ found
    return found


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
    monkeypatch.setattr("regard.analysis.layers.BLOCK", 2 * 4 * 7 * 3)  # three rows at a time
    given, made = layers(mask=mask, sinks=sinks)
    expected = dense(given, FUSIONS[fusion], residual)
    found = rollout(given, heads=fusion, residual=residual)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 7, dtype=torch.float64))
    torch.testing.assert_close(rollout(given, rows=[5, -7], heads=fusion, residual=residual), expected[:, [5, 0]])
    gradients = [torch.autograd.grad(each[:, 3].square().sum(), made)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_flow_is_the_least_cut():
    given, _ = layers(count=2, batch=1, tokens=3)
    found = flow(given, rows=[2, 0])[0]
    width = [0.5 * torch.eye(3) + 0.5 * layer.detach().dense()[0].mean(0) for layer in given]
    for row, start in enumerate((2, 0)):
        for end in range(3):
            # Whatever tokens of the middle layer stand on the side of the start, what leads out of that side is cut.
            cuts = []
            for side in itertools.product((True, False), repeat=3):
                inside = torch.tensor(side)
                cuts.append(float(width[1][start][~inside].sum() + width[0][inside, end].sum()))
            assert found[row, end] == pytest.approx(min(cuts))


def test_flow_agrees_with_another_algorithm():
    given, _ = layers(count=3, batch=1, tokens=4, mask=Causal())
    graph = networkx.DiGraph()
    for depth, layer in enumerate(given):
        width = 0.5 * torch.eye(4) + 0.5 * layer.detach().dense()[0].mean(0)
        graph.add_weighted_edges_from(
            (((depth + 1, i), (depth, j), float(width[i, j])) for i in range(4) for j in range(i + 1)),
            weight="capacity",
        )
    expected = networkx.maximum_flow_value(graph, (3, 3), (0, 1), flow_func=networkx.algorithms.flow.edmonds_karp)
    found = flow(given)
    assert found[0, 3, 1] == pytest.approx(expected)
    assert found[0, 1, 3] == 0


def test_what_does_not_fit_is_said_at_once():
    given, _ = layers()
    other, _ = layers(1, tokens=6)
    with pytest.raises(InvalidArgument) as error:
        rollout([*given, *other], rows=[0, 7], heads=[4], residual=1.0)
    for said in (
        "layers: number 3 has batch 2 and 6 tokens, the first one 2 and 7",
        "heads of layer 0: expected indices from -4 to 3, got [4]",
        "residual: expected a share from 0 to below 1, got 1.0",
        "rows: expected indices from -7 to 6, got [0, 7]",
    ):
        assert said in str(error.value)
    with pytest.raises(InvalidArgument, match="number 0 has 5 queries and 6 keys; they must be the same"):
        rollout([weights(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 6, 2))])
    with pytest.raises(InvalidArgument, match="expected at least one weight matrix, got none"):
        rollout([])
    with pytest.raises(InvalidArgument, match="expected 'mean', 'max' or numbers of heads, got 'median'"):
        rollout(given, heads="median")
    with pytest.raises(InvalidType, match="expected the weight matrices of the layers"):
        rollout(given[0])
    x = torch.zeros(1, 1, 600, 2)
    with pytest.raises(InvalidArgument, match=r"3 layers of 600 tokens have 1,080,000 pipes; it takes up to 1,000,000"):
        flow([weights(x, x)] * 3)


def test_rows_and_heads_are_chosen_as_those_of_a_matrix_are():
    given, _ = layers()
    several = rollout(given, rows=[0, 2], heads=[1])
    for rows in (torch.tensor([0, 2]), [True, False, True] + [False] * 4, slice(0, 3, 2)):
        assert torch.equal(rollout(given, rows=rows, heads=1), several)
    with pytest.raises(InvalidArgument, match=r"rows: expected integers or 7 bools, got \[1.9\]"):
        rollout(given, rows=[1.9])
    with pytest.raises(InvalidArgument, match="residual: expected a share from 0 to below 1, got 'a'"):
        rollout(given, residual="a")


def test_nothing_flows_to_or_from_a_token_without_pipes():
    x = torch.zeros(1, 1, 3, 4)
    found = flow([weights(x, x, mask=Window(None, -1))], residual=0.0)
    torch.testing.assert_close(found[0], torch.tensor([[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]]))
