"""Second derivatives and forward mode, compared with torch's SDPA, finite differences and the dense definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from helpers.ops.cases import SCORES, masks, measures
from regard.errors import InvalidArgument, KernelNotSupported
from regard.ops import attend, weights
from regard.ops.kernels.base import Kernel
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import DifferentiableKernel
from regard.ops.masks import Causal, Neighbors
from regard.ops.measures import Block, Measure, TopK

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own

SMALL = Blockwise(replace(CPU, rows=2, max_rows=2))
ROWS, KEYS = 4, 5
MEASURES = {name: m for name, m in measures(ROWS, KEYS).items() if name not in ("kl_divergence",)}


def qkv(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 2, ROWS, 3), (1, 1, KEYS, 3), (1, 2, KEYS, 2)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def results(att) -> list[Tensor]:
    parts = [att.output]
    for result in att.measured.values():
        parts += result if isinstance(result, tuple) else (result,)
    return [part for part in parts if part.is_floating_point()]


def loss_of(att) -> Tensor:
    """A function of all results that is not linear in them; rows without keys have an lse of −∞."""
    return sum((part.clamp(min=-20.0) - 0.3).square().sum() for part in results(att))  # pyright: ignore[reportReturnType]


def hvp(loss, leaves, directions) -> list[Tensor]:
    """The product of a Hessian and a vector, by two backward passes."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    gradients = torch.autograd.grad(loss(*leaves), leaves, create_graph=True, allow_unused=True)
    gradients = [0 * x if each is None else each for x, each in zip(leaves, gradients, strict=True)]
    total = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions, strict=True))
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(x) if each is None else each for x, each in zip(leaves, found, strict=True)]


def check(make, leaves) -> None:
    """Both modes agree with the dense definition, differentiated by torch."""
    directions = [torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1)).to(leaf.dtype) for leaf in leaves]
    expected = hvp(lambda *x: loss_of(make("reference", *x)), leaves, directions)
    actual = hvp(lambda *x: loss_of(make(SMALL, *x)), leaves, directions)
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)
    gradient = grad(lambda *x: loss_of(make(SMALL, *x)), argnums=tuple(range(len(leaves))))
    _, forward = jvp(gradient, tuple(leaves), tuple(directions))
    torch.testing.assert_close([*forward], expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mask", sorted(masks(1, 2, ROWS, KEYS)))
def test_every_mask(mask):
    rule = masks(1, 2, ROWS, KEYS)[mask]
    check(lambda kernel, *x: attend(*x, mask=rule, measure=["entropy", "lse", "received"], kernel=kernel), qkv())


@pytest.mark.parametrize("score", sorted(SCORES))
def test_every_score_and_its_tensors(score):
    case = SCORES[score]
    own = case.tensors(2, ROWS, KEYS, 3)
    names, tensors = [*own], [*own.values()]

    def make(kernel, query, key, value, *own):
        rule = case.rule(dict(zip(names, own, strict=True)))
        return attend(query, key, value, mask=Causal(), score=rule, measure=["entropy", "lse"], kernel=kernel)

    check(make, [*qkv(), *tensors])


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_every_measure(name):
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(1)
    check(lambda kernel, *x: attend(*x, mask=mask, measure={name: MEASURES[name]}, kernel=kernel), qkv())


def test_the_output_against_sdpa():
    query, key, value = qkv()

    def dense(*x):
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(*x, enable_gqa=True).sin().sum()

    key = key.repeat_interleave(2, 1)
    leaves, directions = (query, key, value), [torch.ones_like(x) for x in (query, key, value)]
    expected = hvp(dense, leaves, directions)
    for kernel in (SMALL, "sdpa", None):
        actual = hvp(lambda *x, kernel=kernel: attend(*x, kernel=kernel).output.sin().sum(), leaves, directions)
        torch.testing.assert_close(actual, expected)
        _, forward = jvp(
            grad(lambda *x, kernel=kernel: attend(*x, kernel=kernel).output.sin().sum(), argnums=(0, 1, 2)),
            leaves,
            tuple(directions),
        )
        torch.testing.assert_close([*forward], expected)
    whole = hessian(lambda query: attend(query, key, value).output.sin().sum())(query)
    torch.testing.assert_close(whole, hessian(lambda query: dense(query, key, value))(query))


@pytest.mark.parametrize("mask", [None, Causal(), torch.arange(5) < 3], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_a_second_backward_pass_after_sdpa(mask, heads):
    query, key, value = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64).unbind()
    leaves = query, key[:, :heads], value[:, :heads]
    directions = [torch.ones_like(x) for x in leaves]
    actual, expected = (
        hvp(lambda *x, k=k: attend(*x, mask=mask, kernel=k).output.sin().sum(), leaves, directions)
        for k in ("sdpa", "reference")
    )
    torch.testing.assert_close(actual, expected)


def test_gradgradcheck_and_forward_mode_against_finite_differences():
    query, key, value = (x[:, :1, :3].clone().requires_grad_() for x in qkv())

    def function(*x):
        att = attend(*x, mask=Causal(), measure=["entropy", "received"], kernel=SMALL)
        return att.output, *att.measured.values()

    assert torch.autograd.gradgradcheck(function, (query, key, value))
    assert torch.autograd.gradcheck(function, (query, key, value), check_forward_ad=True, check_backward_ad=False)


def test_transforms_compose():
    query, key, value = qkv()
    tangents = torch.randn(3, *query.shape, dtype=torch.float64)

    def output(kernel):
        return lambda query: attend(query, key, value, measure="entropy", kernel=kernel).measured["entropy"].square()

    for transformed in (
        lambda f: vmap(lambda t: jvp(f, (query,), (t,))[1])(tangents),
        lambda f: jacfwd(f)(query),
        lambda f: grad(lambda x: grad(lambda x: f(x).sum())(x).square().sum())(query),
        lambda f: torch.autograd.functional.vhp(lambda x: f(x).sum(), query, tangents[0])[1],
    ):
        torch.testing.assert_close(transformed(output(SMALL)), transformed(output("reference")))


def test_dual_numbers():
    query, key, value = qkv()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones_like(query))
        tangents = [
            forward_ad.unpack_dual(attend(dual, key, value, kernel=kernel).output).tangent
            for kernel in (SMALL, "reference", None)
        ]
    torch.testing.assert_close(tangents[1:], [tangents[0]] * 2)


