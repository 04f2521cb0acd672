"""Recordings made by hand, compared, and changed in their files."""

from __future__ import annotations

import json
import struct

import torch
from safetensors.torch import load_file, save_file

from regard.recordings import Layer, Recording
from regard.recordings.recording_file import checksum


def recorded(weights, **measured):
    names = [tuple(map(str, range(size))) for size in weights.shape[2:]]
    return Recording("a title", "a model", (Layer("encoder.0", "encoder", weights, *names, measured),), {"text": "ä"})


def same(one, other):
    assert (one.title, one.model_name, one.texts) == (other.title, other.model_name, other.texts)
    for actual, expected in zip(one.layers, other.layers, strict=True):
        assert (actual.name, actual.kind, actual.query_tokens, actual.key_tokens) == (
            expected.name,
            expected.kind,
            expected.query_tokens,
            expected.key_tokens,
        )
        torch.testing.assert_close(actual.weights.dense(), expected.weights.dense())
        torch.testing.assert_close(actual.weights.lse(), expected.weights.lse())  # kernels differ by last digits


def changed(path, change):
    """The same file with other metadata."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    about = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["regard"])
    text, tensors = json.dumps(change(about) or about), load_file(path)
    save_file(tensors, path, {"regard": text, "checksum": checksum(text, tensors)})


def layer(about):
    return about["layers"][0]["dict"]


def rules(about):
    return layer(about)["weights"]["attention_request"]["dict"]
