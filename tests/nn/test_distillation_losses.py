"""Losses between two models against the same formulas on dense matrices, with their gradients in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import kl_div, mse_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

from regard.errors import InvalidArgument, InvalidType
from regard.nn import grouped_kl_loss, indexer_loss, kl_divergence_loss, relation_loss, score_loss
from regard.ops import WeightMatrix, weights
from regard.ops.masks import Causal, Padding, Window
from regard.ops.scores import ScaledDotProduct, Sinks, SoftCap

BATCH, QUERIES, KEYS = 2, 7, 9
MASKS = {
    "all": None,
    "causal": Causal(),
    "window": Window(2, 0),
    "padding": Padding(torch.tensor([9, 4])),
    "rows without keys": Window(2, 0) & Padding(torch.tensor([9, 0])),
}
SCORES = {
    "dot": None,
    "sinks": Sinks(ScaledDotProduct(), torch.ones(4, dtype=torch.float64)),
    "cap": SoftCap(ScaledDotProduct(), 2.0),
}
ROWS = torch.rand(BATCH, 1, QUERIES, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
WEIGHTS_OF_ROWS = {mask: ROWS if mask in ("causal", "padding") else None for mask in MASKS}


def leaf(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def matrix(heads=4, kv_heads=2, seed=0, mask=None, score=None, queries=QUERIES, keys=KEYS):
    query, key = leaf(BATCH, heads, queries, 5, seed=seed), leaf(BATCH, kv_heads, keys, 5, seed=seed + 1)
    return weights(2 * query, key, mask=mask, score=score), [query, key]


def same(actual, expected, leaves):
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, leaves, retain_graph=True) for each in (actual, expected)))


def divergence(P, Q):
    """By torch, whose gradient is NaN where a weight is 0, so that of the formula is taken."""
    logs = (each.where(P > 0, 1.0).log() for each in (P, Q))
    rows = (P * (next(logs) - next(logs))).sum(-1)
    torch.testing.assert_close(rows, kl_div(Q.where(P > 0, 1.0).log(), P, reduction="none").sum(-1))
    return rows


def mean(values, row_weights):
    counted = torch.ones_like(values) if row_weights is None else row_weights.expand_as(values)
    return (values * counted).sum() / counted.sum()


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Blocks of three rows in most tests."""
    monkeypatch.setattr("regard.nn.distillation_losses.CELLS_AT_ONCE", 3 * BATCH * 4 * KEYS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("student_heads", "kv_heads"), [(4, 2), (2, 1), (1, 1)])
def test_scores(student_heads, kv_heads, mask):
    row_weights = WEIGHTS_OF_ROWS[mask]
    teacher, leaves = matrix(mask=MASKS[mask])
    student, others = matrix(student_heads, kv_heads, seed=5, mask=MASKS[mask])
    allowed = teacher.scores.dense()[:, :1] > -torch.inf
    target = teacher.scores.dense().where(allowed, 0.0).unflatten(1, (student_heads, -1)).mean(2)
    scores = student.scores.dense().where(allowed, 0.0)
    counted = allowed.double() if row_weights is None else allowed * row_weights[..., None]
    expected = ((target - scores).square() * counted).sum() / (counted.sum() * student_heads)
    same(score_loss(teacher, student, row_weights=row_weights), expected, leaves + others)
    if mask == "all" and row_weights is None:
        torch.testing.assert_close(score_loss(teacher, student), mse_loss(scores, target))  # of TinyBERT


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("student_heads", "kv_heads"), [(4, 2), (2, 1), (1, 1)])
def test_groups(student_heads, kv_heads, mask, score):
    row_weights = WEIGHTS_OF_ROWS[mask]
    teacher, leaves = matrix(mask=MASKS[mask], score=SCORES[score])
    student, others = matrix(student_heads, kv_heads, seed=5, mask=MASKS[mask])
    P = teacher.dense().unflatten(1, (student_heads, -1)).mean(2)
    P = P / P.sum(-1, keepdim=True).clamp(min=1e-300)
    Q = student.dense()
    rows = divergence(P, Q)
    same(grouped_kl_loss(teacher, student, row_weights=row_weights), mean(rows, row_weights), leaves + others)


def test_groups_of_one_head_are_the_divergence_of_each():
    teacher, student = matrix()[0], matrix(seed=5)[0]
    torch.testing.assert_close(grouped_kl_loss(teacher, student), kl_divergence_loss(teacher, student))
    assert grouped_kl_loss(teacher, matrix(2, 1, mask=Causal())[0]) == torch.inf


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_indexer(mask, score):
    """Sinks are in the denominators of the weights, and the sum over heads is normalized."""
    row_weights = WEIGHTS_OF_ROWS[mask]
    W, leaves = matrix(mask=MASKS[mask], score=SCORES[score])
    indexer = leaf(BATCH, 3, QUERIES, 4, seed=7), leaf(BATCH, KEYS, 4, seed=8), leaf(BATCH, 3, QUERIES, seed=9)
    query, key, head_weights = indexer
    index = (torch.einsum("bhqd,bkd->bhqk", query, key).relu() * head_weights[..., None]).sum(1)
    allowed = (W.scores.dense() > -torch.inf).any(1)
    logs = index.masked_fill(~allowed, -1e300).log_softmax(-1)
    P = W.dense().detach().sum(1)
    P = P / P.sum(-1, keepdim=True).clamp(min=1e-300)
    rows = kl_div(logs, P, reduction="none").sum(-1)
    actual = indexer_loss(W, *indexer, row_weights=row_weights)
    same(actual, mean(rows[:, None], row_weights), indexer)
    assert torch.autograd.grad(actual, leaves, allow_unused=True) == (None, None)


