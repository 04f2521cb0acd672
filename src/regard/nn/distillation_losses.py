"""Losses that make the attention of one model follow that of another, also with another number of heads.

Each computes blocks of rows: no (queries, keys) tensor is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.checks import Checks
from regard.nn.attention_losses import MeanWeights, check_matrix, kl_divergence_loss, mean_of_rows
from regard.ops import WeightMatrix
from regard.ops import weights as make_weights
from regard.ops.autograd import AutogradFunction, first_order_only, without_autocast
from regard.ops.masks import MaskLike
from regard.ops.tile import KeyRange

CELLS_AT_ONCE = 2**22
"""Numbers that a block of rows has in all heads: 16 MiB in float32."""


def relation_loss(
    teacher: Float[Tensor, "batch heads tokens head_dim"],
    student: Float[Tensor, "batch student_heads tokens student_dim"],
    *,
    num_heads: int | None = None,
    mask: MaskLike | None = None,
    row_weights: MeanWeights = None,
) -> Float[Tensor, ""]:
    """KL divergence between the relations of two models: the mean over rows of KL(R(teacher) ‖ R(student)), in nats.

    R(X) = softmax(X Xᵀ / √head_dim) for the vectors X of a head. Of values, it is the second loss of MiniLM, beside
    `kl_divergence_loss` of the weights. MiniLMv2 takes queries, keys and values, and joins the heads of each model and
    splits them into as many *relation heads*, so that the two may differ in heads and width.

    Args:
        teacher: (batch, heads, tokens, head_dim), detached.
        student: (batch, student_heads, tokens, student_dim).
        num_heads: Number of relation heads. Default: that of both models.
        mask: Which tokens relate, as for `regard.attend`, such as ``regard.Padding(lengths)``. Default: all.
        row_weights: Broadcastable to (batch, num_heads, tokens); 0 excludes a row, such as padding. Default: all 1.

    Raises:
        InvalidArgument: If the shapes do not fit, the heads differ without num_heads, or it does not divide a width.
        InvalidType: If an argument has a wrong type.

    Memory:
        O(tokens * width).

    Reference: Wang et al. 2020, "MiniLM", equation 5; Wang et al. 2021, "MiniLMv2", equation 4.

    Examples:
        >>> import regard, torch
        >>> teacher, student = torch.randn(1, 12, 9, 64), torch.randn(1, 6, 9, 32)
        >>> regard.nn.relation_loss(teacher, student, num_heads=48).shape
        torch.Size([])
    """
    with Checks() as checks:
        checks.integer("num_heads", num_heads, low=1, optional=True)
        if all([checks.tensor("teacher", teacher), checks.tensor("student", student)]):
            axes = {"batch": None, "heads": None, "tokens": None, "head_dim": None}
            if checks.input("teacher", teacher, axes):
                own = {"batch": teacher.shape[0], "heads": None, "tokens": teacher.shape[2], "head_dim": None}
                checks.input("student", student, own)
    heads = {"teacher": teacher.shape[1], "student": student.shape[1]}
    with Checks() as checks:
        if num_heads is None and heads["teacher"] != heads["student"]:
            checks.fail(f"num_heads: expected an int, because teacher and student have {tuple(heads.values())} heads")
        for name, each in (("teacher", teacher), ("student", student)):
            width = each.shape[1] * each.shape[3]
            if num_heads is not None and width % num_heads:
                checks.fail(f"num_heads: expected a divisor of {width}, the width of the {name}, got {num_heads}")
    count = heads["teacher"] if num_heads is None else num_heads
    of_teacher, of_student = (
        make_weights(relation, relation, mask=mask) for relation in (_regroup(x, count) for x in (teacher, student))
    )
    return kl_divergence_loss(of_teacher, of_student, row_weights=row_weights)


def score_loss(teacher: WeightMatrix, student: WeightMatrix, *, row_weights: MeanWeights = None) -> Float[Tensor, ""]:
    """Squared error between the scores of two models, before softmax: the mean of (Aᵢⱼ − Bᵢⱼ)² over the allowed cells.

    If the student has fewer heads, A is the mean over the group of teacher heads that it stands for: heads 0, 1, ... of
    a student with half as many follow heads (0, 1), (2, 3), ...

    Args:
        teacher: A, (batch, heads, queries, keys), detached.
        student: B, (batch, student_heads, queries, keys), where student_heads divides heads.
        row_weights: Broadcastable to (batch, student_heads, queries); 0 excludes a row. Default: all 1.

    Returns:
        A scalar; cells that one of the masks forbids do not count.

    Raises:
        InvalidArgument: If the shapes or devices do not fit.
        InvalidType: If teacher or student is not a weight matrix.

    Memory:
        O(queries + keys).

    Reference: Jiao et al. 2020, "TinyBERT", equation 7, which counts masked cells as 0.

    Examples:
        >>> import regard, torch
        >>> teacher = regard.weights(*torch.ones(2, 1, 12, 9, 64).unbind())  # scores of 64 / √64
        >>> student = regard.weights(*torch.ones(2, 1, 4, 9, 16).unbind())  # 16 / √16
        >>> regard.nn.score_loss(teacher, student)
        tensor(16.)
    """
    _check_pair(teacher, student, row_weights)
    first, second = teacher.in_dtype_of_sums().scores, student.in_dtype_of_sums().scores
    groups = student.shape[1]

    def errors(rows: slice) -> tuple[Tensor, Tensor]:
        target = first[:, :, rows].unflatten(1, (groups, -1)).mean(2)
        scores = second[:, :, rows]
        counted = (target > -torch.inf) & (scores > -torch.inf)
        difference = target.where(counted, 0.0) - scores.where(counted, 0.0)
        return difference.square().sum(-1), counted.sum(-1)

    squares, counts = _by_rows(errors, teacher)
    mean = mean_of_rows(squares, student, row_weights)
    cells = mean_of_rows(counts.to(mean.dtype), student, row_weights)
    return mean / cells.clamp(min=torch.finfo(mean.dtype).tiny)


def grouped_kl_loss(
    teacher: WeightMatrix, student: WeightMatrix, *, row_weights: MeanWeights = None
) -> Float[Tensor, ""]:
    """KL divergence from the mean of each group of heads to one head: the mean over rows of Σⱼ Pᵢⱼ log (Pᵢⱼ / Qᵢⱼ).

    P is the mean of the weights of a group of teacher heads, normalized to sum 1 over keys; see `score_loss` for the
    groups. With one student head it is the mean over all heads.

    Args:
        teacher: (batch, heads, queries, keys), detached.
        student: Q, (batch, student_heads, queries, keys), where student_heads divides heads.
        row_weights: Broadcastable to (batch, student_heads, queries); 0 excludes a row. Default: all 1.

    Returns:
        A scalar; infinite if Q masks a key that P attends to.

    Raises:
        InvalidArgument: If the shapes or devices do not fit.
        InvalidType: If teacher or student is not a weight matrix.

    Memory:
        O(queries + keys).

    Examples:
        >>> import regard, torch
        >>> teacher = regard.weights(*torch.randn(2, 1, 12, 9, 64).unbind())
        >>> student = regard.weights(*torch.randn(2, 1, 4, 9, 16).unbind())
        >>> regard.nn.grouped_kl_loss(teacher, student).shape
        torch.Size([])
    """
    _check_pair(teacher, student, row_weights)
    whole, other, lse = teacher.in_dtype_of_sums(), student.in_dtype_of_sums(), student.in_dtype_of_sums().lse()
    groups = student.shape[1]

    def divergence(rows: slice) -> tuple[Tensor]:
        logs = other.scores[:, :, rows] - lse[:, :, rows, None]
        return (_divergence(_group_mean(whole[:, :, rows], groups), logs),)

    return mean_of_rows(_by_rows(divergence, teacher)[0], student, row_weights)


def indexer_loss(
    weights: WeightMatrix,
    query: Float[Tensor, "batch index_heads queries index_dim"],
    key: Float[Tensor, "batch keys index_dim"],
    head_weights: Float[Tensor, "batch index_heads queries"],
    *,
    row_weights: MeanWeights = None,
) -> Float[Tensor, ""]:
    """KL divergence that trains the indexer of sparse attention to find the keys that attention attends to.

    The mean over rows of KL(Pᵢ ‖ softmax(Iᵢ)). P is the sum of the weights over all heads, normalized to sum 1 over
    keys, and has no gradient. I is the score of a *lightning indexer*, Iᵢⱼ = Σₕ wₕᵢ ReLU(qₕᵢ · kⱼ). Its softmax is over
    the keys that the mask of the weights allows, so that with a mask of selected keys both are over these. Windows and
    sinks are in the denominators of the weights, as `regard.weights` and `regard.watch` know them.

    Args:
        weights: (batch, heads, queries, keys) of the main attention.
        query: q, (batch, index_heads, queries, index_dim).
        key: k, (batch, keys, index_dim).
        head_weights: w, (batch, index_heads, queries), with any scale of the scores.
        row_weights: Broadcastable to (batch, 1, queries); 0 excludes a row. Default: all 1.

    Raises:
        InvalidArgument: If a shape or a device does not fit the weights, or a second derivative is computed.
        InvalidType: If an argument has a wrong type.

    Memory:
        O(queries + keys), forward and backward. The forward pass computes the gradients.

    Reference: DeepSeek-AI 2025, "DeepSeek-V3.2", equations 1, 3 and 4, where it is a sum over rows.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(*torch.randn(2, 1, 8, 50, 16).unbind(), mask=regard.Causal())
        >>> query, key, head_weights = torch.randn(1, 4, 50, 8), torch.randn(1, 50, 8), torch.randn(1, 4, 50)
        >>> regard.nn.indexer_loss(W, query, key, head_weights).shape
        torch.Size([])
    """
    with Checks() as checks:
        _check_indexer(checks, weights, query, key, head_weights, row_weights)
    counted = torch.ones(len(query), 1, query.shape[2], dtype=weights.dtype, device=query.device)
    for each in (None if weights.valid_queries is None else weights.valid_queries[:, None], row_weights):
        counted = counted if each is None else counted * each
    counted = counted[:, 0]
    factors = counted / counted.sum().clamp(min=torch.finfo(counted.dtype).tiny)
    with without_autocast(query.device.type):
        return _IndexerLoss.apply(query, key, head_weights, weights.detach(), factors)


class _IndexerLoss(AutogradFunction):
    """The loss and its gradients, which the forward pass computes block by block, so that weights are computed once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, head_weights: Tensor, weights: WeightMatrix, factors: Tensor
    ) -> Tensor:
        dtype = weights.dtype
        inputs = [each.detach().to(dtype) for each in (query, key, head_weights)]
        gradients = [torch.zeros_like(each) for each in inputs]
        q_gradient, k_gradient, w_gradient = gradients
        total = torch.zeros((), dtype=dtype, device=query.device)
        for rows in _row_blocks(weights, max(weights.shape[1], query.shape[1])):
            keys, allowed = _allowed(weights, rows)
            q, k, w = inputs[0][:, :, rows], inputs[1][:, keys], inputs[2][:, :, rows]
            with torch.enable_grad():
                leaves = [each.detach().requires_grad_() for each in (q, k, w)]
                scores = (leaves[0] @ leaves[1][:, None].mT).relu()  # (batch, index_heads, rows, keys)
                scores = torch.einsum("bhqk,bhq->bqk", scores, leaves[2])
                if allowed is not None:
                    scores = scores.masked_fill(~allowed, torch.finfo(dtype).min)  # not −∞, for rows without keys
                target = _group_mean(weights[:, :, rows, keys], 1)[:, 0]
                part = (_divergence(target, scores.log_softmax(-1)) * factors[:, rows]).sum()
            total += part.detach()
            if any(ctx.needs_input_grad):
                of_q, of_k, of_w = torch.autograd.grad(part, leaves)
                q_gradient[:, :, rows], w_gradient[:, :, rows] = of_q, of_w
                k_gradient[:, keys] += of_k
        ctx.gradients = gradients
        ctx.save_for_backward(query, key, head_weights)
        return total

    @staticmethod
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        with torch.no_grad():
            gradients = [
                (gradient * loss_gradient).to(each.dtype) if needed else None
                for gradient, each, needed in zip(ctx.gradients, inputs, ctx.needs_input_grad[:3], strict=True)
            ]
        return (*first_order_only(gradients, loss_gradient, *inputs), None, None)


