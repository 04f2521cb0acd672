"""Modules that call torch's attention functions themselves: exact weights, or an error with the reason."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.analysis import rollout
from regard.errors import InvalidArgument


class Calls(nn.Module):
    """Calls SDPA through a given function of its input."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def dense(query, key, mask=None, scale=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


LOCAL, ALL = torch.eye(5, dtype=torch.bool), torch.ones(5, 5, dtype=torch.bool)
PAIRS = {
    "causal": (lambda x: (sdpa(x, x, x, is_causal=True), sdpa(x, x, x)), ({"mask": ALL.tril()}, {})),
    "scale": (lambda x: (sdpa(x, x, x, scale=0.1), sdpa(x, x, x, scale=2.0)), ({"scale": 0.1}, {"scale": 2.0})),
    "mask": (lambda x: (sdpa(x, x, x, LOCAL), sdpa(x, x, x, ALL)), ({"mask": LOCAL}, {})),
}


@pytest.mark.parametrize("name", PAIRS)
def test_calls_of_the_same_query_and_key_with_other_weights_are_two_layers(name):
    call, expected = PAIRS[name]
    x = torch.randn(2, 3, 5, 4)
    with regard.watch(Calls(call)) as result:
        result.model(x)
    assert [layer.name for layer in result.layers] == ["", "#2"]
    for layer, rule in zip(result.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.dense(), dense(x, x, **rule))


def test_a_query_that_is_overwritten_between_two_calls_is_another_query():
    def call(x):
        query = x.clone()
        first = sdpa(query, x, x)
        query.mul_(2)
        return first, sdpa(query, x, x)

    x = torch.randn(2, 3, 5, 4)
    with regard.watch(Calls(call), offload="cpu") as result:
        result.model(x)
    for layer, query in zip(result.layers, (x, 2 * x), strict=True):
        torch.testing.assert_close(layer.weights.dense(), dense(query, x))


class Doubled(nn.MultiheadAttention):
    def forward(self, query, key, value, **options):
        return super().forward(2 * query, 2 * key, value, **options)


class Scaled(nn.MultiheadAttention):
    def forward(self, x, scale=1.0):
        query, key, value = functional.linear(x, self.in_proj_weight).chunk(3, -1)
        return sdpa(query[:, None], key[:, None], value[:, None], scale=scale)[:, 0]


class OwnSoftmax(nn.MultiheadAttention):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


def test_a_subclass_is_recorded_as_it_computes():
    x = torch.randn(2, 5, 16)
    attention = Doubled(16, 4, batch_first=True).eval()
    nn.init.normal_(attention.in_proj_weight)
    expected = attention(x, x, x, average_attn_weights=False)[1]
    with regard.watch(attention) as result:
        attention(x, x, x)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected)
    scaled = Scaled(16, 1)
    with regard.watch(scaled) as result:
        scaled(x, scale=0.3)
    query, key, _ = functional.linear(x, scaled.in_proj_weight).chunk(3, -1)
    torch.testing.assert_close(result.layers[0].weights.dense()[:, 0], dense(query, key, scale=0.3))
    module = OwnSoftmax(16, 1)
    with pytest.warns(UserWarning, match=r"softmax of the model \(OwnSoftmax\)"), regard.watch(module) as result:
        module(x)
    torch.testing.assert_close(result.layers[0].weights.dense()[:, 0], dense(x, x, scale=1.0))


