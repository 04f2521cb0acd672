"""Alignments of matrices whose alignment is known."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.analysis import Alignment, align, mutual_information
from regard.errors import InvalidArgument
from regard.recordings import Layer, Recording


def cross(name: str, *heads: list[list[float]], source=("▁a", "▁b", "</s>"), target=("▁A", "▁B")) -> Layer:
    """A layer whose heads have these weights."""
    shares = torch.tensor(heads)[None]
    keys = torch.eye(shares.shape[3]).expand(1, len(heads), -1, -1)
    return Layer(name, "cross", regard.weights(shares.log(), keys, scale=1.0), target, source)


SHARP = [[0.98, 0.01, 0.01], [0.01, 0.98, 0.01]]
BLURRED = [[0.1, 0.3, 0.6], [0.3, 0.1, 0.6]]
NOTHING = [[0.005, 0.005, 0.99], [0.005, 0.005, 0.99]]
MADE = Recording("", "m", (cross("cross.0", BLURRED, NOTHING), cross("cross.1", SHARP, BLURRED)))


def test_the_mean_and_the_heads_that_were_named():
    mean = align(MADE)
    assert mean.heads == (("cross.0", 0), ("cross.0", 1), ("cross.1", 0), ("cross.1", 1))
    assert torch.allclose(mean.weights, torch.tensor([[1.185, 0.615], [0.615, 1.185]]) / 4)
    blurred = align(MADE, {"cross.1": [1], "cross.0": [0]})
    assert blurred.pairs == [(1, 0), (0, 1)]
    assert str(blurred) == "1-0 0-1"


def test_the_most_informative_heads():
    information = mutual_information(MADE.layers["cross.1"])
    P = torch.tensor([SHARP, BLURRED]).double()
    mean = P.mean(1)
    entropy = torch.special.entr(mean).sum(-1) - torch.special.entr(P).sum(-1).mean(-1)
    assert torch.allclose(information.double(), entropy, atol=1e-6)
    assert align(MADE, "most_informative", num_heads=1).heads == (("cross.1", 0),)
    assert mutual_information(MADE.layers["cross.0"])[1] == pytest.approx(0, abs=1e-6)
    assert len(align(MADE, "most_informative", num_heads=9).heads) == 4


def test_pieces_are_merged_into_words_and_marks_are_dropped():
    weights = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.1, 0.4], [0.25, 0.25, 0.25, 0.25]]
    made = Recording("", "", (cross("c", weights, source=("▁c", "at", "▁x", "</s>"), target=("▁K", "a", "</s>")),))
    actual = align(made)
    assert (actual.target, actual.source) == (("Ka",), ("cat", "x"))
    assert torch.allclose(actual.weights, torch.tensor([[0.4, 0.2]]))
    raw = align(made, merge_subwords=False)
    assert raw.source == ("▁c", "at", "▁x", "</s>")
    assert torch.allclose(raw.weights, torch.tensor(weights))
    plain = Recording("", "", (cross("c", SHARP, source=("1", "2", "</s>"), target=("die", "Katze")),))
    assert align(plain).target == ("die", "Katze")  # no token marks the start of a word
    assert Alignment((), (), torch.zeros(0, 0), ()).pairs == []


@pytest.mark.parametrize(
    ("heads", "error"),
    [
        ({"cross.2": [0]}, "no cross-attention layer 'cross.2', did you mean 'cross"),
        ({"cross.0": [2]}, "cross.0 has the heads 0, 1, got 2"),
        ({}, "at least one head"),
        ("all", "expected 'mean', 'most_informative' or a dict of head indices, got 'all'"),
    ],
)
def test_invalid_heads_are_refused(heads, error):
    with pytest.raises(InvalidArgument, match=error):
        align(MADE, heads)


def test_a_model_without_cross_attention_has_none():
    with pytest.raises(InvalidArgument, match="no cross-attention of m"):
        align(Recording("", "m", ()))


def test_layers_of_different_sizes_are_named():
    first, second = cross("cross.0", [[0.5, 0.5, 0.0]] * 2), cross("cross.1", [[0.5, 0.5]] * 2, source=("▁a", "▁b"))
    with pytest.raises(InvalidArgument, match=r"layers of one size .*cross\.0 \(2 x 3\), cross\.1 \(2 x 2\)"):
        align(Recording("", "m", (first, second)))
