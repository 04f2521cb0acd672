"""Calls of the native kernel for processes that watch its memory: guard pages around each tensor, or a sanitizer.

``python -m helpers.ops.native_calls guarded`` runs a sample of calls with each tensor between two pages that no one may
read or write: the process dies of SIGSEGV at the first access outside. ``... plain`` runs them in ordinary memory.
``... guarded 2 8`` runs every eighth call from the third on, and ``... guarded 2 8 10`` those of ten samples.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import warnings
from collections.abc import Callable
from itertools import product
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from helpers.pairwise import pairwise
from regard.native.gelu import run_gelu as gelu
from regard.native.library import Library, library
from regard.native.linear import multiply
from regard.ops import attend, weights
from regard.ops.indexing import SelectCells
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, DenseMask, Documents, Padding, Prefix, Spans, Window
from regard.ops.measures import (
    BlockMean,
    Diagonal,
    DistanceHistogram,
    GroupPool,
    KLDivergence,
    Mass,
    Measure,
    Received,
    TopK,
    TransposedProduct,
)
from regard.ops.scores import Alibi, Bias, RelativeKey, RelativeQuery, ScaledDotProduct, Sinks, SoftCap, T5RelativeBias
from regard.ops.tree import map_float_tensors, tensors_in

Allocate = Callable[[Tensor], Tensor]
"""Copies a tensor into memory that it allocates."""

SIZES = (
    (1, 1),
    (1, 200),
    (5, 13),
    (7, 63),
    (9, 65),
    (33, 64),
    (96, 127),
    (97, 1),
    (130, 257),
    (300, 129),
    (257, 521),
    (683, 70),
)
"""(queries, keys)."""
DIMS = ((1, 1), (7, 40), (40, 7), (80, 64), (64, 80), (3, 256), (256, 5))
"""(head_dim, value_dim)."""
HEADS = ((1, 1), (4, 4), (4, 2), (3, 1))
"""(heads, kv_heads)."""
BATCH = 2
ENDS = torch.tensor([0, 70, torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min, -5])

MASKS: dict[str, Callable[[Allocate, int, int, int], Any]] = {  # from heads, queries, keys
    "none": lambda allocate, h, n, m: None,
    "causal": lambda allocate, h, n, m: Causal(),
    "window": lambda allocate, h, n, m: Window(70, 3),
    "lengths": lambda allocate, h, n, m: Padding(allocate(torch.tensor([m, m // 2]))),
    "padding": lambda allocate, h, n, m: Padding(allocate(torch.arange(BATCH * m).view(BATCH, m) % 5 != 1)),
    "dense": lambda allocate, h, n, m: DenseMask(
        allocate(torch.arange(BATCH * h * n * m).view(BATCH, h, n, m) % 7 != 3)
    ),
    "dense of keys": lambda allocate, h, n, m: DenseMask(allocate(torch.arange(m) % 3 != 1)),
    "dense of queries": lambda allocate, h, n, m: DenseMask(allocate(torch.arange(n)[:, None] % 3 != 1)),
    "dense, keys first": lambda allocate, h, n, m: DenseMask(allocate(torch.arange(n * m).view(m, n) % 3 != 1).mT),
    "documents": lambda allocate, h, n, m: Documents(
        allocate((torch.arange(BATCH * m) // 9).view(BATCH, m)), allocate((torch.arange(BATCH * n) // 9).view(BATCH, n))
    ),
    "prefix": lambda allocate, h, n, m: Prefix(allocate(torch.tensor([m // 3, m]))),
    "spans": lambda allocate, h, n, m: Spans(
        *(allocate((torch.arange(n) % m + x)[None, None, :, None]) for x in (0, 9))
    ),
    "spans of any numbers": lambda allocate, h, n, m: Spans(
        allocate(ENDS.repeat(n)[None, None, :n, None]), allocate(ENDS.flip(0).repeat(n)[None, None, :n, None])
    ),
    "window of any numbers": lambda allocate, h, n, m: Window(1 - 2**62, 2**62 - 1) | Window(2**62 - 1, -1),
    "and, or": lambda allocate, h, n, m: (Window(9, None) | Padding(allocate(torch.tensor([m, 1])))) & ~Prefix(2),
}
SCORES: dict[str, Callable[[Allocate, int, int, int], Any]] = {
    "scaled dot": lambda allocate, h, n, m: ScaledDotProduct(),
    "bias": lambda allocate, h, n, m: ScaledDotProduct() + Bias(allocate(torch.randn(BATCH, h, n, m))),
    "bias of keys": lambda allocate, h, n, m: ScaledDotProduct() + Bias(allocate(torch.randn(m))),
    "bias, keys first": lambda allocate, h, n, m: ScaledDotProduct() + Bias(allocate(torch.randn(m, n)).mT),
    "bias of any numbers": lambda allocate, h, n, m: (
        ScaledDotProduct() + Bias(allocate(torch.tensor([0.0, inf, -inf, nan, 3e38, -3e38, 1e-45]).repeat(m)[:m]))
    ),
    "ALiBi": lambda allocate, h, n, m: ScaledDotProduct() + Alibi(allocate(torch.rand(h))),
    "T5": lambda allocate, h, n, m: SoftCap(ScaledDotProduct(), 3.0) + T5RelativeBias(allocate(torch.randn(32, h))),
    "T5 of the past": lambda allocate, h, n, m: (
        ScaledDotProduct() + T5RelativeBias(allocate(torch.randn(6, h)), bidirectional=False, max_distance=9)
    ),
    "sinks": lambda allocate, h, n, m: Sinks(ScaledDotProduct(), allocate(torch.randn(h))),
    "sinks, soft-cap": lambda allocate, h, n, m: SoftCap(Sinks(ScaledDotProduct(), allocate(torch.randn(h))), 2.0),
    "bias of heads": lambda allocate, h, n, m: ScaledDotProduct() + Bias(allocate(torch.randn(h, n, m))),
    "bias of texts": lambda allocate, h, n, m: Bias(allocate(torch.randn(BATCH, 1, n, m))) + ScaledDotProduct(),
    "bias of queries": lambda allocate, h, n, m: ScaledDotProduct() + Bias(allocate(torch.randn(n, 1))),
}
RELATIVE: dict[str, Callable[[Allocate, int, int], Any]] = {  # from heads and head_dim
    "relative": lambda allocate, h, dim: ScaledDotProduct() + RelativeKey(allocate(torch.randn(7, dim))),
    "relative of heads": lambda allocate, h, dim: ScaledDotProduct() + RelativeKey(allocate(torch.randn(h, 129, dim))),
    "relative query": lambda allocate, h, dim: ScaledDotProduct() + RelativeQuery(allocate(torch.randn(7, dim))),
    "relative, both": lambda allocate, h, dim: (
        SoftCap(ScaledDotProduct() + RelativeQuery(allocate(torch.randn(BATCH, h, 259, dim))), 9.0)
        + RelativeKey(allocate(torch.randn(BATCH, h, 15, dim)))
    ),
}
MEASURES: dict[str, Callable[[Allocate, int, int, int, int], dict[str, str | Measure]]] = {  # ..., and head_dim
    "none": lambda allocate, h, n, m, dim: {},
    "of rows": lambda allocate, h, n, m, dim: {
        **{name: name for name in ("entropy", "lse", "max", "mean_distance")},
        "topk": TopK(3),
        "histogram": DistanceHistogram(3),
        "diagonal": Diagonal(1),
        "wide histogram": DistanceHistogram(90),
        "far diagonal": Diagonal(-2 * m),
        "long topk": TopK(64),
    },
    "of keys": lambda allocate, h, n, m, dim: {
        "received": "received",
        "of some": Received(allocate(torch.linspace(-1, 1, n))),
        "of texts": Received(allocate(torch.rand(BATCH, 1, n))),
        "of halves": Received(allocate(torch.rand(1, h, n).to(torch.bfloat16))),
        "few columns": TransposedProduct(allocate(torch.rand(1, h, n, 3))),
        "columns": TransposedProduct(allocate(torch.rand(BATCH, 1, n, 5))),
        "many columns": TransposedProduct(allocate(torch.rand(1, 1, n, 70).to(torch.float16))),
    },
    "of cells": lambda allocate, h, n, m, dim: {
        "blocks": BlockMean(5),
        "groups": GroupPool(*(allocate(torch.arange(size) // 3 - 1) for size in (n + 3, m + 3))),
        "own groups": GroupPool(*(allocate(torch.arange(BATCH * (x + 6)).view(BATCH, -1) % 9) for x in (n, m))),
        "cells": SelectCells("weights", slice(m // 3, None)),
    },
    "of masks": lambda allocate, h, n, m, dim: {
        "mass": Mass(Window(2, 1)),
        "dense": Mass(allocate(torch.arange(h * n * m).view(1, h, n, m) % 3 != 1)),
        "padding": Mass(~Padding(allocate(torch.arange(BATCH * m).view(BATCH, m) % 5 != 1))),
        "documents": Mass(Documents(allocate(torch.arange(m) // 9))),
    },
    "divergence": lambda allocate, h, n, m, dim: {
        "divergence": KLDivergence(
            weights(
                allocate(torch.randn(BATCH, h, n, dim + 1)),
                allocate(torch.randn(BATCH, h, m, dim + 1)),
                mask=Window(90, 3) | Padding(allocate(torch.arange(BATCH * m).view(BATCH, m) % 5 != 1)),
                score=Sinks(ScaledDotProduct() + Alibi(allocate(torch.rand(h))), allocate(torch.randn(h))),
            )
        )
    },
}
DROPOUT = (0.0, 0.3)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LINEAR_ROWS = (1, 2, 3, 4, 5, 7, 8, 31)
GELU_COUNTS = (1, 3, 8, 15, 16, 17, 33, 4095, 4096, 4097, 9000)
LINEAR_FEATURES = ((1, 1), (3, 2), (7, 70), (15, 3), (16, 4), (17, 5), (33, 130), (64, 9), (200, 7), (613, 401))
LAYOUTS = ("contiguous", "heads last", "features first")


def run(
    allocate: Allocate,
    sizes: Any,
    dims: Any,
    heads: Any,
    mask: str,
    score: str,
    measures: str,
    dropout: float,
    dtype: Any,
    layout: str,
) -> list[Tensor]:
    """Output, measures and gradients of a call whose tensors are in allocated memory."""
    torch.manual_seed(0)
    (queries, keys), (head_dim, value_dim), (num_heads, kv_heads) = sizes, dims, heads
    inputs = [
        _laid_out(allocate, layout, dtype, BATCH, *shape).requires_grad_()
        for shape in ((num_heads, queries, head_dim), (kv_heads, keys, head_dim), (kv_heads, keys, value_dim))
    ]
    of = num_heads, queries, keys
    rule = RELATIVE[score](allocate, num_heads, head_dim) if score in RELATIVE else SCORES[score](allocate, *of)
    requested = MEASURES[measures](allocate, *of, head_dim)
    if measures == "of cells":  # placed with three more in front
        pool: Any = requested["groups"]
        requested["groups"] = GroupPool(pool.query_groups[3:], pool.key_groups[3:])
        grouped: Any = requested["own groups"]
        requested["own groups"] = GroupPool(grouped.query_groups[:, 6:], grouped.key_groups[:, 6:])
    if not dropout:  # with it, all gradients must be those of the kernel
        rule = map_float_tensors(rule, Tensor.requires_grad_)
        requested = map_float_tensors(requested, Tensor.requires_grad_) if measures == "of keys" else requested
    leaves = [*inputs, *(x for x in (*tensors_in(rule), *tensors_in(requested)) if x.requires_grad)]
    att = attend(
        *inputs, mask=MASKS[mask](allocate, *of), score=rule, measure=requested, dropout=dropout, kernel="native"
    )
    parts = [part for x in att.measured.values() for part in (x if isinstance(x, tuple) else (x,))]
    results = [att.output, *(part for part in parts if part.is_floating_point())]
    output_gradients = [allocate(torch.linspace(-1, 1, x.numel()).view(x.shape).to(x.dtype)) for x in results]
    finite = [torch.where(part.isfinite(), part, 0.0) for part in results]
    return [*results, *torch.autograd.grad(finite, leaves, output_gradients, allow_unused=True, materialize_grads=True)]


def _laid_out(allocate: Allocate, layout: str, dtype: torch.dtype, *shape: int) -> Tensor:
    order = {"contiguous": (0, 1, 2, 3), "heads last": (0, 2, 1, 3), "features first": (0, 1, 3, 2)}[layout]
    storage = torch.randn([shape[axis] for axis in order]).to(dtype)
    return allocate(storage).permute(order)  # each of these permutations is its own inverse


def run_linear(allocate: Allocate, rows: int, features: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """A linear layer of a few rows, with a bias and without one; its tensors are in allocated memory."""
    torch.manual_seed(0)
    x, weight, bias = (
        allocate(torch.randn(shape).to(dtype)) for shape in ((rows, features[0]), features[::-1], features[1:])
    )
    native = library()
    assert isinstance(native, Library)
    return [multiply(native, x, weight, bias), multiply(native, x, weight, None)]


def run_gelu(allocate: Allocate, count: int, dtype: torch.dtype) -> list[Tensor]:
    """A GELU and its gradient; its tensors are in allocated memory."""
    torch.manual_seed(0)
    x, gradient = (allocate(torch.randn(count).to(dtype)) for _ in range(2))
    return [gelu(x), gelu(x, gradient)]


def sample(rounds: int = 1) -> list[tuple[Any, ...]]:
    """Functions and their arguments without the allocator: every pair of settings occurs, in other cases each round."""
    cases: list[tuple[Any, ...]] = []
    scores = [*SCORES, *RELATIVE]
    for seed in range(rounds):
        axes = SIZES, DIMS, HEADS, list(MASKS), scores, list(MEASURES), DROPOUT, DTYPES, LAYOUTS
        cases += ((run, *case) for case in pairwise(*axes, seed=seed))
        cases += ((run_linear, *case) for case in pairwise(LINEAR_ROWS, LINEAR_FEATURES, DTYPES[:2], seed=seed))
    cases += ((run_gelu, *case) for case in product(GELU_COUNTS, DTYPES[:2]))
    return cases


PROT_NONE = 0  # of sys/mman.h
_libc = ctypes.CDLL(None, use_errno=True)
_kept: list[Any] = []


def guarded(tensor: Tensor, at_end: bool) -> Tensor:
    """A copy of a tensor that starts right after, or ends right before, a page that must not be accessed."""
    page, size = mmap.PAGESIZE, tensor.numel() * tensor.element_size()
    inside = (size + page - 1) // page * page
    memory = mmap.mmap(-1, inside + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (start, start + page + inside):
        if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    address = start + page + (inside - size if at_end else 0)
    buffer = (ctypes.c_char * max(size, 1)).from_address(address)
    _kept.append((memory, buffer))
    if not tensor.numel():
        return tensor.clone()
    return torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape).copy_(tensor)


def run_guarded(case: tuple[Any, ...]) -> None:
    """A call with its inputs and outputs between guard pages; the same results as in ordinary memory."""
    call, *arguments = case
    expected = call(torch.clone, *arguments)
    allocators = [(Tensor, name, getattr(Tensor, name)) for name in ("new_empty", "new_zeros")]
    allocators += [(torch, name, getattr(torch, name)) for name in ("empty", "zeros")]
    make_zeros = torch.zeros
    for at_end in (False, True):

        def of_tensor(self: Tensor, *shape: Any, at_end: bool = at_end, **options: Any) -> Tensor:
            size = shape[0] if shape and not isinstance(shape[0], int) else shape
            return guarded(make_zeros(tuple(size), **{"dtype": self.dtype, **options}), at_end)

        def of_shape(*shape: Any, at_end: bool = at_end, **options: Any) -> Tensor:
            return guarded(make_zeros(*shape, **options), at_end)

        for owner, name, _ in allocators:
            setattr(owner, name, of_tensor if owner is Tensor else of_shape)
        try:
            actual = call(lambda tensor, at_end=at_end: guarded(tensor, at_end), *arguments)
        finally:
            for owner, name, original in allocators:
                setattr(owner, name, original)
        for result, reference in zip(actual, expected, strict=True):
            assert torch.equal(result.nan_to_num(7.0), reference.nan_to_num(7.0)), case
        _kept.clear()


def main() -> None:
    faulthandler.enable()
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    assert Native().unavailable_reason() is None, Native().unavailable_reason()
    os.environ["REGARD_TEST_ALL"] = "0"  # not the product of all settings
    first, step, rounds = (int(argument) for argument in [*sys.argv[2:], *("0", "1", "1")[len(sys.argv) - 2 :]])
    cases = sample(rounds)[first::step]
    for case in cases:
        print(*case, file=sys.stderr, flush=True)  # the last one is that of a crash
        if sys.argv[1] == "guarded":
            run_guarded(case)
        else:
            case[0](torch.clone, *case[1:])
    torch.set_num_threads(2)  # the second thread has memory of its own
    run(torch.clone, (700, 300), (16, 16), (4, 4), "causal", "bias", "of keys", 0.0, torch.float32, "heads last")
    print(f"ran {len(cases)} calls")


if __name__ == "__main__":
    main()
