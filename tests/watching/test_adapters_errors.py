"""Wrong adapters, and adapters that return something wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from helpers.small_gpt import IDS, CausalSelfAttention, adapter, small_gpt
from regard.errors import InvalidArgument, InvalidType
from regard.watching.adapters import AttentionInputs


@pytest.mark.parametrize(
    ("adapters", "error", "message"),
    [
        ([adapter], InvalidType, r"adapters: expected a dict of adapters by class, got \["),
        (adapter, InvalidType, "adapters: expected a dict of adapters by class, got <function"),
        (
            {"CausalSelfAttention": adapter},
            InvalidType,
            "expected classes of modules as keys, got 'CausalSelfAttention'",
        ),
        ({int: adapter}, InvalidType, "expected classes of modules as keys, got <class 'int'>"),
        ({CausalSelfAttention: None}, InvalidType, "expected a function for CausalSelfAttention, got None"),
        ({nn.LSTM: adapter}, InvalidArgument, "adapters: SmallGPT has no module of class LSTM"),
        (
            {type("CausalSelfAttentio", (nn.Module,), {}): adapter},
            InvalidArgument,
            "has no module of class CausalSelfAttentio, did you mean 'CausalSelfAttention'",
        ),
    ],
)
def test_wrong_adapters_are_refused_before_the_model_runs(adapters, error, message):
    with pytest.raises(error, match=message):
        regard.watch(small_gpt(), adapters=adapters)


def test_a_module_in_place_of_its_class():
    model = small_gpt()
    with pytest.raises(InvalidType, match="got a module; pass its class, CausalSelfAttention"):
        regard.watch(model, adapters={model.h[0]: adapter})


RESULTS = {
    "a tuple": (lambda q: (q, q), InvalidType, r"to return .*AttentionInputs or a list of them, got tuple"),
    "nothing": (lambda q: None, InvalidType, "to return .*AttentionInputs or a list of them, got None"),
    "three axes": (
        lambda q: AttentionInputs(query=q[0], key=q),
        InvalidArgument,
        r"query: expected shape \(batch, heads, queries, head_dim\), got \(4, 20, 8\)",
    ),
    "batch": (
        lambda q: AttentionInputs(query=q, key=q[:1]),
        InvalidArgument,
        "key: expected the query's batch 2, got 1",
    ),
    "heads": (
        lambda q: AttentionInputs(query=q, key=q[:, :3]),
        InvalidArgument,
        "key: expected a number of heads that divides the query's 4, got 3",
    ),
    "width": (
        lambda q: AttentionInputs(query=q, key=q[..., :5]),
        InvalidArgument,
        "key: expected the query's head_dim 8, got 5",
    ),
    "values": (
        lambda q: AttentionInputs(query=q, key=q, value=q[:, :, 1:]),
        InvalidArgument,
        "value: expected as many keys as in key, 20, got 19",
    ),
    "a mask of another size": (
        lambda q: AttentionInputs(query=q, key=q, mask=torch.ones(19, 20, dtype=torch.bool)),
        InvalidArgument,
        r"mask: expected .*\(2, 4, 20, 20\), got \(19, 20\)",
    ),
    "a mask by name": (
        lambda q: AttentionInputs(query=q, key=q, mask="causal"),
        InvalidType,
        "mask: expected a bool tensor, a mask such as",
    ),
    "a score that is unknown": (
        lambda q: AttentionInputs(query=q, key=q, score="hyperbolic"),
        InvalidArgument,
        "score: unknown name 'hyperbolic'",
    ),
    "a scale that is a tensor": (
        lambda q: AttentionInputs(query=q, key=q, scale=torch.ones(1)),
        InvalidType,
        "scale: expected a finite number",
    ),
    "valid queries": (
        lambda q: AttentionInputs(query=q, key=q, valid_queries=torch.ones(2, 19, dtype=torch.bool)),
        InvalidArgument,
        r"valid_queries: expected shape \(batch, queries\) = \(2, 20\), got \(2, 19\)",
    ),
    "not a tensor": (lambda q: AttentionInputs(query=q, key=None), InvalidType, "key: expected a .*tensor, got None"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_wrong_results_name_the_module_what_arrived_and_what_is_expected(name):
    make, error, message = RESULTS[name]
    adapters = {CausalSelfAttention: lambda module, arguments, output: make(torch.ones(2, 4, 20, 8))}
    model = small_gpt()
    with (
        pytest.raises(error, match=rf"adapter of h.0 \(CausalSelfAttention\).*{message}"),
        regard.watch(model, adapters=adapters),
    ):
        model(IDS)
