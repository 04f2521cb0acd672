"""A call, its gradients and one product with its weights, in a process that gets no more than some memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

import torch

from helpers.ops.cases import SCORES, masks, measures
from regard.ops import attend, weights


def run(
    mask: str,
    score: str,
    names: Sequence[str],
    *,
    limit: int,
    rows: int,
    keys: int,
    value_dim: int,
    dropout: float,
    dense: bool,
) -> None:
    """Write ``ran`` to standard error if all of it fits, and then compute the dense matrix if that is wanted."""
    dim = 16
    shapes = (rows, dim), (keys, dim), (keys, value_dim)
    query, key, value = (torch.randn(1, 1, *shape).requires_grad_() for shape in shapes)
    rule = masks(1, 1, rows, keys)[mask]
    requested = {name: measure for name, measure in measures(rows, keys).items() if name in names}
    case = SCORES[score]
    learned = {name: tensor.float().requires_grad_() for name, tensor in case.tensors(1, rows, keys, dim).items()}
    # What is allocated once per process does not count.
    attend(query[:, :, :64], key[:, :, :64], value[:, :, :64], kernel="blockwise").output.sum().backward()
    with open("/proc/self/status") as status:
        used = int(next(line for line in status if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
    att = attend(query, key, value, mask=rule, score=case.rule(learned), measure=requested, dropout=dropout)
    loss = att.output.square().sum() + (att.weights @ torch.randn(keys)).square().sum()
    for result in att.measured.values():
        for part in result if isinstance(result, tuple) else (result,):
            loss = loss + part.clamp(min=-9).square().sum() if part.is_floating_point() else loss
    loss.backward()
    assert all(torch.isfinite(x.grad).all() for x in (query, key, value, *learned.values()) if x.grad is not None)
    print("ran", att.weights.shape[-1], file=sys.stderr, flush=True)
    if dense:
        att.weights.dense(limit=keys * keys)


def multiply_hessian(*, limit: int, tokens: int, heads: int) -> None:
    """The product of the Hessian of a loss on entropy and a vector, by two backward passes."""
    query, key = (torch.randn(1, heads, tokens, 16).requires_grad_() for _ in range(2))

    def product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        loss = weights(query, key).entropy().square().sum()
        (gradient,) = torch.autograd.grad(loss, query, create_graph=True)
        return torch.autograd.grad(gradient.sum(), query)[0]

    product(query[:, :, :64], key[:, :, :64])  # what is allocated once per process does not count
    with open("/proc/self/status") as status:
        used = int(next(line for line in status if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
    assert torch.isfinite(product(query, key)).all()
    print("ran", tokens, file=sys.stderr, flush=True)
