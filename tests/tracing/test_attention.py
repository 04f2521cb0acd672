"""The steps of the calculation: NumPy, torch's layer and the layer of this library are the oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.models.config import TransformerLayerConfig
from regard.models.layers import attention_positions
from regard.nn import MultiHeadAttention, SelfAttention
from regard.ops.masks import Causal
from regard.tracing import trace_layer


def test_the_example_is_the_one_of_four_words():
    np.random.seed(42)  # noqa: NPY002 - as the example is defined
    projections = [np.random.randint(3, size=(3, 3)) for _ in range(3)]  # noqa: NPY002
    x = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    query, key, value = (x @ weight for weight in projections)
    scores = query @ key.T
    numerators = np.exp(scores / 3**0.5)
    weights = numerators / numerators.sum(1, keepdims=True)
    trace = regard.trace()
    for name, expected in {
        "input": x, "W_K": projections[1], "query": query, "key": key, "value": value, "scores": scores,
        "scaled scores": scores / 3**0.5, "weights": weights, "weighted values": weights[..., None] * value,
        "output": weights @ value,
    }.items():  # fmt: skip
        np.testing.assert_allclose(trace[name].squeeze(0), expected, rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(trace["output"][0, 0], [0.98522025, 1.74174051, 0.75652026], atol=5e-9)
    assert regard.trace(x, *projections)["output"].tolist() == trace["output"].tolist()


def test_tracing_leaves_the_random_numbers_alone():
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.RandomState(0).randint(100)
    regard.trace()
    assert np.random.randint(100) == expected  # noqa: NPY002


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", [None, Causal(), torch.tensor([[True, False, True, True, False]])], ids=str)
@pytest.mark.parametrize("cross", [False, True])
def test_the_steps_of_a_layer_end_where_the_layer_does(bias, kv_heads, mask, cross):
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads, bias=bias, dropout=0.5).double().eval()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    memory = (torch.randn(1, 5, 8, dtype=torch.float64),) if cross else ()
    expected = layer(x, *memory, mask=mask)
    trace = trace_layer(layer, x, *memory, mask=mask)
    torch.testing.assert_close(trace["output"], expected.output[0])
    torch.testing.assert_close(trace["weights"], expected.weights.dense()[0])
    scores = trace["scaled scores"] if mask is None else trace["masked scores"]
    torch.testing.assert_close(scores, expected.weights.scores.dense()[0])
    torch.testing.assert_close(trace["exponentials"] / trace["sums"][..., None], expected.weights.dense()[0])
    assert trace["exponentials"].max() == 1
    assert ("memory" in trace.names) == cross
    assert ("b_Q" in trace.names) == bias
    for step in trace.steps:
        assert step.value.ndim == len(step.axes) == len(step.labels)


def test_values_of_their_own_are_a_step():
    layer = MultiHeadAttention(8, 2).eval()
    x, y, z = torch.randn(3, 1, 5, 8).unbind()
    trace = trace_layer(layer, x, y, z)
    torch.testing.assert_close(trace["values"], z[0].double())
    assert next(step.formula for step in trace.steps if step.name == "value") == "V = Z W_V + b_V"
    assert "values" not in trace_layer(layer, x, y).names


@pytest.mark.parametrize("positions", ["relative", "rotary", "alibi", "t5"])
def test_positions_are_steps_of_their_own(positions):
    config = TransformerLayerConfig(d_model=16, num_heads=4, positions=positions)
    (module,) = attention_positions(config, 1, causal=True)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    layer = MultiHeadAttention(16, 4, num_kv_heads=2, positions=module).double().eval()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    expected, trace = layer(x, mask=Causal()), trace_layer(layer, x, mask=Causal())
    torch.testing.assert_close(trace["output"], expected.output[0])
    torch.testing.assert_close(trace["weights"], expected.weights.dense()[0])
    torch.testing.assert_close(trace["masked scores"], expected.weights.scores.dense()[0])
    assert ("rotated key" in trace.names) == (positions == "rotary")
    assert ("position bias" in trace.names) == (positions != "rotary")
    assert ("b by distance" in trace.names) == (positions == "relative")
    for step in trace.steps:
        assert step.value.ndim == len(step.axes) == len(step.labels)


def test_torch_s_own_layer_agrees():
    expected = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    actual = MultiHeadAttention(8, 2)
    actual.in_proj.weight.data, actual.in_proj.bias.data = expected.in_proj_weight.data, expected.in_proj_bias.data
    actual.out_proj.load_state_dict(expected.out_proj.state_dict())
    x = torch.randn(1, 4, 8)
    output, weights = expected(x, x, x, average_attn_weights=False)
    trace = trace_layer(actual, x)
    torch.testing.assert_close(trace["output"].float(), output[0])
    torch.testing.assert_close(trace["weights"].float(), weights[0])


def test_the_scaling_is_explained_where_it_is_that_of_the_paper():
    def explanation(trace):
        return next(step.explanation for step in trace if step.name == "scaled scores")

    x = torch.randn(4, 9)
    assert "a sum of 9 products" in explanation(regard.trace(x))
    assert "√9 ≈ 3.000" in explanation(regard.trace(x))
    assert explanation(regard.trace(x, scale=0.5)) == "The scores are multiplied by 0.5."


def test_steps_need_no_gradient():
    layer = MultiHeadAttention(8, 2)
    assert not any(step.value.requires_grad for step in trace_layer(layer, torch.randn(1, 3, 8, requires_grad=True)))


def test_a_row_that_sees_nothing_has_no_weights():
    layer = SelfAttention(3)
    trace = trace_layer(layer, torch.randn(1, 2, 3), mask=torch.tensor([[True, False], [False, False]]))
    assert trace["weights"][0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert trace["exponentials"][0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert trace["output"][0, 1].tolist() == [0.0, 0.0, 0.0]
    steps = json.loads(trace.to_json())["steps"]
    masked = next(step for step in steps if step["name"] == "masked scores")
    assert masked["value"][0][1] == [None, None]


def test_json_holds_every_number():
    trace = regard.trace([[1.0, 2.0]], tokens=["only"])
    data = json.loads(trace.to_json())
    assert data["title"] == "Scaled dot-product attention"
    assert [step["name"] for step in data["steps"]] == list(trace.names)
    assert all(step["explanation"] for step in data["steps"])
    query = data["steps"][4]
    assert query["axes"] == ["head", "query", "dim"]
    assert query["labels"] == [None, ["only"], None]
    assert query["value"] == [[[1.0, 2.0]]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1, 2]}, r"x: expected a table \(rows, columns\), got the shape \(2,\)"),
        (
            {"x": [[1, 2]], "w_key": [[1], [2], [3]]},
            r"w_key: expected \(features, width\) with features = 2 .* \(3, 1\)",
        ),
        ({"x": [[1, 2]], "w_key": [[1], [2]]}, "w_key: expected the width of w_query, 2, got 1"),
        ({"x": [[1, 2]], "tokens": ["a", "b"]}, "tokens: expected a name for each of 1 tokens, got 2"),
        ({"w_key": [[1]]}, "w_key: pass x with it, or neither"),
        (
            {"x": [[1, 2]], "mask": torch.ones(3, 3).bool()},
            r"mask: expected a shape broadcastable to .* = \(1, 1, 1, 1\), got \(3, 3\)",
        ),
        ({"x": torch.ones(400, 50)}, r"= 8,000,000 elements, more than 1,000,000"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        regard.trace(**arguments)


def test_arguments_of_wrong_types_are_named():
    with pytest.raises(InvalidType, match="x: expected a table of numbers, got str 'words'"):
        regard.trace("words")
    with pytest.raises(
        InvalidType, match="layer: expected one of MultiHeadAttention, SelfAttention, AdditiveAttention, got Linear"
    ):
        trace_layer(torch.nn.Linear(2, 2), torch.ones(1, 2, 2))
    with pytest.raises(
        InvalidArgument, match=r"query: expected \(1, tokens, features\), one sequence, got \(2, 4, 3\)"
    ):
        trace_layer(SelfAttention(3), torch.ones(2, 4, 3))
    with pytest.raises(KeyError, match="no step is called 'softmax'; there are input, W_Q"):
        regard.trace()["softmax"]


def test_heads_that_are_wider_than_the_model_divided_by_them():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, num_kv_heads=1, head_dim=6)
    x = torch.randn(1, 4, 8)
    trace = trace_layer(layer, x)
    torch.testing.assert_close(trace["output"].float(), layer(x).output[0], rtol=1e-5, atol=1e-6)
