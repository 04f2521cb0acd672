"""Attention compared with torch's own implementations: SDPA and nn.MultiheadAttention."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from helpers.ops.cases import CPU_KERNELS
from helpers.pairwise import grouped, pairwise
from regard.errors import InvalidArgument
from regard.ops import attend
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.masks import Causal, Mask, Padding, Window
from regard.ops.scores import Score


@pytest.mark.parametrize(
    ("kernel", "cases"),
    grouped(
        pairwise(
            [kernel.name for kernel in CPU_KERNELS if kernel.name not in {"sparse", "native"}],
            [torch.float64, torch.float32, torch.bfloat16, torch.float16],
            ["none", "causal", "padding", "window"],
            [1, 2, 4],
        )
        + pairwise(
            ["native"],
            [torch.float32, torch.bfloat16, torch.float16],
            ["none", "causal", "padding", "window"],
            [1, 2, 4],
        )
    ),
)
def test_outputs_equal_those_of_sdpa(kernel, cases, subtests):
    for dtype, mask, kv_heads in cases:
        with subtests.test(dtype=dtype, mask=mask, kv_heads=kv_heads):
            check_output(kernel, dtype, mask, kv_heads)


def check_output(kernel, dtype, mask, kv_heads):
    torch.manual_seed(0)
    query = torch.randn(2, 4, 30, 16).to(dtype).requires_grad_()
    key, value = (torch.randn(2, kv_heads, 30, 16).to(dtype) for _ in range(2))
    i, j = torch.arange(30)[:, None], torch.arange(30)
    cases = {
        "none": (None, None),
        "causal": (Causal(), j <= i),
        "padding": (Padding(torch.tensor([30, 7])), (j < torch.tensor([[30], [7]]))[:, None, None]),
        "window": (Window(3, 1), (j >= i - 3) & (j <= i + 1)),
    }
    rule, cells = cases[mask]
    expected = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), attn_mask=cells, enable_gqa=True
    )
    output = attend(query, key, value, mask=rule, kernel=kernel).output
    assert output.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=tolerance)


def test_weights_equal_those_of_multihead_attention():
    torch.manual_seed(0)
    peer = nn.MultiheadAttention(24, 3, batch_first=True)
    x = torch.randn(2, 9, 24)
    padded = torch.arange(9) >= torch.tensor([[9], [5]])
    with torch.no_grad():
        expected, expected_weights = peer(x, x, x, key_padding_mask=padded, average_attn_weights=False)
        query, key, value = (
            part.unflatten(2, (3, 8)).transpose(1, 2)
            for part in torch.nn.functional.linear(x, peer.in_proj_weight, peer.in_proj_bias).chunk(3, -1)
        )
        att = attend(query, key, value, mask=Padding(~padded))
        output = peer.out_proj(att.output.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(att.weights.dense(), expected_weights)


def test_queries_are_the_last_positions_by_default():
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 5, 4)

    def visible(**options):
        W = attend(query, key, key, mask=Causal(), **options).weights
        return (W.dense()[0, 0] > 0).sum(-1).tolist()

    assert visible() == [4, 5]
    assert visible(offset=0) == [1, 2]
    assert visible(offset=-1) == [0, 1]


@pytest.mark.parametrize("kernel", [kernel.name for kernel in CPU_KERNELS if kernel.required_mask is None])
def test_rows_without_keys_are_zero_and_finite(kernel):
    query, key, value = (torch.randn(2, 1, 4, 8).requires_grad_() for _ in range(3))
    output = attend(query, key, value, mask=Padding(torch.tensor([4, 0])), kernel=kernel).output
    assert (output[1] == 0).all()
    for gradient in torch.autograd.grad(output.square().sum(), (query, key, value)):
        assert torch.isfinite(gradient).all()
        assert (gradient[1] == 0).all()


def test_a_compiled_call_drops_the_same_weights_forward_and_backward():
    torch.compiler.reset()
    value = torch.randn(1, 2, 9, 8, requires_grad=True)
    other = torch.randn(1, 2, 9, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # by torch's compiler, about itself
        output = torch.compile(lambda value: attend(other, other, value, dropout=0.3).output)(value)
    (gradient,) = torch.autograd.grad(output.sum(), value)
    # The output is linear in value, so this holds if both passes dropped the same weights.
    torch.testing.assert_close((gradient * value).sum(), output.sum())
    assert not torch.allclose(output, attend(other, other, value).output)


def test_an_offset_may_have_any_integer_type():
    x = torch.randn(1, 1, 4, 8)
    output = attend(x, x, x, mask=Causal(), offset=np.int64(1)).output
    assert torch.equal(output, attend(x, x, x, mask=Causal(), offset=1).output)


class FixedMask(Mask):
    """A user-defined mask that returns a given tensor."""

    def __init__(self, result):
        self.result = result

    def allowed(self, tile):
        return self.result


class FixedScore(Score):
    """The same as a score."""

    def __init__(self, result):
        self.result = result

    def __call__(self, query, key, scale, tile):
        return self.result


WRONG_RESULTS = {
    r"int64 \(6, 6\)": torch.ones(6, 6, dtype=torch.int64),
    r"bool \(3, 6\)": torch.ones(3, 6, dtype=torch.bool),
    r"float32 \(3, 6\)": torch.ones(3, 6),
    "NoneType": None,
}


@pytest.mark.parametrize("kernel", [Reference(), Blockwise(), Sdpa()], ids=lambda kernel: kernel.name)
def test_results_of_a_user_s_rule_are_checked(kernel, subtests):
    query, expected = torch.randn(1, 2, 6, 4), r"\(batch, heads, rows, keys\) = \(1, [12], 6, 6\), got "
    for actual, result in WRONG_RESULTS.items():
        message = rf"mask FixedMask: allowed\(\) must return a bool .*{expected}{actual}"
        with subtests.test(rule="mask", actual=actual), pytest.raises(InvalidArgument, match=message):
            attend(query, query, query, mask=FixedMask(result), kernel=kernel)
        if not kernel.supports(FixedScore):
            continue
        message = rf"score FixedScore: .* must return a floating.*{expected}{actual}"
        with subtests.test(rule="score", actual=actual), pytest.raises(InvalidArgument, match=message):
            attend(query, query, query, score=FixedScore(result), kernel=kernel)


def test_the_output_prints_its_shapes():
    query = torch.randn(1, 2, 6, 4)
    att = attend(query, query, query, measure=["entropy", "max"])
    assert repr(att).startswith("AttentionOutput(output=float32 (1, 2, 6, 4), weights=WeightMatrix(")
    measured = "'entropy': float32 (1, 2, 6), 'max': MaxResult(weight=float32 (1, 2, 6), score=float32 (1, 2, 6))"
    assert repr(att).endswith(f"measured={{{measured}}})")
