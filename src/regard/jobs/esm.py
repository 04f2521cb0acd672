"""contacts: which residues of a protein touch, from the attention of ESM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType
from regard.watching.watch import watch

if TYPE_CHECKING:
    from regard.ops import WeightMatrix

CELLS_AT_ONCE = 2**22
"""Weights that are held at once, 16 MiB."""


def contacts(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Predict which residues of proteins touch, as `predict_contacts` of ESM in transformers does (Rao et al. 2021).

    The contact head is a logistic regression on the maps of all heads: each map A is symmetrized, S = A + A.T, and
    corrected for what a residue has with all others, S_ij - S_i S_j / S, with its row sums S_i and its total S (Dunn
    et al. 2008). The weighted sum over heads needs one map at a time for the first term, and the row sums for the
    second, so that memory does not grow with the number of heads. The model keeps its attention implementation.

    Args:
        model: A model of transformers that has the contact head of ESM, as ``EsmModel`` and ``EsmForMaskedLM``.
        input_ids: (batch, tokens) the ids of proteins, each as ``<cls> residues <eos>`` and padding.
        attention_mask: (batch, tokens) 1 for tokens and 0 for padding. Default: no padding.

    Returns:
        (batch, tokens - 2, tokens - 2) the probability that two residues are closer than 8 angstroms, in float32; what
        is beyond the last residue of a protein has no meaning.

    Raises:
        InvalidType: If the model has no contact head, or an input is no tensor.
        InvalidArgument: If the shapes do not fit, or the contact head belongs to another number of heads.

    Memory:
        (tokens - 2)² numbers for each protein, and what `regard.watch` keeps, O(layers * tokens * hidden_size).

    Examples:
        >>> import regard, torch
        >>> from transformers import EsmConfig, EsmModel
        >>> config = EsmConfig(vocab_size=33, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ...     intermediate_size=64, pad_token_id=1, mask_token_id=32, position_embedding_type="rotary")
        >>> model = EsmModel(config).eval()  # or EsmModel.from_pretrained("facebook/esm2_t33_650M_UR50D")
        >>> ids = torch.tensor([[0, 20, 15, 11, 5, 19, 2]])  # or tokenizer("MKTAY", return_tensors="pt").input_ids
        >>> regard.jobs.contacts(model, ids).shape
        torch.Size([1, 5, 5])
    """
    base: Any = getattr(model, getattr(model, "base_model_prefix", ""), model)
    head: Any = getattr(base, "contact_head", None)
    if not isinstance(getattr(head, "regression", None), nn.Linear):
        raise InvalidType(f"model: expected one with the contact head of ESM, as EsmModel, got {type(model).__name__}")
    with Checks() as checks:
        if checks.tensor("input_ids", input_ids, "integer"):
            shape = tuple(input_ids.shape)
            is_batch = len(shape) == 2 and shape[1] > 2
            checks.that(is_batch, f"input_ids: expected (batch, 3 or more tokens), got {shape}")
            if attention_mask is not None:
                checks.tensor("attention_mask", attention_mask, shapes={"(batch, tokens)": shape})
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    with watch(base) as result, torch.no_grad():
        base(input_ids, attention_mask=mask)
    is_residue = mask.bool() & (input_ids != head.eos_idx)
    is_residue[:, [0, -1]] = False
    with torch.no_grad():
        logits = _regress([layer.weights for layer in result.layers], head.regression, is_residue.float())
    return logits[:, 1:-1, 1:-1].sigmoid()


def _regress(layers: list[WeightMatrix], head: Any, present: Tensor) -> Tensor:
    """The weighted sum of the corrected maps of all heads, (batch, tokens, tokens).

    Args:
        layers: The weights of each layer, (batch, heads, tokens, tokens).
        head: The linear layer with a coefficient for each head of each layer.
        present: (batch, tokens) 1 for residues and 0 for all other tokens.
    """
    counts = [weights.shape[1] for weights in layers]
    factors = head.weight[0].float()
    if factors.numel() != sum(counts):
        raise InvalidArgument(
            f"model: expected a contact head with a weight for each of {sum(counts)} heads, got {factors.numel()}"
        )
    batch, tokens = present.shape
    total = torch.zeros(batch, tokens, tokens, device=present.device)
    by_layer = zip(layers, factors.split(counts), strict=True)
    sums = torch.cat([_add_maps(total, *layer, present) for layer in by_layer], 1) * present[:, None]
    total *= present[:, :, None] * present[:, None]
    total = total + total.mT
    total -= (sums * (factors / sums.sum(2))[..., None]).mT @ sums
    return total if head.bias is None else total.add_(head.bias.float())


def _add_maps(total: Tensor, weights: WeightMatrix, factors: Tensor, present: Tensor) -> Tensor:
    """Add the maps of a layer, times their factors, to the total.

    Returns:
        (batch, heads, tokens) what each token gives to residues and receives from them.
    """
    batch, heads, tokens, _ = weights.shape
    size = max(1, CELLS_AT_ONCE // (batch * heads * tokens))
    given: list[Tensor] = []
    received = torch.zeros(batch, heads, tokens, device=present.device)
    for start in range(0, tokens, size):
        rows = slice(start, min(start + size, tokens))
        part = weights[:, :, rows].float()
        total[:, rows] += torch.einsum("bhqk,h->bqk", part, factors)
        received += (present[:, None, None, rows] @ part)[:, :, 0]
        given.append((part @ present[:, None, :, None])[..., 0])
    return torch.cat(given, 2) + received
