"""Every kernel gives what the definition says: outputs, answers and gradients, whatever the mask, dtype and shape."""

from __future__ import annotations

import pytest
import torch

from ops.rules import allowed, definition, masks, measures
from pairwise import pairwise
from regard.errors import KernelRefused
from regard.ops import attend
from regard.ops.kernels.base import Job
from regard.ops.kernels.choose import KERNELS
from regard.ops.request import make_request

SHAPES = {  # batch, heads, kv_heads, queries, keys, head_dim, value_dim
    "plain": (2, 4, 4, 33, 33, 8, 8),
    "one query": (2, 4, 4, 1, 20, 8, 8),
    "one key": (1, 2, 2, 5, 1, 4, 4),
    "one of each": (1, 1, 1, 1, 1, 1, 1),
    "grouped": (2, 6, 2, 20, 31, 8, 5),
    "one kv head": (3, 4, 1, 17, 9, 4, 8),
    "blocks": (1, 2, 1, 300, 270, 4, 6),
    "more queries than keys": (1, 2, 2, 40, 13, 4, 4),
}
OFFSETS = {"default": None, "zero": 0, "ahead": 7, "behind": -6}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def tensors(shape, dtype):
    batch, heads, kv_heads, queries, keys, head_dim, value_dim = SHAPES[shape]
    random = torch.Generator().manual_seed(1)
    # Not contiguous: the layout that projecting and splitting heads leaves behind.
    query = (
        torch.randn(batch, queries, heads, head_dim, generator=random, dtype=torch.float64).to(dtype).transpose(1, 2)
    )
    key = torch.randn(batch, keys, kv_heads, head_dim, generator=random, dtype=torch.float64).to(dtype).transpose(1, 2)
    value = (
        torch.randn(batch, keys, kv_heads, value_dim, generator=random, dtype=torch.float64).to(dtype).transpose(1, 2)
    )
    return [tensor.requires_grad_() for tensor in (query, key, value)]


def close(found, expected, tolerance, what):
    found, expected = found.double(), expected.double()
    same = torch.isfinite(expected)
    assert torch.equal(found[~same], expected[~same]), what
    scale = max(1.0, expected[same].abs().max().item()) if same.any() else 1.0
    assert not same.any() or (found[same] - expected[same]).abs().max() <= tolerance * scale, what


def weighed(*results):
    """One number that depends on every entry."""
    return sum((result * torch.linspace(0.5, 1.5, result.numel()).view(result.shape)).sum() for result in results)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    ("shape", "mask", "offset", "dtype"),
    pairwise(list(SHAPES), list(masks(1, 1, 1, 1)), list(OFFSETS), list(TOLERANCE)),
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_a_kernel_gives_what_the_definition_says(kernel, shape, mask, offset, dtype):
    query, key, value = given = tensors(shape, dtype)
    batch, heads, _, queries, keys, head_dim, _ = SHAPES[shape]
    rule = masks(batch, heads, queries, keys)[mask]
    shift = keys - queries if OFFSETS[offset] is None else OFFSETS[offset]
    cells = allowed(mask, batch, heads, queries, keys, shift)
    asked = measures(keys) if kernel.measures is None else {}

    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    output, _, _, answers = definition(*exact, cells, head_dim**-0.5)
    rules = {"mask": rule, "offset": OFFSETS[offset], "measure": asked, "kernel": kernel.name}
    if kernel.why_not(Job(make_request(query, key, mask=rule, offset=OFFSETS[offset]), value, asked)):
        assert (kernel.name, shape) == ("short", "blocks")  # the only refusal among these cases
        with pytest.raises(KernelRefused, match="it takes up to 128 queries and keys, not 300"):
            attend(query, key, value, **rules)
        return
    att = attend(query, key, value, **rules)

    assert att.output.dtype == dtype
    close(att.output, output, TOLERANCE[dtype], "output")
    found = {name: answer.values if name == "topk" else answer for name, answer in att.measured.items()}
    for name, answer in found.items():
        assert answer.dtype == (torch.float64 if dtype == torch.float64 or name == "squares" else torch.float32)
        close(answer, answers[name], min(TOLERANCE[dtype], 1e-4), name)

    finite = [x.masked_fill(x == -torch.inf, 0.0) for x in found.values()]
    expected = [answers[name].masked_fill(answers[name] == -torch.inf, 0.0) for name in found]
    ours = torch.autograd.grad(weighed(att.output.double(), *finite), given)
    theirs = torch.autograd.grad(weighed(output, *expected), exact)
    for name, mine, right in zip(("query", "key", "value"), ours, theirs, strict=True):
        assert mine.dtype == dtype
        close(mine, right, 5 * TOLERANCE[dtype], f"gradient of {name}")
