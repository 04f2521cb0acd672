"""SpansTensor gives what a dense mask gives."""

from __future__ import annotations

import pytest
import torch

from regard.ops.masks import Causal, Padding, Window, to_spans
from regard.watching.spans_tensor import SpansTensor

SHAPE = (2, 1, 6, 9)
VALID = torch.tensor([[True] * 9, [False] * 2 + [True] * 5 + [False] * 2])


def pair(offset: int = 3):
    """A mask, and the same as a dense tensor."""
    position, key = torch.arange(6)[:, None] + offset, torch.arange(9)
    dense = ((key <= position) & (key >= position - 4)) & VALID[:, None, None, :]
    spans = to_spans(Causal() & Window(4, None) & Padding(VALID), SHAPE, offset)
    return SpansTensor(spans, SHAPE, offset), dense


@pytest.mark.parametrize(
    "use",
    [
        lambda mask: mask.clone(),
        lambda mask: mask[:, :, 2:4, :5],
        lambda mask: ~mask,
        lambda mask: mask & mask.new_ones(6, 9, dtype=torch.bool).tril(),
        lambda mask: torch.cat([mask, mask], 3),
        lambda mask: torch.where(mask, 0.0, -1.0),
        lambda mask: mask.to(torch.float64),
        lambda mask: mask.expand(2, 4, 6, 9),
        lambda mask: mask.sum(-1),
        lambda mask: torch.zeros(2, 4, 6, 9).masked_fill(~mask, -torch.inf),
        lambda mask: torch.nn.functional.scaled_dot_product_attention(
            *(torch.arange(2.0 * 4 * size * 8).view(2, 4, size, 8).sin() for size in (6, 9, 9)), attn_mask=mask
        ),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_operations_give_what_they_give_for_the_dense_mask(use, inference):
    with torch.inference_mode(inference):
        mask, dense = pair()
        actual, expected = use(mask), use(dense)
    assert type(actual) is torch.Tensor
    assert torch.equal(actual, expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda mask: mask.detach(),
        lambda mask: mask.contiguous(),
        lambda mask: mask.to("cpu", torch.bool, copy=True),
        lambda mask: mask.bool(),
    ],
)
def test_copies_stay_ranges_of_keys(use):
    mask, dense = pair()
    copy = use(mask)
    assert isinstance(copy, SpansTensor)
    assert (copy.offset, copy.shape, copy.dtype, copy.device) == (3, dense.shape, torch.bool, dense.device)
    assert torch.equal(copy.dense(), dense)


def test_memory_is_linear_in_the_queries():
    mask = SpansTensor(to_spans(Causal(), (1, 1, 500, 500)), (4, 1, 500, 500), 0)
    assert mask.starts.nbytes + mask.stops.nbytes == 2 * 4 * 500
    assert mask.dense().shape == (4, 1, 500, 500)
    assert repr(mask) == "SpansTensor(shape=(4, 1, 500, 500), device='cpu')"
