"""The attention implementation ``"regard"`` of Hugging Face transformers. Importing this module registers it.

A model that is loaded with ``attn_implementation="regard"`` computes attention with `regard.attend`, and returns a
`WeightMatrix` for each layer with ``output_attentions=True``.

Examples:
    >>> import regard.transformers, torch, transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=99, attn_implementation="regard")
    >>> model = transformers.GPT2Model(config).eval()
    >>> output = model(torch.randint(99, (1, 10)), output_attentions=True)
    >>> [weights.shape for weights in output.attentions]
    [torch.Size([1, 4, 10, 10]), torch.Size([1, 4, 10, 10])]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

from regard.errors import InvalidArgument
from regard.ops import WeightMatrix, attend
from regard.ops.masks import Causal, DenseMask, Mask
from regard.ops.masks.spans import spans_of_rows
from regard.watching.module_inspection import (
    computes_with_masks,
    ignores_attention_interface,
    is_causal_without_mask,
    supports_sdpa,
)
from regard.watching.spans_tensor import SpansTensor
from regard.watching.transformers_attention import (
    SPARSE_INDEX_ARGS,
    SUPPORTED_ARGS,
    cast_as_autocast,
    make_score,
    parameter_names,
)

NAME = "regard"
"""What ``attn_implementation=`` takes."""

OFFSET = "_regard_offset"
"""The attribute of a dense mask that holds the position of the first query among the keys."""

MAX_DENSE_CELLS = 2**20
"""Largest mask that is a dense tensor: 1 MiB, which takes less time than ranges of keys."""

MAX_CELLS_AT_ONCE = 2**22
"""Cells of a larger mask that are computed at once, 4 MiB."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, WeightMatrix]:
    """Attention with the signature of transformers' attention functions.

    Args:
        module: The module that calls it.
        query: (batch, heads, queries, head_dim).
        key: (batch, kv_heads, keys, head_dim).
        value: (batch, kv_heads, keys, value_dim).
        attention_mask: What `make_mask` returns, or (batch or 1, heads or 1, queries or 1, keys), bool or added to the
            scores. None allows all keys, or those up to the query if the layer is causal.
        dropout: Probability of dropping a weight.
        scaling: Factor of the scores. Default: 1/√head_dim.
        is_causal: Whether the layer is causal. Default: what the module says.
        options: ``position_bias`` (added to the scores), ``softcap`` and ``s_aux`` (sinks, one for each head) take
            effect. Others that change the weights in the model's own dense attention are refused.

    Returns:
        The output, (batch, queries, heads, value_dim), and the weight matrix.

    Raises:
        InvalidArgument: If the model passes what is not supported, such as the keys that each query selects, or the
            paged cache of continuous batching.
    """
    for argument in _unsupported_arguments(type(module)):
        if options.get(argument) is not None:
            raise InvalidArgument(
                f"{type(module).__name__} passes {argument} to its attention function, which attn_implementation="
                f"'{NAME}' does not support; load the model without it"
            )
    query, key, value = _with_equal_batches(*cast_as_autocast(query, key, value))
    rule, added, offset = _read_mask(
        attention_mask, query.shape[2], key.shape[2], is_causal_without_mask(module, is_causal)
    )
    bias: Tensor | None = options.get("position_bias")
    if added is not None:
        bias = added if bias is None else bias + added
    score = make_score(query.dtype, bias, options)
    result = attend(query, key, value, mask=rule, score=score, scale=scaling, offset=offset, dropout=dropout)
    weights = result.weights
    if _is_written_in_place(key, query.shape[2]):
        weights = WeightMatrix(replace(weights.request, key=key.clone()))
    return result.output.transpose(1, 2).contiguous(), weights


