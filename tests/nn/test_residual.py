"""Residual connections."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.nn import Residual


def test_the_norm_stands_before_or_after():
    x = torch.randn(2, 5, 8)
    post, pre = Residual(8, norm="post"), Residual(8, norm="pre")
    torch.testing.assert_close(post.leave(x, torch.tanh(post.enter(x))), post.norm(x + torch.tanh(x)))
    torch.testing.assert_close(pre.leave(x, torch.tanh(pre.enter(x))), x + torch.tanh(pre.norm(x)))


def test_dropout_acts_on_the_change_alone():
    torch.manual_seed(0)
    residual, x = Residual(8, norm="pre", dropout=0.9), torch.ones(100, 8)
    left = residual.leave(x, torch.ones(100, 8))
    assert left.unique().tolist() == pytest.approx([1, 11], abs=0.01)


def test_another_order_is_refused():
    with pytest.raises(InvalidArgument, match="norm must be one of 'post', 'pre', but is 'prae', did you mean 'pre'"):
        Residual(8, norm="prae")  # pyright: ignore[reportArgumentType]