def test_gradients_of_the_indexer_are_those_of_finite_differences():
    W = matrix(mask=MASKS["rows without keys"], score=SCORES["sinks"], queries=3, keys=4)[0]
    assert torch.autograd.gradcheck(
        lambda *each: indexer_loss(W, *each), (leaf(BATCH, 2, 3, 2), leaf(BATCH, 4, 2), leaf(BATCH, 2, 3))
    )


def test_the_indexer_of_transformers_finds_the_largest_scores_of_the_loss():
    """Where the loss is 0, its softmax is that of the scores whose largest ones transformers selects."""
    torch.manual_seed(0)
    config = DeepseekV32Config(
        hidden_size=16, index_n_heads=3, index_head_dim=8, qk_rope_head_dim=4, q_lora_rank=12, index_topk=3
    )
    module = DeepseekV32Indexer(config, 0).double()
    hidden, residual = torch.randn(1, KEYS, 16).double(), torch.randn(1, KEYS, 12).double()
    angles = torch.zeros(1, KEYS, 4).double()
    causal = torch.ones(1, KEYS, KEYS, dtype=torch.bool).tril()
    selected = module(hidden, residual, (angles.cos(), angles.sin()), causal, None)
    query = module.wq_b(residual).unflatten(2, (3, 8)).transpose(1, 2)
    key = module.k_norm(module.wk(hidden))
    head_weights = module.weights_proj(hidden).mT * (3**-0.5 * 8**-0.5)
    index = (torch.einsum("bhqd,bkd->bhqk", query, key).relu() * head_weights[..., None]).sum(1)
    # Attention of one head whose scores are those of the indexer: queries are rows of the scores, keys are one-hot.
    W = weights(index[:, None].detach(), torch.eye(KEYS).double()[None, None], mask=Causal(), scale=1.0)
    assert indexer_loss(W, query, key, head_weights).abs() < 1e-12
    for row in range(2, KEYS):
        assert set(W[0, 0, row].topk(3).indices.tolist()) == set(selected[0, row].tolist())


@pytest.mark.parametrize("num_heads", [None, 2, 8])
@pytest.mark.parametrize("mask", ["all", "causal", "padding"])
def test_relations(mask, num_heads):
    heads = 6 if num_heads is None else 4
    teacher, student = leaf(BATCH, heads, KEYS, 8), leaf(BATCH, 6, KEYS, 4, seed=3)
    joined = [x.transpose(1, 2).reshape(BATCH, KEYS, -1) for x in (teacher, student)]
    count = num_heads or 6
    relations = []
    for x in joined:
        x = x.reshape(BATCH, KEYS, count, -1).transpose(1, 2)
        scores = x @ x.mT / x.shape[3] ** 0.5
        if MASKS[mask] is not None:
            square = weights(torch.zeros(BATCH, 1, KEYS, 1), torch.zeros(BATCH, 1, KEYS, 1), mask=MASKS[mask]).dense()
            scores = scores.masked_fill(square == 0, -torch.inf)
        relations.append(scores.softmax(-1))
    P, Q = relations
    rows = divergence(P, Q)
    actual = relation_loss(teacher, student, num_heads=num_heads, mask=MASKS[mask])
    same(actual, rows.mean(), [teacher, student])
    counted = torch.rand(BATCH, 1, KEYS).double()
    actual = relation_loss(teacher, student, num_heads=num_heads, mask=MASKS[mask], row_weights=counted)
    torch.testing.assert_close(actual, mean(rows, counted))


def test_padding_queries_of_watched_models_do_not_count():
    teacher, student = matrix()[0], matrix(2, 1, seed=5)[0]
    valid = torch.arange(QUERIES) < torch.tensor([[7], [3]])
    for loss in (score_loss, grouped_kl_loss):
        expected = loss(teacher, student, row_weights=valid[:, None])
        torch.testing.assert_close(loss(teacher, WeightMatrix(student.request, valid)), expected)
    parts = leaf(BATCH, 3, QUERIES, 4), leaf(BATCH, KEYS, 4), leaf(BATCH, 3, QUERIES)
    expected = indexer_loss(teacher, *parts, row_weights=valid[:, None])
    torch.testing.assert_close(indexer_loss(WeightMatrix(teacher.request, valid), *parts), expected)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.size = max([self.size, *(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))])
        return result


