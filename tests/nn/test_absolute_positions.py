"""Positions against the formula of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from regard.errors import InvalidArgument
from regard.nn import LearnedPositions, SinusoidalPositions


def test_sinusoids_are_the_papers():
    added = SinusoidalPositions(6)(torch.zeros(1, 700, 6))[0]
    for position in (0, 1, 511, 699):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert added[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert added[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), LearnedPositions(8, 600)])
def test_an_offset_continues_the_last_call(positions):
    x = torch.randn(2, 600, 8)
    full = positions(x)
    parts = torch.cat([positions(x[:, :5]), positions(x[:, 5:], offset=5)], dim=1)
    torch.testing.assert_close(parts, full, rtol=0, atol=0)


def test_a_table_that_grew_in_inference_mode_works_in_training():
    positions = SinusoidalPositions(8)
    with torch.inference_mode():
        positions(torch.zeros(1, 2000, 8))
    x = torch.zeros(1, 2000, 8, requires_grad=True)
    (positions(x) ** 2).sum().backward()
    assert x.grad is not None


def test_the_table_is_not_stored():
    assert not SinusoidalPositions(8).state_dict()


@pytest.mark.parametrize("d_model", [0, 7])
def test_sinusoids_need_an_even_width(d_model):
    with pytest.raises(InvalidArgument, match=f"d_model: expected an .*, got {d_model}"):
        SinusoidalPositions(d_model)


def test_learned_positions_end():
    with pytest.raises(InvalidArgument, match="x: expected positions below 10, got 10; shorten the sequence"):
        LearnedPositions(8, 10)(torch.zeros(1, 4, 8), offset=7)
    with pytest.raises(InvalidArgument, match="max_seq_len: expected an int of at least 1, got 0"):
        LearnedPositions(8, 0)


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), LearnedPositions(8, 10)])
@pytest.mark.parametrize("shape", [(1, 4, 6), (1, 4, 1), (8,), (4, 8)])
def test_positions_of_another_width_are_refused(positions, shape):
    with pytest.raises(InvalidArgument) as caught:
        positions(torch.zeros(shape))
    assert str(caught.value) == f"x: expected shape (batch, tokens, d_model=8), got {shape}"


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), LearnedPositions(8, 10)])
def test_an_offset_below_0_is_refused(positions):
    with pytest.raises(InvalidArgument, match="offset: expected an int of at least 0, got -1"):
        positions(torch.zeros(1, 4, 8), offset=-1)


@pytest.mark.parametrize("positions", [SinusoidalPositions(8), LearnedPositions(8, 10)])
def test_an_input_without_batch_is_not_broadcast_to_one_copy_per_offset(positions):
    with pytest.raises(InvalidArgument, match=r"x: expected shape \(batch, tokens, d_model=8\), got \(4, 8\)"):
        positions(torch.zeros(4, 8), offset=torch.zeros(4, dtype=torch.int64))
