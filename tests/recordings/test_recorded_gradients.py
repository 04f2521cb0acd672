"""Gradients of weights in a file: their two factors, from which the gradients follow."""

from __future__ import annotations

import json
import struct

import pytest
import torch
import transformers
from safetensors.torch import load_file

import regard
from helpers.recordings import changed, layer
from regard.analysis import relevance, rollout
from regard.errors import InvalidFile

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}


def watched(model, *args, loss, **kwargs):
    with regard.watch(model.eval(), weight_gradients=True) as result:
        output = model(*args, **kwargs)
    loss(output).backward()
    return result.recording


def bert():
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    ids, mask = torch.randint(5, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return watched(model, ids, attention_mask=mask, loss=lambda output: output.pooler_output[:, 0].sum())


def llama():
    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))
    return watched(model, torch.randint(5, 50, (1, 7)), loss=lambda output: output[0][0, -1, 3])


@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_gradients_are_saved_and_loaded(make, dtype, tmp_path):
    recording = make()
    last = recording.layers[0].weights.shape[0] - 1
    selected = recording.select(last)
    selected.save(tmp_path / "a.regard", dtype=dtype)
    again = regard.load(tmp_path / "a.regard")
    for loaded, watched_layer in zip(again.layers, recording.layers, strict=True):
        expected = watched_layer.weights.grad.dense()[last:]
        assert expected.abs().max() > 0
        torch.testing.assert_close(loaded.weights.grad.dense(), expected.to(loaded.weights.dtype))
        product = loaded.weights.grad * loaded.weights
        torch.testing.assert_close(product.dense(), (expected * watched_layer.weights.dense()[last:]).to(product.dtype))
    torch.testing.assert_close(relevance(again.layers).float(), relevance(recording.layers)[last:])
    actual = rollout(again.layers, use_gradients=True, head_fusion="max").float()
    torch.testing.assert_close(actual, rollout(recording.layers, use_gradients=True, head_fusion="max")[last:])
    again.save(tmp_path / "b.regard")
    assert regard.load(tmp_path / "b.regard").layers[1].weights.grad is not None


def header_of(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["regard"])


def test_only_layers_with_gradients_have_them_in_the_file(tmp_path):
    recording = llama().select()
    first = recording.layers[0]
    plain = first.replace(weights=regard.WeightMatrix(first.weights.request))
    recording.replace(layers=[plain, recording.layers[1]]).save(tmp_path / "one.regard")
    header = header_of(tmp_path / "one.regard")
    assert header["version"] == 5
    assert ["output_gradient" in each["dict"] for each in header["layers"]] == [False, True]
    again = regard.load(tmp_path / "one.regard")
    assert again.layers[0].weights.grad is None
    assert again.layers[1].weights.grad.shape == (1, 4, 7, 7)
    recording.replace(layers=[plain]).save(tmp_path / "none.regard")
    header = header_of(tmp_path / "none.regard")
    assert header["version"] == 4
    assert "output_gradient" not in header["layers"][0]["dict"]


def test_a_file_with_gradients_is_linear_in_the_tokens(tmp_path):
    torch.manual_seed(0)
    model = transformers.LlamaModel(transformers.LlamaConfig(**SIZES))
    sizes = []
    for tokens in (128, 256):
        recording = watched(model, torch.randint(5, 50, (1, tokens)), loss=lambda output: output[0][0, -1, 3])
        recording.select().save(tmp_path / "a.regard")
        tensors = load_file(tmp_path / "a.regard")
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about: about.update(version=4), "damaged file or one of another kind$"),
        (
            lambda about: layer(about).update(output_gradient=layer(about)["value"]),
            r"output_gradient: expected shape \(batch, heads, .*\) = \(1, 4, 7, 8\), got \(1, 2, 7, 8\)",
        ),
        (
            lambda about: layer(about).update(output_gradient=[1]),
            "output_gradient: expected a floating-point tensor, got tuple",
        ),
        (lambda about: layer(about).update(value=None), "output_gradient: expected the values that it belongs to, got"),
    ],
)
def test_invalid_gradients_are_refused(change, message, tmp_path):
    llama().select().save(tmp_path / "a.regard")
    changed(tmp_path / "a.regard", change)
    with pytest.raises(InvalidFile, match=message):
        regard.load(tmp_path / "a.regard")
