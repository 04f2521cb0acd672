"""`score_mod` functions: what `flex_attention` computes with them, and the gradients of dense attention."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import regard
from helpers.pairwise import pairwise
from regard.errors import InvalidArgument, InvalidType

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 37, 150, 8


def table(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tensors(dtype=torch.float32, kv_heads=HEADS):
    query = table(BATCH, HEADS, QUERIES, DIM, seed=2, dtype=dtype)
    key, value = table(2, BATCH, kv_heads, KEYS, DIM, seed=3, dtype=dtype)
    return query, key, value


class PositionBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(table(HEADS, QUERIES, KEYS))

    def forward(self, score, b, h, q_idx, kv_idx):
        return score + self.bias[h, q_idx, kv_idx]


SLOPES, BIAS, DOCUMENTS = table(HEADS), table(BATCH, HEADS, QUERIES, KEYS), torch.arange(KEYS) // 20
SCORE_MODS = {
    "alibi": lambda score, b, h, q_idx, kv_idx: score + SLOPES[h] * (kv_idx - q_idx),
    "soft cap": lambda score, b, h, q_idx, kv_idx: 2 * torch.tanh(score / 2),
    "a table indexed in steps": lambda score, b, h, q_idx, kv_idx: score + BIAS[b][0][q_idx][kv_idx],
    "a table indexed at once": lambda score, b, h, q_idx, kv_idx: score + BIAS[b, h, q_idx, kv_idx],
    "a table indexed by a number, too": lambda score, b, h, q_idx, kv_idx: score * BIAS[b, 1, 0, kv_idx],
    "forbids": lambda score, b, h, q_idx, kv_idx: torch.where(q_idx + 3 >= kv_idx, score, -torch.inf),
    "documents": lambda score, b, h, q_idx, kv_idx: torch.where(
        DOCUMENTS[q_idx] == DOCUMENTS[kv_idx], score, score - torch.tensor(2.0)
    ),
    "a module": PositionBias().requires_grad_(False),
    "makes tensors": lambda score, b, h, q_idx, kv_idx: score * torch.ones(3)[0] + score.new_zeros(2)[1] + torch.pi,
    "ignores the cell": lambda score, b, h, q_idx, kv_idx: torch.zeros(()) + SLOPES[0],
}


@pytest.mark.parametrize(("name", "is_masked", "kv_heads"), pairwise([*SCORE_MODS], [False, True], [HEADS, 2]))
def test_output_lse_and_weights_are_those_of_flex_attention(name, is_masked, kv_heads):
    query, key, value = tensors(kv_heads=kv_heads)
    score_mod = SCORE_MODS[name]
    block_mask = None
    if is_masked:
        block_mask = create_block_mask(
            lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx + 90) & (kv_idx % (h + 2) < 2 + b), BATCH, HEADS, QUERIES,
            KEYS, device="cpu",
        )  # fmt: skip
    options = {"score_mod": score_mod, "block_mask": block_mask, "enable_gqa": kv_heads < HEADS}
    expected, aux = flex_attention(query, key, value, **options, return_aux=AuxRequest(lse=True))
    eye = torch.eye(KEYS).expand(BATCH, kv_heads, KEYS, KEYS).contiguous()
    weights = flex_attention(query, key, eye, **options)
    att = regard.attend(query, key, value, mask=block_mask, score=score_mod, measure=["lse"])
    torch.testing.assert_close(att.output, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(att.measured["lse"], aux.lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(att.weights.dense(), weights, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(att.weights[1, 3, 20], weights[1, 3, 20], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(att.weights.at(heads=[3, 1]).dense(), weights[:, [3, 1]], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(att.weights.columns([7, 3]), weights[..., [7, 3]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
def test_gradients_reach_captured_tensors(kernel):
    leaves = [tensor.requires_grad_() for tensor in tensors(torch.float64)]
    module = PositionBias().double()
    leaf = table(HEADS, dtype=torch.float64).requires_grad_()
    slopes = leaf.exp()  # a captured tensor with a graph of its own

    def score_mod(score, b, h, q_idx, kv_idx):
        return torch.tanh(module(score, b, h, q_idx, kv_idx)) * slopes[h]

    att = regard.attend(*leaves, mask=regard.Causal(), score=score_mod, measure="entropy", kernel=kernel)
    query, key, value = leaves
    scores = torch.tanh(query @ key.mT / DIM**0.5 + module.bias) * slopes[:, None, None]
    allowed = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum()
    inputs = [*leaves, module.bias, leaf]
    loss = att.output.square().sum() + att.measured["entropy"].sum()
    actual = torch.autograd.grad(loss, inputs, retain_graph=True)
    expected = torch.autograd.grad((weights @ value).square().sum() + entropy, inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_it_changes_another_score_and_adds_up():
    query, key, _ = tensors()
    capped = regard.SoftCap(regard.ScaledDotProduct(), 1.5)
    score = regard.ScoreMod(capped, SCORE_MODS["alibi"]) + regard.Bias(BIAS)
    expected = 1.5 * torch.tanh(query @ key.mT / DIM**0.5 / 1.5) + BIAS
    expected = expected + SLOPES[:, None, None] * (torch.arange(KEYS) - torch.arange(QUERIES)[:, None])
    torch.testing.assert_close(regard.weights(query, key, score=score).scores.dense(), expected, rtol=1e-5, atol=1e-5)


def test_on_a_sparse_graph_each_row_has_its_own_keys():
    query, key, value = tensors()
    edges = torch.stack([torch.arange(QUERIES).repeat_interleave(3), torch.arange(3 * QUERIES) * 7 % KEYS])
    neighbors = regard.Neighbors(*edges)
    actual = regard.attend(query, key, value, mask=neighbors, score=SCORE_MODS["a table indexed in steps"])
    dense = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    dense[edges[0], edges[1]] = True
    expected = regard.attend(
        query, key, value, mask=dense, score=SCORE_MODS["a table indexed in steps"], kernel="reference"
    )
    torch.testing.assert_close(actual.output, expected.output, rtol=1e-5, atol=1e-6)


def test_half_precision_gets_scores_in_the_dtype_of_sums():
    dtypes = []

    def score_mod(score, b, h, q_idx, kv_idx):
        dtypes.append((score.dtype, q_idx.dtype, score.ndim, kv_idx.ndim))
        return score + SLOPES[h]

    regard.attend(*tensors(torch.bfloat16), score=score_mod)
    assert set(dtypes) == {(torch.float32, torch.int64, 0, 0)}


def test_captured_tensors_are_those_of_the_rule():
    query, key, _ = tensors()
    slopes = table(HEADS).clone()
    W = regard.weights(query, key, score=lambda score, b, h, q_idx, kv_idx: score * slopes[h])
    before = W.dense()
    assert torch.equal(copy.deepcopy(W).dense(), before)
    assert [tensor.shape for tensor in regard.ops.tree.tensors_in(W.request.score)] == [(HEADS,)]
    slopes.mul_(2)
    with pytest.raises(regard.errors.StaleView, match=r"shape \(4,\)"):
        W.dense()


def test_compiled_code_breaks_at_the_call():
    query, key, value = tensors()
    score_mod = SCORE_MODS["alibi"]

    def attention(query):
        return regard.attend(query * 2, key, value, score=score_mod).output + 1

    torch.testing.assert_close(torch.compile(attention, backend="eager")(query), attention(query), rtol=0, atol=0)


COUNTER = torch.zeros(())


def _counts(score, b, h, q_idx, kv_idx):
    COUNTER.add_(1)
    return score


@pytest.mark.parametrize(
    ("score_mod", "kind", "message"),
    [
        (lambda b, h, q_idx, kv_idx: q_idx, InvalidType, "expected a function (score, b, h, q_idx, kv_idx) -> score"),
        (lambda score, *, b: score, InvalidType, "got <lambda>(score, *, b)"),
        (lambda score, b, h, q_idx, kv_idx: SLOPES * score, InvalidArgument, "a scalar tensor, got one of shape (4,)"),
        (lambda score, b, h, q_idx, kv_idx: q_idx - kv_idx, InvalidType, "a floating-point score, got int64"),
        (lambda score, b, h, q_idx, kv_idx: score > 0, InvalidType, "a floating-point score, got bool"),
        (lambda score, b, h, q_idx, kv_idx: 1.0, InvalidArgument, "failed with ValueError: vmap"),
        (lambda score, b, h, q_idx, kv_idx: None, InvalidArgument, "failed with ValueError: vmap"),
        (lambda score, b, h, q_idx, kv_idx: score.add_(1), InvalidArgument, "changes a tensor in place"),
        (_counts, InvalidArgument, "_counts cannot be used: it changes a tensor in place"),
        (lambda score, b, h, q_idx, kv_idx: score if q_idx > kv_idx else -score, InvalidArgument, "RuntimeError: vmap"),
        (lambda score, b, h, q_idx, kv_idx: score + SLOPES[q_idx], InvalidArgument, "failed with IndexError"),
        (lambda score, b, h, q_idx, kv_idx: score + undefined, NameError, "undefined"),  # noqa: F821
    ],
)
def test_functions_that_are_not_a_score_mod_are_refused(score_mod, kind, message):
    query, key, value = tensors()
    with pytest.raises(kind, match=re.escape(message)) as caught:
        regard.attend(query, key, value, score=score_mod)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("score", [regard.Causal(), regard.Entropy(), regard.ScoreMod, 3])
def test_other_rules_are_not_functions(score):
    query, key, _ = tensors()
    with pytest.raises(InvalidType, match=r"^score: expected"):
        regard.weights(query, key, score=score)


def test_a_tensor_that_was_replaced_is_noticed():
    query, key, _ = tensors()
    module = PositionBias()
    W = regard.weights(query, key, score=module)
    module.bias = nn.Parameter(module.bias + 1)
    with pytest.raises(InvalidArgument, match=r"uses a tensor of shape \(4, 37, 150\) that it did not use"):
        W.dense()