def _regroup(x: Tensor, num_heads: int) -> Tensor:
    """(batch, heads, tokens, head_dim) with other heads: joined in order, and split again."""
    return x.transpose(1, 2).flatten(2).unflatten(2, (num_heads, -1)).transpose(1, 2)


def _group_mean(weights: Tensor, groups: int) -> Tensor:
    """The mean weights of groups of heads, with rows that sum to 1, or 0 without keys: (batch, groups, rows, keys)."""
    mean = weights.unflatten(1, (groups, -1)).mean(2)
    return mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)


def _divergence(target: Tensor, logs: Tensor) -> Tensor:
    """Σⱼ Pᵢⱼ (log Pᵢⱼ − log Qᵢⱼ) from P and log Q, where 0 · log is 0."""
    has_weight = target > 0
    return (target * (target.where(has_weight, 1.0).log() - logs.where(has_weight, 0.0))).sum(-1)


def _allowed(weights: WeightMatrix, rows: slice) -> tuple[slice, Tensor | None]:
    """A range with all keys that the mask allows to some rows, and the cells, (batch or 1, rows or 1, keys), if any."""
    request, (batch, heads, _, keys) = weights.request, weights.shape
    if request.mask is None:
        return slice(0, keys), None
    tile = request.tile(slice(0, batch), slice(0, heads), rows)
    within = tile.clip(*request.mask.key_range(tile))
    within = within if within.width else KeyRange(0, 1)  # no row has a key
    allowed = request.allowed(tile.with_keys(within))
    return slice(*within), allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape)).any(1)


