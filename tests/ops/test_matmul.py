"""Products by oneDNN compared with products in float64, and attention with and without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.func import jvp as func_jvp
from torch.func import vmap

from helpers.ops.cases import SCORES, masks, measures
from helpers.pairwise import pairwise, sampled
from regard.ops import attend, matmul
from regard.ops.kernels import blocks

LAYOUTS = {
    "rows": lambda batch, heads, rows, columns: torch.randn(batch, heads, rows, columns),
    "columns": lambda batch, heads, rows, columns: torch.randn(batch, heads, columns, rows).mT,
    "rows, heads inside": lambda batch, heads, rows, columns: torch.randn(batch, rows, heads, columns).transpose(1, 2),
    "columns, heads inside": lambda batch, heads, rows, columns: torch.randn(batch, columns, heads, rows).permute(
        0, 2, 3, 1
    ),
    "part": lambda batch, heads, rows, columns: torch.randn(batch + 1, heads + 2, rows + 3, columns)[1:, 2:, :-3],
    "one number": lambda batch, heads, rows, columns: torch.randn(1, 1, 1, 1).expand(batch, heads, rows, columns),
}

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Products are computed by oneDNN, on any processor."""
    monkeypatch.setattr(matmul, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(matmul, "MIN_MULTIPLY_ADDS", 1)


@pytest.mark.parametrize(
    ("left", "right", "heads", "sizes"), pairwise(list(LAYOUTS), list(LAYOUTS), [1, 3], [(5, 40, 7), (33, 8, 50)])
)
def test_products_equal_those_of_float64(onednn, left, right, heads, sizes):
    torch.manual_seed(0)
    rows, inner, columns = sizes
    one, other = LAYOUTS[left](1, heads, rows, inner), LAYOUTS[right](1, heads, inner, columns)
    expected = (one.double() @ other.double()).float()
    torch.testing.assert_close(matmul.matmul(one, other, is_repeated=True), expected, rtol=1e-5, atol=1e-5)


def test_onednn_computes_only_large_products_of_float32(monkeypatch):
    monkeypatch.setattr(matmul, "is_onednn_faster", lambda: True)
    taken = []
    monkeypatch.setattr(matmul, "_onednn_matmul", lambda left, right: taken.append(left.shape) or left @ right)
    large, small = torch.randn(1, 1, 512, 64), torch.randn(1, 1, 16, 64)
    for left, right in ((large, small), (large.double(), large.double().mT), (large.bfloat16(), large.bfloat16().mT)):
        matmul.matmul(left, right.mT if right is small else right, is_repeated=True)
    matmul.matmul(large, large.mT, is_repeated=False)  # a program for it would be kept in vain
    matmul.matmul(torch.randn(1, 1, 256, 512), torch.randn(1, 1, 512, 64), is_repeated=True)  # sums of many terms
    matmul.matmul(large.expand(1, 2, 512, 64), large.mT.expand(1, 2, 64, 512), is_repeated=True)  # several pairs
    monkeypatch.setattr(matmul, "is_onednn_faster", lambda: False)
    matmul.matmul(large, large.mT, is_repeated=True)
    assert taken == []
    monkeypatch.setattr(matmul, "is_onednn_faster", lambda: True)
    matmul.matmul(large, large.mT, is_repeated=True)
    assert taken == [(1, 1, 512, 64)]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch, which calls it
def test_derivatives_equal_those_of_torch_s_product(onednn):
    torch.manual_seed(0)
    one, other, weight = torch.randn(1, 1, 9, 6), torch.randn(1, 1, 6, 5), torch.randn(1, 1, 9, 5)

    def multiplied(one, other):
        return matmul.matmul(one, other, is_repeated=True)

    def twice(multiply):
        leaves = [one.clone().requires_grad_(), other.clone().requires_grad_()]
        loss = (multiply(*leaves).tanh() * weight).sum()
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return *first, *torch.autograd.grad(sum(part.square().sum() for part in first), leaves)

    torch.testing.assert_close(twice(multiplied), twice(torch.matmul))
    tangents = torch.randn_like(one), torch.randn_like(other)
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(*pair) for pair in zip((one, other), tangents, strict=True)]
        actual = torch.autograd.forward_ad.unpack_dual(multiplied(*duals)).tangent
    expected = func_jvp(torch.matmul, (one, other), tangents)[1]
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(func_jvp(multiplied, (one, other), tangents)[1], expected)
    several = torch.randn(3, 1, 1, 9, 6)
    torch.testing.assert_close(vmap(multiplied, (0, None))(several, other), several @ other)


