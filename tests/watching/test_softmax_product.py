"""Which axes of a softmax and its product are batch, heads, queries and keys, and which products are not attention."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import regard
from helpers.own_softmax import BATCH, HEADS, TOKENS, WIDTH, Calls, Outer, SlowAttention, inputs, project, watched
from regard.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")


def merged(x):
    query, key, value = (part.transpose(1, 2).reshape(-1, x.shape[1], WIDTH) for part in project(x))
    weights = torch.bmm(query, key.transpose(1, 2)).softmax(2)
    return torch.bmm(weights, value), weights.view(-1, HEADS, *weights.shape[1:])


def heads_first(x):
    query, key, value = (part.permute(2, 0, 1, 3).reshape(-1, x.shape[1], WIDTH) for part in project(x))
    weights = torch.bmm(query, key.transpose(1, 2)).softmax(2)
    return torch.bmm(weights, value), weights.view(HEADS, -1, *weights.shape[1:]).transpose(0, 1)


def tokens_first(x):
    query, key, value = (
        part.flatten(2).transpose(0, 1).contiguous().view(x.shape[1], x.shape[0] * HEADS, WIDTH).transpose(0, 1)
        for part in project(x)
    )
    weights = torch.bmm(query, key.transpose(1, 2)).softmax(2)
    return torch.bmm(weights, value), weights.view(-1, HEADS, *weights.shape[1:])


def heads_of_weights_first(x):
    query, key, value = (part.permute(2, 0, 1, 3) for part in project(x))
    weights = (query @ key.mT).softmax(3)
    return weights @ value, weights.transpose(0, 1)


def heads_after_queries(x):
    query, key, value = project(x)
    weights = torch.einsum("bqhd,bkhd->bqhk", query, key).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, value), weights.transpose(1, 2)


def keys_before_queries(x):
    query, key, value = (part.permute(0, 2, 3, 1) for part in project(x))  # (batch, heads, width, tokens)
    weights = torch.softmax(key.mT @ query, -2)
    return value @ weights, weights.mT


def value_first(x):
    query, key, value = (part.permute(0, 2, 1, 3) for part in project(x))
    weights = nn.functional.softmax(query @ key.mT, dim=-1)
    return value.mT @ weights.permute(0, 1, 3, 2), weights


def with_ellipsis(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = torch.einsum("...qd,...kd->...qk", query, key).softmax(-1)
    return torch.einsum("...qk,...kd->...qd", weights, value), weights


def with_sublists(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = (query @ key.mT).softmax(-1)
    return torch.einsum(weights, [0, 1, 2, 3], value, [0, 1, 3, 4], [0, 1, 2, 4]), weights


def one_for_all_sequences(x):
    value = list(project(x))[2].transpose(1, 2)
    weights = torch.randn(1, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(3)).softmax(-1)
    return weights @ value, weights.expand(len(x), -1, -1, -1)


def values_with_two_axes(x):
    query, key, value = project(x)
    weights = torch.einsum("bihd,bjhd->bijh", query, key).softmax(2)
    pairs = torch.einsum("bijh,bjmhd->bimhd", weights, value.unflatten(3, (2, 2)).transpose(2, 3))
    return pairs, weights.permute(0, 3, 1, 2)


def shared_values(x):
    query, key, value = project(x)
    weights = torch.einsum("bqhd,bkhd->bhqk", query, key).softmax(-1)
    return torch.einsum("bhqk,bkd->bhqd", weights, value[:, :, 0]), weights


def one_key_head(x):
    query, key, value = (part.transpose(1, 2) for part in project(x))
    weights = (query @ key[:, :1].mT).softmax(-1)
    return weights @ value[:, :1], weights


LAYOUTS = [
    *(merged, heads_first, tokens_first, heads_of_weights_first, heads_after_queries, keys_before_queries),
    *(
        value_first,
        with_ellipsis,
        with_sublists,
        one_for_all_sequences,
        values_with_two_axes,
        shared_values,
        one_key_head,
    ),
]


@pytest.mark.parametrize("call", LAYOUTS, ids=lambda call: call.__name__)
def test_the_product_says_which_axis_is_which(call):
    module = Calls(call)
    layer = watched(module, inputs()).layers[0]
    assert layer.weights.shape == (BATCH, HEADS, TOKENS, TOKENS)
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    assert layer.batch_axis is None


@pytest.mark.parametrize("call", LAYOUTS, ids=lambda call: call.__name__)
def test_gradients_of_the_weights_follow_the_axes(call):
    module, x = Calls(call), inputs().requires_grad_()
    with regard.watch(module, weight_gradients=True) as result:
        output = module(x)
    factors = torch.linspace(-1, 1, output.numel()).view_as(output)
    (output * factors).sum().backward()
    gradient = result.layers[0].weights.grad.dense()
    assert gradient.shape == module.weights.shape
    for place in ((0, 0, 0, 0), (1, 2, 3, 5), (0, 1, 6, 2)):
        change = torch.zeros(gradient.shape)
        change[place] = 0.01
        with torch.no_grad():
            slope = ((changed_output(call, x, change) - changed_output(call, x, -change)) * factors).sum() / 0.02
        torch.testing.assert_close(gradient[place], slope, rtol=1e-2, atol=1e-3)


def changed_output(call, x, change):
    """The output of a call whose weights, (batch, heads, queries, keys), are changed."""

    class Changes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") != "softmax":
                return result
            if len(result) == 1:  # the same for all sequences
                return result + change
            _, plain = call(x)
            for axes in itertools.permutations(range(4)):
                each, move = plain.permute(axes), change.permute(axes)
                if each.numel() == result.numel() and torch.equal(each.reshape(result.shape), result):
                    return result + move.reshape(result.shape)
            raise AssertionError

    with Changes():
        return call(x)[0]


def test_entries_of_a_batch_with_heads_that_the_module_does_not_tell_apart_have_one_head():
    def split(x):
        parts = [torch.cat(part.unbind(2), 0) for part in project(x)]
        weights = (parts[0] @ parts[1].mT).softmax(-1)
        return torch.cat((weights @ parts[2]).chunk(HEADS), 2), weights

    module = Calls(split)
    layer = watched(module, inputs()).layers[0]
    assert layer.weights.shape == (BATCH * HEADS, 1, TOKENS, TOKENS)
    torch.testing.assert_close(layer.weights.dense()[:, 0], module.weights)
    assert layer.batch_axis is not None


def test_windows_are_entries_of_the_batch():
    def windows(x):
        parts = [part.unflatten(1, (2, 4)).permute(0, 1, 3, 2, 4) for part in project(x)]
        weights = (parts[0] @ parts[1].mT).softmax(-1)
        return weights @ parts[2], weights

    module = Calls(windows)
    layer = watched(module, inputs(BATCH, 8, HEADS * WIDTH)).layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights.flatten(0, 1))
    assert layer.batch_axis is not None


def gates_einsum(x):
    gates = x.softmax(-1)  # (batch, tokens, experts)
    return torch.einsum("bte,bted->btd", gates, x[..., None].expand(-1, -1, -1, 5)), gates


def gates_matmul(x):
    gates = x.softmax(-1)
    return (gates[:, :, None] @ x[..., None].expand(-1, -1, -1, 5))[:, :, 0], gates


def vocabulary(x):
    probabilities = x.softmax(-1)
    return probabilities @ torch.randn(x.shape[-1], 5), probabilities


def log_softmax(x):
    weights = (x @ x.mT).log_softmax(-1)
    return weights @ x, weights


@pytest.mark.parametrize("call", [gates_einsum, gates_matmul, vocabulary, log_softmax])
def test_gates_and_probabilities_are_not_attention(call):
    model = Outer(Calls(call), nn.LazyLinear(HEADS * WIDTH), SlowAttention())
    x = inputs()
    model(x)
    assert [layer.name for layer in watched(model, x).layers] == ["parts.2"]


class Einsums(torch.nn.Module):
    def __init__(self, num_heads, equations, shape):
        super().__init__()
        self.num_heads, self.equations, self.shape = num_heads, equations, shape

    def forward(self, x):
        query = x.unflatten(2, self.shape)
        key = query[:, :, 0] if len(self.shape) == 2 else query[:, :, :, 0]
        weights = torch.einsum(self.equations[0], query, key).softmax(-1)
        self.weights = weights.transpose(1, 2) if len(self.shape) == 2 else weights.flatten(1, 2)
        return torch.einsum(self.equations[1], weights, key)


@pytest.mark.parametrize("batch", [2, 8])
@pytest.mark.parametrize(
    "module",
    [
        Einsums(4, ("bthd,bsd->bths", "bths,bsd->bthd"), (4, 4)),  # a key of all heads
        Einsums(8, ("btkgd,bskd->bkgts", "bkgts,bskd->btkgd"), (2, 4, 2)),  # groups of heads that share a key
    ],
)
def test_heads_that_share_a_key_in_any_order(module, batch):
    layer = watched(module, torch.randn(batch, 6, 16)).layers[0]
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    assert layer.batch_axis is None


def test_heads_that_could_be_queries_are_refused():
    module = Einsums(None, ("bthd,bsd->bths", "bths,bsd->bthd"), (4, 4))
    with pytest.raises(InvalidArgument, match="has several axes that may be its queries"):
        watched(module, torch.randn(2, 6, 16))
