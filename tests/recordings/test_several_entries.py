"""Files of layers that have several windows or images of one input."""

from __future__ import annotations

import json
import struct

import pytest
import torch
import transformers

import regard
from helpers.recordings import changed
from regard.analysis import relevance, rollout
from regard.errors import InvalidArgument, InvalidFile


def swin(**options):
    torch.manual_seed(0)
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, window_size=4, depths=[2, 1], num_heads=[1, 2]
    )
    model = transformers.SwinModel(config).eval()
    with regard.watch(model, ["entropy"], **options) as result:
        output = model(torch.randn(2, 3, 32, 32))
    if options:
        output.pooler_output[:, 0].sum().backward()
    return result.recording


def version_of(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["regard"])["version"]


@pytest.mark.parametrize("options", [{}, {"weight_gradients": True}])
def test_windows_are_saved_and_loaded(options, tmp_path):
    image = swin(**options).select(1)
    image.save(tmp_path / "a.regard")
    again = regard.load(tmp_path / "a.regard")
    assert version_of(tmp_path / "a.regard") == 6
    for loaded, layer in zip(again.layers, image.layers, strict=True):
        assert loaded.batch_axis == layer.batch_axis
        torch.testing.assert_close(loaded.weights.dense(), layer.weights.dense())
        torch.testing.assert_close(loaded.measured["entropy"], layer.measured["entropy"])
    torch.testing.assert_close(rollout(again.layers), rollout(image.layers))
    if options:
        torch.testing.assert_close(relevance(again.layers), relevance(image.layers))
    window = again.select(0, entry=3)
    assert window.layers[1].key_tokens == image.select(0, entry=3).layers[1].key_tokens
    again.save(tmp_path / "b.regard")
    assert (tmp_path / "a.regard").read_bytes() == (tmp_path / "b.regard").read_bytes()
    window.save(tmp_path / "window.regard")
    again = regard.load(tmp_path / "window.regard")
    assert [layer.batch_axis is None for layer in again.layers] == [True, True, False]  # the last is the whole image


def test_images_of_a_text_are_saved_and_loaded(tmp_path):
    axis = regard.recordings.BatchAxis("image", (0, 0, 0), 1, ("image 1", "image 2", "image 3"))
    weights = regard.weights(*torch.randn(2, 3, 2, 5, 4))
    layer = regard.recordings.Layer("vision", "encoder", weights, batch_axis=axis)
    text = regard.recordings.Layer("text", "decoder", regard.weights(*torch.randn(2, 1, 2, 4, 4), mask=regard.Causal()))
    regard.recordings.Recording("", "Model", [layer, text]).save(tmp_path / "a.regard")
    again = regard.load(tmp_path / "a.regard")
    assert again.layers[0].batch_axis == axis
    assert again.layers[1].batch_axis is None
    torch.testing.assert_close(again.select(entry=2).layers[0].weights.dense(), weights.dense()[2:])


def test_several_sequences_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"expected one sequence, got a batch of .*select\(0\)"):
        swin().save(tmp_path / "a.regard")


def test_what_shows_one_text_says_how_to_select_a_window(tmp_path):
    swin().select(0).save(tmp_path / "a.regard")
    with pytest.raises(InvalidArgument, match=r"has 4 windows of it; select one with recording\.select\(0, entry=0\)"):
        regard.show(regard.load(tmp_path / "a.regard"), tmp_path / "a.html")


def edited(path, change):
    """The file with another header."""

    def edit(header):
        change(header["layers"][0]["dict"])
        return header

    changed(path, edit)
    return path


WRONG = {
    "no axis": (lambda layer: layer.pop("batch_axis"), "expected a batch of 1, or a batch_axis, got a batch of 4"),
    "a number": (lambda layer: layer.update(batch_axis=3), "batch_axis: expected places, unit, windows, got 3"),
    "no unit": (lambda layer: layer["batch_axis"]["dict"].update(unit=""), "unit: expected what an entry is, got ''"),
    "unknown": (lambda layer: layer["batch_axis"]["dict"].update(unit="unknown"), "unit: expected .*, got 'unknown'"),
    "places": (lambda layer: layer["batch_axis"]["dict"]["places"].pop(), "a place for each of 4 entries, got"),
    "numbers": (lambda layer: layer["batch_axis"]["dict"].update(places=[1, 2, 3, 4]), "a place for each of 4"),
    "size": (lambda layer: layer["batch_axis"]["dict"]["windows"]["dict"].update(size=0), "windows: expected height"),
    "sizes": (lambda layer: layer["batch_axis"]["dict"]["windows"]["dict"].update(size=2), "4 windows of 16 tokens"),
    "width": (lambda layer: layer["batch_axis"]["dict"]["windows"]["dict"].update(width=99), "windows: expected"),
    "text": (lambda layer: layer["batch_axis"]["dict"].update(windows="4x4"), "windows: expected .*, got '4x4'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_axes_are_refused(what, tmp_path):
    change, message = WRONG[what]
    swin().select(0).save(tmp_path / "a.regard")
    with pytest.raises(InvalidFile, match=message):
        regard.load(edited(tmp_path / "a.regard", change))
