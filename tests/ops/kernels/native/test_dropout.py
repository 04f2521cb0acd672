"""Dropout of the native kernel: the same cells forward and backward, as many as requested, and independent ones."""

from __future__ import annotations

import random

import pytest
import torch

from helpers.pairwise import everything
from regard.native.library import library
from regard.ops import attend
from regard.ops.masks import Causal
from regard.ops.scores import ScaledDotProduct, Sinks

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")
P = 0.3


def drawn_shapes(count):
    """Shapes of random sizes."""
    drawn = random.Random(0)
    heads = [(1, 1), (4, 2), (3, 1), (2, 2)]
    sizes = [[drawn.randint(1, 700) for _ in range(2)] + [drawn.randint(1, 70) for _ in range(2)] for _ in range(count)]
    return [(drawn.randint(1, 2), *drawn.choice(heads), *size) for size in sizes]


def dropped(query, key, value, **options):
    torch.manual_seed(1)
    return attend(query, key, value, mask=Causal(), dropout=P, kernel="native", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_weights_that_are_left(dtype):
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 150, 16, generator=random).to(dtype) for _ in range(3))
    identity = torch.eye(150, dtype=dtype).expand(2, 4, 150, 150)  # so the output is the weights
    kept = dropped(query, key, identity).output != 0
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    att = dropped(*leaves, measure=["entropy", "received"])
    exact = [tensor.double().requires_grad_() for tensor in (query, key, value)]
    scores = (exact[0] @ exact[1].mT / 4).masked_fill(torch.ones(150, 150).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    output = (weights * kept / (1 - P)) @ exact[2]
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(att.output.double(), output, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(att.measured["received"].double(), weights.sum(2), rtol=1e-5, atol=1e-5)
    random_gradient = torch.randn(output.shape, generator=random)
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)  # with a gradient where a weight is 0
    losses = (
        (att.output * random_gradient.to(dtype)).sum() + att.measured["entropy"].sum(),
        (output * random_gradient.to(dtype)).sum() + entropy.sum(),
    )
    for actual, expected in zip(
        torch.autograd.grad(losses[0], leaves), torch.autograd.grad(losses[1], exact), strict=True
    ):
        torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance * 3)


def test_each_cell_is_dropped_with_the_probability_and_independently():
    query = torch.zeros(2, 4, 256, 16)
    identity = torch.eye(256).expand(2, 4, 256, 256)
    torch.manual_seed(2)
    kept = (attend(query, query, identity, dropout=P, kernel="native").output != 0).float()
    deviation = (P * (1 - P) / kept.numel()) ** 0.5
    assert abs(kept.mean().item() - (1 - P)) < 4 * deviation
    centered = kept - kept.mean()
    for shift in ((0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 16)):
        product = centered * centered.roll(shift, (0, 1, 2, 3))
        assert abs(product.mean().item()) < 5 * P * (1 - P) / kept.numel() ** 0.5, shift
    torch.manual_seed(3)
    other = (attend(query, query, identity, dropout=P, kernel="native").output != 0).float()
    assert abs((centered * (other - other.mean())).mean().item()) < 5 * P * (1 - P) / kept.numel() ** 0.5


@pytest.mark.parametrize("p", [0.5, 0.99999999, 1 - 2.0**-53])
def test_kept_weights_are_divided_by_the_probability_of_being_kept(p):
    query = torch.zeros(1, 1, 300, 8)
    value = torch.ones(1, 1, 300, 8).requires_grad_()
    torch.manual_seed(4)
    output = attend(query, query, value, dropout=p, kernel="native").output
    output.sum().backward()
    kept = round((1 - int(p * 2**32) / 2**32) * 2**32)  # of 2³² random numbers
    unit = 2**32 / kept / 300  # a weight that is kept; each row has some number of them
    for numbers in (output, value.grad):
        counts = numbers.double() / unit
        torch.testing.assert_close(counts, counts.round(), rtol=1e-4, atol=1e-4)


SHAPES = [  # batch, heads, heads of keys, queries, keys, head_dim, value_dim
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 1, 7, 65, 5, 9),
    (1, 4, 2, 48, 64, 16, 16),
    (3, 2, 2, 97, 131, 7, 40),
    (1, 2, 1, 2100, 70, 8, 8),
    (2, 2, 2, 301, 683, 19, 3),
]


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", SHAPES if not everything() else [*SHAPES, *drawn_shapes(60)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_seed_decides_and_gradients_are_exact_whatever_the_shape_and_the_threads(shape, dtype):
    batch, heads, kv_heads, queries, keys, dim, value_dim = shape
    generator = torch.Generator().manual_seed(0)
    shapes = (heads, queries, dim), (kv_heads, keys, dim), (kv_heads, keys, value_dim)
    inputs = [torch.randn(batch, *each, generator=generator).to(dtype) for each in shapes]
    logits = torch.randn(heads, generator=generator).to(dtype)
    upstream = torch.randn(batch, heads, queries, value_dim, generator=generator).to(dtype)

    def results(seed):
        query, key, value, sinks = leaves = [tensor.clone().requires_grad_() for tensor in (*inputs, logits)]
        torch.manual_seed(seed)
        score = Sinks(ScaledDotProduct(), sinks)
        att = attend(query, key, value, score=score, dropout=P, measure="entropy", kernel="native")
        return [att.output, *torch.autograd.grad([att.output, att.measured["entropy"].sum()], leaves, [upstream, None])]

    torch.set_num_threads(1)
    once = results(7)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert all(map(torch.equal, results(7), once))
    if queries * keys > 100:
        assert not torch.equal(results(8)[0], once[0])

    torch.manual_seed(7)
    identity = torch.eye(keys, dtype=dtype).expand(batch, kv_heads, keys, keys)
    kept = attend(inputs[0], inputs[1], identity, dropout=P, kernel="native").output != 0
    query, key, value, sinks = leaves = [tensor.double().requires_grad_() for tensor in (*inputs, logits)]
    key, value = (tensor.repeat_interleave(heads // kv_heads, 1) for tensor in (key, value))
    scores = torch.cat((query @ key.mT / dim**0.5, sinks[:, None, None].expand(batch, heads, queries, 1)), -1)
    weights = scores.softmax(-1)[..., :-1]
    output = weights * kept / (1 - P) @ value
    entropy = -(weights * weights.log()).sum()
    exact = [output, *torch.autograd.grad([output, entropy], leaves, [upstream.double(), None])]
    for actual, expected in zip(once, exact, strict=True):
        error, largest = (actual.double() - expected).abs().max(), max(1.0, expected.abs().max())
        assert error <= max(1e-5, 2 * torch.finfo(dtype).eps) * largest
