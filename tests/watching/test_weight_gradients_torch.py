"""Gradients with respect to the weights of torch's attention and of this library's layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import InvalidArgument
from regard.nn import AdditiveAttention, GraphAttention, MultiHeadAttention, SelfAttention, SelfAttention2d


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10 * max(1.0, float(expected.abs().max())), rtol=0)


def captured(monkeypatch, model, *args, **options):
    """The output of a model of torch, and the weights that it multiplies the values by."""
    seen, softmax = [], F.softmax

    def keep(*args, **options):
        seen.append(softmax(*args, **options))
        seen[-1].retain_grad()
        return seen[-1]

    with monkeypatch.context() as patched:
        patched.setattr(F, "softmax", keep)
        return model(*args, **options), seen


class Layers(nn.Module):
    """Two layers of torch, of which the second has more keys."""

    def __init__(self, **options):
        super().__init__()
        self.first = nn.MultiheadAttention(16, 4, **options)
        self.second = nn.MultiheadAttention(16, 4, **options | {"add_bias_kv": True, "add_zero_attn": True})
        self.need_weights = True

    def forward(self, x, memory, mask, padding=None):
        x = x + self.first(x, x, x, attn_mask=mask, need_weights=self.need_weights)[0]
        return x + self.second(x, memory, memory, key_padding_mask=padding, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("shape", ["batch first", "sequence first", "no batch"])
def test_multihead_attention_of_torch(shape, need_weights, frozen, monkeypatch):
    torch.manual_seed(0)
    model = Layers(batch_first=shape == "batch first").double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, memory = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 16, dtype=torch.float64)
    mask, padding = torch.ones(5, 5).triu(1).bool(), torch.arange(7) > torch.tensor([[7], [4]])
    if shape == "sequence first":
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    if shape == "no batch":
        x, memory, padding = x[0], memory[0], padding[1]
    output, expected = captured(monkeypatch, model, x, memory, mask, padding)
    output.square().sum().backward()
    model.need_weights = need_weights
    model.requires_grad_(not frozen)
    with regard.watch(model, weight_gradients=True) as result:
        model(x, memory, mask, padding).square().sum().backward()
    for layer, weights in zip(result.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.dense(), weights.detach().view(layer.weights.shape))
        close(layer.weights.grad.dense(), weights.grad.view(layer.weights.shape))


def test_transformer_of_torch(monkeypatch):
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True, dtype=torch.float64).eval()
    source, target = torch.randn(2, 6, 16).double(), torch.randn(2, 4, 16).double()
    with regard.watch(model, weight_gradients=True) as result:
        model(source, target).square().sum().backward()
    attention = nn.MultiheadAttention.forward
    monkeypatch.setattr(
        nn.MultiheadAttention,
        "forward",
        lambda self, *args, **options: attention(self, *args, **options | {"need_weights": True}),
    )
    output, expected = captured(monkeypatch, model, source, target)
    output.square().sum().backward()
    for layer, weights in zip(result.layers, expected, strict=True):
        close(layer.weights.grad.dense(), weights.grad.view(layer.weights.shape))


class Sdpa(nn.Module):
    def forward(self, *args, **options):
        return F.scaled_dot_product_attention(*args, **options)


SHAPES = {
    "four axes": [(2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)],
    "three axes": [(4, 5, 8), (4, 6, 8), (4, 6, 3)],
    "two axes": [(5, 8), (6, 8), (6, 3)],
    "five axes": [(3, 2, 4, 5, 8), (3, 2, 4, 6, 8), (3, 2, 4, 6, 3)],
    "broadcast": [(2, 4, 5, 8), (1, 1, 6, 8), (1, 1, 6, 3)],
    "groups": [(2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)],
}


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_calls_of_sdpa(name, needs):
    torch.manual_seed(0)
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in SHAPES[name])
    groups = name == "groups"
    repeat = (lambda x: x.repeat_interleave(2, -3)) if groups else (lambda x: x)
    weights = (query @ repeat(key).mT / 8**0.5).softmax(-1).requires_grad_()
    (weights @ repeat(value)).sin().sum().backward()
    query.requires_grad_(needs)
    model = Sdpa()
    with regard.watch(model, weight_gradients=True) as result:
        output = model(query, key, value, enable_gqa=groups)
        output.sin().sum().backward()
    layer = result.layers[0]
    close(layer.weights.grad.dense(), weights.grad.view(layer.weights.shape))


def graph():
    return regard.Neighbors(torch.tensor([0, 0, 1, 2, 3, 4, 4]), torch.tensor([0, 1, 1, 2, 4, 0, 3]))


LAYERS = {
    "multi-head": (lambda: MultiHeadAttention(16, 4, num_kv_heads=2), lambda: (torch.randn(2, 5, 16),)),
    "self": (lambda: SelfAttention(16), lambda: (torch.randn(2, 5, 16),)),
    "2d": (lambda: SelfAttention2d(16), lambda: (torch.randn(2, 16, 3, 4),)),
    "additive": (lambda: AdditiveAttention(6, 8, 5), lambda: (torch.randn(2, 3, 6), torch.randn(2, 4, 8))),
    "graph": (lambda: GraphAttention(6, 4, 2, concat=False), lambda: (torch.randn(5, 6), graph())),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_this_library(name, monkeypatch):
    torch.manual_seed(0)
    make, inputs = LAYERS[name]
    model = make().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    args = [each.double() if isinstance(each, torch.Tensor) else each for each in inputs()]
    seen = []

    def dense_attend(query, key, value, **options):
        """The definition, whose weights autograd knows."""
        options.pop("dropout", None), options.pop("measure", None)
        weights = regard.weights(query, key, **options)
        seen.append(weights.dense().detach().requires_grad_())
        output = seen[-1] @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return regard.AttentionOutput(output, weights, {}, value, output)

    with monkeypatch.context() as patched:
        patched.setattr(f"{type(model).__module__}.attend", dense_attend)
        model(*args).output.sin().sum().backward()
    with regard.watch(model, weight_gradients=True) as result:
        model(*args).output.sin().sum().backward()
    close(result.layers[0].weights.grad.dense(), seen[0].grad)


def test_a_frozen_layer_of_this_library_needs_an_input_with_a_gradient():
    model, x = MultiHeadAttention(16, 4).requires_grad_(False), torch.randn(2, 5, 16)
    message = (
        r"^weight_gradients: MultiHeadAttention has neither parameters nor inputs that require a gradient; call "
        r"model.requires_grad_\(\), or pass inputs that require one$"
    )
    with pytest.raises(InvalidArgument, match=message), regard.watch(model, weight_gradients=True):
        model(x)
    with regard.watch(model, weight_gradients=True) as result:
        model(x.requires_grad_()).output.sum().backward()
    assert result.layers[0].weights.grad is not None


def test_steps_and_chunks_are_one_matrix():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64).requires_grad_()
    model = Sdpa()
    with regard.watch(model, weight_gradients=True, positions="last") as result:
        for first, last in ((0, 4), (4, 5), (5, 6)):
            output = model(query[:, :, first:last], key[:, :, :last], value[:, :, :last], is_causal=first == 0)
            output.sin().sum().backward(retain_graph=True)
    weights = (query @ key.mT / 8**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1).detach()
    (weights.requires_grad_() @ value).sin().sum().backward()
    assert len(result.layers) == len(result.recordings) == 1
    close(result.layers[0].weights.grad.dense(), weights.grad)


def test_weights_of_several_values_are_refused():
    torch.manual_seed(0)
    query, key, value, other = torch.randn(4, 1, 2, 5, 8).requires_grad_().unbind()

    class Twice(nn.Module):
        def forward(self):
            return F.scaled_dot_product_attention(query, key, value) - F.scaled_dot_product_attention(query, key, other)

    model = Twice()
    with regard.watch(model, weight_gradients=True) as result:
        model().sum().backward()
    with pytest.raises(InvalidArgument, match="its output is not its weights times one value"):
        assert result.layers[0].weights.grad
    relative = regard.nn.RelativePositions(4, 2)
    layer, x = MultiHeadAttention(16, 4, positions=relative), torch.randn(1, 5, 16)  # whose weights multiply positions
    with regard.watch(layer, weight_gradients=True) as result:
        layer(x).output.sum().backward()
    with pytest.raises(InvalidArgument, match="its output is not its weights times one value"):
        assert result.layers[0].weights.grad
