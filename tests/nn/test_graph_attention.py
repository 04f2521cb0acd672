"""Graph attention against the paper's equations, on a dense matrix."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.errors import InvalidArgument, InvalidType
from regard.models import GAT, GATConfig
from regard.nn import GraphAttention
from regard.ops.masks import Causal, Neighbors


def random_graph(nodes: int, share: float) -> tuple[Neighbors, torch.Tensor]:
    """A graph in which each node sees itself, as edges and as a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    dense = (torch.rand(nodes, nodes, generator=generator) < share) | torch.eye(nodes, dtype=torch.bool)
    return Neighbors(*dense.nonzero().T), dense


@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("nodes", [7, 120])  # the sparse kernel is for sparse graphs
def test_equations_1_to_6_of_the_paper(concat, nodes):
    graph, dense = random_graph(nodes, 0.05)
    torch.manual_seed(0)
    layer, x = GraphAttention(6, 5, 3, concat=concat).double(), torch.randn(nodes, 6).double()
    torch.nn.init.normal_(layer.bias)
    h = functional.linear(x, layer.lin.weight).view(nodes, 3, 5)
    pairs = torch.cat([h[:, None].expand(-1, nodes, -1, -1), h[None].expand(nodes, -1, -1, -1)], dim=-1)
    a = torch.cat([layer.att_dst[0], layer.att_src[0]], dim=1)  # (heads, 2 · dim): the vector of equation 3
    scores = functional.leaky_relu((pairs * a).sum(-1), 0.2).masked_fill(~dense[:, :, None], -torch.inf)
    weights = scores.softmax(1)  # (nodes, neighbors, heads)
    heads = torch.einsum("ijh,jhd->ihd", weights, h)
    expected = (heads.flatten(1) if concat else heads.mean(1)) + layer.bias
    attended = layer(x, graph)
    torch.testing.assert_close(attended.output, expected)
    torch.testing.assert_close(attended.weights.dense()[0], weights.permute(2, 0, 1))
    output = torch.autograd.grad(attended.output.square().sum(), layer.parameters())
    for actual, other in zip(output, torch.autograd.grad(expected.square().sum(), layer.parameters()), strict=True):
        torch.testing.assert_close(actual, other)


def test_dropout_acts_in_training_only():
    graph, _ = random_graph(20, 0.2)
    for rates in ({"dropout": 0.5, "attention_dropout": 0.0}, {"dropout": 0.0, "attention_dropout": 0.5}):
        model, x = GAT(GATConfig(6, 3, head_dim=4, num_heads=2, **rates)), torch.randn(20, 6)
        assert not torch.equal(model(x, graph).logits, model(x, graph).logits)
        model.eval()
        assert torch.equal(model(x, graph).logits, model(x, graph).logits)


def test_it_learns_classes_that_neighbors_share():
    torch.manual_seed(0)
    labels = torch.arange(40) % 2
    same = labels[:, None] == labels
    dense = (same & (torch.rand(40, 40) < 0.2)) | torch.eye(40, dtype=torch.bool)
    graph, x = Neighbors(*dense.nonzero().T), torch.randn(40, 8) + 0.3 * labels[:, None]
    model = GAT(GATConfig(8, 2, head_dim=4, num_heads=2, dropout=0.0, attention_dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        loss = functional.cross_entropy(model(x, graph).logits[:20], labels[:20])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    output = model.eval()(x, graph, output_attentions=True)
    assert (output.logits[20:].argmax(1) == labels[20:]).double().mean() > 0.8
    assert [attended.weights.shape for attended in output.attentions] == [(1, 2, 40, 40), (1, 1, 40, 40)]


def test_invalid_arguments_are_named():
    with pytest.raises(InvalidArgument, match="head_dim: expected an int of at least 1, got 0"):
        GraphAttention(5, 0)
    with pytest.raises(InvalidType, match=r"head_dim: expected an int of at least 1, got 2\.0"):
        GraphAttention(5, 2.0)
    with pytest.raises(InvalidArgument, match=r"x: expected shape \(nodes, in_features=5\), got \(3, 4\)"):
        GraphAttention(5, 2)(torch.zeros(3, 4), random_graph(3, 0.5)[0])
    with pytest.raises(InvalidArgument, match=r"x: expected the weights' dtype torch\.float32, got torch\.int64"):
        GraphAttention(5, 2)(torch.zeros(3, 5, dtype=torch.int64), random_graph(3, 0.5)[0])
    for wrong in (torch.tensor([[0, 1], [1, 2]]), Causal()):
        with pytest.raises(InvalidType, match=r"graph: expected a regard\.Neighbors\(query_idx, key_idx\), got "):
            GraphAttention(5, 2)(torch.zeros(3, 5), wrong)
    with pytest.raises(InvalidType, match="x: expected a tensor, got list"):
        GraphAttention(5, 2)([[0.0] * 5], random_graph(3, 0.5)[0])
    with pytest.raises(InvalidArgument, match=r"num_classes: expected an int of at least 1 and at most .*, got 0"):
        GATConfig(5, 0)


@pytest.mark.parametrize("concat", [True, False])
def test_a_state_dict_of_pygs_gat_conv_is_loaded(concat):
    torch.manual_seed(0)
    shapes = {"att_src": (1, 2, 4), "att_dst": (1, 2, 4), "bias": (8 if concat else 4,), "lin.weight": (8, 5)}
    state = {name: torch.randn(shape) for name, shape in shapes.items()}  # of GATConv(5, 4, heads=2, concat=concat)
    layer = GraphAttention(5, 4, 2, concat=concat)
    layer.load_state_dict(state)
    graph, dense = random_graph(7, 0.3)
    x = torch.randn(7, 5)
    outputs: list[torch.Tensor] = []
    for head in range(2):
        hidden = x @ state["lin.weight"][4 * head : 4 * head + 4].T
        targets, sources = (hidden @ state[name][0, head] for name in ("att_dst", "att_src"))
        scores = functional.leaky_relu(targets[:, None] + sources, 0.2).masked_fill(~dense, -torch.inf)
        outputs.append(scores.softmax(1) @ hidden)
    expected = torch.cat(outputs, 1) if concat else torch.stack(outputs).mean(0)
    torch.testing.assert_close(layer(x, graph).output, expected + state["bias"])
