"""The kernels, and which of them computes a call."""

from __future__ import annotations

from regard.errors import InvalidArgument, KernelNotSupported, did_you_mean
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.native.kernel import Native
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.kernels.sparse import Sparse

KERNELS: tuple[Kernel, ...] = (Sparse(), Native(), Sdpa(), Blockwise(), Reference())
"""In the order in which they are tried."""


def select_kernel(inputs: KernelInputs, name: str | None = None) -> Kernel:
    """The first kernel that can and should compute a call, or the named one if it can.

    Raises:
        InvalidArgument: If there is no kernel of this name.
        KernelNotSupported: If the named kernel cannot compute the call; the message says why.
    """
    if name is None:
        for kernel in KERNELS:
            if kernel.suits(inputs):
                return kernel
        raise AssertionError("the kernel 'reference' computes every call")
    for kernel in KERNELS:
        if kernel.name == name:
            reasons = list(kernel.unsupported_reasons(inputs))
            if reasons:
                raise KernelNotSupported(f"kernel '{name}' cannot compute this call: {'; '.join(reasons)}")
            return kernel
    known = [kernel.name for kernel in KERNELS]
    raise InvalidArgument(f"kernel: unknown name {name!r}{did_you_mean(str(name), known)}; known: {', '.join(known)}")
