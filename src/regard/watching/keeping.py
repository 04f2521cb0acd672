"""What a watch keeps of the calls that it hears, and where."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args
from weakref import ref

import torch
from torch import Tensor

from regard.errors import InvalidArgument, InvalidFile, InvalidType, count_problems, raise_problems
from regard.watching.calls import Call

Keep = Literal["matrix", "measures"]

SMALL = 2**16
"""Tensors of fewer bytes, as of a step of a generation, are not worth a file."""


@dataclass
class Keeping:
    """What is kept.

    Args:
        what: Queries and keys, too, or answers alone.
        values: Whether values are kept beside the keys.
        offload: None keeps tensors where they are; ``"cpu"`` moves them there; a folder holds them as files.
        limit: The most bytes.
    """

    what: Keep = "matrix"
    values: bool = False
    offload: Literal["cpu"] | str | os.PathLike[str] | None = None
    limit: int | None = None
    _held: int = 0
    _counted: dict[int, ref[Tensor]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        raise_problems(count_problems(limit=self.limit))
        if self.what not in get_args(Keep):
            raise InvalidArgument(f"keep: expected 'matrix' or 'measures', got {self.what!r}")
        if not isinstance(self.values, bool):
            raise InvalidType(f"values: expected True or False, got {self.values!r:.80}")
        if self.values and self.what != "matrix":
            raise InvalidArgument("values: are kept beside queries and keys: keep='matrix'")
        if self.offload is not None and not isinstance(self.offload, (str, os.PathLike)):
            raise InvalidArgument(f"offload: expected 'cpu' or a folder that is there, got {self.offload!r:.80}")
        if self.offload not in (None, "cpu") and not (str(self.offload) and Path(self.offload).is_dir()):
            raise InvalidArgument(f"offload: expected 'cpu' or a folder that is there, got {str(self.offload)!r}")

    def hold(self, name: str, call: Call) -> Call:
        """The call as it is kept.

        Raises:
            InvalidArgument: If it would pass the limit.
        """
        put = self._put
        if put is not None:
            value = None if call.value is None else put(call.value)
            call = replace(call, query=put(call.query), key=put(call.key), value=value).to_cpu()
        self.count(name, call.tensors)
        return call

    def count(self, name: str, tensors: Iterable[Tensor]) -> None:
        """Count tensors that are kept; those of a mask that several layers share count once.

        Raises:
            InvalidArgument: If they would pass the limit.
        """
        for tensor in tensors:
            if id(tensor) not in self._counted:
                self._counted[id(tensor)] = ref(tensor, partial(self._forget, id(tensor), tensor.nbytes))
                self._held += tensor.nbytes
        if self.limit is not None and self._held > self.limit:
            instead = ", or keep='measures'" if self.what == "matrix" else ", or measure less"
            raise InvalidArgument(
                f"watch: with {name} it would hold {self._held:,} bytes, above the limit of {self.limit:,}: raise "
                f"limit=, choose layers= or heads={instead}"
            )

    def _forget(self, number: int, nbytes: int, _: object) -> None:
        """A tensor that was counted is gone."""
        self._held -= nbytes
        self._counted.pop(number, None)

    @property
    def _put(self) -> Callable[[Tensor], Tensor] | None:
        """What moves a tensor to where it is kept."""
        if self.offload is None:
            return None
        folder = None if self.offload == "cpu" else Path(self.offload)
        return lambda tensor: _to_file(tensor.detach(), folder) if folder else tensor.detach().cpu()


def _to_file(tensor: Tensor, folder: Path) -> Tensor:
    """A tensor whose memory is a file without a name, which is gone when the tensor is."""
    if tensor.nbytes < SMALL:
        return tensor.cpu()
    try:
        handle, path = tempfile.mkstemp(".kept", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):  # to write where a full disk has no room would end the process
                os.posix_fallocate(handle, 0, tensor.nbytes)
            mapped = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        finally:
            os.close(handle)
            os.unlink(path)
        return mapped.view(tensor.shape).copy_(tensor)
    except (OSError, RuntimeError) as error:
        raise InvalidFile(f"offload: {folder}: {error}") from error
