"""Recordings made by hand: what is wrong with them is named, all of it at once, before a page is made."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import regard
from regard.analysis.recording import Layer, Recording
from regard.errors import InvalidArgument, InvalidType
from regard.explore.answers import Answers
from regard.explore.packing import pack
from regard.explore.page import page, write_page

WEIGHTS = regard.weights(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8))


def made(**changes: Any) -> Recording:
    """A recording by hand, of which some is changed: of its one layer what a layer has, else its own."""
    tokens = ("a", "b", "c")
    layer = Layer("l", "encoder", WEIGHTS, tokens, tokens)
    own = {name: changes.pop(name) for name in list(changes) if name not in Layer.__annotations__}
    return replace(Recording("t", "m", (replace(layer, **changes),)), **own)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"kind": "foo"}, InvalidArgument, "layer 'l': kind: expected one of encoder, decoder, cross, got 'foo'"),
        ({"queries": (1, 2, 3)}, InvalidType, "layer 'l': queries: expected a tuple of texts, got (1, 2, 3)"),
        ({"keys": ["a", "b", "c"]}, InvalidType, "layer 'l': keys: expected a tuple of texts, got ['a', 'b', 'c']"),
        ({"name": 3}, InvalidType, "layer 3: name: expected a text, got 3"),
        (
            {"weights": torch.ones(1, 1, 3, 3)},
            InvalidType,
            "weights: expected a view, as regard.weights(query, key) gives it, got a tensor (1, 1, 3, 3)",
        ),
        (
            {"value": torch.randn(3)},
            InvalidArgument,
            "(1, kv_heads, 3, value_dim), where kv_heads divide 2, got torch.",
        ),
        ({"value": torch.randn(1, 2, 4, 8)}, InvalidArgument, "got torch.float32 of (1, 2, 4, 8)"),
        ({"value": "x"}, InvalidType, "layer 'l': value: expected a tensor, or None, got 'x'"),
        ({"heads": (1,)}, InvalidArgument, "layer 'l': heads: expected 2 different numbers from 0, one for each head"),
        ({"heads": (1, 1)}, InvalidArgument, "one for each head, got (1, 1)"),
        ({"heads": (-1, 1)}, InvalidArgument, "one for each head, got (-1, 1)"),
        ({"heads": 2}, InvalidType, "layer 'l': heads: expected a tuple of int, or None, got 2"),
        ({"measured": 3}, InvalidType, "layer 'l': measured: expected measures by name, got 3"),
        ({"title": None}, InvalidType, "title: expected a text, got None"),
        ({"model": 3}, InvalidType, "model: expected a text, got 3"),
        ({"texts": {"source": 3}}, InvalidType, "source: expected a text, got 3"),
        ({"texts": {3: "a"}}, InvalidType, "texts: expected a text as the role, got 3"),
        ({"texts": "a"}, InvalidType, "texts: expected texts by role, got 'a'"),
        ({"layers": 3}, InvalidType, "layers: expected a tuple of Layer, got 3"),
        ({"layers": ("l",)}, InvalidType, "layers: expected a Layer as number 0, got 'l'"),
    ],
)
def test_what_a_hand_made_wrong_is_named_before_a_page_is_made(changes, error, said, tmp_path):
    with pytest.raises(error, match=re.escape(said)):
        write_page(made(**changes), tmp_path / "a.html")
    with pytest.raises(error, match=re.escape(said)):
        Answers(made(**changes))
    with pytest.raises(error, match="^beside: .*" + re.escape(said)):
        page(made(), beside=made(**changes))
    assert not list(tmp_path.iterdir())


def test_all_that_is_of_another_type_is_named_at_once():
    with pytest.raises(InvalidType) as caught:
        pack(made(title=None, model=3, queries=(1, 2, 3), heads=2))
    assert [word in str(caught.value) for word in ("title:", "model:", "queries:", "heads:")] == [True] * 4


def test_what_is_no_recording_is_named():
    with pytest.raises(InvalidType, match=r"^recording: expected a Recording, as seen.recording\(\) .*, got int$"):
        pack(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidType, match=r"^beside: expected a Recording, as seen.recording\(\) .*, got int$"):
        pack(made(), 3)  # pyright: ignore[reportArgumentType]


def test_a_path_that_is_none_is_named(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with pytest.raises(InvalidType, match="path: expected where the page shall lie, got 3"):
        made().show(3)  # pyright: ignore[reportArgumentType]
    assert opened == []


@pytest.mark.parametrize("heads", [(3, 5), [3, 5], None])
def test_heads_may_be_a_list_too(heads):
    assert pack(made(heads=heads))[0]["layers"][0]["heads"] == (list(heads) if heads else [0, 1])
