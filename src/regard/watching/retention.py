"""Retention: what a watch keeps of the calls that it records, where, and how much."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import ref

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidFile, short_repr
from regard.ops.scores import Bias, ScaledDotProduct
from regard.ops.tensor_functions import DENSE_LIMIT, format_bytes
from regard.ops.tree import map_tensors, tensors_in
from regard.watching.call import AttentionCall

MIN_FILE_BYTES = 2**16
"""Smaller tensors, as those of a decode step, are not worth a file."""


@dataclass(eq=False)
class Retention:
    """What is kept.

    Args:
        keep_qk: Whether queries and keys are kept, or only measures.
        keep_values: Whether values are kept with them.
        offload: None keeps tensors where they are; ``"cpu"`` moves them there; a folder keeps them in files.
        max_bytes: Largest number of bytes; None for no limit.

    """

    keep_qk: bool = True
    keep_values: bool = False
    offload: Literal["cpu"] | str | os.PathLike[str] | None = None
    max_bytes: int | None = None
    _stored_bytes: int = 0
    _counted: dict[int, ref[Tensor]] = field(default_factory=dict, repr=False)

    def check(self, checks: Checks) -> None:
        """Add the problems with what is to be kept."""
        checks.integer("max_bytes", self.max_bytes, low=1, optional=True)
        for name, value in (("keep_qk", self.keep_qk), ("keep_values", self.keep_values)):
            if not isinstance(value, bool):
                checks.fail_type(f"{name}: expected True or False, got {short_repr(value)}")
        if self.keep_values and not self.keep_qk:
            checks.fail("keep_values: values are kept with queries and keys only; pass keep_qk=True")
        if self.offload is not None and not isinstance(self.offload, (str, os.PathLike)):
            checks.fail_type(f"offload: expected 'cpu' or an existing folder, got {short_repr(self.offload)}")
        elif self.offload not in (None, "cpu") and not (str(self.offload) and Path(self.offload).is_dir()):
            checks.fail(f"offload: expected 'cpu' or an existing folder, got {short_repr(str(self.offload))}")

    def store(self, name: str, call: AttentionCall) -> AttentionCall:
        """A call of a layer with its tensors where they are kept, counted.

        Raises:
            InvalidArgument: If there would be more than `max_bytes`.
        """
        if self.offload is not None:
            call = self._offload(call)
        if self.max_bytes is not None:
            self.count(name, call)
        elif call.is_dense and self.offload in (None, "cpu"):
            self._limit_dense(name, call)
        return call

    def _limit_dense(self, name: str, call: AttentionCall) -> None:
        """Refuse dense weights beyond the library's own limit.

        Raises:
            InvalidArgument: If those of all calls would have more than `DENSE_LIMIT` entries.
        """
        assert call.bias is not None
        self._add(call.bias)
        limit = DENSE_LIMIT * call.bias.itemsize
        if self._stored_bytes > limit:
            size, before = call.bias.nbytes, self._stored_bytes - call.bias.nbytes
            raise InvalidArgument(
                f"{name}: its dense weights, captured at its softmax, take {format_bytes(size)} and those before them "
                f"{format_bytes(before)}, more than {format_bytes(limit)} in all; pass an adapter for its class "
                "(adapters={Class: adapter}), select layers=[...], or set max_bytes="
            )

    def _offload(self, call: AttentionCall) -> AttentionCall:
        request = replace(call.request, query=self._move(call.query), key=self._move(call.key))
        value = None if call.value is None else self._move(call.value)
        if call.is_dense and call.bias is not None:
            score = ScaledDotProduct() + Bias(self._move(call.bias))
            request = replace(request, score=score)
        valid = None if call.valid_queries is None else call.valid_queries.cpu()
        return replace(call, request=map_tensors(request, Tensor.cpu), value=value, valid_queries=valid)

    def store_gradient(self, name: str, gradient: Tensor) -> Tensor:
        """The gradient of a layer's output where it is kept, counted.

        Raises:
            InvalidArgument: If there would be more than `max_bytes`.
        """
        gradient = gradient if self.offload is None else self._move(gradient)
        self.count(name, gradient)
        return gradient

    def count(self, name: str, held: Any) -> None:
        """Count the tensors in a call or in results; one that several layers share, as a mask, counts once.

        Raises:
            InvalidArgument: If there would be more than `max_bytes`.
        """
        if self.max_bytes is None:
            return
        for tensor in tensors_in(held):
            self._add(tensor)
        if self._stored_bytes > self.max_bytes:
            instead = "pass keep_qk=False" if self.keep_qk else "measure less"
            raise InvalidArgument(
                f"max_bytes: with {name}, the watch would keep {self._stored_bytes:,} bytes, more than "
                f"{self.max_bytes:,}; raise max_bytes, select layers= or heads=, or {instead}"
            )

    def _add(self, tensor: Tensor) -> None:
        """Count a tensor once, until it is freed."""
        if id(tensor) not in self._counted:
            self._counted[id(tensor)] = ref(tensor, partial(self._forget, id(tensor), tensor.nbytes))
            self._stored_bytes += tensor.nbytes

    def _forget(self, number: int, nbytes: int, _: object) -> None:
        """A counted tensor was freed."""
        self._stored_bytes -= nbytes
        self._counted.pop(number, None)

    def _move(self, tensor: Tensor) -> Tensor:
        """Move a tensor to where it is kept."""
        if self.offload == "cpu" or tensor.nbytes < MIN_FILE_BYTES:
            return tensor.detach().to("cpu", copy=True)  # the model may change its own in place
        assert self.offload is not None
        return _to_file(tensor.detach(), Path(self.offload))


def _to_file(tensor: Tensor, folder: Path) -> Tensor:
    """A tensor in an unnamed file, which disappears with it."""
    try:
        handle, path = tempfile.mkstemp(".regard-offload", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):  # otherwise writing to the mapping of a full disk ends the process
                os.posix_fallocate(handle, 0, tensor.nbytes)
            mapped = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        finally:
            os.close(handle)
            os.unlink(path)
        return mapped.view(tensor.shape).copy_(tensor)
    except (OSError, RuntimeError) as error:
        raise InvalidFile(f"offload: {folder}: {error}") from error
