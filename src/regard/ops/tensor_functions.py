"""Weight matrices where code expects a tensor: torch's functions, methods and operators.

A function that has a form of its own for matrices, such as ``sum`` or ``topk``, takes that. Every other one is computed
from `dense`, as if the matrix were that tensor; it raises where `dense` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from numbers import Number
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.errors import InvalidArgument
from regard.ops.contractions import einsum, matmul
from regard.ops.reductions import Reductions

DENSE_LIMIT = 2**28
"""Largest number of cells that are computed without an explicit limit: 1 GiB in float32."""

ROWS_AND_COLUMNS = ({2, 3}, {-2, -1}, {2, -1}, {-2, 3})
"""The axes of queries and keys, as their numbers can be given."""

_INSTEAD = {
    "argsort": "W.topk(k)",
    "sort": "W.topk(k)",
    "softmax": "W.scores for the input of the softmax",
}
"""What to call for a function whose dense matrix would be too large."""

_OPERATORS = (
    *(f"{side}{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow") for side in ("", "r")),
    *(
        "eq",
        "ne",
        "and",
        "or",
        "xor",
        "lt",
        "le",
        "gt",
        "ge",
        "neg",
        "pos",
        "abs",
        "invert",
        "contains",
        "float",
        "int",
        "matmul",
        "rmatmul",
    ),
)


OWN_FUNCTIONS = {
    *("sum", "mean", "amax", "amin", "max", "min", "argmax", "topk", "numel", "is_floating_point", "detach"),
    *("transpose", "swapaxes", "swapdims", "permute", "diagonal"),
    *("any", "all", "nonzero", "count_nonzero"),
}
"""Functions of torch that are methods of these classes, or of some of them."""

COMPARISONS = {"gt", "ge", "lt", "le"}
"""Functions that compare cells with a number."""

GRADIENT_HOOKS = {"retain_grad", "register_hook", "register_post_accumulate_grad_hook"}
"""Methods for the gradient with respect to a tensor, which no graph goes through here."""


class MaxOverKeys(NamedTuple):
    """What ``W.max(-1)`` returns, as ``torch.max`` does."""

    values: Tensor
    indices: Tensor


class TensorFunctions(Reductions):
    """Base of lazy matrices that torch's functions take.

    Subclasses have `shape`, `dtype`, `device`, `dense` and `reduce_axes`.
    """

    __array_priority__ = 1000  # NumPy leaves its operators to this class

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the cells."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the cells are computed."""
        raise NotImplementedError

    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """All cells as a tensor."""
        raise NotImplementedError

    @staticmethod
    def join(name: str, matrices: Any, dim: int = 0, **options: Any) -> TensorFunctions | None:
        """What ``torch.stack`` or ``torch.cat`` returns instead of a tensor; None for the tensor."""
        return None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch with lazy matrices among its arguments."""
        name, options = func.__name__, kwargs or {}
        if name in ("stack", "cat", "concat", "concatenate") and args and not isinstance(args[0], Tensor):
            joined = cls.join(name, args[0], *args[1:], **options)
            if joined is not None:
                return joined
        elif name == "einsum":
            product = einsum(*args)
            if product is not None:
                return product
        elif name in OWN_FUNCTIONS and args and hasattr(type(args[0]), name) and isinstance(args[0], TensorFunctions):
            return getattr(args[0], name)(*args[1:], **options)
        elif name in ("matmul", "bmm", "__matmul__", "__rmatmul__") and len(args) == 2:
            product = matmul(*(reversed(args) if name == "__rmatmul__" else args))
            if product is not None:
                return product
        elif name.strip("_") in COMPARISONS and len(args) == 2 and not options:
            comparison = args[0].compare(name.strip("_"), args[1]) if isinstance(args[0], TensorFunctions) else None
            if comparison is not None:
                return comparison
        elif name in ("mul", "multiply", "__mul__", "__rmul__") and len(args) == 2 and not options:
            product = args[0].times(args[1]) if isinstance(args[0], TensorFunctions) else None
            if product is not None:
                return product

        def dense(part: Any) -> Any:
            return part.dense_for(name) if isinstance(part, TensorFunctions) else part

        return func(*tree_map(dense, args), **tree_map(dense, options))

    def compare(self, name: str, other: Any) -> TensorFunctions | None:
        """The cells that are ``gt``, ``ge``, ``lt`` or ``le`` a number; None if they are to be computed as a tensor."""
        return None

    def times(self, other: Any) -> TensorFunctions | None:
        """The product by cell with another lazy matrix; None if it is to be computed from the dense matrices."""
        return None

    def dense_for(self, name: str) -> Tensor:
        """The dense matrix that a function needs.

        Raises:
            InvalidArgument: If it is too large.
        """
        cells = prod(self.shape)
        if cells > DENSE_LIMIT:
            name = name.strip("_")
            better = _INSTEAD.get(name, "W[batch, heads, queries] or W.at(heads=..., queries=...) for a part of it")
            raise InvalidArgument(
                f"{name}: needs all {cells:,} cells as a tensor, the limit is {DENSE_LIMIT:,}; use {better}, a measure "
                "(W.entropy(), W.topk(8)), or W.dense(limit=...)"
            )
        return self.dense().contiguous()

    def __getattr__(self, name: str) -> Any:
        """A method or an attribute of the dense matrix."""
        kind = None if name.startswith("__") else getattr(Tensor, name, None)
        if kind is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'", name=name, obj=self)
        if name.endswith("_"):
            problem = f"'{type(self).__name__}' object has no '{name}', because it is a view that is computed on demand"
            raise AttributeError(f"{problem}; call W.dense().{name}", name=name, obj=self)
        if name in GRADIENT_HOOKS:
            raise AttributeError(
                f"'{type(self).__name__}' object has no '{name}', because outputs are not computed from its cells; "
                "read layer.weights.grad of regard.watch(model, weight_gradients=True)"
            )
        if name.startswith("is_") and not callable(kind):
            return getattr(torch.empty(0, dtype=self.dtype, device=self.device), name)
        if not callable(kind):
            return getattr(self.dense_for(name), name)

        def method(*args: Any, **options: Any) -> Any:
            return self.__torch_function__(kind, (type(self),), (self, *args), options)

        method.__name__ = name
        return method

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is computed on demand and cannot be changed; change W.dense()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """All cells as an array of NumPy."""
        return np.asarray(self.numpy(), dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """All cells, for ``torch.as_tensor`` and others; an error where they have a gradient, as for a tensor."""
        return self.dense_for("as_tensor").__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device=self.device).__dlpack_device__()

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise RuntimeError(f"the truth of a {type(self).__name__} of {self.numel():,} cells is ambiguous")
        return bool(self.dense())

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return self.dense_for("indexing")[index]

    @property
    def requires_grad(self) -> bool:
        """Whether its cells have a gradient."""
        raise NotImplementedError

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        """The dense matrix with all axes in reverse."""
        return self.permute(*reversed(range(self.ndim)))

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def is_floating_point(self) -> bool:
        """True."""
        return True

    def contiguous(self) -> Self:
        """Itself."""
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """All cells as an array of NumPy."""
        return self.dense_for("numpy").numpy()

    def float(self) -> Self | Tensor:
        """In float32: itself, or the dense matrix where it is in float64."""
        return self.to(torch.float32)

    def cpu(self) -> Self:
        """The same matrix on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Self:
        """The same matrix on a GPU."""
        return self.to("cuda" if device is None else torch.device("cuda", torch.device("cuda", device).index))

    def to(self, *args: Any, **options: Any) -> Any:
        """The same matrix on another device; in another dtype, the dense one. Arguments are those of ``Tensor.to``."""
        raise NotImplementedError


def check_cells(cells: int, limit: int, dtype: torch.dtype) -> None:
    """Check that a result is not too large.

    Raises:
        InvalidArgument: If it has more cells than the limit.
    """
    if cells > limit:
        raise InvalidArgument(
            f"the result would hold {cells:,} cells, {format_bytes(cells * dtype.itemsize)}; the limit is {limit:,}. "
            "Select a part (W[0, 3], W.at(heads=[3])), compute a measure (W.entropy(), W.topk(8)), multiply by a "
            "vector (W @ x), or call W.dense(limit=...)"
        )


def format_bytes(count: int) -> str:
    """Bytes for a reader: 8.2 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
        size /= 1000
    return f"{size:.1f} TB"


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(Tensor, name)

    def operator(self: TensorFunctions, *args: Any) -> Any:
        if name in ("__eq__", "__ne__") and not isinstance(args[0], (Number, Tensor, TensorFunctions, np.ndarray)):
            return NotImplemented
        return self.__torch_function__(function, (type(self),), (self, *args))

    operator.__name__ = name
    return operator


for each in _OPERATORS:
    setattr(TensorFunctions, f"__{each}__", _operator(f"__{each}__"))
TensorFunctions.__hash__ = object.__hash__  # by identity, as that of a tensor
