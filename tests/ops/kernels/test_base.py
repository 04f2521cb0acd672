"""What the calls of all kernels have in common."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.ops.kernels.dispatch import KERNELS

ON_CPU = [
    kernel.name for kernel in KERNELS if kernel.name in ("native", "blockwise") and not kernel.unavailable_reason()
]


@pytest.mark.parametrize("kernel", ON_CPU)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_heads_of_an_output_are_joined_without_a_copy(kernel, requires_grad):
    query, key, value = (torch.randn(2, 3, size, 8) for size in (5, 7, 7))
    expected = scaled_dot_product_attention(query, key, value)
    query.requires_grad_(requires_grad)
    output = regard.attend(query, key, value, measure="entropy", kernel=kernel).output
    joined = output.transpose(1, 2).flatten(2)  # (batch, queries, heads * value_dim)
    assert joined.data_ptr() == output.data_ptr()
    torch.testing.assert_close(output, expected)
