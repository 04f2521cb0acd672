"""FlexAttention is the oracle: the same cells, there and back."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ops.rules import allowed, masks
from regard.errors import InvalidArgument, InvalidType
from regard.ops import Causal, Window, attend, weights
from regard.ops.masks import from_block_mask, to_block_mask, to_dense, to_mask_mod

SHAPE = 2, 3, 21, 34
RULES = [name for name in masks(1, 1, 1, 1) if name != "none"]


@pytest.mark.parametrize("name", RULES)
def test_a_mask_becomes_a_mask_mod_and_a_dense_one(name):
    rule, truth = masks(*SHAPE)[name], allowed(name, *SHAPE, 13)
    assert torch.equal(to_dense(rule, SHAPE), truth)
    made = create_block_mask(to_mask_mod(rule, 13), *SHAPE, device="cpu", BLOCK_SIZE=8)
    assert torch.equal(torch.vmap(torch.vmap(made.mask_mod, (None, None, None, 0)), (None, None, 0, None))(
        torch.tensor(1), torch.tensor(2), torch.arange(21), torch.arange(34)
    ), truth[1, 2])  # fmt: skip


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ["causal", "documents", "neighbours", "dense", "function"])
def test_flex_attention_attends_to_the_same_cells(name):
    query = torch.randn(2, 3, 21, 16)
    key, value = torch.randn(2, 2, 3, 34, 16).unbind()
    rule = masks(*SHAPE)[name]
    seen = to_dense(rule, SHAPE).any(-1)  # what flex_attention gives for a row without a key is its own affair
    theirs = flex_attention(query, key, value, block_mask=to_block_mask(rule, SHAPE, BLOCK_SIZE=16))
    torch.testing.assert_close(attend(query, key, value, mask=rule).output[seen], theirs[seen])


def test_a_block_mask_comes_back_as_it_was():
    mask = to_block_mask(Causal() & Window(5, None), SHAPE, BLOCK_SIZE=8)
    assert torch.equal(to_dense(mask, SHAPE), to_dense(Causal() & Window(5, None), SHAPE))
    assert torch.equal(to_dense(~from_block_mask(mask), SHAPE), to_dense(~(Causal() & Window(5, None)), SHAPE))
    assert repr(from_block_mask(mask)) == "Blocks(21 × 34)"


def test_blocks_count_also_where_there_is_no_mask_mod():
    mask = BlockMask.from_kv_blocks(torch.tensor([[[1, 2]]]), torch.tensor([[[[1, 0], [0, 1]]]]), BLOCK_SIZE=4)
    x = torch.zeros(1, 1, 8, 4)
    W = weights(x, x, mask=mask)
    assert (W[0, 0, 1] > 0).tolist() == [False] * 4 + [True] * 4
    assert (W[0, 0, 5] > 0).all()


def test_a_block_mask_of_another_size_is_refused():
    mask = create_block_mask(lambda b, h, q, k: q >= k, 2, None, 40, 50, device="cpu")
    with pytest.raises(InvalidArgument) as error:
        weights(torch.zeros(3, 1, 40, 4), torch.zeros(3, 1, 40, 4), mask=mask)
    assert r"the BlockMask was made for (queries, keys) = (40, 50), expected (40, 40)" in str(error.value)
    assert "the BlockMask has batch 2, expected 1 or 3" in str(error.value)
    with pytest.raises(InvalidType, match="expected a BlockMask of FlexAttention, got Causal"):
        from_block_mask(Causal())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda b, h, q, k: q - k, "must give a bool tensor, but gave torch.int64"),
        (lambda b, h, q, k: True, "must give a bool tensor, but gave bool"),
        (lambda b, h, q, k: (q >= k).any(), "must work cell by cell"),
        (lambda b, h, q, k: torch.arange(8)[q] >= k.max(), "must work cell by cell"),
    ],
)
def test_a_function_must_work_cell_by_cell(function, said):
    x = torch.zeros(1, 1, 8, 4)
    with pytest.raises(InvalidArgument, match=said):
        weights(x, x, mask=function)
