"""Blocks as on a device where reading a value means to wait: run on a CPU with such sizes."""

from __future__ import annotations

from itertools import chain

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.ops.cases import masks, measures
from regard.ops import attend, weights
from regard.ops.kernels.blocks import BlockSizes, accelerator_sizes, partition, sizes_on
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal, Documents, Padding, Window
from regard.ops.request import make_request
from regard.ops.scores import Bias, ScaledDotProduct

SHAPE = 2, 4, 31, 37
MANY_BLOCKS, ONE_BLOCK = (
    Blockwise(BlockSizes(rows=rows, max_rows=rows, elements=elements, elements_per_head=2**20, waits=True))
    for rows, elements in ((16, 1200), (31, 2**20))
)


class Reads(TorchDispatchMode):
    """Records the operations whose result depends on values, for which a device would be waited for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").partition(".")[0]
        index = args[1] if name in ("index", "index_put_") else ()
        if name in {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "unique_dim", "_unique2", "masked_select"}:
            self.names.append(name)
        elif any(each is not None and each.dtype == torch.bool for each in index):
            self.names.append(f"{name} by bools")
        return function(*args, **(kwargs or {}))


def tensors(grad=True):
    batch, heads, queries, keys = SHAPE
    random = torch.Generator().manual_seed(3)
    shapes = (batch, heads, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 5)
    return [torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_(grad) for shape in shapes]


def evaluate(mask, kernel):
    query, key, value = tensors()
    att = attend(query, key, value, mask=mask, measure=measures(*SHAPE[2:]), kernel=kernel)
    results = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
    results = [each for each in results if each.is_floating_point()]
    loss = sum(each.masked_fill(each.isinf(), 0.0).square().sum() for each in (att.output, *results))
    return [att.output, *results, *torch.autograd.grad(loss, (query, key, value))]


def test_results_and_gradients_are_those_of_a_cpu(subtests):
    for name, mask in masks(*SHAPE).items():
        with subtests.test(mask=name):
            for actual, expected in zip(evaluate(mask, MANY_BLOCKS), evaluate(mask, Blockwise()), strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def test_a_part_of_the_matrix(subtests):
    query, key, _ = tensors(grad=False)
    selection = {"batch": [1], "heads": [3, 0], "queries": [30, 2, 3, 17, 0]}
    for name, mask in masks(*SHAPE).items():
        with subtests.test(mask=name):
            kernels = MANY_BLOCKS, None
            actual, expected = (weights(query, key, mask=mask, kernel=each).at(**selection) for each in kernels)
            torch.testing.assert_close(actual.entropy(), expected.entropy())
            torch.testing.assert_close(actual.received(), expected.received())


def test_nothing_is_read_between_blocks(subtests):
    """Graphs have a kernel of their own, and a block mask is read from a copy on the CPU."""
    for name, mask in masks(*SHAPE).items():
        if not name.startswith(("neighbors", "no edges", "block")):
            with subtests.test(mask=name):
                assert reads(mask, MANY_BLOCKS) == reads(mask, ONE_BLOCK)


def reads(mask, kernel):
    """What a forward and a backward pass and a part of the matrix read."""
    query, key, value = tensors()
    measured = {name: measure for name, measure in measures(*SHAPE[2:]).items() if measure.builtin}
    score = ScaledDotProduct() + Bias(torch.randn(4, 31, 37, dtype=torch.float64, requires_grad=True))
    with Reads() as recorded:
        att = attend(query, key, value, mask=mask, score=score, measure=measured, kernel=kernel)
        results = [each for each in att.measured.values() if isinstance(each, torch.Tensor)]
        torch.autograd.grad(att.output.sum() + sum(each.sum() for each in results), (query, key, value))
        weights(query, key, mask=mask, kernel=kernel).at(queries=torch.arange(0, 31, 3)).entropy()
    return recorded.names


def test_what_a_mask_excludes_is_skipped():
    n = 1024
    sizes = BlockSizes(rows=64, max_rows=64, elements=2**16, elements_per_head=2**20, waits=True)

    def share(mask, batch=1):
        request = make_request(torch.zeros(batch, 2, n, 4), torch.zeros(batch, 2, n, 4), mask=mask)
        sizes_of = [[part.stop - part.start for part in each.index] for each in chain(*partition(request, sizes, 1, 2))]
        return sum(b * h * q * k for b, h, q, k in sizes_of) / (batch * 2 * n * n)

    assert share(None) == 1
    assert share(Causal()) < 0.54
    assert share(Window(64, 0)) < 0.2
    assert share(Padding(torch.tensor([256, 512])), batch=2) < 0.51
    assert share(Documents(torch.arange(n) // 128)) < 0.13
    assert share(Causal() & Documents(torch.arange(n) // 256)) < 0.2


def test_blocks_grow_with_the_memory_of_a_device():
    assert not sizes_on(torch.device("cpu")).waits
    assert sizes_on(torch.device("meta")) == accelerator_sizes()
    small, large = (accelerator_sizes(2**exponent) for exponent in (32, 36))
    assert small.waits
    assert small.elements == 2**23
    assert large.elements == 2**27
    assert accelerator_sizes(2**40) == large
    assert accelerator_sizes(1).elements == 2**20
