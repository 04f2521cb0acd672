"""Dropout as a layer."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.nn import Dropout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_share_is_dropped_and_the_mean_stays(dtype):
    torch.manual_seed(0)
    x = torch.ones(400, 401, dtype=dtype, requires_grad=True)
    dropped = Dropout(0.3)(x.mT)
    assert dropped.dtype == dtype
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.float().mean().item() == pytest.approx(1, abs=0.01)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach().mT)  # the same were dropped on the way back


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(5, 5)
    assert Dropout(0.3).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_p_is_a_probability(p):
    with pytest.raises(InvalidArgument, match=f"p: expected a finite number of at least 0 and below 1, got {p}"):
        Dropout(p)
