"""Calls of matrix products: their two operands, and their axes as an equation."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from torch import Tensor

PRODUCTS = {
    "matmul": ("input", "other"),
    "linalg_matmul": ("input", "other"),
    "rmatmul": ("other", "input"),
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "baddbmm": ("input", "batch1", "batch2"),
    "linear": ("input", "weight"),
    "einsum": (),
}
"""Functions that multiply matrices, and the names of their operands in order."""

OTHER_PRODUCTS = {
    *("addmm", "addbmm", "addmv", "mv", "dot", "inner", "tensordot", "kron", "bilinear", "chain_matmul"),
    *("multi_dot", "linalg_multi_dot", "hspmm", "smm", "sspaddmm", "conv1d", "conv2d", "conv3d"),
}
"""Functions that multiply matrices, too, and are not read."""


def operands_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The two tensors that a function in `PRODUCTS` multiplies, the left one first; all tensors of an ``einsum``."""
    if name == "einsum":
        flat = [each for part in args for each in (part if isinstance(part, (list, tuple)) else (part,))]
        return [each for each in flat if isinstance(each, Tensor)]
    names = PRODUCTS[name]
    values = [*args, *(kwargs[each] for each in names[len(args) :] if each in kwargs)][-2 if len(names) > 2 else 0 :]
    operands = [each for each in values[:2] if isinstance(each, Tensor)]
    return operands[::-1] if name == "rmatmul" else operands


def terms_of(name: str, args: Sequence[Any], operands: Sequence[Tensor]) -> tuple[str, str, str] | None:
    """The axes of both operands and of the result, as in ``"bij,bjd->bid"``; None if they are not known."""
    one, other = operands
    if name == "einsum":
        return _terms_of_einsum(args[0], operands)
    if name == "linear":
        lead = ascii_letters[: one.ndim - 1]
        return f"{lead}Y", f"{'Z' * (other.ndim - 1)}Y", f"{lead}{'Z' * (other.ndim - 1)}"
    if min(one.ndim, other.ndim) < 2:
        return None
    lead = ascii_letters[: max(one.ndim, other.ndim) - 2]
    of_one, of_other = lead[len(lead) - one.ndim + 2 :], lead[len(lead) - other.ndim + 2 :]
    return f"{of_one}XY", f"{of_other}YZ", f"{lead}XZ"


def _terms_of_einsum(equation: Any, operands: Sequence[Tensor]) -> tuple[str, str, str] | None:
    if not isinstance(equation, str):
        return None
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if len(parts) != 2:
        return None
    if not arrow:  # torch sorts the letters that occur once, upper case first
        letters = inputs.replace(",", "").replace("...", "")
        output = ("..." if "..." in inputs else "") + "".join(
            sorted(each for each in letters if letters.count(each) == 1)
        )
    spare = [letter for letter in ascii_letters if letter not in equation]
    counts = [each.ndim - len(part) + 3 if "..." in part else 0 for part, each in zip(parts, operands, strict=True)]
    lead = "".join(spare[: max(counts)])
    terms = [part.replace("...", lead[len(lead) - count :]) for part, count in zip(parts, counts, strict=True)]
    terms.append(output.replace("...", lead))
    return None if any(len(set(term)) < len(term) for term in terms) else (terms[0], terms[1], terms[2])


def without_broadcast(axes: str, tensor: Tensor, others: str, other: Tensor) -> str:
    """The axes of an operand but those of size 1 that are larger in the other."""
    sizes = dict(zip(others, other.shape, strict=True))
    return "".join(axis for axis, size in zip(axes, tensor.shape, strict=True) if size > 1 or sizes.get(axis, 1) == 1)
