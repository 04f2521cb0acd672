"""The dtype that a model computes in."""

from __future__ import annotations

import torch

from regard.errors import InvalidArgument

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_dtype(dtype: torch.dtype) -> None:
    """Check that models can compute in a dtype.

    Raises:
        InvalidArgument: If they cannot.
    """
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype: expected one of {', '.join(map(str, DTYPES))}, got {dtype!r}")


def fastest_dtype() -> torch.dtype:
    """The fastest dtype for translation and generation on this CPU.

    Returns:
        ``torch.bfloat16`` if the CPU has instructions for its products, which halve the time of a translation; else
        ``torch.float32``. Attention weights in bfloat16 can be off by 0.03.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32