@pytest.mark.parametrize(
    ("mask", "score", "name", "kv_heads"),
    sampled(pairwise(list(masks(1, 4, 30, 40)), list(SCORES), list(measures(30, 40)), [1, 2, 4]), 60),
)
def test_attention_is_the_same_without_onednn(onednn, monkeypatch, mask, score, name, kv_heads):
    monkeypatch.setattr(blocks, "CPU", replace(blocks.CPU, elements=1))  # each block is then of one head
    torch.manual_seed(0)
    tensors = [torch.randn(1, 4, 30, 8), torch.randn(1, kv_heads, 40, 8), torch.randn(1, kv_heads, 40, 6)]
    case, rule, measure = SCORES[score], masks(1, 4, 30, 40)[mask], measures(30, 40)[name]
    score_tensors = {name: tensor.float() for name, tensor in case.tensors(4, 30, 40, 8).items()}

    def compute():
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        att = attend(*leaves, mask=rule, score=case.rule(score_tensors), measure={"x": measure}, kernel="blockwise")
        parts = att.measured["x"] if isinstance(att.measured["x"], tuple) else (att.measured["x"],)
        floats = [part.clamp(min=-9) for part in (att.output, *parts) if part.is_floating_point()]
        loss = sum(part.square().sum() for part in floats)
        return *floats, *torch.autograd.grad(loss, leaves)

    actual = compute()
    monkeypatch.setattr(matmul, "is_onednn_faster", lambda: False)
    torch.testing.assert_close(actual, compute(), rtol=1e-4, atol=1e-4)


def _linears():
    """Inputs and weights (x, weight, bias): with and without axes, with gaps, few rows and none."""
    torch.manual_seed(0)
    weight, bias = torch.randn(300, 256), torch.randn(300)
    yield torch.randn(4, 5, 256), weight, bias
    yield torch.randn(256), weight, None
    yield torch.randn(3, 6, 256)[:, -1], weight, bias
    yield torch.randn(256, 7).mT, weight[20:280], bias[20:280]
    yield torch.randn(0, 256), weight, bias
    yield torch.randn(2, 300), weight.mT, None
    yield torch.randn(2, 256).expand(3, 2, 256), torch.nn.Parameter(weight), torch.nn.Parameter(bias)


@pytest.mark.parametrize("number", range(7))
def test_linear_layers_equal_those_of_float64(onednn, number):
    x, weight, bias = list(_linears())[number]
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    with torch.no_grad():
        torch.testing.assert_close(matmul.linear(x, weight, bias), expected.float(), rtol=1e-5, atol=1e-4)


def test_linear_layers_with_gradients_or_other_dtypes_are_torch_s(onednn, monkeypatch):
    x, weight, bias = next(_linears())
    taken = []
    monkeypatch.setattr(matmul.functional, "linear", lambda *arguments: taken.append(arguments) or arguments[0])
    matmul.linear(x, weight, bias)  # gradients may be needed
    with torch.no_grad():
        matmul.linear(x, weight, bias)
        assert len(taken) == 1
        matmul.linear(x.bfloat16(), weight.bfloat16(), None)
        matmul.linear(x, weight[:10], bias[:10])  # small
        with torch.autocast("cpu", torch.bfloat16):
            matmul.linear(x, weight, bias)
        func_jvp(lambda t: matmul.linear(t, weight, bias), (x,), (x,))
        vmap(lambda t: matmul.linear(t, weight, bias))(x)
        assert len(taken) == 6
        graph = torch.compile(lambda t: matmul.linear(t, weight, bias), backend="eager", fullgraph=True)
        graph(x)
        assert len(taken) == 7
