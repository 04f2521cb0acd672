"""Interventions in a watched model: heads whose output is set to zero, and cells of the mask that are knocked out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.checks import Checks
from regard.errors import InvalidArgument, did_you_mean, short_repr
from regard.ops.masks import as_mask, to_block_mask, to_dense, to_spans
from regard.watching.call import AttentionCall
from regard.watching.prefix_keys import as_in_model

Pairs = Sequence[tuple[int, int]]
"""Positions of queries and of keys."""


class Interventions:
    """What is changed, by the names of modules.

    Args:
        ablate: Heads whose output is 0.
        knockout: Pairs (query, key) that may not attend to each other.
    """

    def __init__(
        self, ablate: Mapping[str, Sequence[int]] | None = None, knockout: Mapping[str, Pairs] | None = None
    ) -> None:
        self.ablate: Mapping[str, Sequence[int]] = _as_lists(ablate)
        self.knockout: Mapping[str, Pairs] = _as_lists(knockout)
        self.reset()

    def reset(self) -> None:
        """Forget what was applied."""
        self._knocked_out: set[tuple[str, int, int]] = set()
        self._ablated: set[str] = set()

    def check(self, checks: Checks, module_names: Sequence[str]) -> None:
        """Add the problems with these interventions in a model with modules of these names."""
        before = len(checks.problems)
        for argument, changes in (("ablate", self.ablate), ("knockout", self.knockout)):
            if not isinstance(changes, Mapping):
                checks.fail(f"{argument}: expected a dict by module name, got {type(changes).__name__}")
                continue
            for name, each in changes.items():
                if isinstance(each, str) or not isinstance(each, Sequence) or not len(each):
                    checks.fail(
                        f"{argument}: expected a list with at least one entry for {name}, got {short_repr(each)}"
                    )
                if name not in module_names:
                    checks.fail(f"{argument}: unknown module {short_repr(name)}{did_you_mean(name, module_names)}")
        if len(checks.problems) > before:
            return
        for name, heads in self.ablate.items():
            for head in heads:
                checks.that(
                    _is_index(head), f"ablate: expected indices of heads from 0 for {name}, got {short_repr(head)}"
                )
        for name, pairs in self.knockout.items():
            wrong = [pair for pair in pairs if not _is_pair(pair)]
            if wrong:
                hint = "; write [(query, key)]" if all(map(_is_index, pairs)) else ""
                checks.fail(
                    f"knockout: expected pairs of positions from 0 for {name}, got {short_repr(wrong[0])}{hint}"
                )

    def applies_to(self, name: str) -> bool:
        """Whether a module's attention is changed."""
        return name in self.ablate or name in self.knockout

    def knock_out(self, name: str, mask: Any, call: AttentionCall, *, adds: bool = False) -> Any:
        """Remove pairs from a mask, and from the mask of the call that is recorded.

        Args:
            name: The module.
            mask: The mask that its attention function is called with.
            call: The call; its mask changes, too.
            adds: Whether the function adds the mask to the scores whatever its dtype, as dense attention does.

        Returns:
            The mask to call the function with.

        Raises:
            InvalidArgument: If a query would have no key left in dense attention, which would then be uniform.
        """
        if name not in self.knockout:
            return mask
        batch, _, queries, keys = call.request.shape
        removed = torch.zeros(queries, keys, dtype=torch.bool, device=call.query.device)
        for query, key in self.knockout[name]:
            row, column = query - call.q_offset, key - call.kv_offset
            if 0 <= row < queries and 0 <= column < keys:
                removed[row, column] = True
                if key <= query or call.may_attend(row, column):  # a mask that depends on data may drop earlier keys
                    self._knocked_out.add((name, query, key))
        if not bool(removed.any()):
            return mask
        before, in_model = call.request.mask, as_in_model(removed, call.num_prefix_keys, 1)
        rule = as_mask(~removed) if before is None else before & as_mask(~removed)
        where = call.request.offset, removed.device
        call.request = replace(call.request, mask=to_spans(rule, call.request.shape, *where) or rule)
        shape = batch, 1, queries, keys
        if isinstance(mask, BlockMask):
            return to_block_mask(rule, shape, call.request.offset, device=removed.device)
        if adds:
            left = to_dense(rule, shape, *where)
            allowed = torch.ones_like(left) if before is None else to_dense(before, shape, *where)
            empty = (allowed.any(-1) & ~left.any(-1)).nonzero()
            if len(empty):
                query = int(empty[0, -1]) + call.q_offset
                raise InvalidArgument(
                    f"knockout: query {query} of {name} has no key left, and dense attention would then be uniform; "
                    'watch the model after model.set_attn_implementation("sdpa")'
                )
            mask = call.query.new_zeros(left.shape) if mask is None else mask
            return mask.masked_fill(in_model, torch.finfo(mask.dtype).min)
        if mask is None:
            return to_dense(rule, shape, *where)
        return mask & ~in_model if mask.dtype == torch.bool else mask.masked_fill(in_model, torch.finfo(mask.dtype).min)

    def ablate_heads(self, name: str, output: Tensor) -> Tensor:
        """The output of attention, (batch, queries, heads, head_dim), 0 for the ablated heads.

        Raises:
            InvalidArgument: If the module has no such head.
        """
        heads = list(self.ablate.get(name, ()))
        if not heads:
            return output
        self._ablated.add(name)
        if max(heads) >= output.shape[2]:
            raise InvalidArgument(f"ablate: expected heads below {output.shape[2]} for {name}, got {max(heads)}")
        head_mask = output.new_ones(output.shape[2])
        head_mask[heads] = 0
        return output * head_mask[:, None]

    def unapplied(self, recorded: Sequence[str]) -> list[str]:
        """The interventions that had no effect, as problems.

        Args:
            recorded: The names of the layers that were recorded.
        """
        problems = []
        for name in self.ablate:
            if name not in self._ablated:
                within = [layer for layer in dict.fromkeys(recorded) if layer.startswith(f"{name}.")]
                instead = f"; within it, {', '.join(within)} did" if within else ""
                problems.append(f"ablate: {name} did not compute attention in any forward pass{instead}")
        return problems + [
            f"knockout: in no forward pass of {name} may query {query} attend to key {key}; pairs are (query, key)"
            for name, pairs in self.knockout.items()
            for query, key in pairs
            if (name, query, key) not in self._knocked_out
        ]


def _as_lists(changes: Any) -> Any:
    """The entries of each module; those of a tensor or an array as a list."""
    if not isinstance(changes, Mapping):
        return changes or {}
    return {name: each.tolist() if hasattr(each, "tolist") else each for name, each in changes.items()}


def _is_pair(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_index, value))


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
