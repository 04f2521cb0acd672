"""torch's own attention, watched: MultiheadAttention, the layers built from it, and plain calls."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regard
from helpers.pairwise import pairwise
from regard.errors import InvalidArgument, StaleView

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 5, 7, 16, 4


@pytest.mark.parametrize(
    ("masked", "padded", "bias", "zero", "sides", "first", "need_weights"),
    pairwise(
        ["none", "bool", "float", "of heads"],
        ["none", "bool", "float"],
        [True, False],
        [True, False],
        ["one", "two", "widths"],
        [True, False],
        [True, False],
    ),
)
def test_weights_equal_those_of_the_module(masked, padded, bias, zero, sides, first, need_weights):
    torch.manual_seed(0)
    widths = {"kdim": 6, "vdim": 9} if sides == "widths" else {}
    attention = nn.MultiheadAttention(
        WIDTH, HEADS, bias=bias, add_bias_kv=zero, add_zero_attn=zero, batch_first=first, **widths
    ).eval()
    query = torch.randn(BATCH, QUERIES, WIDTH)
    key, value = (
        torch.randn(BATCH, KEYS, widths.get("kdim", WIDTH)),
        torch.randn(BATCH, KEYS, widths.get("vdim", WIDTH)),
    )
    key, value = (query, query) if sides == "one" else (key, value)
    keys = key.shape[1]
    hidden = (torch.rand(QUERIES, keys) < 0.3) & (torch.arange(keys) > 0)  # torch gives NaN for a row that sees none
    padding = torch.arange(keys) >= torch.tensor([keys, keys - 1, keys - 2])[:, None]
    options = {
        "attn_mask": {
            "none": None,
            "bool": hidden,
            "float": torch.randn(QUERIES, keys).masked_fill(hidden, -torch.inf),
            "of heads": (torch.rand(BATCH * HEADS, QUERIES, keys) < 0.3) & (torch.arange(keys) > 0),
        }[masked],
        "key_padding_mask": {
            "none": None,
            "bool": padding,
            "float": torch.zeros(BATCH, keys).masked_fill(padding, -torch.inf),
        }[padded],
    }
    if masked == "float" and padded == "bool":  # torch requires masks of one type
        options["key_padding_mask"] = torch.zeros(BATCH, keys).masked_fill(padding, -torch.inf)
    if masked in ("bool", "of heads") and padded == "float":
        options["key_padding_mask"] = padding
    inputs = (query, key, value) if first else tuple(each.transpose(0, 1) for each in (query, key, value))
    with torch.no_grad():
        expected, expected_weights = attention(*inputs, **options, average_attn_weights=False)
        plain, _ = attention(*inputs, **options, need_weights=need_weights)
        with regard.watch(attention, "entropy") as result:
            output, _ = attention(*inputs, **options, need_weights=need_weights)
    assert torch.equal(output, plain)
    torch.testing.assert_close(output, expected)
    weights = result.layers[0].weights.dense()
    torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)


def _models():
    layer = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 32, "batch_first": True, "dropout": 0.0}
    yield "encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2), 1
    yield "decoder", nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2), 2
    both = {"num_encoder_layers": 2, "num_decoder_layers": 2, **layer}
    yield "both", nn.Transformer(**both), 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("training", [True, False])
def test_transformers_of_torch_are_unchanged(number, training):
    torch.manual_seed(0)
    name, model, sides = list(_models())[number]
    model.train(training)
    inputs = (torch.randn(BATCH, KEYS, WIDTH), torch.randn(BATCH, QUERIES, WIDTH))[-sides:]
    inputs = inputs[::-1] if name == "decoder" else inputs
    causal = nn.Transformer.generate_square_subsequent_mask(QUERIES)
    options = {} if name == "encoder" else {"tgt_mask": causal, "tgt_is_causal": True}
    padding = torch.arange(KEYS) >= torch.tensor([KEYS, KEYS - 2, KEYS - 1])[:, None]
    options |= {"src_key_padding_mask": padding} if name == "both" else {}
    torch.backends.mha.set_fastpath_enabled(False)  # modules without hooks use it; it rounds differently
    try:
        expected = model(*inputs, **options)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with regard.watch(model, ["entropy", "received"]) as result:
        output = model(*inputs, **options)
    assert torch.equal(output, expected)
    kinds = {"encoder": ["encoder"] * 2, "decoder": ["decoder", "cross"] * 2}
    assert [layer.kind for layer in result.layers] == kinds.get(name, kinds["encoder"] + kinds["decoder"])
    for layer in result.layers.decoder:
        assert not layer.weights.dense().triu(1).any()
    for layer in result.layers.encoder if name == "both" else ():
        assert not layer.weights.dense().masked_select(padding[:, None, None]).any()


class Plain(nn.Module):
    """A user's own layer: a plain call."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, **options):
        query, key, value = self.project(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
        return functional.scaled_dot_product_attention(query, key, value, **options)


@pytest.mark.parametrize(("causal", "masked"), [(True, "none"), (False, "none"), (False, "bool"), (False, "float")])
@pytest.mark.parametrize("lead", [(), (BATCH,), (2, BATCH)])
def test_plain_calls_are_recorded(causal, masked, lead):
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain()), torch.randn(*lead, KEYS, WIDTH)
    mask = torch.rand(KEYS, KEYS) < 0.7
    mask[:, 0] = True
    options = {"is_causal": causal, "scale": 0.7}
    if masked != "none":
        options["attn_mask"] = mask if masked == "bool" else torch.randn(KEYS, KEYS).masked_fill(~mask, -torch.inf)
    plain = model[0]
    with regard.watch(model, "received") as result:
        model[0].forward = lambda x, forward=plain.forward: forward(x, **options)
        output = model(x)
    query, key, value = plain.project(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-2, -3)
    assert torch.equal(output, functional.scaled_dot_product_attention(query, key, value, **options))
    weights = result.layers["0"].weights
    assert weights.shape[1:] == (HEADS, KEYS, KEYS)
    torch.testing.assert_close((weights.dense() @ value.reshape(-1, *value.shape[-3:])).view_as(output), output)


