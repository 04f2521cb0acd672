"""Recordings as files: they are read back unchanged for every mask and score; other files are errors."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import regard
from helpers.ops.cases import SCORES, masks
from helpers.recordings import changed, layer, recorded, rules, same
from regard.errors import InvalidArgument, InvalidFile, StaleView
from regard.pipelines import Translator
from regard.recordings import Layer, Recording

SHAPE = BATCH, HEADS, QUERIES, KEYS = 1, 4, 9, 12
MASKS = list(masks(*SHAPE))


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_comes_back(name, tmp_path):
    torch.manual_seed(0)
    query, key = torch.randn(1, HEADS, QUERIES, 8), torch.randn(1, 2, KEYS, 8)
    recording = recorded(regard.weights(query, key, mask=masks(*SHAPE)[name], offset=1))
    recording.save(tmp_path / "a.regard")
    same(regard.load(tmp_path / "a.regard"), recording)


def test_a_view_of_what_was_changed_is_not_written(tmp_path):
    query, key = torch.randn(1, HEADS, QUERIES, 8), torch.randn(1, 2, KEYS, 8)
    recording = recorded(regard.weights(query, key))
    query.zero_()
    with pytest.raises(StaleView):
        recording.save(tmp_path / "a.regard")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in SCORES if name != "function"])
def test_every_score_comes_back(name, tmp_path):
    torch.manual_seed(0)
    case = SCORES[name]
    rule = case.rule({name: each.float() for name, each in case.tensors(HEADS, QUERIES, KEYS, 8).items()})
    query, key = torch.randn(1, HEADS, QUERIES, 8), torch.randn(1, HEADS, KEYS, 8)
    recording = recorded(regard.weights(query, key, score=rule, mask=regard.Causal(), scale=0.3))
    recording.save(tmp_path / "a.regard")
    same(regard.load(tmp_path / "a.regard"), recording)


def test_a_translation_comes_back_with_what_was_measured(tmp_path):
    recording = Translator.load().record("The cat sat on the mat.")
    recording.save(tmp_path / "a.regard")
    same(regard.load(tmp_path / "a.regard"), recording)
    weights = recording.layers.cross[0].weights
    measured = weights.measure("entropy", "max", regard.TopK(3))
    recorded(weights, **measured).save(tmp_path / "b.regard", dtype=torch.float16)
    layer = regard.load(tmp_path / "b.regard").layers["encoder.0"]
    assert layer.weights.request.query.dtype == torch.float16
    torch.testing.assert_close(layer.weights.dense(), weights.dense(), atol=1e-2, rtol=0)
    assert torch.equal(layer.measured["topk"].indices, measured["topk"].indices)
    assert torch.equal(layer.measured["max"].score, measured["max"].score)


def test_its_size_is_linear_in_the_tokens(tmp_path):
    sizes = []
    for tokens in (1000, 2000):
        x = torch.randn(1, 8, tokens, 16)
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        recorded(regard.weights(x, x, mask=regard.ops.masks.to_spans(mask, (1, 8, tokens, tokens)))).save(
            tmp_path / "a.regard"
        )
        sizes.append((tmp_path / "a.regard").stat().st_size)
    assert sizes[1] < 2.1 * sizes[0]


@pytest.fixture
def whole(tmp_path):
    x = torch.randn(1, 2, 5, 8)
    recorded(regard.weights(x, x, mask=regard.Causal())).save(tmp_path / "whole.regard")
    return tmp_path / "whole.regard"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(version=1), "expected a recording of version 4, 5 or 6, got version 1"),
        (
            lambda about: layer(about).update(kind="other"),
            "layer 'encoder.0': kind: expected one of encoder, decoder, cross, got 'other'",
        ),
        (lambda about: layer(about).update(key_tokens=["a"]), "layer 'encoder.0': key_tokens: expected 5 tokens"),
        (
            lambda about: layer(about).update(key_tokens=[1] * 5),
            "layer 'encoder.0': key_tokens: expected a tuple of str",
        ),
        (lambda about: layer(about).update(weights={"eval": "print(1)"}), "'eval': unknown kind of entry"),
        (
            lambda about: rules(about).update(mask={"rule": "Causal", "arguments": {"dict": {"x": 1}}}),
            "expected a recording, got a damaged file or one of another kind$",
        ),
        (lambda about: rules(about).update(key={"tensor": "9"}), "damaged"),
        (lambda about: rules(about).update(scale="x"), "scale: expected a finite number"),
        (lambda about: about.update(layers=3), "damaged"),
        (lambda about: about.update(title=[1]), "title: expected a str"),
        (lambda about: about.update(more=1), "damaged"),
        (lambda about: [1], "expected a recording of version 4, 5 or 6"),
        (lambda about: about.update(version=True), "expected a recording of version 4, 5 or 6, got version True"),
        (lambda about: layer(about).update(output_gradient={"tensor": "0"}), "damaged"),
        (
            lambda about: (about.update(version=5), layer(about).update(output_gradient={"tensor": "0"}))[0],
            "layer 'encoder.0': output_gradient: expected the values that it belongs to, got none",
        ),
    ],
)
def test_a_changed_file_is_an_error(whole, change, message):
    changed(whole, change)
    with pytest.raises(InvalidFile, match=message):
        regard.load(whole)


def test_files_that_are_not_recordings_are_errors(whole, tmp_path):
    with pytest.raises(InvalidFile, match="no such file"):
        regard.load(tmp_path / "b.regard")
    with pytest.raises(InvalidFile, match=r"expected a recording, .*, got a folder"):
        regard.load(tmp_path)
    data = whole.read_bytes()
    for part in (b"", data[:5], data[:-10], b"\x80\x04" + data, data[: len(data) // 2]):
        whole.write_bytes(part)
        with pytest.raises(InvalidFile, match=r"whole\.regard: expected a recording, got a damaged file or"):
            regard.load(whole)
    save_file({"x": torch.zeros(3)}, whole)
    with pytest.raises(InvalidFile, match="expected a recording, got a safetensors file without the metadata of one"):
        regard.load(whole)


def test_a_flipped_bit_is_an_error(whole):
    data = whole.read_bytes()
    for at in range(8, len(data), 7):
        whole.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(InvalidFile, match=r"damaged|without the metadata of one|of version 4"):
            regard.load(whole)
    whole.write_bytes(data)
    regard.load(whole)


def test_texts_may_contain_surrogates(tmp_path):
    x = torch.randn(1, 2, 1, 8)
    tokens = ("\ud83d",)
    layer = Layer("a", "encoder", regard.weights(x, x), tokens, tokens)
    Recording("half a pair: \udc00", "\u0000", (layer,)).save(tmp_path / "a.regard")
    again = regard.load(tmp_path / "a.regard")
    assert (again.title, again.model_name, again.layers[0].key_tokens) == ("half a pair: \udc00", "\u0000", tokens)


def test_a_missing_layer_is_named():
    x = torch.randn(1, 2, 5, 8)
    layers = recorded(regard.weights(x, x)).layers
    with pytest.raises(InvalidArgument, match=r"unknown layer 'encoder.1', did you mean 'encoder.0'\?; known"):
        assert layers["encoder.1"]
    with pytest.raises(InvalidArgument, match=r"there are no layers in .* of kind 'cross' \(it has 1 layers: 1"):
        assert layers.cross[0]
    assert layers["encoder"] is layers[0]
    assert repr(recorded(regard.weights(x, x))) == "Recording('a title', model_name='a model', 1 layers: 1 encoder)"


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, "float16"])
def test_dtypes_without_weights_are_refused(dtype, tmp_path):
    made = recorded(regard.weights(torch.randn(SHAPE), torch.randn(SHAPE)))
    with pytest.raises(InvalidArgument, match=r"dtype: expected torch\.float32, float16, bfloat16 or float64"):
        made.save(tmp_path / "a.regard", dtype=dtype)
    assert not list(tmp_path.iterdir())


def test_a_layer_is_checked_when_it_is_made_and_does_not_change():
    W = regard.weights(torch.randn(2, 2, 3, 8), torch.randn(2, 2, 4, 8))
    layer = Layer("a", "encoder", W, measured={"entropy": W.entropy()})
    assert layer.query_tokens == ("1", "2", "3")
    assert layer.key_tokens == ("1", "2", "3", "4")
    assert layer.head_indices == (0, 1)
    assert not layer.has_tokens
    with pytest.raises(AttributeError):
        layer.name = "b"
    with pytest.raises(InvalidArgument, match=r"layer 'a': key_tokens: expected 4 tokens"):
        layer.replace(key_tokens=("x",))
    with pytest.raises(InvalidArgument, match=r"measured: unknown name 'received'; measured are entropy"):
        Recording("", "", [layer]).select(0).layers[0].measured["received"]


def test_tokens_that_are_left_out_are_numbers_of_the_weights():
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 4, 8)
    layer = Layer("a", "encoder", regard.weights(query, key))
    assert layer.replace(weights=regard.weights(query, query)).key_tokens == ("1", "2", "3")
    named = layer.replace(query_tokens=("1", "2", "3"), key_tokens=("1", "2", "3", "4"))
    assert named.has_tokens
    assert not named.replace(key_tokens=None).has_tokens


def test_a_watched_layer_is_a_layer_whose_parts_are_computed_when_they_are_read():
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    with regard.watch(model, "entropy") as result:
        model(x, x, x)
    watched = result.layers[0]
    complete = watched.replace(query_tokens=("a", "b", "c"))
    assert type(complete) is Layer
    assert complete.query_tokens == ("a", "b", "c")
    assert torch.equal(complete.weights.dense(), watched.weights.dense())
    assert complete.measured.keys() == watched.measured.keys() == {"entropy"}
