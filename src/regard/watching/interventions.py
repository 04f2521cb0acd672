"""What is changed in a model while it is watched: heads that are silent, and cells of the matrix that are forbidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidArgument, did_you_mean
from regard.ops.masks import as_mask, to_dense, to_spans
from regard.watching.calls import Call

Pairs = Sequence[tuple[int, int]]
"""Positions of queries and of keys."""


@dataclass(frozen=True)
class Interventions:
    """What is changed, by the names of modules.

    Args:
        ablate: Heads whose output is 0.
        knockout: Pairs of a query and a key that may not see each other.
    """

    ablate: Mapping[str, Sequence[int]] = field(default_factory=dict)
    knockout: Mapping[str, Pairs] = field(default_factory=dict)
    _reached: set[tuple[str, int, int]] = field(default_factory=set, init=False, repr=False)
    _silenced: set[str] = field(default_factory=set, init=False, repr=False)

    def objections(self, names: Sequence[str]) -> list[str]:
        """Why they do not fit a model with modules of these names."""
        found = []
        for what, given in (("ablate", self.ablate), ("knockout", self.knockout)):
            if not isinstance(given, Mapping):
                return [f"{what}: expected a dict by the names of modules, got {type(given).__name__}"]
            found += [
                f"{what}: expected for {name} a list with at least one entry, got {each!r:.80}"
                for name, each in given.items()
                if isinstance(each, str) or not isinstance(each, Sequence) or not len(each)
            ]
            found += [
                f"{what}: unknown module {name!r}{did_you_mean(str(name), names)}"
                for name in given
                if name not in names
            ]
        if found:
            return found
        for name, heads in self.ablate.items():
            found += [
                f"ablate: heads of {name} are numbers from 0, got {head!r}" for head in heads if not _is_number(head)
            ]
        for name, pairs in self.knockout.items():
            wrong = [pair for pair in pairs if not _is_pair(pair)]
            how = "; write [(query, key)]" if wrong and all(map(_is_number, pairs)) else ""
            found += [f"knockout: {name} is given pairs of positions from 0, got {pair!r}{how}" for pair in wrong[:1]]
        return found

    def forget(self) -> None:
        """A watch begins: nothing has been reached yet."""
        self._reached.clear()
        self._silenced.clear()

    def touch(self, name: str) -> bool:
        """Whether a module's attention is changed."""
        return name in self.ablate or name in self.knockout

    def forbid(self, name: str, mask: Any, call: Call, *, adds: bool = False) -> Any:
        """The mask without the pairs that are knocked out, which the call then says, too.

        Args:
            name: The module.
            mask: What its attention function is given.
            call: What is told of it.
            adds: Whether that function adds the mask to the scores, as dense attention does, whatever its dtype.

        Raises:
            InvalidArgument: If the function would add the mask to all scores of a row alike, which changes nothing.
        """
        if name not in self.knockout:
            return mask
        rows, keys = call.query.shape[2], call.key.shape[2]
        hit = torch.zeros(rows, keys, dtype=torch.bool, device=call.query.device)
        for query, key in self.knockout[name]:
            if 0 <= query - call.first < rows and 0 <= key - call.first_key < keys:
                hit[query - call.first, key - call.first_key] = True
                self._reached.add((name, query, key))
        if not bool(hit.any()):
            return mask
        before, hidden = call.mask, hit.roll(-call.extra, 1)  # as the model has its keys
        rule = as_mask(~hit) if before is None else before & as_mask(~hit)
        shape = (*call.query.shape[:3], keys)
        call.mask = to_spans(rule, shape, call.offset, hit.device) or rule  # pyright: ignore[reportArgumentType]
        if adds:
            shape = len(call.query), 1, rows, keys
            left = to_dense(rule, shape, call.offset, hit.device)
            was = torch.ones_like(left) if before is None else to_dense(before, shape, call.offset, hit.device)
            if bool((was.any(-1) & ~left.any(-1)).any()):
                raise InvalidArgument(
                    f"knockout: of a query of {name} no key is left, and dense attention then looks at all alike: "
                    'watch it after model.set_attn_implementation("sdpa")'
                )
            mask = call.query.new_zeros(left.shape) if mask is None else mask
            return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)
        if mask is None:
            return to_dense(rule, (len(call.query), 1, rows, keys), call.offset, hit.device)
        return mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, torch.finfo(mask.dtype).min)

    def unreached(self, heard: Sequence[str]) -> list[str]:
        """Say which modules did not attend, and which pairs stand where no matrix was.

        Args:
            heard: The modules that attended.
        """
        found = []
        for name in self.ablate:
            if name not in self._silenced:
                within = [each for each in dict.fromkeys(heard) if each.startswith(f"{name}.")]
                instead = f"; within it, {', '.join(within)} did" if within else ""
                found.append(f"ablate: {name} did not attend, in no pass{instead}")
        return found + [
            f"knockout: {name} had no query {query} with a key {key}, in no pass"
            for name, pairs in self.knockout.items()
            for query, key in pairs
            if (name, query, key) not in self._reached
        ]

    def silence(self, name: str, output: Tensor) -> Tensor:
        """The output (batch, rows, heads, width) without that of the heads that are silent.

        Raises:
            InvalidArgument: If there is no such head.
        """
        heads = list(self.ablate.get(name, ()))
        if not heads:
            return output
        self._silenced.add(name)
        if max(heads) >= output.shape[2]:
            raise InvalidArgument(f"ablate: {name} has {output.shape[2]} heads, numbered from 0; got {max(heads)}")
        loud = output.new_ones(output.shape[2])
        loud[heads] = 0
        return output * loud[:, None]


def _is_pair(thing: object) -> bool:
    return isinstance(thing, Sequence) and len(thing) == 2 and all(map(_is_number, thing))


def _is_number(thing: object) -> bool:
    return isinstance(thing, int) and not isinstance(thing, bool) and thing >= 0