def test_a_mask_that_is_changed_in_place_is_read_again():
    model, mask = nn.Sequential(Plain()), torch.ones(KEYS, KEYS, dtype=torch.bool)
    forward = model[0].forward
    model[0].forward = lambda x: forward(x, attn_mask=mask)
    with regard.watch(model) as result, torch.no_grad():
        model(torch.randn(1, KEYS, WIDTH))
        assert result.layers["0"].weights.dense().all()
        mask[:, 3] = False
        model(torch.randn(1, KEYS, WIDTH))
    assert not result.layers["0"].weights.dense()[..., 3].any()


def test_a_masked_model_of_torch_is_watched_without_transformers(tmp_path):
    program = """
import sys; sys.modules["transformers"] = None
import torch, regard
class Plain(torch.nn.Module):
    def forward(self, x, mask): return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
mask = torch.ones(5, 5, dtype=torch.bool).tril()
model = Plain()
with regard.watch(model) as seen: model(torch.randn(1, 2, 5, 4), mask)
assert not seen.layers[0].weights.dense().triu(1).any()
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_an_error_within_leaves_nothing_behind():
    model = nn.Sequential(Plain())
    with pytest.raises(RuntimeError), regard.watch(model):
        model(torch.randn(3, 2))
    with regard.watch(model) as result:
        model(torch.randn(1, 4, WIDTH))
    assert len(result.recordings) == 1


def test_rows_of_padding_are_left_out_as_in_transformers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train()
    x, padding = torch.randn(2, 6, 8), torch.arange(6) >= torch.tensor([[6], [3]])
    with regard.watch(layer, "received") as result:
        layer(x, src_key_padding_mask=padding)
    assert torch.equal(result.layers[0].weights.valid_queries, ~padding)
    torch.testing.assert_close(
        result.layers["self_attn"].measured["received"].sum(-1), torch.tensor([[6.0, 6.0], [3.0, 3.0]])
    )
    with regard.watch(layer.self_attn, "received") as result:
        layer.self_attn(x, x.clone(), x, key_padding_mask=padding)
    assert result.layers[0].weights.valid_queries is None


class Outer(nn.Module):
    def forward(self, query, key, value, mask):
        return functional.scaled_dot_product_attention(query, key, value, mask)


@pytest.mark.parametrize("shape", [(2, 1, 1, 5, 7), (2, 3, 4, 5, 7), (1, 3, 1, 1, 7), (4, 5, 7), (3, 4, 5, 7), (5, 7)])
def test_masks_of_calls_with_five_axes_broadcast(shape):
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 4, 7, 8)
    mask = torch.rand(shape) < 0.7
    mask[..., 0] = True
    expected = functional.scaled_dot_product_attention(query, key, key, mask)
    with regard.watch(Outer()) as result:
        output = result.model(query, key, key, mask)
    assert torch.equal(output, expected)
    scores = (query @ key.mT / 8**0.5).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(result.layers[0].weights.dense(), scores.softmax(-1).flatten(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    nested = torch.nested.nested_tensor([torch.randn(2, 5, 8), torch.randn(2, 5, 8)], layout=torch.strided)
    message = "Outer: nested tensors cannot be watched; pass padded ones"
    with pytest.raises(InvalidArgument, match=message), regard.watch(Outer()) as result:
        result.model(nested, nested, nested, None)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    rows = torch.nested.nested_tensor([torch.randn(4, WIDTH), torch.randn(3, WIDTH)])
    message = "MultiheadAttention: nested tensors cannot be watched"
    with pytest.raises(InvalidArgument, match=message), regard.watch(attention), torch.no_grad():
        attention(rows, rows, rows, need_weights=False)


class ChannelMixer(nn.Module):
    """A module that computes weights itself and is not named attention, and one that is recorded."""

    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        weights = functional.dropout(self.softmax(x.mT @ x), 0.0)
        return x + (weights @ x.mT).mT


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = ChannelMixer()
        self.attend = Outer()

    def forward(self, x):
        x = self.mixer(x)
        return self.attend(x, x, x, None)


def test_weights_that_a_module_computes_are_recorded_whatever_its_class_is_called():
    x = torch.randn(1, 2, 5, 8)
    message = r"Mixed: dense weights were recorded at the softmax of mixer \(ChannelMixer\)"
    with pytest.warns(UserWarning, match=message), regard.watch(Mixed()) as result:
        result.model(x)
    assert [layer.name for layer in result.layers] == ["mixer", "attend"]
    torch.testing.assert_close(result.layers[0].weights.dense(), (x.mT @ x).softmax(-1))
    with regard.watch(Mixed(), layers=["attend"]) as result:
        result.model(x)
    assert [layer.name for layer in result.layers] == ["attend"]


class Residual(nn.Module):
    """Adds attention to its input in place, so that query and key change after the call."""

    def forward(self, x):
        x += functional.scaled_dot_product_attention(x, x, x)
        return x


@pytest.mark.parametrize("in_place", ["within the model", "after the watch"])
def test_weights_of_tensors_that_were_changed_in_place_are_refused(in_place):
    x = torch.randn(1, 2, 6, 8)
    expected = (x @ x.mT / 8**0.5).softmax(-1)
    model = Residual() if in_place == "within the model" else Attend()
    inputs = x.clone()
    with torch.no_grad(), regard.watch(model, "entropy") as result:
        model(inputs)
    if in_place == "after the watch":
        torch.testing.assert_close(result.layers[0].weights.dense(), expected)
        inputs.mul_(2)
    with pytest.raises(StaleView, match="was changed in place"):
        _ = result.layers[0].weights
    torch.testing.assert_close(result.layers[0].measured["entropy"], torch.special.entr(expected).sum(-1))


def test_offloaded_tensors_are_copies():
    x = torch.randn(1, 2, 6, 8)
    expected = (x @ x.mT / 8**0.5).softmax(-1)
    with torch.no_grad(), regard.watch(Residual(), offload="cpu") as result:
        result.model(x)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected)


class Attend(nn.Module):
    def forward(self, query, key=None, mask=None):
        key = query if key is None else key
        return functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (4, 9)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_causal_biases_of_torch_are_masks(make, queries, keys, heads):
    query, key = torch.randn(2, heads, queries, 8), torch.randn(2, heads, keys, 8)
    with regard.watch(Attend()) as result:
        result.model(query, key, make(queries, keys))
    allowed = torch.ones(queries, keys).tril(keys - queries if make is causal_lower_right else 0).bool()
    expected = (query @ key.mT / 8**0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected)


def test_attention_to_another_number_of_keys_is_cross_attention():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    with regard.watch(nn.ModuleDict({"pool": layer})) as result:
        layer(torch.randn(1, 3, 8), *[torch.randn(1, 7, 8)] * 2)
    assert result.layers[0].kind == "cross"
    named = result.recording.select(tokens=list("abcdefg"), target_tokens=list("xyz")).layers[0]
    assert (named.query_tokens, named.key_tokens) == (tuple("xyz"), tuple("abcdefg"))


def test_transforms_of_functions_are_refused_by_name():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(Attend())(x)

    with pytest.raises(InvalidArgument, match=r"calls under torch\.vmap"), regard.watch(Mapped()) as result:
        result.model(torch.randn(3, 2, 4, 8))
