"""Which calls a kernel that reads steps can compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from regard.ops.kernels.base import KernelInputs
from regard.ops.masks import Mask
from regard.ops.measures import Measure
from regard.ops.rules import Rule, has_steps
from regard.ops.scores import Score
from regard.ops.steps import Step
from regard.ops.tree import subtrees


@dataclass(frozen=True)
class StepSupport:
    """What a kernel supports.

    Args:
        kinds: The kinds of steps, by the base of the rule.
        dtypes: Of query and key of a matrix that a measure compares with.
        max_topk: Keys of a row that are found.
        max_mask_depth: How many masks have to be remembered at once.
        max_mask_steps: How many steps a mask may have.
    """

    kinds: Mapping[type[Rule], frozenset[str]]
    dtypes: frozenset[torch.dtype]
    max_topk: int
    max_mask_depth: int
    max_mask_steps: int

    def unsupported_rules(self, inputs: KernelInputs) -> Iterator[str]:
        """Why the rules of a call cannot be computed."""
        request, steps = inputs.request, inputs.steps
        for measure, own in zip(inputs.measures.values(), steps.measures, strict=True):
            yield from self._unsupported(measure, own, Measure)
        if request.mask is not None:
            yield from self._unsupported(request.mask, steps.mask, Mask)
        yield from self._unsupported(request.score, steps.score, Score)

    def _unsupported(self, rule: Rule, steps: list[Step] | None, base: type[Rule]) -> list[str]:
        """Why steps cannot be computed: those of a rule, or those of a mask that it holds."""
        if steps is None:
            return _without_steps(rule)
        reasons: list[str] = []
        kinds, depth = self.kinds[base], 0
        if base is Mask and len(steps) > self.max_mask_steps:
            return [f"it supports masks of up to {self.max_mask_steps} steps, not {len(steps)}"]
        for step in steps:
            kind = step.kind
            if kind not in kinds:
                reasons.append(f"it has no step '{kind}' of the {rule.base.__name__.lower()} {type(rule).__name__}")
            elif base is Mask:
                depth += _DEPTH_CHANGES.get(kind, 1)
                if depth > self.max_mask_depth:
                    return [*reasons, f"it supports masks combined up to {self.max_mask_depth} deep"]
            elif kind == "topk" and step.numbers[0] > self.max_topk:
                reasons.append(f"it finds up to {self.max_topk} keys, not {step.numbers[0]}")
            if step.mask is not None:
                reasons += self._unsupported(rule, step.mask, Mask)
            if step.other is not None:
                reasons += self.unsupported_rules(KernelInputs(None, step.other, {}))
                dtypes = {step.other.query.dtype, step.other.key.dtype}
                reasons += [f"it does not support {dtype}" for dtype in dtypes if dtype not in self.dtypes]
        if base is Score and steps[0].kind != "dot_product":
            reasons.append(_not_a_biased_product(rule))
        return reasons


def _without_steps(rule: Rule) -> list[str]:
    reasons = [
        f"it does not support the {part.base.__name__.lower()} {type(part).__name__}"
        for part in subtrees(rule)
        if isinstance(part, Rule) and not has_steps(type(part))
    ]
    return reasons or [_not_a_biased_product(rule) if isinstance(rule, Score) else f"it does not support {rule!r}"]


_DEPTH_CHANGES = {"and": -1, "or": -1, "not": 0}
"""How many masks a step adds to those that are remembered, where that is not 1."""


def _not_a_biased_product(score: Rule) -> str:
    return f"it adds biases to one ScaledDotProduct, the score is {score!r}"
