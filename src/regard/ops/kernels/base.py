"""Kernel: what it can compute, as data, and how it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import InvalidArgument
from regard.ops.masks.base import Mask, find_part
from regard.ops.measures.base import Measure
from regard.ops.request import DTYPES, AttentionRequest, in_dtype_of_sums
from regard.ops.rules import Rule
from regard.ops.scores.base import Score
from regard.ops.steps import RuleSteps
from regard.ops.tree import subtrees, walk

Measured = dict[str, Any]
"""Results of measures by name: a tensor or a tuple of tensors."""


@dataclass(eq=False)
class KernelInputs:
    """One call of a kernel.

    Args:
        value: (batch, value_heads, keys, value_dim), value_heads divides heads; None if only measures are computed.
        request: The weight matrix.
        measures: What to compute about the weights, by name.
        dropout: Probability of dropping a weight from the output.
    """

    value: Tensor | None
    request: AttentionRequest
    measures: Mapping[str, Measure]
    dropout: float = 0.0
    is_tree_node: ClassVar[bool] = True
    __slots__ = ("__dict__", "_steps", "preparation")  # not parts of the tree: a call of other tensors has its own

    @property
    def steps(self) -> RuleSteps:
        """The steps of the rules, made when they are first needed."""
        steps: RuleSteps | None = getattr(self, "_steps", None)
        if steps is None:
            request = self.request
            place = request.place
            mask = [] if request.mask is None else request.mask.steps(place)
            score = request.score.steps(place)
            place = place if request.full_shape is None else request.local_place
            steps = self._steps = RuleSteps(mask, score, [])
            for measure in self.measures.values():
                steps.measures.append(measure.steps(place))
        return steps

    @property
    def is_builtin(self) -> bool:
        """Whether every rule is built in and plain data, so that the call can be one operator of a compiled program."""
        return are_builtin(walk((self.request.mask, self.request.score, self.measures))[1])

    def new_output(self) -> Tensor:
        """An output to be filled, (batch, heads, queries, value_dim), where there is a value.

        On a CPU the heads of a query are adjacent, so that a model joins them without a copy.
        """
        assert self.value is not None
        (batch, heads, queries, _), value_dim = self.request.query.shape, self.value.shape[3]
        if self.value.device.type != "cpu":
            return self.value.new_empty(batch, heads, queries, value_dim)
        return self.value.new_empty(batch, queries, heads, value_dim).transpose(1, 2)

    def with_wide_rules(self) -> KernelInputs:
        """The same call with the tensors of score and measures in at least the dtype of sums.

        Autograd adds up the gradient of a tensor in its dtype. Of a table in bfloat16, it would round each partial sum.
        """
        score, measures = in_dtype_of_sums((self.request.score, self.measures), self.request.dtype)
        if score is self.request.score and measures is self.measures:
            return self
        return replace(self, request=replace(self.request, score=score), measures=measures)


def are_builtin(trees: Iterable[Any]) -> bool:
    """Whether every rule among the trees of `walk` is built in and plain data."""
    return not [tree for tree in trees if isinstance(tree, Rule) and (tree.has_python_callable or not tree.builtin)]


class RunOptions(NamedTuple):
    """How the passes of a call run.

    Args:
        seed: Of dropout, the same forward and backward; None without dropout.
        saves: Whether a backward pass may follow.
        checks_untracked_tensors: Whether the forward pass raises if a rule uses a tensor that requires grad and is not
            in its tree, where it would get no gradient.
    """

    seed: Tensor | None = None
    saves: bool = False
    checks_untracked_tensors: bool = False


class Kernel:
    """Base of all kernels. `dispatch.KERNELS` lists them in the order in which they are tried.

    Attributes:
        name: What `kernel=` takes.
        description: One line for `regard info`.
        devices: Device types that it runs on; None for any.
        dtypes: Dtypes of query, key and value.
        masks: Classes of masks that it supports, by exact type, for a user's subclass is another class; None for any.
        scores: The same for scores, with those within sums and modifiers.
        measures: The same for measures. A kernel that reads `steps` overrides `supports` and `unsupported_rules`.
        required_mask: A class of masks that the mask must be, alone or combined by ``&``; None if any will do.
        max_width: Largest head_dim and value_dim; None for any.
        needs_value: Whether it computes nothing without a value.
        needs_equal_dtypes: Whether the value must have the dtype of query and key.
        has_dropout: Whether it drops weights.
        has_selections: Whether it computes a selection of batch entries, heads or queries, as `WeightMatrix.at` makes.
        fuses_measures: Whether it computes output and measures in one pass, and the output about as fast as SDPA.
        propagates_nan: Whether NaN reaches each row that may attend to it, and results that depend on others stay.
        tolerance_factor: How many times as far off as those of other kernels results in half precision may be.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    devices: ClassVar[tuple[str, ...] | None] = None
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES
    masks: ClassVar[frozenset[type[Mask]] | None] = None
    scores: ClassVar[frozenset[type[Score]] | None] = None
    measures: ClassVar[frozenset[type[Measure]] | None] = None
    required_mask: ClassVar[type[Mask] | None] = None
    max_width: ClassVar[int | None] = None
    needs_value: ClassVar[bool] = False
    needs_equal_dtypes: ClassVar[bool] = False
    has_dropout: ClassVar[bool] = True
    has_selections: ClassVar[bool] = True
    fuses_measures: ClassVar[bool] = False
    propagates_nan: ClassVar[bool] = True
    tolerance_factor: ClassVar[float] = 1.0
    registered: ClassVar[dict[str, Any]] = {}
    """By name, the kernels of `dispatch.KERNELS`: the ones that an operator of a compiled program can name."""

    def unavailable_reason(self) -> str | None:
        """Why this kernel cannot run on this machine, and what to do about it; None if it can."""
        return None

    def variant(self) -> str:
        """Which of several versions runs on this machine, such as an instruction set; empty if there is only one."""
        return ""

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """The reasons why this kernel cannot compute a call, cheap ones first; none if it can."""
        request = inputs.request
        if self.devices is not None and request.query.device.type not in self.devices:
            yield f"it runs on {', '.join(self.devices)}, the tensors are on {request.query.device.type}"
        if request.query.dtype not in self.dtypes:
            yield f"it does not support {request.query.dtype}"
        value = inputs.value
        if value is None:
            if self.needs_value:
                yield "it computes nothing without a value"
        elif value.dtype != request.query.dtype:
            if self.needs_equal_dtypes:
                yield f"the value is {value.dtype}, the query is {request.query.dtype}"
            elif value.dtype not in self.dtypes:
                yield f"it does not support {value.dtype}"
        if self.max_width is not None:
            head_dim, value_dim = request.query.shape[3], 0 if value is None else value.shape[3]
            if max(head_dim, value_dim) > self.max_width:
                yield f"it supports head_dim and value_dim up to {self.max_width}, not {head_dim} and {value_dim}"
        if inputs.dropout and not self.has_dropout:
            yield "it has no dropout"
        if request.full_shape is not None and not self.has_selections:
            yield "it does not support a selection of batch entries, heads or queries"
        if self.required_mask is not None and find_part(request.mask, self.required_mask) is None:
            yield f"the mask is not a {self.required_mask.__name__} (alone or combined by &)"
        yield from self.unsupported_rules(inputs)

    def unsupported_rules(self, inputs: KernelInputs) -> Iterator[str]:
        """The reasons that are masks, scores and measures."""
        if self.measures is not None:
            yield from _unsupported(Measure, self.measures, inputs.measures.values())
        if self.masks is not None:
            yield from _unsupported(Mask, self.masks, (inputs.request.mask,))
        if self.scores is not None:
            yield from _unsupported(Score, self.scores, (inputs.request.score,))

    def supports(self, cls: type[Rule]) -> bool:
        """Whether a class of masks, scores or measures is supported; some of its instances may still not be."""
        classes: Mapping[type, frozenset[type] | None] = {Mask: self.masks, Score: self.scores, Measure: self.measures}
        supported = classes[cls.base]
        return supported is None or cls in supported

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """The reasons why another kernel is better for a call; they do not count if this one is named."""
        yield from ()

    def is_suitable(self, inputs: KernelInputs) -> bool:
        """Whether this kernel can and should compute a call."""
        return not any(self.unsupported_reasons(inputs)) and not any(self.inefficient_reasons(inputs))

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """The output, (batch, heads, queries, value_dim), and the measures by name."""
        raise NotImplementedError


def _unsupported(base: type[Rule], supported: frozenset[type], rules: Iterable[Rule | None]) -> Iterator[str]:
    """A reason for each rule, and each one of its kind within it, that is not supported."""
    for rule in rules:
        for part in subtrees(rule):
            if isinstance(part, base) and type(part) not in supported:
                yield f"it does not support the {base.__name__.lower()} {type(part).__name__}"


def untracked_tensor_error(argument: str, rule: Rule) -> InvalidArgument:
    """What is raised where `RunOptions.checks_untracked_tensors` finds one."""
    names = [type(part).__name__ for part in subtrees(rule) if isinstance(part, Rule) and not part.builtin]
    return InvalidArgument(
        f"{argument}: {' or '.join(names)} uses a tensor that requires grad but would get no gradient: it must be an "
        "attribute of the rule, or in a list, tuple, dict, dataclass or rule that is one, not in a closure, a module, "
        "an object with slots, a class attribute or a global variable. Assign it to an attribute (of a module: its "
        "parameters, called with torch.func.functional_call), or use kernel='reference'"
    )
