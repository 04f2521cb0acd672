"""Invalid recordings: the constructors name everything that is wrong with them, and a page what it cannot show."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.explore.html_page import to_html, write_html
from regard.explore.pack import pack
from regard.explore.recording_service import RecordingService
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

WEIGHTS = regard.weights(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))
BATCH = regard.weights(torch.zeros(4, 2, 3, 8), torch.zeros(4, 2, 3, 8))


def recording_with(**changes: Any) -> Recording:
    """A recording of one layer with changed arguments of the layer or of the recording."""
    tokens = ("a", "b", "c")
    of_layer = {name: changes.pop(name) for name in list(changes) if name in inspect.signature(Layer).parameters}
    layer = Layer("l", "encoder", WEIGHTS, tokens, tokens).replace(**of_layer)
    return Recording(**{"title": "t", "model_name": "m", "layers": [layer]} | changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kind": "foo"}, InvalidArgument, "layer 'l': kind: expected one of encoder, decoder, cross, got 'foo'"),
        (
            {"query_tokens": (1, 2, 3)},
            InvalidType,
            "layer 'l': query_tokens: expected a tuple of str, or None, got (1, 2, 3)",
        ),
        ({"key_tokens": "abc"}, InvalidType, "layer 'l': key_tokens: expected a tuple of str, or None, got 'abc'"),
        (
            {"key_tokens": ("a", "b")},
            InvalidArgument,
            "layer 'l': key_tokens: expected 3 tokens, as the weights have, got 2",
        ),
        ({"name": 3}, InvalidType, "layer 3: name: expected a str, got 3"),
        (
            {"weights": torch.ones(1, 1, 3, 3)},
            InvalidType,
            "weights: expected a weight matrix, as regard.weights(query, key) returns, got float32 (1, 1, 3, 3)",
        ),
        ({"weights": BATCH}, InvalidArgument, "expected one sequence where tokens are named, got a batch of 4"),
        (
            {"value": torch.randn(3)},
            InvalidArgument,
            "(1, kv_heads, 3, value_dim), where kv_heads divides 2, got torch.float32 of (3,)",
        ),
        ({"value": torch.randn(1, 2, 4, 8)}, InvalidArgument, "got torch.float32 of (1, 2, 4, 8)"),
        ({"value": "x"}, InvalidType, "layer 'l': value: expected a tensor, or None, got 'x'"),
        (
            {"head_indices": (1,)},
            InvalidArgument,
            "layer 'l': head_indices: expected 2 different numbers from 0, one for each head, got (1,)",
        ),
        ({"head_indices": (1, 1)}, InvalidArgument, "one for each head, got (1, 1)"),
        ({"head_indices": (-1, 1)}, InvalidArgument, "one for each head, got (-1, 1)"),
        ({"head_indices": 2}, InvalidType, "layer 'l': head_indices: expected a tuple of int, or None, got 2"),
        ({"measured": 3}, InvalidType, "layer 'l': measured: expected measures by name, got 3"),
        ({"title": None}, InvalidType, "title: expected a str, got None"),
        ({"model_name": 3}, InvalidType, "model_name: expected a str, got 3"),
        ({"texts": {"source": 3}}, InvalidType, "source: expected a str, got 3"),
        ({"texts": {3: "a"}}, InvalidType, "texts: expected a str as role, got 3"),
        ({"texts": "a"}, InvalidType, "texts: expected a dict of texts by role, got 'a'"),
        ({"image": "a"}, InvalidType, "image: expected the bytes of a PNG, or None, got str"),
        ({"layers": 3}, InvalidType, "layers: expected a list of Layer, got 3"),
        ({"layers": ("l",)}, InvalidType, "layers: expected a list of Layer, got ('l',)"),
    ],
)
def test_what_is_wrong_is_named_when_a_recording_is_made(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recording_with(**changes)


def test_all_that_is_of_another_type_is_named_at_once():
    with pytest.raises(InvalidType) as caught:
        recording_with(query_tokens=(1, 2, 3), head_indices=2, measured=3)
    assert all(name in str(caught.value) for name in ("query_tokens:", "head_indices:", "measured:"))
    with pytest.raises(InvalidType) as caught:
        recording_with(title=None, model_name=3, image="a")
    assert all(name in str(caught.value) for name in ("title:", "model_name:", "image:"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weights": BATCH, "query_tokens": None, "key_tokens": None},
            "expected one sequence, got a batch of 4; select one with recording.select(0), of a watch with result",
        ),
        ({"layers": ()}, "expected at least one layer, got none"),
    ],
)
def test_what_cannot_be_shown_is_named_before_a_page_is_made(changes, message, tmp_path):
    with pytest.raises(InvalidArgument, match=f"^recording: {re.escape(message)}"):
        write_html(recording_with(**changes), tmp_path / "a.html")
    with pytest.raises(InvalidArgument, match=f"^recording: {re.escape(message)}"):
        RecordingService(recording_with(**changes))
    with pytest.raises(
        InvalidArgument, match=f"^compare_with: {re.escape(message.replace('recording.', 'compare_with.'))}"
    ):
        to_html(recording_with(), compare_with=recording_with(**changes))
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_recording_is_named():
    with pytest.raises(InvalidType, match=r"^recording: expected a Recording or the result of regard.watch, got int$"):
        pack(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        InvalidType, match=r"^compare_with: expected a Recording or the result of regard.watch, got int$"
    ):
        pack(recording_with(), 3)  # pyright: ignore[reportArgumentType]


def test_an_invalid_path_is_named(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with pytest.raises(InvalidType, match=r"path: expected str or os\.PathLike, the file to write, got 3"):
        regard.show(recording_with(), 3)  # pyright: ignore[reportArgumentType]
    assert opened == []


@pytest.mark.parametrize("indices", [(3, 5), [3, 5], None])
def test_indices_of_heads_may_be_a_list_too(indices):
    assert pack(recording_with(head_indices=indices))[0]["layers"][0]["heads"] == (list(indices) if indices else [0, 1])


def test_tokens_may_be_a_list_or_be_left_out():
    header, _ = pack(recording_with(query_tokens=["a", "b", "c"], key_tokens=None))
    assert [each["tokens"] for each in header["sequences"]] == [["a", "b", "c"], ["1", "2", "3"]]
