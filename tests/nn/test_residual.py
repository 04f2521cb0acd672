"""Residual connections."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidType
from regard.nn import Residual


def test_pre_norm_and_post_norm():
    x = torch.randn(2, 5, 8)
    post, pre = Residual(8), Residual(8, norm_first=True)
    torch.testing.assert_close(post.add_and_norm(x, torch.tanh(post.pre_norm(x))), post.norm(x + torch.tanh(x)))
    torch.testing.assert_close(pre.add_and_norm(x, torch.tanh(pre.pre_norm(x))), x + torch.tanh(pre.norm(x)))


def test_dropout_acts_on_the_change_alone():
    torch.manual_seed(0)
    residual, x = Residual(8, norm_first=True, dropout=0.9), torch.ones(100, 8)
    left = residual.add_and_norm(x, torch.ones(100, 8))
    assert left.unique().tolist() == pytest.approx([1, 11], abs=0.01)


def test_another_order_is_refused():
    with pytest.raises(InvalidType, match="norm_first: expected True or False, got 'pre'"):
        Residual(8, norm_first="pre")  # pyright: ignore[reportArgumentType]
