"""Gradients of the tensors of rules, for kernels that compute those of the tensors of steps.

They follow by autograd: the steps are made again, from leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, untracked_tensor_error
from regard.ops.rules import Rule
from regard.ops.steps import Step
from regard.ops.tree import map_tensors, tensors_in


def check_untracked_tensors(inputs: KernelInputs) -> None:
    """Raise if a tensor requires grad that is not in the tree of the inputs, whose own tensors are detached."""
    score = inputs.request.score
    with torch.enable_grad():
        if score.sinks is not None and score.sinks.requires_grad:
            raise untracked_tensor_error("score", score)
        for rule, step in steps_with_gradients(inputs):
            if any(tensor is not None and tensor.requires_grad for tensor in step.tensors()):
                raise untracked_tensor_error(rule.base.__name__.lower(), rule)


def steps_with_gradients(inputs: KernelInputs) -> Iterator[tuple[Rule, Step]]:
    """The steps of score and measures, each with its rule; a mask has no gradient."""
    rules, steps = (inputs.request.score, *inputs.measures.values()), inputs.steps
    for rule, own in zip(rules, (steps.score, *steps.measures), strict=True):
        for step in own or ():
            yield rule, step


def first_rule(inputs: KernelInputs) -> int:
    """Where the tensors of rules start in `tensors_in(inputs)`, after value, query and key."""
    return 2 if inputs.value is None else 3


def with_leaves(inputs: KernelInputs, needed: Sequence[bool]) -> KernelInputs:
    """The inputs with leaves of autograd as tensors, each of its own where a tensor occurs twice."""
    leaves: list[Tensor] = [
        tensor.detach().requires_grad_() if need else tensor
        for tensor, need in zip(tensors_in(inputs), needed, strict=True)
    ]
    rest = iter(leaves)
    return map_tensors(inputs, lambda _: next(rest))
