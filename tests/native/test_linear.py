"""Linear layers of a few rows compared with float64."""

from __future__ import annotations

import pytest
import torch

from regard.native import linear
from regard.native.library import LEVELS, Library, library

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")
BEST = library()
ROWS = (1, 2, 3, 4, 5, 7, 8)


def tensors(rows, in_features, out_features, dtype=torch.float32):
    torch.manual_seed(rows)
    return [
        torch.randn(*shape).to(dtype) for shape in ((rows, in_features), (out_features, in_features), (out_features,))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", LEVELS if isinstance(BEST, str) else LEVELS[: LEVELS.index(BEST.level) + 1])
def test_each_instruction_set_equals_float64(level, dtype):
    loaded = Library(level)
    for rows in ROWS:
        for in_features, out_features in ((1, 1), (3, 4), (15, 5), (16, 8), (17, 3), (64, 31), (333, 66)):
            x, weight, bias = tensors(rows, in_features, out_features, dtype)
            exact = x.double() @ weight.double().T
            torch.testing.assert_close(linear.multiply(loaded, x, weight, None), exact.to(dtype))
            torch.testing.assert_close(linear.multiply(loaded, x, weight, bias), (exact + bias.double()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_other_rows_nor_threads_change_a_bit(dtype):
    most = linear.MAX_ROWS[dtype]
    x, weight, bias = tensors(most, 300, 2001, dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        full = linear.linear_of_few_rows(x, weight, bias)
        torch.set_num_threads(3)
        for rows in range(1, most + 1):
            assert torch.equal(linear.linear_of_few_rows(x[-rows:], weight, bias), full[-rows:])
    finally:
        torch.set_num_threads(before)


def test_axes_and_strides_of_the_input():
    x, weight, bias = tensors(6, 20, 7)
    exact = torch.nn.functional.linear(x, weight, bias)
    close = torch.testing.assert_close
    close(linear.linear_of_few_rows(x.view(2, 3, 20), weight, bias), exact.view(2, 3, 7))
    close(linear.linear_of_few_rows(x[0], weight, bias), exact[0])
    close(linear.linear_of_few_rows(x[::2], weight, bias), exact[::2])
    close(linear.linear_of_few_rows(x.T.contiguous().T, weight, bias), exact)
    close(linear.linear_of_few_rows(x[:1].expand(4, 20), weight, bias), exact[:1].expand(4, 7))
    assert linear.linear_of_few_rows(x[:0], weight, bias).shape == (0, 7)
    assert linear.linear_of_few_rows(x, weight[:0], bias[:0]).shape == (6, 0)
    assert torch.equal(linear.linear_of_few_rows(x[:, :0], weight[:, :0].contiguous(), bias), bias.expand(6, 7))


def test_infinite_and_missing_numbers_stay_in_their_row_and_feature():
    x, weight, bias = tensors(3, 40, 6)
    x[1, 3], weight[2, 39], bias[5] = torch.nan, torch.inf, -torch.inf
    y = linear.linear_of_few_rows(x, weight, bias)
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(y, expected, equal_nan=True)
    assert y[1].isnan().all()
    assert y[0].isfinite().tolist() == [True, True, False, True, True, False]


def test_unsupported_inputs_go_to_torch(monkeypatch):
    x, weight, bias = tensors(9, 8, 4)
    assert linear.linear_of_few_rows(x, weight, bias) is None  # rows
    assert linear.linear_of_few_rows(x[:1].half(), weight.half(), bias.half()) is None
    assert linear.linear_of_few_rows(x[:1].double(), weight.double(), bias.double()) is None
    monkeypatch.setattr(linear, "library", lambda: "it was not built")
    assert linear.linear_of_few_rows(x[:1], weight, bias) is None