def _read_mask(mask: Tensor | None, queries: int, keys: int, is_causal: bool) -> tuple[Mask | None, Tensor | None, int]:
    """The rule that a mask means, what it adds to the scores, and the position of the first query among the keys."""
    if mask is None and queries > 1:
        return Causal() if is_causal else None, None, 0
    if mask is None:
        return None, None, keys - 1 if is_causal else 0
    if isinstance(mask, SpansTensor):
        return mask.spans, None, mask.offset
    if mask.dtype != torch.bool:
        return None, mask, getattr(mask, OFFSET, keys - queries)
    rule = DenseMask(mask[:, :, :1] if mask.stride(2) == 0 else mask)
    if queries == keys or torch.compiler.is_compiling():
        return rule, None, keys - queries
    if not hasattr(mask, OFFSET):  # as in a copy: the last key that the last query may attend to has its position
        setattr(mask, OFFSET, int(mask[:, :, -1].nonzero()[:, -1].amax()) - queries + 1 if mask.any() else 0)
    return rule, None, getattr(mask, OFFSET)


def make_mask(**options: Any) -> Tensor | None:
    """A mask for `attention`, with the arguments and the entries of transformers' `sdpa_mask`.

    Returns:
        None if `sdpa_mask` returns it, because it follows from whether the layer is causal; padding alone as an
        expanded tensor; other masks as a dense tensor if they are small, for one query and in compiled code, else as a
        `SpansTensor`. A model that supports only dense attention, because it computes with its masks, gets the mask of
        that.

    Raises:
        InvalidArgument: If the model does not use transformers' attention interface.

    Memory:
        O(queries + keys), unless a row has more than 64 ranges of keys.
    """
    config = type(options["config"])
    model = ignores_attention_interface(config)
    if model:
        raise InvalidArgument(
            f"{model} computes attention in its own code, which attn_implementation='{NAME}' cannot replace; load it "
            "without it"
        )
    if computes_with_masks(config):
        return eager_mask(**options)
    explicit = {**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if not supports_sdpa(config):
        options["allow_is_causal_skip"] = False
    if torch.compiler.is_compiling():
        return sdpa_mask(**options)
    padding = sdpa_mask(**{**options, "mask_function": _allow_all, "use_vmap": False})
    if padding is None or options["mask_function"] is bidirectional_mask_function:
        return padding
    batch, queries, keys = options["batch_size"], options["q_length"], options["kv_length"]
    first, offset = int(options["q_offset"]), int(options["q_offset"]) - int(options["kv_offset"])
    if queries > 1 and batch * queries * keys > MAX_DENSE_CELLS:
        step = max(1, MAX_CELLS_AT_ONCE // (batch * keys))
        rows = (
            {"q_length": min(step, queries - start), "q_offset": first + start} for start in range(0, queries, step)
        )
        spans = spans_of_rows(cast(Tensor, sdpa_mask(**{**explicit, **each})) for each in rows)
        if spans is not None:
            return SpansTensor(spans, (batch, 1, queries, keys), offset)
    mask = sdpa_mask(**explicit)
    setattr(mask, OFFSET, offset)
    return mask


@torch.compiler.assume_constant_result
def _unsupported_arguments(cls: type[nn.Module]) -> list[str]:
    """The named arguments that the dense attention of a class may have, and `attention` has not."""
    return _inspect_arguments(cls)


@lru_cache(maxsize=1024)
def _inspect_arguments(cls: type[nn.Module]) -> list[str]:
    function = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
    own = () if function is None else parameter_names(function)[5:]
    return sorted({*own, *SPARSE_INDEX_ARGS, "cache"} - SUPPORTED_ARGS)


def _allow_all(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask function that allows all keys, without a cell for each query."""
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)


def _with_equal_batches(*tensors: Tensor) -> Sequence[Tensor]:
    """The tensors with the batch size of the largest, which SDPA broadcasts."""
    sizes = [tensor.shape[0] for tensor in tensors]
    if sizes.count(sizes[0]) == len(sizes):
        return tensors
    return [tensor.expand(max(sizes), -1, -1, -1) for tensor in tensors]


def _is_written_in_place(key: Tensor, queries: int) -> bool:
    """Whether a key is, or may be, a cache that later steps write in place. A compiler drops copies without a use."""
    if torch.compiler.is_compiling() or key.is_inference():  # which count no changes
        return True if queries != key.shape[2] else False  # noqa: SIM210 (of sizes that may be symbols)
    return key._version > 0


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, make_mask)
