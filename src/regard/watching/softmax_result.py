"""Tensors that hold the result of a softmax, followed through the functions that a module calls."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.watching.result import LayerKey
from regard.watching.score_axes import RESHAPES, moved_roles, order_after, permutes

SAME_ENTRIES = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "native_dropout"),
    *("to", "type_as", "float", "double", "half", "bfloat16", "type", "cpu", "cuda"),
    *("contiguous", "clone", "detach", "requires_grad", "alias", "view_as", "positive", "pos", "nan_to_num"),
}
"""Functions whose result has the entries of their argument, or some of them."""

EXPANSIONS = {"expand", "expand_as", "broadcast_to"}

FACTORS = {"mul", "div", "true_divide", "rmul", "imul", "truediv", "itruediv"}
"""Functions that scale rows, where the other argument is the same for all keys."""

PARTS = {"cat", "pad", "split", "chunk", "unbind", "tensor_split", "narrow", "index_select", "roll", "flip"}
"""Functions whose result has some of the keys, or others, too."""

MOVES = {
    *("sort", "msort", "gather", "take", "take_along_dim", "topk", "fliplr", "flipud", "rot90", "as_strided"),
    *("unfold", "view_as_complex", "index", "matrix_exp", "inverse", "matrix_power"),
}
"""Functions whose result may have other keys in the same places; that of all others is multiplied as it is."""

SIDE_RESULTS = re.compile("_like$|^new_|^set|^get$|^(grad|result_type|isclose|bernoulli|multinomial|normal)$")
"""Functions whose result does not follow from the entries of their argument, or is none of the weights."""


@dataclass(eq=False)
class Softmax:
    """One call of softmax.

    Args:
        module: The module that computes it.
        shape: That of its result.
        recorded: How many of its entries were recorded with a product.
        layer: The layer that they are in, if it is known.
    """

    module: nn.Module
    shape: torch.Size
    recorded: int = 0
    layer: LayerKey | None = None


@dataclass(eq=False)
class Followed:
    """A tensor that holds the result of a softmax.

    Args:
        softmax: The softmax.
        scores: What softmax was applied to, in the axes of the tensor.
        keys: The axis of the softmax.
        version: That of `scores` when softmax was applied; None in inference mode.
        own_version: That of the tensor when it was followed last.
        is_scaled: Whether its rows were multiplied by factors.
        is_changed: Whether its entries are no longer those of the softmax.
        entries: Its entries before dropout, if they were changed and then dropped.
        problem: Why a product with it is not one of weights and values over all keys; empty if it may be.
        roles: Those of its axes, if they are known; see `score_axes`.
        features: Those of its axes, if they are known; see `feature_axes`.
    """

    softmax: Softmax
    scores: Tensor
    keys: int
    version: int | None
    own_version: int | None = None
    is_scaled: bool = False
    is_changed: bool = False
    entries: Tensor | None = None
    problem: str = ""
    roles: str | None = None
    features: str | None = None

    @property
    def is_overwritten(self) -> bool:
        """Whether the scores were changed in place since."""
        return self.version != version_of(self.scores)


def tensors_in(args: Sequence[Any]) -> Iterator[Tensor]:
    """The tensors in the arguments of a function."""
    for argument in args:
        several = argument if isinstance(argument, (list, tuple)) else (argument,)
        yield from (each for each in several if isinstance(each, Tensor))


def version_of(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def rearranged(
    name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], known: Followed, result: Tensor
) -> Followed | None:
    """What is known of a followed tensor with other axes; None if the function does something else."""
    scores, keys = known.scores, known.keys
    is_permutation = permutes(name, func)
    if not is_permutation and name not in {*RESHAPES, *EXPANSIONS, "getitem"}:
        return None
    if known.problem:
        return known
    if is_permutation:
        apply = lambda tensor: func(tensor, *args[1:], **kwargs)  # noqa: E731
        place = order_after(apply, scores.ndim).index(keys)
    elif name in RESHAPES:
        below = math.prod(scores.shape[keys + 1 :])
        places = [
            axis
            for axis, size in enumerate(result.shape)
            if size == scores.shape[keys] and math.prod(result.shape[axis + 1 :]) == below
        ]
        if not places:
            return replace(known, problem="takes a part of its keys")
        apply, place = (lambda tensor: tensor.reshape(result.shape)), places[-1]
    elif name in EXPANSIONS:
        apply, place = (lambda tensor: tensor.expand(result.shape)), keys + result.ndim - scores.ndim
    else:
        place = _keys_of_item(scores, keys, args[1])
        if place is None:
            return replace(known, problem="takes a part of its keys")
        apply = lambda tensor: tensor[args[1]]  # noqa: E731
    entries = None if known.entries is None else apply(known.entries)
    roles = moved_roles(name, func, args, kwargs, known.roles, scores, result)
    return replace(known, scores=apply(scores), keys=place, entries=entries, roles=roles)


def _keys_of_item(scores: Tensor, keys: int, index: Any) -> int | None:
    """The axis of the keys in ``scores[index]``; None if it has not all of them."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        return None
    strides = [int(axis == keys) for axis in range(scores.ndim)]
    marked = torch.empty_strided(scores.shape, strides, device="meta")[index]
    places = [axis for axis, size in enumerate(marked.shape) if marked.stride(axis) == 1 and size == scores.shape[keys]]
    return places[-1] if places else None


def is_per_row(factor: Any, known: Followed) -> bool:
    """Whether a factor of weights is the same for all keys."""
    if not isinstance(factor, Tensor):
        return isinstance(factor, (int, float))
    axis = known.keys - known.scores.ndim
    return factor.ndim < -axis or factor.shape[axis] == 1