def test_torchs_function_may_be_called_by_any_module():
    def call(x):
        weights = torch.eye(8).repeat(3, 1), torch.eye(8)
        rest = None, None, None, False, 0.0, weights[1], None
        return functional.multi_head_attention_forward(x, x, x, 8, 2, weights[0], *rest)[0]

    x = torch.randn(5, 3, 8)  # tokens first
    with regard.watch(Calls(call)) as result:
        result.model(x)
    heads = x.transpose(0, 1).unflatten(2, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(result.layers[0].weights.dense(), dense(heads, heads))


def test_a_watch_reads_no_parametrization_again():
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    torch.nn.utils.parametrizations.spectral_norm(attention, "in_proj_weight")
    before, x = attention.state_dict(), torch.randn(2, 5, 16)
    before = {name: tensor.clone() for name, tensor in before.items()}
    for _ in range(3):
        attention(x, x, x)
    expected = {name: tensor.clone() for name, tensor in attention.state_dict().items()}
    attention.load_state_dict(before)
    with regard.watch(attention):
        for _ in range(3):
            attention(x, x, x)
    for name, tensor in attention.state_dict().items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize(("queries", "keys"), [((1, 2), (4, 2)), ((2, 1), (2, 4)), ((3, 1), (1, 4))])
def test_leading_axes_are_broadcast(queries, keys):
    query, key = torch.randn(*queries, 3, 8), torch.randn(*keys, 5, 8)
    with regard.watch(Calls(lambda x: sdpa(x, key, key))) as result:
        result.model(query)
    torch.testing.assert_close(result.layers[0].weights.dense(), dense(query, key))


def test_a_model_may_not_run_in_two_threads_at_once():
    model, barrier, errors = nn.Sequential(Calls(lambda x: sdpa(x, x, x)), nn.Identity()), threading.Barrier(2), []

    def wait(*_):
        barrier.wait(10)

    model[0].register_forward_pre_hook(wait)

    def run(tokens):
        try:
            model(torch.randn(1, 2, tokens, 4))
        except InvalidArgument as error:
            errors.append(str(error))
            barrier.wait(10)

    with regard.watch(model) as result:
        threads = [threading.Thread(target=run, args=(tokens,)) for tokens in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == ["Sequential is being watched and runs in two threads at once; call it from one"]
    assert [layer.weights.shape[2] in (3, 5) for layer in result.layers] == [True]


class LinearAttention(nn.Module):
    def forward(self, x):
        return x.softmax(-1) @ (x.softmax(-2).mT @ x)


class Both(nn.Module):
    def forward(self, x):
        return sdpa(x, x, x) + (x @ x.mT).softmax(-1) @ x


def test_unrecordable_attention_among_recorded_layers_is_named():
    x = torch.randn(1, 2, 5, 16)
    model = nn.Sequential(Calls(lambda x: sdpa(x, x, x)), LinearAttention())
    message = r"1 \(LinearAttention\) computes"
    with pytest.raises(InvalidArgument, match=message), regard.watch(model):
        model(x)
    with pytest.warns(UserWarning, match=r"the softmax of 0 \(Both\)"), regard.watch(nn.Sequential(Both())) as result:
        result.model(x)
    assert [(layer.name, layer.is_dense) for layer in result.layers] == [("0", False), ("0#2", True)]
    hidden, message = (
        Calls(lambda x: (x @ x.mT).exp() @ x),
        "Calls: nothing was recorded: no attention was found in its",
    )
    with pytest.raises(InvalidArgument, match=message), regard.watch(hidden):
        hidden(x)


def test_a_watched_model_is_not_exported():
    model = nn.Sequential(Calls(lambda x: sdpa(x, x, x)))
    with pytest.raises(InvalidArgument, match="export it after the watch"), regard.watch(model):
        torch.export.export(model, (torch.randn(1, 2, 5, 4),))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore:.*jit:DeprecationWarning")
def test_a_script_module_is_named():
    traced = torch.jit.trace(nn.Sequential(Calls(lambda x: sdpa(x, x, x))), (torch.randn(1, 2, 5, 4),))
    with pytest.raises(InvalidArgument, match="ScriptModule"), regard.watch(traced) as result:
        result.model(torch.randn(1, 2, 5, 4))


def test_rollout_takes_the_heads_of_the_model():
    x = torch.randn(1, 4, 6, 8)
    model = Calls(lambda x: sdpa(x, x, x))
    with regard.watch(model) as every:
        model(x)
    with regard.watch(model, heads=[1, 3]) as some:
        model(x)
    assert torch.equal(rollout(some.layers, head_fusion=[3]), rollout(every.layers, head_fusion=[3]))
    assert torch.equal(rollout(some.layers, head_fusion=1), rollout(every.layers, head_fusion=torch.tensor([1])))
    with pytest.raises(InvalidArgument, match="has the heads 1, 3, got 2"):
        rollout(some.layers, head_fusion=[2])