@pytest.mark.parametrize("kernel", [SMALL, "reference"])
def test_nested_forward_mode_raises_where_torch_would_return_zero(kernel):
    query, key, value = qkv()

    def inner(query):
        return jvp(lambda x: attend(x, key, value, measure="lse", kernel=kernel).measured["lse"], (query,), (query,))[1]

    with pytest.raises(InvalidArgument, match=r"forward mode: .* torch.func.hessian"):
        jvp(inner, (query,), (query,))


def test_dropout_drops_the_same_weights():
    leaves, directions = qkv(), [torch.ones_like(x) for x in qkv()]

    def loss(kernel):
        def of(*x):
            torch.manual_seed(0)
            return attend(*x, dropout=0.4, kernel=kernel).output.sin().sum()

        return of

    torch.testing.assert_close(hvp(loss(SMALL), leaves, directions), hvp(loss("reference"), leaves, directions))


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_derivatives_for_some_tensors_alone(which):
    x = qkv()

    def make(kernel, *some):
        full = [some[which.index(i)] if i in which else x[i] for i in range(3)]
        return attend(*full, measure="entropy", kernel=kernel)

    check(make, [x[i] for i in which])


@pytest.mark.parametrize("kernel", ["native", "sparse"])
def test_other_kernels_fall_back(kernel):
    dtype = torch.float32 if kernel == "native" else torch.float64
    mask = Neighbors(*torch.tensor([[0, 1, 1, 3], [1, 0, 4, 2]])) if kernel == "sparse" else Causal()
    leaves = qkv(dtype)
    if kernel == "native" and Kernel.registered["native"].unavailable_reason():
        pytest.skip("the library is not built")
    directions = [torch.ones_like(x) for x in leaves]
    actual, expected = (
        hvp(
            lambda *x, k=k: loss_of(attend(*x, mask=mask, measure=["entropy", "received"], kernel=k)),
            leaves,
            directions,
        )
        for k in (kernel, "reference")
    )
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16():
    leaves = qkv(torch.bfloat16)
    directions = [torch.ones_like(x) for x in leaves]
    actual, expected = (
        hvp(lambda *x, k=k: loss_of(attend(*x, measure="entropy", kernel=k)), leaves, directions)
        for k in (SMALL, "reference")
    )
    assert {x.dtype for x in actual} == {torch.bfloat16}
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.05)


def test_products_with_the_matrix():
    query, key, x = qkv()
    y = torch.randn(ROWS, 2, dtype=torch.float64)

    def loss(kernel):
        def of(query, key, x, y):
            W = weights(query, key, mask=Causal(), kernel=kernel)
            return (W @ x).sin().sum() + (W.mT @ y).sin().sum()

        return of

    leaves = query, key, x, y
    directions = [torch.ones_like(each) for each in leaves]
    torch.testing.assert_close(hvp(loss(SMALL), leaves, directions), hvp(loss("reference"), leaves, directions))


class Once(Measure):
    """A measure whose operation torch differentiates once."""

    def compute(self, block: Block) -> Tensor:
        weights = block.weights
        return scaled_dot_product_attention(weights, weights, weights).sum(-1)


def test_what_has_no_second_derivative_says_so():
    leaves, directions = qkv(), [torch.ones_like(x) for x in qkv()]
    with pytest.raises(InvalidArgument, match=r"second derivative: mask, score and measures must .* not implemented"):
        hvp(lambda *x: attend(*x, measure=Once(), kernel=SMALL).measured["once"].sum(), leaves, directions)
    (query, key, value), top = leaves, TopK(2)
    found = attend(query.requires_grad_(), key, value, measure=top, kernel=SMALL).measured["topk"]
    assert not found.indices.requires_grad


class _Alone(DifferentiableKernel):
    name = "alone"

    def forward(self, inputs, options):
        return SMALL.forward(inputs, options)

    def backward(self, *args):
        return SMALL.backward(*args)


def test_a_kernel_without_fallback_says_so():
    leaves, directions = qkv(), [torch.ones_like(x) for x in qkv()]
    with pytest.raises(KernelNotSupported, match=r"second derivative: kernel 'alone' .* kernel='blockwise'"):
        hvp(lambda *x: attend(*x, kernel=_Alone()).output.sin().sum(), leaves, directions)
