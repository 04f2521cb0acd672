"""torch's scaled dot-product attention, for calls that compute nothing about the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.ops.autograd import is_differentiated_twice, is_traced, without_autocast
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal, DenseMask, Mask
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDotProduct

# In a compiled program sizes are symbols. `True if size > 1 else False` makes a bool, as SDPA needs; bool() does not.

MAX_DENSE_CELLS = 2**22
"""Largest mask or matrix for which SDPA is chosen unless it is named: 16 MiB in float32."""


class Sdpa(Kernel):
    """SDPA takes query, key, value and a dense or broadcast mask, and returns the output.

    NaN and infinity behave as in torch: on a CPU one in a query may become 0, and one in a masked key may reach every
    row.
    """

    fallback = Blockwise()
    name = "sdpa"
    description = "torch's scaled_dot_product_attention, where nothing is computed about the weights"
    scores = frozenset({ScaledDotProduct})
    measures = frozenset()
    needs_value = True
    needs_equal_dtypes = True
    propagates_nan = False
    tolerance_factor = 5.0  # torch adds up gradients of keys and values in half precision: it rounds after each block

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: different numbers of heads in key and value, both shared."""
        yield from super().unsupported_reasons(inputs)
        request, value = inputs.request, inputs.value
        if value is not None and value.shape[1] != request.key.shape[1] and request.key.shape[1] != request.shape[1]:
            yield "key and value have different numbers of heads"

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Where it would allocate something of the size of the matrix."""
        reason = _dense_memory_reason(inputs)
        if reason and prod(inputs.request.shape) > MAX_DENSE_CELLS:
            yield reason

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        if is_differentiated_twice():
            return self.fallback.run_eager(inputs)
        query, key, value = inputs.request.query, inputs.request.key, inputs.value
        assert value is not None
        device = value.device.type
        if value.shape[1] != key.shape[1]:
            value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        is_masked = inputs.request.mask is not None
        with without_autocast(device):  # the output keeps the dtype of value
            mask = _dense_mask(inputs.request) if is_masked else None
            output = scaled_dot_product_attention(
                _as_rows(query),
                _as_rows(key),
                _as_rows(value),
                attn_mask=mask,
                dropout_p=inputs.dropout,
                is_causal=is_masked and _is_causal(inputs.request),
                scale=inputs.request.scale,
                enable_gqa=True if query.shape[1] > key.shape[1] else False,  # noqa: SIM210
            )
        node = None if inputs.dropout or is_traced() else output.grad_fn
        if node is not None and hasattr(node, "_saved_query"):
            query, key = (query.new_empty(()).expand(each.shape) for each in (query, key))  # the node has the tensors
            rules = replace(inputs.request, query=query, key=key)
            node.register_hook(partial(_differentiable_gradients, rules))
        if mask is not None and device != "cpu":  # in half precision, torch's GPU kernels give rows without keys a mean
            output = output.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        return output, {}


def _differentiable_gradients(
    request: AttentionRequest, gradients: Sequence[Tensor | None], incoming: Sequence[Tensor]
) -> tuple[Tensor | None, ...] | None:
    """With ``create_graph=True``, the gradients of SDPA as those of `blockwise`, which can be differentiated again."""
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():  # pyright: ignore[reportPrivateUsage]
        return None
    node: Any = torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
    request = replace(request, query=node._saved_query, key=node._saved_key)
    inputs = KernelInputs(node._saved_value, request, {})
    needed = [gradients[i] is not None for i in (2, 0, 1)]
    found = iter(Sdpa.fallback.differentiable_gradients(inputs, needed, incoming[0]))
    value, query, key = (next(found) if need else None for need in needed)
    return query, key, value, *gradients[3:]


def _as_rows(x: Tensor) -> Tensor:
    """The tensor in a layout that torch's CPU kernel reads correctly.

    Its vectors are contiguous. In a query with strides (1, 1), as a sliding view has, torch 2.13 reads other rows.
    """
    return x if x.stride(-1) == 1 and x.stride(-2) != 1 else x.contiguous()


def _dense_memory_reason(inputs: KernelInputs) -> str:
    """Why the call would take memory of the size of the matrix; empty if it does not."""
    request, value = inputs.request, inputs.value
    if request.mask is not None and _needs_dense_mask(request, request.mask):
        # While a program is compiled, sizes may be symbols, which cannot be formatted.
        shape = "dense tensor of its cells" if torch.compiler.is_compiling() else f"dense {request.shape} tensor"
        return f"the mask would need a {shape}, because SDPA supports only causal and dense masks"
    if request.query.device.type != "cpu" or value is None:
        return ""
    # torch's CPU kernel supports neither; torch then multiplies whole matrices.
    if inputs.dropout:
        return "SDPA's dropout on a CPU holds the whole matrix"
    return "" if value.shape[3] == request.query.shape[3] else "SDPA's CPU kernel needs value_dim = head_dim"


def _is_causal(request: AttentionRequest) -> bool:
    """Whether the mask is SDPA's causal mask: it starts at the first key, and needs a scale above 0."""
    is_causal = type(request.mask) is Causal and request.offset == 0 and request.rows is None and request.scale > 0
    return True if is_causal and not _causal_masks_nothing(request) else False  # noqa: SIM210


def _causal_masks_nothing(request: AttentionRequest) -> bool:
    """Whether the mask is causal and forbids nothing, as for the last query of a decoder."""
    if type(request.mask) is not Causal:
        return False
    first = 0 if request.rows is None else int(request.rows.min())
    return first + request.offset >= request.shape[3] - 1


def _needs_dense_mask(request: AttentionRequest, mask: Mask) -> bool:
    """Whether a mask with a cell per query and key must be allocated; a dense mask exists already."""
    if type(mask) is DenseMask or not mask.depends_on_query:
        return False
    return not _is_causal(request) and not _causal_masks_nothing(request)


def _dense_mask(request: AttentionRequest) -> Tensor | None:
    """The mask as a bool tensor, (batch or 1, heads or 1, queries or 1, keys); None if SDPA needs none."""
    if request.mask is None or _is_causal(request) or _causal_masks_nothing(request):
        return None
    *sizes, keys = request.shape
    if type(request.mask) is DenseMask and request.full_shape is None:  # its cells are there already
        return _with_keys(torch.atleast_1d(request.mask.tensor), keys)
    if torch.compiler.is_compiling():  # a slice's ends would become constants, and other sizes recompile
        batch, heads, queries = (torch.arange(size, device=request.query.device) for size in sizes)
    else:
        batch, heads, queries = (slice(0, size) for size in sizes)
    return _with_keys(torch.atleast_1d(request.allowed(request.tile(batch, heads, queries))), keys)


def _with_keys(allowed: Tensor, keys: int) -> Tensor:
    """A mask with four axes, the last of them of all keys."""
    return allowed.expand((1,) * (4 - allowed.ndim) + tuple(allowed.shape[:-1]) + (keys,))
