"""What models compute in."""

from __future__ import annotations

import torch

from regard.errors import InvalidArgument

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def chosen_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that was asked for, or the fastest.

    Raises:
        InvalidArgument: If it is none that models compute in.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InvalidArgument(f"dtype must be one of {', '.join(map(str, DTYPES))}, but is {dtype}")
    return fastest_dtype() if dtype is None else dtype


def fastest_dtype() -> torch.dtype:
    """Bfloat16 where the CPU has instructions for its products, which halve the time of a translation; else float32."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32
