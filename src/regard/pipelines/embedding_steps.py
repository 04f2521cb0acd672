"""The steps of a trace before the attention: token embeddings, positions and norms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.models import GPT, Bert
from regard.models.encoder_decoder import EncoderDecoder
from regard.nn.absolute_positions import NoPositions
from regard.nn.positions import Positions
from regard.tracing.trace import TraceBuilder

ROWS = "token feature"


def add_embedding(builder: TraceBuilder, model: Bert | GPT | EncoderDecoder, ids: Tensor, side: str = "src") -> str:
    """Add the token ids and the steps from them to the input of the first layer, and return the formula of that input.

    Args:
        builder: Collects the steps.
        model: A Transformer, a Bert or a GPT.
        ids: (1, tokens).
        side: Which embeddings of an encoder-decoder are used: ``"src"`` or ``"tgt"``.
    """
    is_pair = isinstance(model, EncoderDecoder)
    table: nn.Embedding = getattr(model, f"{side}_embedding") if is_pair else model.token_embedding
    positions: Positions = getattr(model, f"{side}_positions") if is_pair else model.positions
    size, features = table.weight.shape
    x = table(ids)
    why = (
        f"The tokenizer cuts a text into subwords, of which it knows {size:,}: a frequent word is one, a rare word "
        "several. Each has a number, its id."
    )
    builder.add("ids", "the number of each subword", "token", _exact(ids[0]), why)
    why = f"The embedding table has a learned row of {features} numbers for each of {size:,} tokens."
    builder.add("token embedding", "E[token]", ROWS, _exact(x[0]), why)
    terms = ["token embedding"]
    if getattr(model.config, "scale_embeddings", False):
        root = math.sqrt(model.config.d_model)
        x = x * root
        why = f"The row is multiplied by √{features} ≈ {root:.4g}, so that positions do not outweigh it."
        terms = ["scaled embedding"]
        builder.add("scaled embedding", f"token embedding · √{features}", ROWS, _exact(x[0]), why)
    types = getattr(model, "token_type_embedding", None)
    if types is not None:
        x = x + types.weight[0]
        why = "A learned vector for each segment of a text; a single text is segment 0."
        terms.append("token type embedding")
        builder.add(terms[-1], "T[0]", "feature", _exact(types.weight[0]), why)
    if not isinstance(positions, NoPositions):
        _add_positions(builder, positions, torch.zeros_like(x))
        x, terms = positions(x), [*terms, "position embedding"]
    if len(terms) > 1:
        why = "The vectors are added feature by feature, so that equal tokens at different positions differ."
        terms = [" + ".join(terms)]
        builder.add("embedding", terms[0], ROWS, _exact(x[0]), why)
        terms = ["embedding"]
    norm = getattr(model, "embedding_norm", None)
    if norm is None:
        return terms[0]
    formula = add_norm(builder, norm, x[0], "token", "embedding ")
    builder.add("embedding norm", formula, ROWS, _exact(norm(x)[0]), "The embedding after its norm.")
    return "embedding norm"


def _add_positions(builder: TraceBuilder, positions: Positions, zeros: Tensor) -> None:
    """Add the vectors of the positions, which are what the module adds to zeros (1, tokens, features)."""
    formula, why = positions.describe()
    why = f"Attention itself does not know the order of tokens. {why}"
    builder.add("position embedding", formula, ROWS, _exact(positions(zeros)[0]), why)


def add_norm(builder: TraceBuilder, norm: nn.LayerNorm | nn.RMSNorm, x: Tensor, axis: str, prefix: str = "") -> str:
    """Add the steps of a norm before its result, and return the formula of the result.

    Args:
        builder: Collects the steps.
        norm: The norm.
        x: (tokens, features), its input.
        axis: Name of the axis of tokens.
        prefix: Stands before the names of the steps.
    """
    x, add, count = _exact(x), builder.add, x.shape[1]
    if isinstance(norm, nn.LayerNorm):
        center, scale, formula = x.mean(1), (x.var(1, unbiased=False) + norm.eps).sqrt(), "(x − μ) / σ"
        add(f"{prefix}mean", "μ", axis, center, f"The mean of the {count} features of a token.")
        add(f"{prefix}standard deviation", f"σ = √(variance + {norm.eps:g})", axis, scale)
        how = "LayerNorm subtracts the mean of a token's features and divides them by their standard deviation"
    else:
        eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        center, scale, formula = torch.zeros_like(x[:, 0]), (x.square().mean(1) + eps).sqrt(), "x / r"
        add(f"{prefix}root mean square", f"r = √(mean of x² + {eps:g})", axis, scale)
        how = "RMSNorm divides the features of a token by their root mean square"
    why = f"{how}, so that the vectors of all tokens have the same size."
    add(f"{prefix}normalized", formula, f"{axis} feature", (x - center[:, None]) / scale[:, None], why)
    add(f"{prefix}norm weight", "γ", "feature", _exact(norm.weight), "A learned factor for each feature.")
    bias = getattr(norm, "bias", None)
    if bias is not None:
        add(f"{prefix}norm bias", "β", "feature", _exact(bias), "A learned number for each feature, which is added.")
    return f"{prefix}normalized · γ" + ("" if bias is None else " + β")


def _exact(value: Tensor) -> Tensor:
    """In float64, on the CPU."""
    return value.detach().cpu().double()