def _row_blocks(weights: WeightMatrix, heads: int) -> Iterator[slice]:
    batch, _, queries, keys = weights.shape
    size = max(1, CELLS_AT_ONCE // (batch * heads * keys))
    return (slice(start, min(start + size, queries)) for start in range(0, queries, size))


def _by_rows(compute: Callable[[slice], tuple[Tensor, ...]], weights: WeightMatrix) -> list[Tensor]:
    """The results of a function of blocks of rows, (batch, heads, rows) each, joined along the rows."""
    parts: list[tuple[Tensor, ...]] = [
        checkpoint(compute, rows, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled()
        else compute(rows)
        for rows in _row_blocks(weights, weights.shape[1])
    ]
    return [torch.cat(each, 2) for each in zip(*parts, strict=True)]


def _check_pair(teacher: WeightMatrix, student: WeightMatrix, row_weights: MeanWeights) -> None:
    with Checks() as checks:
        matrices = [
            check_matrix(checks, "teacher", teacher),
            check_matrix(checks, "student", student, row_weights=row_weights),
        ]
        if all(matrices):
            (batch, heads, queries, keys), device = teacher.shape, teacher.device
            own = tuple(student.shape)
            if (own[0], *own[2:]) != (batch, queries, keys) or heads % own[1] or student.device != device:
                checks.fail(
                    f"student: expected shape ({batch}, a divisor of {heads}, {queries}, {keys}) on {device}, got "
                    f"{own} on {student.device}"
                )


def _check_indexer(
    checks: Checks, weights: WeightMatrix, query: Tensor, key: Tensor, head_weights: Tensor, row_weights: MeanWeights
) -> None:
    if not check_matrix(checks, "weights", weights) or not checks.tensor("query", query, "floating-point"):
        return
    (batch, _, queries, keys), device = weights.shape, weights.device
    if not checks.input("query", query, {"batch": batch, "index_heads": None, "queries": queries, "index_dim": None}):
        return
    _, heads, _, width = query.shape
    checks.device("query", query, device)
    shapes = {"(batch, keys, index_dim)": (batch, keys, width)}
    checks.tensor("key", key, "floating-point", shapes=shapes, device=device)
    shapes = {"(batch, index_heads, queries)": (batch, heads, queries)}
    checks.tensor("head_weights", head_weights, "floating-point", shapes=shapes, device=device)
    if row_weights is not None and checks.tensor("row_weights", row_weights, device=device):
        checks.broadcastable("row_weights", row_weights, "(batch, 1, queries)", (batch, 1, queries))
