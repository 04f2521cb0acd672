"""The sizes, dtypes, heads, masks and scores that torch tests its own attention with, against torch in float64."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from helpers.pairwise import everything
from regard.ops import attend
from regard.ops.kernels.base import Kernel
from regard.ops.masks import Causal, Documents, Prefix, Window
from regard.ops.scores import Alibi, Bias, ScaledDotProduct, SoftCap

COUNT = 1000 if everything() else 25
KERNELS = ["native", "blockwise", "reference", None]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
MAX_CELLS = 2**22
"""Cells of a call; larger ones are drawn again."""

# Those of scaled_dot_product_attention: on a CPU, of its fused kernels on a GPU, and among the samples of operators.
BATCHES = [1, 2, 4, 8, 12]
LENGTHS = [3, 4, 6, 8, 11, 16, 37, 64, 103, 128, 143, 152, 256, 267, 408, 512, 514, 587, 1024, 1030]
HEADS = [(1, 1), (3, 3), (4, 4), (16, 8), (10, 2), (9, 3), (8, 2), (32, 8)]
DIMS = [4, 8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256]
MASKS = ["none", "causal", "bool of keys", "bool", "float", "float of texts"]
SCALES = [None, 0.1, 1.0, -0.5]

# Those of flex_attention, and of its kernel for decoding.
FLEX_BATCHES = [1, 2, 4]
FLEX_LENGTHS = [1, 2, 16, 17, 32, 63, 100, 128, 256, 277, 379, 437, 512, 514, 1023, 1025]
FLEX_HEADS = [(1, 1), (4, 2), (4, 1), (8, 2), (16, 1), (16, 16), (5, 5)]
FLEX_DIMS = [(64, 64), (64, 16), (16, 64), (17, 24), (24, 24), (94, 121), (128, 64), (49, 49), (57, 32)]


def draw(seed, *axes):
    """A value of each axis; the first four are batch, heads, queries and keys."""
    drawn = random.Random(seed)
    while True:
        case = [drawn.choice(axis) for axis in axes]
        if case[0] * case[1][0] * case[2] * case[3] <= MAX_CELLS:
            return case


def random_tensors(batch, heads, queries, keys, dim, value_dim, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = (heads[0], queries, dim), (heads[1], keys, dim), (heads[1], keys, value_dim)
    return [torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes]


def kernel_for(kernel, dtype):
    return kernel if kernel is None or dtype in Kernel.registered[kernel].dtypes else None


def compare(function, reference, tensors, dtype, gradients=True):
    """Results and gradients of two functions of the tensors, the second in float64."""
    results = []
    for call, to in ((function, dtype), (reference, torch.float64)):
        leaves = [tensor.to(to).requires_grad_(gradients) for tensor in tensors]
        actual = call(*leaves)
        upstream = [torch.linspace(-1, 1, x.numel()).view(x.shape).to(dtype).to(x.dtype) for x in actual]
        finite = [torch.where(x.isfinite(), x, 0.0) for x in actual]  # rows without keys have an lse of -inf
        results.append([*actual, *(torch.autograd.grad(finite, leaves, upstream) if gradients else ())])
    for number, (actual, exact) in enumerate(zip(*results, strict=True)):
        finite = exact.isfinite()
        assert torch.equal(actual.double()[~finite], exact[~finite])
        error = torch.where(finite, actual.double() - exact, 0.0).abs().max().item()
        largest = max(torch.where(finite, exact, 0.0).abs().max().item(), 1e-3)
        digits = 1e-12 if dtype == torch.float64 else 2e-5
        assert error <= max(digits, torch.finfo(actual.dtype).eps) * largest, (number, error, largest)


@pytest.mark.parametrize("seed", range(COUNT))
def test_the_grid_of_scaled_dot_product_attention(seed):
    axes = BATCHES, HEADS, LENGTHS, LENGTHS, DIMS, MASKS, SCALES, DTYPES, KERNELS
    batch, heads, queries, keys, dim, mask, scale, dtype, kernel = draw(seed, *axes)
    generator = torch.Generator().manual_seed(1)
    cells = {
        "bool of keys": torch.rand(batch, 1, 1, keys, generator=generator) < 0.8,
        "bool": torch.rand(batch, heads[0], queries, keys, generator=generator) < 0.8,
        "float": torch.randn(queries, keys, generator=generator).to(dtype),
        "float of texts": torch.randn(batch, 1, queries, keys, generator=generator).to(dtype),
    }.get(mask)
    is_float = mask.startswith("float")

    def function(query, key, value):
        score = ScaledDotProduct() + Bias(cells) if is_float else None
        rule = Causal() if mask == "causal" else None if is_float else cells
        name = kernel_for(kernel, dtype)
        return [attend(query, key, value, mask=rule, score=score, scale=scale, offset=0, kernel=name).output]

    def reference(query, key, value):
        options = {"attn_mask": cells.double() if is_float else cells, "is_causal": mask == "causal", "scale": scale}
        if mask == "causal":  # torch's own causal mask takes no scale below 0
            options |= {"attn_mask": torch.ones(queries, keys, dtype=torch.bool).tril(), "is_causal": False}
        output = scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
        if options["attn_mask"] is not None and not is_float:
            output = output.where(options["attn_mask"].any(-1, keepdim=True), 0.0)
        return [output]

    compare(function, reference, random_tensors(batch, heads, queries, keys, dim, dim, dtype), dtype)


def documents(length):
    return torch.arange(length) // 40


FLEX_RULES = {  # from heads, queries and keys: mask and score; score_mod and mask_mod
    "none": lambda h, n, m: (None, None, None, None),
    "causal": lambda h, n, m: (Causal(), None, None, lambda b, h, q, k: q >= k),
    "window": lambda h, n, m: (Window(33, 0), None, None, lambda b, h, q, k: (q >= k) & (q - k <= 33)),
    "prefix": lambda h, n, m: (Prefix(17), None, None, lambda b, h, q, k: (k < 17) | (q >= k)),
    "documents": lambda h, n, m: (
        Documents(documents(m), documents(n)),
        None,
        None,
        lambda b, h, q, k: documents(n)[q] == documents(m)[k],
    ),
    "relative bias": lambda h, n, m: (
        None,
        ScaledDotProduct() + Bias((torch.arange(n)[:, None] - torch.arange(m)) / 16.0),
        lambda s, b, h, q, k: s + (q - k) / 16.0,
        None,
    ),
    "bias of heads": lambda h, n, m: (
        Causal(),
        ScaledDotProduct() + Bias(torch.arange(h * n * m).view(h, n, m) % 7 / 4.0),
        lambda s, b, h, q, k: s + ((h * n + q) * m + k) % 7 / 4.0,
        lambda b, h, q, k: q >= k,
    ),
    "ALiBi": lambda h, n, m: (
        Causal(),
        ScaledDotProduct() + Alibi(0.5 ** torch.arange(1.0, h + 1)),
        lambda s, b, h, q, k: s - 0.5 ** (h + 1) * (q - k).abs(),
        lambda b, h, q, k: q >= k,
    ),
    "soft-cap": lambda h, n, m: (
        Window(None, 0),
        SoftCap(ScaledDotProduct(), 1.5),
        lambda s, b, h, q, k: 1.5 * torch.tanh(s / 1.5),
        lambda b, h, q, k: q >= k,
    ),
    "checkerboard": lambda h, n, m: (
        None,
        ScaledDotProduct() + Bias(((torch.arange(n)[:, None] + torch.arange(m)) % 2 == 0) * 1.0),
        lambda s, b, h, q, k: s + ((q + k) % 2 == 0) * 1.0,
        None,
    ),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(COUNT))
def test_the_grid_of_flex_attention(seed):
    axes = FLEX_BATCHES, FLEX_HEADS, FLEX_LENGTHS, FLEX_LENGTHS, FLEX_DIMS, list(FLEX_RULES), DTYPES, KERNELS
    batch, heads, queries, keys, (dim, value_dim), rule, dtype, kernel = draw(seed, *axes)
    mask, score, score_mod, mask_mod = FLEX_RULES[rule](heads[0], queries, keys)
    block_mask = None
    if mask_mod is not None:
        block_mask = create_block_mask(mask_mod, None, None, queries, keys, device="cpu")

    def function(query, key, value):
        name = kernel_for(kernel, dtype)
        att = attend(query, key, value, mask=mask, score=score, offset=0, measure="lse", kernel=name)
        return [att.output, att.measured["lse"]]

    def reference(query, key, value):
        output, aux = flex_attention(
            query,
            key,
            value,
            score_mod,
            block_mask,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        return [output, aux.lse]

    tensors = random_tensors(batch, heads, queries, keys, dim, value_dim, dtype)
    compare(function, reference, tensors, dtype, gradients=False)  # torch has none on a CPU
