"""Functions of one cell of the weight matrix, FlexAttention's `mask_mod` and `score_mod`, mapped over tiles.

`torch.vmap` maps them, as in FlexAttention, so they mean the same here: they get scalar tensors, and may index a table
in steps, ``table[h][q_idx]``, which would select something else with tensors of several indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.errors import InvalidArgument
from regard.ops.tile import Tile
from regard.ops.tree import map_tensors, tensors_in

Function = Callable[..., Tensor]
"""A function of scalar tensors: (b, h, q_idx, kv_idx), or (score, b, h, q_idx, kv_idx)."""


class CellFunction:
    """A function of one cell, and the tensors that it captures: those of its closure, its module or its object.

    They are found by a call for the first cell. As part of a rule they can be replaced, as all tensors of a rule are;
    the function then computes with the replacements.

    Args:
        function: The function.
        has_score: Whether it takes the score of the cell, too.

    Attributes:
        captured: The tensors, or what replaces them in a copy of this.

    Raises:
        InvalidArgument: If the function changes a tensor in place.
    """

    is_tree_node = True

    def __init__(self, function: Function, has_score: bool) -> None:
        find = _find_captured
        if torch.compiler.is_compiling():
            from regard.ops.graph_break import call  # loads torch's compiler, which takes a second

            find = partial(call, _find_captured)
        self.captured: list[Tensor] = find(function, has_score, "cpu")
        device = next((tensor.device for tensor in self.captured if tensor.device.type != "cpu"), None)
        if device is not None:  # scalars on the CPU do not mix with its tensors in every operation
            self.captured = find(function, has_score, device)
        self._function, self._originals = function, _Originals(self.captured)

    def map(self, tile: Tile, scores: Tensor | None = None) -> Tensor:
        """The results for the cells of a tile, (batch, heads, rows, keys).

        Args:
            tile: The tile.
            scores: Broadcastable to the tile; None if the function takes indices only.

        Raises:
            InvalidArgument: If the function uses a tensor that it did not use at first.
        """
        replacements = self._originals.replaced_by(self.captured)

        def function(*inputs: Tensor) -> Tensor:
            with _Cell(inputs, replacements):
                return self._function(*inputs)

        first = () if scores is None else (scores.expand(tile.shape),)
        for axis in (3, 2, 1, 0):  # the innermost first
            of_indices: list[int | None] = [0 if number == axis else None for number in range(4)]
            if axis == 2 and tile.row_keys is not None:  # each row has keys of its own
                of_indices[3] = 0
            function = torch.vmap(function, in_dims=(*(0 for _ in first), *of_indices))
        return function(*first, tile.b.flatten(), tile.h.flatten(), tile.q_idx.flatten(), tile.kv_idx)


class _Originals:
    """The tensors that a function captures. It is not a part of the tree, so these are never replaced or copied."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tuple(tensors)

    def __deepcopy__(self, memo: Any) -> _Originals:
        return self  # a copy of a function captures the same tensors

    def replaced_by(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """Others by the `id` of those that they replace."""
        return {id(tensor): other for tensor, other in zip(self._tensors, tensors, strict=True)}


def _find_captured(function: Function, has_score: bool, device: str | torch.device) -> list[Tensor]:
    inputs = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)]
    if has_score:
        inputs.insert(0, torch.zeros((), device=device))
    cell = _Cell(inputs)
    with torch.no_grad(), cell:
        function(*inputs)
    if any(tensor._version != version for tensor, version in cell.versions if not tensor.is_inference()):
        raise InvalidArgument("it changes a tensor in place; return a new one")
    return cell.captured


class _Cell(TorchFunctionMode):
    """What holds while a function is called for one cell.

    A tensor is indexed by scalar tensors without reading their values, which `torch.vmap` does not allow.

    Args:
        inputs: What the function is passed.
        replacements: What is used in place of a captured tensor, by the `id` of that. None: `captured` notes them.
    """

    def __init__(self, inputs: Sequence[Tensor], replacements: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self.versions = [] if replacements is not None else [(tensor, tensor._version) for tensor in inputs]
        self._replacements = replacements
        self._known = {id(tensor): tensor for tensor in inputs}  # which are passed or were computed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_in((args, kwargs)):
            if id(tensor) not in self._known:
                self._note_captured(tensor)
        if self._replacements:
            args, kwargs = map_tensors((args, kwargs), self._replace)
        result = _call(func, args, kwargs)
        self._known.update((id(tensor), tensor) for tensor in tensors_in(result))
        return result

    def _note_captured(self, tensor: Tensor) -> None:
        if self._replacements is None:
            self._known[id(tensor)] = tensor
            self.captured.append(tensor)
            if not tensor.is_inference():
                self.versions.append((tensor, tensor._version))
        elif id(tensor) not in self._replacements:
            raise InvalidArgument(
                f"it uses a tensor of shape {tuple(tensor.shape)} that it did not use when the weights were defined"
            )

    def _replace(self, tensor: Tensor) -> Tensor:
        return tensor if self._replacements is None else self._replacements.get(id(tensor), tensor)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of torch; to index by scalar tensors is an operation on them."""
    if func is Tensor.__getitem__:
        tensor, index = args
        indices = index if isinstance(index, tuple) else (index,)
        is_read = any(isinstance(each, Tensor) for each in indices)
        if is_read and all(isinstance(each, (Tensor, int)) for each in indices):
            return torch.ops.aten.index.Tensor(
                tensor, [torch.as_tensor(each, device=tensor.device) for each in indices]
            )
    return func(*args, **kwargs)
