"""A call like the last ones takes over what was packed for its backward pass, and computes the same bits."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from helpers.ops import cases
from helpers.ops.plain_calls import MEASURES, PLAIN_MASKS, PLAIN_SCORES, tensors
from regard.diagnostics.cases import SHAPES, Shape
from regard.native.library import library
from regard.ops import attend, weights
from regard.ops.kernels import dispatch
from regard.ops.kernels.native import prepared
from regard.ops.kernels.native.prepared import PreparedCall
from regard.ops.masks import Causal
from regard.ops.measures import TopK

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")

NEEDED = [(True, True, True), (True, False, False), (False, True, False), (False, False, True), (True, False, True)]


@pytest.fixture
def passes(monkeypatch):
    """For each backward pass of a prepared call, whether it was prepared, too."""
    ran = []
    backward = PreparedCall.backward

    def run(self, *arguments):
        result = backward(self, *arguments)
        ran.append(result is not None)
        return result

    monkeypatch.setattr(PreparedCall, "backward", run)
    dispatch._preparation_of.cache_clear()
    yield ran
    dispatch._preparation_of.cache_clear()


def loss(att):
    """Of output and measures, each with weights of its own; the output's gradient has an odd layout."""
    parts = [att.output] if att.output is not None else []
    for each in att.measured.values():
        parts += [part for part in (each if isinstance(each, tuple) else [each]) if part.is_floating_point()]
    return sum(
        (part * torch.linspace(-1, 1, part.numel(), dtype=torch.float32).view(part.shape)).sum() for part in parts
    )


def gradients(inputs, needed=NEEDED[0], of=loss, **options):
    leaves = [each.detach().requires_grad_(need) for each, need in zip(inputs, needed, strict=True)]
    of(attend(*leaves, **options)).backward()
    return [leaf.grad for leaf in leaves]


def assert_same_bits(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, other)
            assert (one.dtype, one.stride()) == (other.dtype, other.stride())


@pytest.mark.parametrize("shapes", [[*SHAPES][::2], [*SHAPES][1::2]])
def test_later_calls_compute_what_the_kernel_computes(shapes, passes):
    for number, (shape, name) in enumerate(product(map(SHAPES.__getitem__, shapes), PLAIN_MASKS)):
        needed, score = NEEDED[number % len(NEEDED)], [*PLAIN_SCORES.values()][number % len(PLAIN_SCORES)]
        options = {"mask": cases.mask(name, *shape.matrix), "score": score, "measure": MEASURES}
        passes.clear()
        inputs = [tensors(shape, seed) for seed in range(4)]
        results = [gradients(each, needed, **options) for each in inputs]
        assert passes == [True] * 3, (shape, name)
        for each, result in zip(inputs, results, strict=True):
            assert_same_bits(result, gradients(each, needed, kernel="native", **options))


def test_dtypes_and_several_chunks(passes):
    shape = Shape(1, 2, 1, 2100, 40, 4, 4)
    for dtype, needed in product((torch.float32, torch.bfloat16, torch.float16), NEEDED):
        for seed in range(4):
            inputs = tensors(shape, seed, dtype)
            assert_same_bits(
                gradients(inputs, needed, measure="received"),
                gradients(inputs, needed, measure="received", kernel="native"),
            )
    assert passes == [True] * 3 * 3 * len(NEEDED)


def test_whatever_a_backward_pass_follows_from_is_compared(passes):
    def transposed(att):
        return (att.output.mT.reshape(-1) * torch.linspace(-1, 1, att.output.numel())).sum()

    losses = [
        loss,
        transposed,
        lambda att: att.output.sum(),
        lambda att: att.output[:, :1].sum() + att.measured["entropy"].square().sum(),
        lambda att: att.output.sum() + att.measured["topk"].values.sum(),
    ]
    options = {"mask": Causal(), "measure": ("entropy", TopK(2))}
    for of, needed in product(losses * 2, NEEDED[:2]):
        inputs = tensors(SHAPES["square"], 0)
        assert_same_bits(
            gradients(inputs, needed, of, **options), gradients(inputs, needed, of, kernel="native", **options)
        )
    assert passes.count(True) > 10  # and if there are too many, False


def test_a_loss_of_measures_alone(passes):
    def of(att):
        return att.measured["entropy"].sum()

    for seed in range(4):
        inputs = tensors(SHAPES["square"], seed)
        result, expected = (gradients(inputs, of=of, measure="entropy", kernel=kernel) for kernel in (None, "native"))
        assert_same_bits(result, expected)
    assert passes == [False] * 3


