"""`select(i)` is sequence i of the model's batch, or is refused: never a block of several sequences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InvalidArgument, InvalidType

WIDTH = 6
REFUSED = "it is not known which sequence .*; if they are the sequences, pass batch_axis= to regard.watch"


class Blocks(nn.Module):
    """Attention within blocks of tokens, for inputs with the batch first or second."""

    def __init__(self, count, is_batch_first, output):
        super().__init__()
        self.count, self.is_batch_first, self.output = count, is_batch_first, output

    def forward(self, x):
        x = x if self.is_batch_first else x.transpose(0, 1)
        blocks = x.unflatten(1, (self.count, -1)).flatten(0, 1)
        states = functional.scaled_dot_product_attention(*(blocks[:, None],) * 3)[:, 0]
        states = states.unflatten(0, (len(x), -1)).flatten(1, 2)
        if self.output == "pooled":
            return states.mean(1)
        states = states if self.is_batch_first else states.transpose(0, 1)
        return states.flatten(0, 1) if self.output == "flat" else states


def selected(model, x, sequence, **options):
    with regard.watch(model, **options) as result, torch.no_grad():
        model(x)
    (layer,) = result.recording.select(sequence).layers
    return layer.weights.dense()[0, 0]


def dense(x):
    return (x @ x.mT / WIDTH**0.5).softmax(-1)


SIZES = [(2, 8), (8, 2), (4, 4), (3, 4), (4, 12), (1, 8), (6, 3)]


@pytest.mark.parametrize("output", ["states", "pooled", "flat"])
@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize(("batch", "tokens"), SIZES)
def test_blocks_are_never_sequences(batch, tokens, is_batch_first, output):
    for count in (each for each in range(1, tokens + 1) if not tokens % each):
        x = torch.randn(batch, tokens, WIDTH)
        model, axis = Blocks(count, is_batch_first, output), 0 if is_batch_first else 1
        given = x if is_batch_first else x.transpose(0, 1)
        for options in ({}, {"batch_axis": axis}):
            try:
                actual = selected(model, given, batch - 1, **options)
            except InvalidArgument as error:
                assert "not known which sequence" in str(error) or "got 0" in str(error)  # noqa: PT017
                assert count > 1 or not options
                assert count > 1 or axis or not batch % tokens or output == "pooled"
            else:
                assert count == 1
                torch.testing.assert_close(actual, dense(x[-1]))


def test_tokens_first_models_say_it():
    class Tutorial(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.encoder = nn.Embedding(9, WIDTH), nn.TransformerEncoderLayer(WIDTH, 1, 8)

        def forward(self, ids):
            return self.encoder(self.embed(ids))

    model, ids = Tutorial().eval(), torch.randint(9, (5, 3))
    with pytest.raises(InvalidArgument, match=REFUSED):
        selected(model, ids, 2)
    expected = selected(model, ids[:, 2:], 0, batch_axis=1)
    torch.testing.assert_close(selected(model, ids, 2, batch_axis=1), expected)


@pytest.mark.parametrize("is_first", [True, False])
def test_modules_of_torch_say_their_axis(is_first):
    layer = nn.TransformerEncoderLayer(WIDTH, 1, 8, batch_first=is_first)
    models = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Sequential(layer, nn.Linear(WIDTH, 2))
    for model, (batch, tokens) in itertools.product(models, [(2, 8), (8, 2), (3, 3)]):
        x = torch.randn(batch, tokens, WIDTH)
        given, last = (each if is_first else each.transpose(0, 1) for each in (x, x[-1:]))
        expected = selected(model.eval(), last, 0)
        torch.testing.assert_close(selected(model, given, batch - 1), expected)


def test_inputs_in_a_dict_are_read():
    class Dict(nn.Module):
        def forward(self, inputs):
            return {"states": Blocks(4, True, "states")(inputs["x"])}

    with pytest.raises(InvalidArgument, match=REFUSED):
        selected(Dict(), {"x": torch.randn(2, 8, WIDTH)}, 1)


def test_inputs_without_a_tensor_are_not_mapped():
    class Lists(nn.Module):
        def forward(self, parts):
            return Blocks(4, True, "states")(torch.stack(parts))

    with pytest.raises(InvalidArgument, match=REFUSED):
        selected(Lists(), [*torch.randn(2, 8, WIDTH)], 1)
    with (
        pytest.raises(InvalidArgument, match=r"batch_axis: .* first input, no tensor with two axes, got 0"),
        regard.watch(Lists(), batch_axis=0) as result,
    ):
        result.model([*torch.randn(2, 8, WIDTH)])


@pytest.mark.parametrize(
    ("axis", "error", "message"),
    [
        (3, InvalidArgument, r"batch_axis: expected an axis of the model's first input, \(2, 8, 6\), got 3"),
        (-1, InvalidArgument, r"batch_axis: expected .* got -1"),
        ("x", InvalidType, r"batch_axis: expected .* got 'x'"),
    ],
)
def test_axes_are_checked(axis, error, message):
    with pytest.raises(error, match=message):
        selected(Blocks(1, True, "states"), torch.randn(2, 8, WIDTH), 0, batch_axis=axis)


def test_a_step_of_one_token_goes_by_the_first_step():
    class Steps(nn.Module):
        def forward(self, x):
            self.key = torch.cat([self.key, x], 1) if x.shape[1] == 1 else x
            return functional.scaled_dot_product_attention(x[:, None], self.key[:, None], self.key[:, None])[:, 0]

    x, model = torch.randn(3, 5, WIDTH), Steps()
    with regard.watch(model, positions="last") as result:
        model(x[:, :4])
        model(x[:, 4:])
    assert result.recording.select(2).layers[0].weights.shape == (1, 1, 5, 5)
    with regard.watch(model) as result:
        model(x[:, 4:])
    with pytest.raises(InvalidArgument, match=REFUSED):  # (batch, 1) or (tokens, 1)
        result.recording.select(2)


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_inputs_without_a_batch_are_one_sequence(is_batch_first):
    class Heads(nn.Module):
        def forward(self, x):
            heads = x.unflatten(1, (2, -1)).transpose(0, 1)
            return functional.scaled_dot_product_attention(heads, heads, heads)

    x = torch.randn(8, WIDTH)
    assert selected(Heads(), x, 0).shape == (8, 8)
    assert selected(nn.TransformerEncoderLayer(WIDTH, 1, 8, batch_first=is_batch_first).eval(), x, 0).shape == (8, 8)


def test_sequences_that_attention_takes_for_heads_are_not_one_sequence():
    class ThreeAxes(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x, x, x)

    with pytest.raises(InvalidArgument, match=REFUSED):
        selected(ThreeAxes(), torch.randn(2, 8, WIDTH), 0)
