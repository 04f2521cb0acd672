"""Bool tensors whose bytes are neither 0 nor 1 mean what they mean in torch, for every kernel and instruction set."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from helpers.ops.cases import CPU_KERNELS
from regard.native.library import LEVELS
from regard.ops import attend, weights
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, DenseMask, Neighbors, Padding
from regard.ops.measures import KLDivergence, Mass, Received

N, M = 37, 75
RUNS = [kernel for kernel in CPU_KERNELS if not isinstance(kernel, Native)]
RUNS += [kernel for kernel in map(Native, LEVELS) if not kernel.unavailable_reason()]


def version(kernel):
    return f"{kernel.name} {kernel.variant()}".strip()


def from_bytes(*shape, seed=0):
    """Every byte occurs, a third of them 0."""
    random = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    return raw.masked_fill(torch.rand(shape, generator=random) < 0.3, 0).view(torch.bool)


LAYOUTS = {
    "whole": lambda: from_bytes(2, 2, N, M),
    "keys": lambda: from_bytes(M),
    "queries": lambda: from_bytes(N, 1),
    "keys first": lambda: from_bytes(M, N).mT,
    "every second": lambda: from_bytes(N, 2 * M)[:, ::2],
    "shifted": lambda: from_bytes(N, M + 3)[:, 3:],
}
MASKS = {
    "dense": lambda cells: (DenseMask(cells), cells),
    "not": lambda cells: (~DenseMask(cells), cells.view(torch.uint8) == 0),
    "and": lambda cells: (DenseMask(cells) & Causal(), cells.logical_and(torch.ones(N, M).tril(M - N).bool())),
    "or": lambda cells: (DenseMask(cells) | Causal(), cells.logical_or(torch.ones(N, M).tril(M - N).bool())),
}


def same_as_torch(run, mask, cells, **options):
    query, key, value = torch.randn(3, 2, 2, M, 8, generator=torch.Generator().manual_seed(1)).unbind()
    query = query[:, :, :N]
    if run.required_mask is Neighbors:
        mask = Neighbors(*torch.ones(N, M).nonzero().T) & mask
    expected = scaled_dot_product_attention(
        query, key, value, attn_mask=(cells.view(torch.uint8) != 0).expand(2, 2, N, M)
    )
    actual = attend(query, key, value, mask=mask, kernel=run, **options)
    torch.testing.assert_close(actual.output, expected.nan_to_num(0.0))
    return actual, query, key


@pytest.mark.parametrize("run", RUNS, ids=version)
def test_a_byte_that_is_not_0_is_true_in_a_mask(run, subtests):
    for layout, name in product(LAYOUTS, MASKS):
        with subtests.test(layout=layout, mask=name):
            mask, cells = MASKS[name](LAYOUTS[layout]())
            same_as_torch(run, mask, cells)


@pytest.mark.parametrize("run", RUNS, ids=version)
def test_bytes_of_padding(run):
    real = from_bytes(2, M)
    same_as_torch(run, Padding(real), real[:, None, None, :])


@pytest.mark.parametrize("run", [run for run in RUNS if run.supports(Mass)], ids=version)
def test_bytes_of_masks_in_measures(run):
    cells, rows = from_bytes(2, 1, N, M), from_bytes(N, seed=2)
    measures = {"mass": Mass(cells), "received": Received(rows), "of keys": Mass(Padding(from_bytes(2, M, seed=3)))}
    query, key = torch.randn(2, 2, 2, M, 8, generator=torch.Generator().manual_seed(1)).unbind()
    query = query[:, :, :N]
    mask = Neighbors(*torch.ones(N, M).nonzero().T) if run.required_mask is Neighbors else None
    if run.supports(KLDivergence):
        measures["divergence"] = KLDivergence(weights(query, key, mask=DenseMask(from_bytes(M, seed=4))))
    actual = attend(query, key, key, mask=mask, measure=measures, kernel=run).measured
    P = (query @ key.mT / 8**0.5).softmax(-1)
    allowed = [x.view(torch.uint8) != 0 for x in (cells, rows, from_bytes(2, M, seed=3)[:, None, None])]
    expected = {
        "mass": (P * allowed[0]).sum(-1),
        "received": (P * allowed[1][:, None]).sum(-2),
        "of keys": (P * allowed[2]).sum(-1),
    }
    for name, exact in expected.items():
        torch.testing.assert_close(actual[name], exact)
    if "divergence" in actual:
        assert actual["divergence"].isinf().all()