def test_measures_may_share_a_gradient(passes):
    """Autograd gives both summands the same tensor, and in later calls it may not."""
    shared = torch.randn(2, 4, 33)
    for step in range(6):
        found = []
        for kernel in (None, "native"):
            leaves = [each.requires_grad_() for each in tensors(SHAPES["square"], step)]
            measured = attend(*leaves, measure=("entropy", "lse"), kernel=kernel)
            others = [shared, shared] if step < 4 else [shared, 2 * shared]
            gradient = torch.ones_like(measured.output)
            results = [measured.output, *measured.measured.values()]
            found.append(torch.autograd.grad(results, leaves, [gradient, *others]))
        assert_same_bits(*found)
    assert passes == [False, False, False, True, True]


def test_a_matrix_without_a_value(passes):
    for seed in range(4):
        query, key, _ = tensors(SHAPES["square"], seed)
        found = []
        for kernel in (None, "native"):
            leaf = query.clone().requires_grad_()
            weights(leaf, key, kernel=kernel).entropy().square().sum().backward()
            found.append(leaf.grad)
        assert torch.equal(*found)
    assert passes == [True] * 3


def test_one_tensor_as_query_key_and_value(passes):
    """It is prepared where all three are one tensor, then they differ, and the other way round."""
    for first in (0, 1):
        dispatch._preparation_of.cache_clear()
        for step in range(6):
            x, y, z = (torch.randn(2, 4, 20, 8, requires_grad=True) for _ in range(3))
            inputs = (x, x, x) if (step < 3) == bool(first) else (x, y, z)
            loss(attend(*inputs, measure="received")).backward()
            found = [each.grad for each in inputs]
            copies = [each.detach().requires_grad_() for each in (x, y, z)]
            inputs = [copies[0]] * 3 if inputs[1] is x else copies
            loss(attend(*inputs, measure="received", kernel="native")).backward()
            assert_same_bits(found, [each.grad for each in inputs])
    assert len(passes) == 10


def test_tensors_that_hooks_return_may_have_other_strides(passes):
    for seed in range(4):
        inputs = tensors(SHAPES["square"], seed)
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.contiguous, lambda tensor: tensor):
            result = gradients(inputs, measure="entropy")
        assert_same_bits(result, gradients(inputs, measure="entropy", kernel="native"))
    assert passes == [False] * 3


def test_second_derivatives(passes):
    for seed in range(4):
        found = []
        for kernel, dtype in ((None, torch.float32), ("reference", torch.float64)):
            leaves = [each.to(dtype).requires_grad_() for each in tensors(SHAPES["square"], seed)]
            att = attend(*leaves, measure="entropy", kernel=kernel)
            first = torch.autograd.grad(loss(att), leaves, create_graph=True)
            sum((each * each).sum() for each in first).backward()
            found.append([*first, *(leaf.grad for leaf in leaves)])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4, check_dtype=False)
    assert passes == [True] * 3


def test_default_devices_and_dtypes_do_not_matter(passes):
    inputs = tensors(SHAPES["square"], 0)
    expected = gradients(inputs, measure=("entropy", TopK(2)), kernel="native")
    torch.set_default_dtype(torch.float64)
    try:
        for _ in range(4):
            with torch.device("meta"):
                leaves = [each.detach().requires_grad_() for each in inputs]
                att = attend(*leaves, measure=("entropy", TopK(2)))
            total = loss(att)
            with torch.device("meta"):
                total.backward()
            assert_same_bits([each.grad for each in leaves], expected)
    finally:
        torch.set_default_dtype(torch.float32)
    assert passes == [True] * 3


def test_how_many_backward_passes_are_kept(passes, monkeypatch):
    monkeypatch.setattr(prepared, "MAX_BACKWARD_CALLS", 1)
    for seed in range(3):
        inputs = tensors(SHAPES["square"], seed)
        for of in (loss, lambda att: att.output.sum()):
            expected = gradients(inputs, of=of, measure="entropy", kernel="native")
            assert_same_bits(gradients(inputs, of=of, measure="entropy"), expected)
    assert passes == [True, False, True, False, True]


def test_no_tensors_are_kept(passes):
    import gc
    import weakref

    held = []
    for seed in range(4):
        leaves = [each.requires_grad_() for each in tensors(SHAPES["blocks"], seed)]
        att = attend(*leaves, measure=MEASURES)
        loss(att).backward()
        held += [weakref.ref(each) for each in [*leaves, att.output, *(leaf.grad for leaf in leaves)]]
    del leaves, att
    gc.collect()
    assert passes
    assert not any(each() is not None for each in held)
