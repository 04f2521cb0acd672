"""What `gpu.py` compares with: the backends of SDPA, FlexAttention, dense PyTorch and flash-colreduce."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

Run = Callable[[], object]

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def backends(parts: list[Tensor], is_causal: bool) -> dict[str, Run]:
    """Torch's choice, and each backend; the output alone."""

    def of(backend: SDPBackend) -> Run:
        def run() -> object:
            with sdpa_kernel(backend):
                return sdpa(*parts, is_causal=is_causal)

        return run

    return {"SDPA": lambda: sdpa(*parts, is_causal=is_causal)} | {name: of(each) for name, each in BACKENDS.items()}


def with_backward(run: Run, parts: list[Tensor]) -> Run:
    """Forward and backward pass of an output."""
    gradient = torch.ones_like(parts[2][:, :1].expand_as(parts[0]))

    def both() -> object:
        output: Any = run()
        return torch.autograd.grad(output, parts, gradient)

    return both


def dense(parts: list[Tensor], is_causal: bool) -> Run:
    """Output, entropy and received from the whole matrix."""

    def run() -> object:
        query, key, value = parts
        scores = query @ key.mT * query.shape[3] ** -0.5
        if is_causal:
            hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu_(1)
            scores = scores.masked_fill_(hidden, -torch.inf)
        weights = scores.softmax(-1)
        return weights @ value, torch.special.entr(weights).sum(-1), weights.sum(-2)

    return run


@lru_cache(maxsize=1)
def _flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def flex(parts: list[Tensor], is_causal: bool) -> dict[str, Run]:
    """FlexAttention with its auxiliary outputs, and the method of two calls, whose second one gives log received."""
    query, key, value = parts
    sizes = query.shape[2], key.shape[2]

    def mask(rule: Any, queries: int, keys: int) -> BlockMask | None:
        return create_block_mask(rule, None, None, queries, keys, device=query.device) if is_causal else None

    by_rows = mask(lambda b, h, q, k: q >= k, *sizes)
    by_columns = mask(lambda b, h, k, q: q >= k, *sizes[::-1])
    aux = AuxRequest(lse=True, max_scores=True)

    def one() -> object:
        return _flex()(query, key, value, block_mask=by_rows, return_aux=aux)

    def two() -> object:
        output, found = _flex()(query, key, value, block_mask=by_rows, return_aux=AuxRequest(lse=True))
        lse = found.lse
        _, columns = _flex()(
            key,
            query,
            query,
            score_mod=lambda score, b, h, k, q: score - lse[b, h, q],
            block_mask=by_columns,
            return_aux=AuxRequest(lse=True),
        )
        return output, columns.lse.exp()

    return {"FlexAttention with lse and maximum": one, "FlexAttention, two calls, received": two}


def colreduce(parts: list[Tensor], is_causal: bool) -> dict[str, Run]:
    """The package flash-colreduce, if it is installed: column sums alone."""
    if importlib.util.find_spec("flash_colreduce") is None:
        return {}
    from flash_colreduce import flash_colsum  # pyright: ignore[reportMissingImports]

    return {"flash-colreduce, received alone": lambda: flash_colsum(parts[0], parts[1], is_causal=is_causal)}
