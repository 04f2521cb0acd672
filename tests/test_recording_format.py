"""The file of a recording, read as docs/recording_file.md specifies: safetensors, JSON and a hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import regard
from helpers.pairwise import everything
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

NODES = [{"tensor"}, {"bytes"}, {"dict"}, {"rule", "arguments"}, {"result", "parts"}, {"attention_request"}]
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08"


@pytest.fixture
def recording() -> Recording:
    """Layers of every kind, with all that a file may hold."""
    torch.manual_seed(0)
    query, key, memory = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 2, 8).half()
    own = regard.weights(query, key, mask=regard.Causal() & regard.Window(1, 0), score=regard.Alibi.for_heads(4))
    part = regard.weights(query.half(), memory, scale=0.5, offset=7).at(heads=[1, 3])
    tokens, ends = ("▁a", '"\ud83d', "</s>"), ("<s>", "b")
    return Recording(
        "a title",
        "a model",
        [
            Layer("self", "decoder", own, tokens, tokens, {"entropy": own.entropy(), "topk": own.topk(2)}, key),
            Layer("cross", "cross", part, tokens, ends, head_indices=[1, 3]),
            Layer("encoder", "encoder", regard.weights(memory, memory)),
        ],
        {"source": "<s>b", "version": "a role may be called as anything"},
        PNG,
    )


def read(path: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Header and tensors, whose checksum is right."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    text = metadata["regard"]
    assert text.isascii()
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode("ascii"))
        digest.update(tensor.numpy().tobytes())
    assert metadata.keys() == {"regard", "checksum"}
    assert metadata["checksum"] == digest.hexdigest()
    return json.loads(text), tensors


def nodes(value: Any) -> list[dict[str, Any]]:
    """All objects of the header that are nodes; the names of a dict node are arbitrary."""
    if isinstance(value, list):
        return [node for part in value for node in nodes(part)]
    if not isinstance(value, dict):
        return []
    inner = value["dict"].values() if value.keys() == {"dict"} else value.values()
    return [value, *(node for part in inner for node in nodes(part))]


def test_a_file_is_what_the_specification_says(recording, tmp_path):
    recording.save(tmp_path / "a.regard")
    header, tensors = read(tmp_path / "a.regard")
    assert header.keys() == {"version", "title", "model_name", "texts", "layers", "image"}
    assert (header["version"], header["title"], header["model_name"]) == (4, "a title", "a model")
    assert header["texts"] == {"dict": recording.texts}
    assert tensors[header["image"]["bytes"]["tensor"]].numpy().tobytes() == PNG
    nodes_of_header = [node for name, value in header.items() if name != "version" for node in nodes(value)]
    assert all(set(node) in NODES for node in nodes_of_header)
    assert {frozenset(node) for node in nodes_of_header} == set(map(frozenset, NODES))
    assert {
        node["tensor"] for node in nodes_of_header if "tensor" in node and set(node) == {"tensor"}
    } == tensors.keys()

    own, cross, encoder = (layer["dict"] for layer in header["layers"])
    entries = {"name", "kind", "weights", "query_tokens", "key_tokens", "measured", "value", "head_indices"}
    assert own.keys() == cross.keys() == encoder.keys() == entries
    assert own["query_tokens"] == ["▁a", '"\ud83d', "</s>"]
    assert (encoder["query_tokens"], encoder["key_tokens"], encoder["head_indices"]) == (None, None, None)
    assert (cross["head_indices"], own["head_indices"]) == ([1, 3], None)
    assert own["measured"]["dict"]["topk"]["result"] == "TopK"
    assert own["measured"]["dict"]["topk"]["parts"]["dict"].keys() == {"values", "indices"}
    request = own["weights"]["attention_request"]["dict"]
    assert request.keys() == {"query", "key", "mask", "score", "scale", "offset"}
    assert request["mask"]["rule"] == "And"
    part = cross["weights"]["attention_request"]["dict"]
    assert part.keys() == {*request, "full_shape", "batch", "heads", "rows"}
    assert (part["full_shape"], part["batch"], part["rows"]) == ([1, 4, 3, 2], None, None)
    assert (part["scale"], part["offset"], part["mask"]) == (0.5, 7, None)
    assert tensors[part["heads"]["tensor"]].tolist() == [1, 3]


def test_weights_follow_from_what_is_in_the_file(recording, tmp_path):
    """The softmax of the scores, computed here."""
    recording.save(tmp_path / "a.regard")
    header, tensors = read(tmp_path / "a.regard")
    request = header["layers"][1]["dict"]["weights"]["attention_request"]["dict"]
    query, key = (tensors[request[name]["tensor"]].float() for name in ("query", "key"))
    assert request["score"] == {"rule": "ScaledDotProduct", "arguments": {"dict": {}}}
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    weights = (request["scale"] * query @ key.mT).softmax(-1)
    torch.testing.assert_close(weights, recording.layers[1].weights.dense())


def test_the_specification_names_the_version_that_is_written(root):
    from regard.recordings.recording_file import VERSIONS

    first, second, third = VERSIONS
    text = (root / "docs/recording_file.md").read_text(encoding="utf-8")
    assert f"writes version {first}, version {second} if" in " ".join(text.split())
    assert f"and version {third} if" in " ".join(text.split())
    assert re.search(rf"\| `version` \| the number {first}; {second} if .*; {third} if", text)


SAVE = """
import sys, torch, regard
from helpers.recordings import recorded
torch.manual_seed(0)
mask = regard.Causal() & regard.Window(3, 0)
weights = regard.weights(*torch.randn(2, 1, 4, 12, 8), mask=mask, score=regard.SoftCap(regard.ScaledDotProduct(), 5.0))
recorded(weights, entropy=weights.entropy()).save(sys.argv[1])
"""


def test_the_same_recording_gives_the_same_bytes_in_every_process(tmp_path):
    files = [tmp_path / f"{number}.regard" for number in range(4 if everything() else 2)]
    for number, file in enumerate(files):
        command = [sys.executable, "-c", SAVE, str(file)]
        environment = {**os.environ, "PYTHONHASHSEED": str(number)}
        subprocess.run(command, cwd=Path(__file__).parent, env=environment, check=True)
    assert len({file.read_bytes() for file in files}) == 1
    recording = regard.load(files[0])
    for _ in range(10):
        recording.save(files[1])
        assert files[1].read_bytes() == files[0].read_bytes()
    assert int.from_bytes(files[0].read_bytes()[:8], "little") % 8 == 0
    assert len(load_file(files[0])) == len(load_file(files[1])) > 0
