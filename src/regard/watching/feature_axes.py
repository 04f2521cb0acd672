"""Which axes of tensors are features, as linear layers and convolutions make them: heads and channels are, tokens not.

The features of a tensor are a string with a letter for each axis: "f" for one that a projection has made, or a part of
it; "t" for one that it kept, such as batch and tokens; "?" for one that is not known. Sizes do not tell these apart
where a model has as many heads or channels as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from regard.watching.matrix_products import OTHER_PRODUCTS
from regard.watching.score_axes import RESHAPES, order_after, permutes, regrouped
from regard.watching.softmax_result import EXPANSIONS, tensors_in

REDUCTIONS = {"unbind", "select"}
"""Functions whose result lacks an axis, the first unless they say another."""


class FeatureAxes:
    """The features of the tensors that a model computes."""

    def __init__(self) -> None:
        self._known = WeakTensorKeyDictionary()  # of each tensor its string

    def of(self, tensor: Tensor) -> str | None:
        """The features of a tensor; None if nothing is known of it."""
        return self._known.get(tensor)

    def clear(self) -> None:
        """Forget all tensors."""
        self._known.clear()

    def follow(self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Follow tensors through a function that is no product of two tensors."""
        if isinstance(result, Tensor) and name.startswith("conv") and name.endswith("d"):
            lead = result.ndim - int(name[-2]) - 1  # a batch, or none
            self._known[result] = "t" * lead + "f" + "t" * (result.ndim - lead - 1)
            return
        if name == "addmm" and is_parameter(args[2] if len(args) > 2 else kwargs.get("mat2")):
            self._known[result] = "tf"
            return
        known = [each for each in tensors_in((*args, *kwargs.values())) if each in self._known]
        if not known:
            return
        for part in tensors_in((result,)):
            moved = self._moved(name, func, args, kwargs, known[0], part)
            if moved is not None and part is not known[0]:
                self._known[part] = moved

    def follow_product(
        self, name: str, terms: tuple[str, str, str], operands: Sequence[Tensor], result: Tensor
    ) -> None:
        """Follow two tensors to their product, which has features of its own if one of them is a parameter.

        Args:
            name: The function, of which ``linear`` always projects.
            terms: The axes of both and of the product.
            operands: The two.
            result: The product.
        """
        projections = [False, True] if name == "linear" else [is_parameter(each) for each in operands]
        if all(projections):
            return
        features = [self._known.get(each) or "?" * each.ndim for each in operands]
        if any(projections):
            place = projections.index(False)
            is_certain = operands[place].ndim <= 3  # of more axes, one may be the heads
            kept = {
                axis: "t" if is_certain and each != "f" else "?"
                for axis, each in zip(terms[place], features[place], strict=True)
            }
            self._known[result] = "".join(kept.get(axis, "f") for axis in terms[2])
            return
        if not any(each.strip("?") for each in features):
            return
        letters: dict[str, str] = {}
        for term, of_term in zip(terms, features, strict=False):
            for axis, letter in zip(term, of_term, strict=True):
                letters[axis] = min(letters.get(axis, "?"), letter, key="ft?".index)
        self._known[result] = "".join(letters[axis] for axis in terms[2])

    def _moved(
        self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], first: Tensor, result: Tensor
    ) -> str | None:
        """The features of a result of a function of a tensor; None if they are not known."""
        features = self._known[first]
        if name in OTHER_PRODUCTS:
            return None
        is_argument = bool(args) and args[0] is first
        if is_argument and permutes(name, func):
            order = order_after(lambda tensor: func(tensor, *args[1:], **kwargs), first.ndim)
            return "".join(features[axis] for axis in order)
        if is_argument and name in RESHAPES:
            return regrouped(first.shape, features, result.shape)
        if is_argument and name == "getitem":
            return _of_item(features, args[1])
        if is_argument and name in REDUCTIONS:
            axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            return None if not isinstance(axis, int) else _without(features, axis)
        more = result.ndim - first.ndim
        if not more:
            return features
        others = tensors_in((*args, *kwargs.values()))
        is_broadcast = name in EXPANSIONS or any(each.ndim == result.ndim for each in others)
        return "?" * more + features if more > 0 and is_broadcast else None


def is_parameter(tensor: Any) -> bool:
    """Whether a tensor is a parameter, or a view of one."""
    return isinstance(tensor, nn.Parameter) or (
        isinstance(tensor, Tensor) and tensor._is_view() and isinstance(tensor._base, nn.Parameter)
    )


def _without(features: str, axis: int) -> str:
    axis %= len(features)
    return features[:axis] + features[axis + 1 :]


def _of_item(features: str, index: Any) -> str | None:
    """Those of ``tensor[index]``; None if it picks entries one by one."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        return None
    count = sum(part is not None and part is not Ellipsis for part in parts)
    rest = [slice(None)] * (len(features) - count)
    place = next((place for place, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[place : place + 1] = rest
    found, axis = "", 0
    for part in parts:
        found += "?" if part is None else features[axis] if isinstance(part, slice) else ""
        axis += part is not None
    return found
