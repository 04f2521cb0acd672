"""The kernels, and which of them serves a job."""

from __future__ import annotations

from regard.errors import InvalidArgument, KernelNotSupported, did_you_mean
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.kernels.short import Short
from regard.ops.kernels.sparse import Sparse

KERNELS: tuple[Kernel, ...] = (Sparse(), Short(), Sdpa(), Blockwise(), Reference())
"""In the order in which they are tried: the first with no objection runs."""


def choose(job: KernelInputs, name: str | None = None) -> Kernel:
    """The first kernel that can serve the job, or the one of this name.

    Raises:
        InvalidArgument: If there is no kernel of this name.
        KernelNotSupported: If the named kernel, or every kernel, has objections; all are printed.
    """
    asked = KERNELS if name is None else [kernel for kernel in KERNELS if kernel.name == name]
    if not asked:
        known = [kernel.name for kernel in KERNELS]
        raise InvalidArgument(
            f"kernel: unknown name {name!r}{did_you_mean(str(name), known)} (known: {', '.join(known)})"
        )
    for kernel in asked:
        if not any(kernel.why_not(job)):  # which looks no further than to the first reason
            return kernel
    raise KernelNotSupported(
        "\n".join(f"kernel '{kernel.name}' cannot serve this: {'; '.join(kernel.why_not(job))}" for kernel in asked)
    )
