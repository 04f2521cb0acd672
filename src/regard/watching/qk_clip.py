"""QK-clip: scale the projections of queries and keys of heads whose scores are too high."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType, did_you_mean

PAIRS = (("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("query_proj", "key_proj"), ("q", "k"))
"""Names of the two projections in the modules that have both."""

FUSED = ("c_attn", "qkv_proj", "Wqkv", "qkv", "in_proj")
"""Names of projections whose outputs are all queries, all keys and all values, in this order."""

OTHER_ORDER = ("CodeGenAttention",)
"""Classes whose projection has a name of `FUSED` and another order."""

BY_HEAD = "query_key_value"
"""The name of a projection whose outputs are the query, key and value of one head after the other."""

NORM = re.compile(r"^(q|k|qk|query|key)_?(layer)?_?norm$", re.IGNORECASE)
"""Names of modules that normalize queries or keys."""


def qk_clip(model: nn.Module, max_logits: Mapping[str, Tensor], threshold: float = 100.0) -> dict[str, Tensor]:
    """Scale the projections of queries and keys of each head whose highest score exceeds a threshold τ, in place.

    With γ = min(1, τ / max score), the scores of a head become γ times what they were: its queries and keys are scaled
    by √γ each. Where query heads share a key head, the key is scaled by √γ of the smallest γ, and each query by what is
    left. In multi-head latent attention the parts without rotary embedding are scaled by √γ, and the rotary part of the
    query by γ, because all heads share that of the key. Biases are scaled as their weights are. What a model adds to
    the products, such as ALiBi, is not scaled: `AttentionMonitor` refuses to clip such a model.

    Args:
        model: Any model.
        max_logits: By the name of an attention module, as in `model.named_modules`, the highest score of each of its
            heads, (heads,): `AttentionMonitor.heads` has them.
        threshold: τ, above 0.

    Returns:
        By the name of each module, γ of each head, (heads,).

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If the threshold is not above 0, a module is unknown or the projections in it are, or it
            normalizes queries or keys, so that a scale has no effect. Nothing is changed then.

    Reference: Kimi Team 2025, "Kimi K2", section 2.1 (MuonClip), algorithm 1.

    Examples:
        >>> import regard, torch
        >>> model = torch.nn.Sequential(torch.nn.MultiheadAttention(8, 2))
        >>> regard.watching.qk_clip(model, {"0": torch.tensor([50.0, 400.0])})
        {'0': tensor([1.0000, 0.2500])}
    """
    modules = dict(model.named_modules())
    with Checks() as checks:
        checks.number("threshold", threshold, above=0)
        if not isinstance(max_logits, Mapping):
            checks.fail_type(f"max_logits: expected a dict of tensors by name, got {describe(max_logits)}")
        else:
            for name, each in max_logits.items():
                if name not in modules:
                    checks.fail(f"max_logits: the model has no module {name!r}{did_you_mean(name, modules)}")
                elif checks.tensor(f"max_logits[{name!r}]", each, "floating-point"):
                    is_by_head = each.ndim == 1 and len(each) > 0
                    checks.that(is_by_head, f"max_logits[{name!r}]: expected (heads,), got {tuple(each.shape)}")
    factors = {  # above 0, whose quotients are not defined
        name: (threshold / logit).clamp(min=1e-30).where((logit > threshold) & logit.isfinite(), 1.0)
        for name, logit in max_logits.items()
    }
    with torch.no_grad():
        changes = [list(_scales(name, modules[name], factor)) for name, factor in factors.items()]
        for part, scale in chain.from_iterable(changes):
            part.mul_(scale.to(part).view(-1, *[1] * (part.ndim - 1)))
    return factors


def _scales(name: str, module: Any, factor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the parameters, (heads, head_dim, ...), and what each head of them is multiplied by, (heads,)."""
    heads, kind = len(factor), type(module).__name__
    children = dict(module.named_children())
    if kind in OTHER_ORDER:
        raise InvalidArgument(f"{name}: {kind} has queries, keys and values in an order that QK-clip does not know")
    norms = [child for child in children if NORM.match(child) and not isinstance(children[child], nn.Identity)]
    if norms:
        raise InvalidArgument(f"{name}: {kind} normalizes by its {norms[0]}, so that QK-clip would have no effect")
    if "kv_b_proj" in children:
        yield from _latent(module, factor)
        return
    parts = _projections(module, children, heads)
    if parts is None:
        known = ", ".join(["/".join(pair) for pair in PAIRS] + [*FUSED, BY_HEAD])
        raise InvalidArgument(
            f"{name}: expected projections of queries and keys among {known}, whose outputs {heads} heads share, got "
            f"{kind} with {', '.join(children) or 'none'}"
        )
    for queries, keys in parts:
        smallest = factor.unflatten(0, (len(keys), -1)).amin(1)
        yield keys, smallest.sqrt()
        yield queries, factor / smallest.sqrt().repeat_interleave(heads // len(keys))


def _projections(module: Any, children: dict[str, nn.Module], heads: int) -> list[tuple[Tensor, Tensor]] | None:
    """For weight and bias, the rows that make queries, (heads, head_dim, ...), and keys, (kv_heads, head_dim, ...)."""
    for query, key in PAIRS:
        if query in children and key in children:
            both = list(zip(_by_output(children[query]), _by_output(children[key]), strict=False))
            return _split(both, heads)
    if isinstance(module, nn.MultiheadAttention):
        weight, bias = getattr(module, "in_proj_weight", None), getattr(module, "in_proj_bias", None)
        if weight is None:
            both = [(module.q_proj_weight, module.k_proj_weight)]
            return _split(both if bias is None else [*both, bias.chunk(3)[:2]], heads)
        fused = [weight] if bias is None else [weight, bias]
    elif BY_HEAD in children:
        fused = _by_output(children[BY_HEAD])
        rows = len(fused[0])
        if 3 * heads * getattr(module, "head_dim", rows // (3 * heads)) != rows:  # as with one key head for all
            return None
        by_head = [each.unflatten(0, (heads, 3, -1)) for each in fused]
        return [(each[:, 0], each[:, 1]) for each in by_head]
    else:
        name = next((name for name in FUSED if name in children), None)
        if name is None or "q_attn" in children:  # the cross-attention of GPT-2
            return None
        fused = _by_output(children[name])
    rows = len(fused[0])
    head_dim = getattr(module, "head_dim", None) or rows // (3 * heads)
    of_keys = (rows - heads * head_dim) // 2
    return _split([each.split([heads * head_dim, of_keys, of_keys])[:2] for each in fused], heads)


def _split(pairs: list[Any], heads: int) -> list[tuple[Tensor, Tensor]] | None:
    """The rows by head; None if the heads do not share them."""
    queries, keys = (len(part) for part in pairs[0])
    head_dim = queries // heads
    if queries % heads or keys % head_dim or heads % (keys // head_dim):
        return None
    return [(query.unflatten(0, (-1, head_dim)), key.unflatten(0, (-1, head_dim))) for query, key in pairs]


def _latent(module: Any, factor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Those of multi-head latent attention, whose keys have a rotary part for all heads."""
    heads, plain = len(factor), module.qk_nope_head_dim
    for each in _by_output(module.q_b_proj if hasattr(module, "q_b_proj") else module.q_proj):
        queries = each.unflatten(0, (heads, -1))
        yield queries[:, :plain], factor.sqrt()
        yield queries[:, plain:], factor
    for each in _by_output(module.kv_b_proj):
        yield each.unflatten(0, (heads, -1))[:, :plain], factor.sqrt()


def _by_output(projection: Any) -> list[Tensor]:
    """Weight and bias of a linear layer, the outputs first."""
    if not isinstance(getattr(projection, "weight", None), Tensor):
        raise InvalidType(f"{type(projection).__name__}: expected a linear layer with a weight")
    weight = projection.weight.mT if type(projection).__name__ == "Conv1D" else projection.weight
    bias = getattr(projection, "bias", None)
    return [weight] if bias is None else [weight, bias]
