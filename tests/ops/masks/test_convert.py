"""Masks converted to FlexAttention and back allow the same cells."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from helpers.ops.cases import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import attend, weights
from regard.ops.masks import Causal, Window, from_block_mask, to_block_mask, to_dense, to_mask_mod, to_spans

SHAPE = 2, 3, 21, 34
RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]


def test_masks_become_mask_mods_and_dense_masks(subtests):
    for name in RULES:
        with subtests.test(mask=name):
            check_mask_mod(name)


def check_mask_mod(name):
    rule, expected = masks(*SHAPE)[name], allowed(name, *SHAPE, 13)
    assert torch.equal(to_dense(rule, SHAPE), expected)
    block_mask = create_block_mask(to_mask_mod(rule, 13), *SHAPE, device="cpu", BLOCK_SIZE=8)
    mask_mod = torch.vmap(torch.vmap(block_mask.mask_mod, (None, None, None, 0)), (None, None, 0, None))
    cells = mask_mod(torch.tensor(1), torch.tensor(2), torch.arange(21), torch.arange(34))
    assert torch.equal(cells, expected[1, 2])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["causal", "documents", "neighbors", "dense", "function"])
def test_flex_attention_attends_to_the_same_cells(name):
    query = torch.randn(2, 3, 21, 16)
    key, value = torch.randn(2, 2, 3, 34, 16).unbind()
    rule = masks(*SHAPE)[name]
    has_keys = to_dense(rule, SHAPE).any(-1)  # flex_attention does not define rows without a key
    expected = flex_attention(query, key, value, block_mask=to_block_mask(rule, SHAPE, BLOCK_SIZE=16))
    torch.testing.assert_close(attend(query, key, value, mask=rule).output[has_keys], expected[has_keys])


def test_a_block_mask_is_converted_back():
    mask = to_block_mask(Causal() & Window(5, None), SHAPE, BLOCK_SIZE=8)
    assert torch.equal(to_dense(mask, SHAPE), to_dense(Causal() & Window(5, None), SHAPE))
    assert torch.equal(to_dense(~from_block_mask(mask), SHAPE), to_dense(~(Causal() & Window(5, None)), SHAPE))
    assert repr(from_block_mask(mask)) == "FlexBlockMask(21 × 34)"


def test_a_block_mask_without_mask_mod_allows_whole_blocks():
    mask = BlockMask.from_kv_blocks(torch.tensor([[[1, 2]]]), torch.tensor([[[[1, 0], [0, 1]]]]), BLOCK_SIZE=4)
    x = torch.zeros(1, 1, 8, 4)
    W = weights(x, x, mask=mask)
    assert (W[0, 0, 1] > 0).tolist() == [False] * 4 + [True] * 4
    assert (W[0, 0, 5] > 0).all()


def test_a_block_mask_may_index_a_table_in_steps():
    table = torch.randn(2, 3, 21, 34, generator=torch.Generator().manual_seed(0)) > 0
    mask = create_block_mask(lambda b, h, q, k: table[b][h][q][k], *SHAPE, device="cpu", BLOCK_SIZE=16)
    assert torch.equal(to_dense(mask, SHAPE), table)
    rule = from_block_mask(mask)
    assert torch.equal(to_dense(rule.to("cpu") & Causal(), SHAPE), table & to_dense(Causal(), SHAPE))


@pytest.mark.parametrize(
    ("mask_mod", "error", "message"),
    [
        (lambda b, h, q, k: q - k, InvalidType, "to return a bool scalar, got int64 of shape ()"),
        (lambda b, h, q, k: q - torch.arange(3) > k, InvalidType, "to return a bool scalar, got bool of shape (3,)"),
        (lambda b, h, q, k: True, InvalidArgument, "mask: the BlockMask's mask_mod failed with ValueError: vmap"),
        (lambda b, h, q: q > 0, InvalidArgument, "mask: the BlockMask's mask_mod failed with TypeError: "),
        (lambda b, h, q, k: torch.ones(3)[k] > 0, InvalidArgument, "mask_mod failed with IndexError: "),
    ],
)
def test_block_masks_with_a_wrong_function_are_rejected(mask_mod, error, message):
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 40, 40, device="cpu")
    mask.mask_mod = mask_mod
    x = torch.zeros(1, 1, 40, 4)
    with pytest.raises(error, match=re.escape(message)):
        weights(x, x, mask=mask)


def test_a_slice_of_a_block_mask_is_rejected():
    mask = create_block_mask(lambda b, h, q, k: q >= k, 2, None, 40, 40, device="cpu")[1:]
    with pytest.raises(InvalidArgument, match="Cannot use mask_mod from a sliced BlockMask"):
        from_block_mask(mask)


def test_a_block_mask_of_another_size_is_rejected():
    mask = create_block_mask(lambda b, h, q, k: q >= k, 2, None, 40, 50, device="cpu")
    with pytest.raises(InvalidArgument) as error:
        weights(torch.zeros(3, 1, 40, 4), torch.zeros(3, 1, 40, 4), mask=mask)
    assert str(error.value).splitlines() == [
        "2 problems:",
        "  - mask: expected a BlockMask for (queries, keys) = (40, 40), got (40, 50)",
        "  - mask: expected a BlockMask with batch 1 or 3, got 2",
    ]
    with pytest.raises(InvalidType, match="expected a BlockMask of FlexAttention, got Causal"):
        from_block_mask(Causal())


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda b, h, q, k: q - k, InvalidType, r"to return a bool tensor, got int64 \("),
        (lambda b, h, q, k: True, InvalidType, "to return a bool tensor, got bool"),
        (lambda b, h, q, k: (q >= k).any(), InvalidArgument, "to work elementwise on index tensors"),
        (lambda b, h, q, k: torch.arange(8)[q] >= k.max(), InvalidArgument, "to work elementwise on index tensors"),
    ],
)
def test_a_function_must_work_elementwise(function, error, message):
    x = torch.zeros(1, 1, 8, 4)
    with pytest.raises(error, match=r"mask: expected MaskMod\(<lambda>\) " + message):
        weights(x, x, mask=function)


def test_a_function_is_checked_once_for_the_axes_along_which_there_is_anything_to_check():
    calls = []

    def causal(b, h, q, k):
        calls.append(q.shape)
        return q >= k

    x = torch.zeros(1, 1, 8, 4)
    weights(x, x, mask=causal)
    first = len(calls)
    weights(x, x, mask=causal)
    assert first == len(calls) == 17
    for length in range(2, 8):  # as in a decoding loop
        weights(x[:, :, :length], x, mask=causal)
    assert len(calls) == first
    for length in range(2, 8):
        weights(x[:, :, :1], x[:, :, :length], mask=causal)
    assert len(calls) == 2 * first


def test_a_function_that_is_elementwise_for_one_query_only_is_rejected_for_two():
    x = torch.zeros(1, 1, 8, 4)

    def last(b, h, q, k):
        return k <= q.max() + 7

    weights(x[:, :, :1], x, mask=last)
    with pytest.raises(InvalidArgument, match="to work elementwise"):
        weights(x, x, mask=lambda b, h, q, k: k <= q.max())


def test_the_error_of_a_function_that_fails_for_longer_inputs():
    documents = torch.tensor([0, 0, 0, 1, 1, 1])

    def same_document(b, h, q, k):
        return documents[q] == documents[k]

    x = torch.zeros(1, 1, 8, 4)
    weights(x[:, :, :6], x[:, :, :6], mask=same_document).entropy()
    with pytest.raises(
        InvalidArgument, match=r"mask: MaskMod\(same_document\) failed with IndexError: index 6 is out of"
    ):
        weights(x, x, mask=same_document).entropy()


def test_a_mask_mod_takes_index_tensors_that_broadcast(subtests):
    for name in RULES:
        with subtests.test(mask=name):
            check_index_tensors(name)


def check_index_tensors(name):
    rule, expected = masks(*SHAPE)[name], allowed(name, *SHAPE, 13)
    sizes = enumerate(SHAPE)
    full = [torch.arange(size).view(*(-1 if axis == i else 1 for i in range(4))) for axis, size in sizes]
    mask_mod = to_mask_mod(rule, 13)
    assert torch.equal(mask_mod(*full), expected)
    q_idx, kv_idx = torch.tensor([[0], [20], [3]]), torch.tensor([[33, 2], [7, 0], [5, 5]])
    assert torch.equal(mask_mod(1, 2, q_idx, kv_idx), expected[1, 2][q_idx, kv_idx])
    b, h = torch.tensor([[0, 1]]), torch.tensor([[2], [0]])
    assert torch.equal(mask_mod(b, h, 20, 3), expected[b, h, 20, 3])
    same = torch.arange(21)
    assert torch.equal(mask_mod(0, 0, same, same), expected[0, 0, same, same])


def test_shapes_are_checked():
    for convert in (to_dense, to_spans, to_block_mask):
        with pytest.raises(InvalidArgument, match=r"shape: expected .* of at least 1 each, got \(1, 1, 0, 4\)"):
            convert(Causal(), (1, 1, 0, 4))
        with pytest.raises(InvalidType, match="shape: expected"):
            convert(Causal(), 4)
    block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 21, 34, device="cpu")
    assert torch.equal(to_dense(block_mask, list(SHAPE)), to_dense(block_mask, SHAPE))
