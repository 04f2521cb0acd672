"""Layers of PyTorch Geometric, watched: the weights that they return for each edge, and autograd's gradients."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import InvalidArgument

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from torch_geometric.utils import coalesce

NODES, WIDTH = 30, 6
LAYERS = {
    "gat": lambda: GATConv(WIDTH, 5, heads=3),
    "gat, mean of heads": lambda: GATConv(WIDTH, 5, heads=3, concat=False, residual=True),
    "gat, slope": lambda: GATConv(WIDTH, 5, heads=3, negative_slope=0.5, add_self_loops=False),
    "gat, against the edges": lambda: GATConv(WIDTH, 5, heads=3, flow="target_to_source"),
    "gatv2": lambda: GATv2Conv(WIDTH, 5, heads=3),
    "gatv2, shared": lambda: GATv2Conv(WIDTH, 5, heads=3, share_weights=True, concat=False),
    "transformer": lambda: TransformerConv(WIDTH, 5, heads=3),
    "transformer, mean of heads": lambda: TransformerConv(WIDTH, 5, heads=3, concat=False, root_weight=False),
    "transformer, gated": lambda: TransformerConv(WIDTH, 5, heads=3, beta=True),
}


def graph(seed=0):
    random = torch.Generator().manual_seed(seed)
    edges = coalesce(torch.randint(NODES, (2, 80), generator=random))
    return torch.randn(NODES, WIDTH, generator=random) * 3, edges[:, torch.randperm(edges.shape[1], generator=random)]


def dense(layer, edges, alpha, shape=(NODES, NODES)):
    """(heads, targets, sources) from the weights (edges, heads)."""
    source, target = edges if layer.flow == "source_to_target" else edges.flip(0)
    return torch.zeros(*shape, alpha.shape[1]).index_put((target, source), alpha).permute(2, 0, 1)


@pytest.mark.parametrize("name", LAYERS)
def test_weights_output_and_measures(name):
    torch.manual_seed(0)
    layer, (x, edges) = LAYERS[name](), graph()
    expected, (of_weights, alpha) = layer(x, edges, return_attention_weights=True)
    with regard.watch(layer, ["entropy", "received"], keep_values=True) as result:
        output = layer(x, edges)
    assert torch.equal(output, expected)
    reference = dense(layer, of_weights, alpha)
    (recorded,) = result.layers
    torch.testing.assert_close(recorded.weights.dense()[0], reference, atol=1e-6, rtol=0)
    torch.testing.assert_close(recorded.measured["received"][0], reference.sum(1), atol=1e-5, rtol=1e-5)
    assert recorded.value.shape == (1, 3, NODES, 5)
    losses = recorded.measured["entropy"].sum(), -(alpha * alpha.log()).sum()
    parameters = [each for each in layer.parameters() if each.requires_grad]
    gradients = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses)
    for one, other in zip(*gradients, strict=True):
        zero = torch.zeros(()) if one is None else torch.zeros_like(one)
        torch.testing.assert_close(zero if one is None else one, zero if other is None else other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in LAYERS if "gated" not in name])
def test_gradients_of_the_weights(name):
    torch.manual_seed(0)
    layer, (x, edges) = LAYERS[name](), graph()
    output, (of_weights, alpha) = layer(x, edges, return_attention_weights=True)
    upstream = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, alpha, upstream)
    with regard.watch(layer, weight_gradients=True) as result:
        layer(x, edges).backward(upstream)
    source, target = of_weights if layer.flow == "source_to_target" else of_weights.flip(0)
    actual = result.layers[0].weights.grad.dense()[0][:, target, source]
    torch.testing.assert_close(actual, expected.mT, atol=1e-5, rtol=1e-4)


def test_a_gate_cannot_be_followed():
    layer, (x, edges) = LAYERS["transformer, gated"](), graph()
    with pytest.raises(InvalidArgument, match="returns no to_heads"), regard.watch(layer, weight_gradients=True):
        layer(x, edges)


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
def test_sources_and_targets_of_two_kinds(kind):
    torch.manual_seed(0)
    options = {} if kind is TransformerConv else {"add_self_loops": False}
    layer = kind((WIDTH, 4), 5, heads=2, **options)
    x, edges = (torch.randn(20, WIDTH), torch.randn(7, 4)), torch.stack((torch.arange(20), torch.arange(20) % 7))
    _, (of_weights, alpha) = layer(x, edges, return_attention_weights=True)
    with regard.watch(layer) as result:
        layer(x, edges)
    expected = dense(layer, of_weights, alpha, (7, 20))
    torch.testing.assert_close(result.layers[0].weights.dense()[0], expected, atol=1e-6, rtol=0)


def test_a_model_of_several_layers_in_memory_of_its_edges():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GATConv(WIDTH, 4, heads=2), TransformerConv(8, 3, heads=2, concat=False)

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    x, edges = torch.randn(100_000, WIDTH), coalesce(torch.randint(100_000, (2, 300_000)))
    with regard.watch(Net(), ["entropy"]) as result, torch.no_grad():
        result.model(x, edges)
    assert [layer.name for layer in result.layers] == ["first", "second"]
    assert result.layers[0].measured["entropy"].shape == (1, 2, 100_000)


@pytest.mark.parametrize(
    ("layer", "change", "message"),
    [
        (
            lambda: GATConv(WIDTH, 5, edge_dim=2, add_self_loops=False),
            lambda x, e: (x, e, torch.ones(e.shape[1], 2)),
            r"GATConv: weights that depend on features of edges \(edge_attr\) cannot be watched",
        ),
        (
            lambda: TransformerConv(WIDTH, 5),
            lambda x, e: (x, torch.cat((e, e[:, :3]), 1)),
            "TransformerConv: edge_index has 3 edges more than once.*coalesce",
        ),
        (
            lambda: GATv2Conv(WIDTH, 5, add_self_loops=False),
            lambda x, e: (
                x,
                torch.sparse_coo_tensor(e, torch.ones(e.shape[1]), (NODES, NODES)).coalesce().mT.to_sparse_csr(),
            ),
            "GATv2Conv: expected edge_index as a tensor .* got a sparse matrix",
        ),
        (
            lambda: GATConv((WIDTH, WIDTH), 5, add_self_loops=False),
            lambda x, e: ((x, None), e, None, (NODES, NODES)),
            "GATConv: x has no features of targets",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_attention_of_nodes_is_refused(layer, change, message):
    with pytest.raises(InvalidArgument, match=message), regard.watch(layer()) as result:
        result.model(*change(*graph()))