@pytest.mark.parametrize("loss", [score_loss, grouped_kl_loss, indexer_loss])
def test_memory_is_linear(loss, monkeypatch):
    monkeypatch.setattr("regard.nn.distillation_losses.CELLS_AT_ONCE", 20_000)
    teacher, _ = matrix(mask=Causal(), queries=400, keys=400)
    student, leaves = matrix(2, 1, mask=Causal(), queries=400, keys=400)
    indexer = leaf(BATCH, 3, 400, 4), leaf(BATCH, 400, 4), leaf(BATCH, 3, 400)
    with Largest() as largest:
        if loss is indexer_loss:
            torch.autograd.grad(loss(teacher, *indexer), indexer)
        else:
            torch.autograd.grad(loss(teacher.detach(), student), leaves)
    assert largest.size <= 20_000


def test_a_second_derivative_of_the_indexer_is_refused():
    parts = leaf(BATCH, 3, QUERIES, 4), leaf(BATCH, KEYS, 4), leaf(BATCH, 3, QUERIES)
    (gradient,) = torch.autograd.grad(indexer_loss(matrix()[0], *parts), parts[0], create_graph=True)
    with pytest.raises(InvalidArgument, match="second derivative: this gradient comes from a custom backward pass"):
        gradient.sum().backward()


def test_half_precision_is_computed_in_float32():
    W = weights(*torch.randn(2, 1, 4, 9, 8).bfloat16().unbind(), mask=Causal())
    parts = torch.randn(1, 3, 9, 8), torch.randn(1, 9, 8), torch.randn(1, 3, 9)
    low = [part.bfloat16().requires_grad_() for part in parts]
    loss = indexer_loss(W, *low)
    expected = indexer_loss(W, *(part.float() for part in low))
    torch.testing.assert_close(loss, expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(indexer_loss(W, *low), expected)
    loss.backward()
    assert low[0].grad.dtype == torch.bfloat16


def test_bad_arguments_are_named():
    teacher, student = matrix()[0], matrix(3, 1)[0]
    for loss in (score_loss, grouped_kl_loss):
        with pytest.raises(
            InvalidArgument,
            match=r"student: expected shape \(2, a divisor of 4, 7, 9\) on cpu, got \(2, 3, 7, 9\) on cpu",
        ):
            loss(teacher, student)
        with pytest.raises(InvalidType, match=r"teacher: expected a WeightMatrix such as .*, got float64"):
            loss(teacher.dense(), teacher)
        with pytest.raises(InvalidArgument, match=r"row_weights: expected a shape broadcastable to .* got \(9,\)"):
            loss(teacher, teacher, row_weights=torch.ones(9))
    query, key, head_weights = leaf(BATCH, 3, QUERIES, 4), leaf(BATCH, KEYS, 4), leaf(BATCH, 3, QUERIES)
    with pytest.raises(
        InvalidArgument, match=r"query: expected shape \(batch=2, index_heads, queries=7, index_dim\), got"
    ):
        indexer_loss(teacher, query[:1], key, head_weights)
    with pytest.raises(
        InvalidArgument, match=r"key: expected shape \(batch, keys, index_dim\) = \(2, 9, 4\), got \(2, 9"
    ):
        indexer_loss(teacher, query, key[..., :3], head_weights)
    with pytest.raises(InvalidArgument, match=r"head_weights: expected shape .* = \(2, 3, 7\), got \(2, 7, 3\)"):
        indexer_loss(teacher, query, key, head_weights.mT)
    with pytest.raises(
        InvalidArgument, match=r"row_weights: expected .* \(batch, 1, queries\) = \(2, 1, 7\), got \(2, 3"
    ):
        indexer_loss(teacher, query, key, head_weights, row_weights=torch.ones(2, 3, 7))
    with pytest.raises(InvalidType, match="weights: expected a WeightMatrix"):
        indexer_loss(teacher.dense(), query, key, head_weights)
    with pytest.raises(InvalidType, match="query: expected a floating-point tensor, got int64"):
        indexer_loss(teacher, query.long(), key, head_weights)
    with pytest.raises(
        InvalidArgument, match=r"num_heads: expected an int, because teacher and student have \(3, 4\) heads"
    ):
        relation_loss(torch.randn(1, 3, 5, 4), torch.randn(1, 4, 5, 4))
    with pytest.raises(InvalidArgument, match="num_heads: expected a divisor of 12, the width of the teacher, got 8"):
        relation_loss(torch.randn(1, 3, 5, 4), torch.randn(1, 4, 5, 4), num_heads=8)
    with pytest.raises(
        InvalidArgument, match=r"student: expected shape \(batch=1, heads, tokens=5, head_dim\), got \(2, 4"
    ):
        relation_loss(torch.randn(1, 3, 5, 4), torch.randn(2, 4, 5, 4))
    with pytest.raises(InvalidType, match="teacher: expected a tensor, got list"):
        relation_loss([1.0], torch.randn(2, 4, 5, 4))
