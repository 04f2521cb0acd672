"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks
from regard.native.gelu import gelu_tanh
from regard.native.linear import Linear
from regard.nn.dropout import Dropout

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": gelu_tanh,
        "silu": functional.silu,
    }
)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token on its own.

    FFN(x) = dropout(activation(x W₁ + b₁)) W₂ + b₂, or gated: dropout(activation(x W₁ + b₁) ∘ (x W₃ + b₃)) W₂ + b₂

    ``fc1`` holds W₁ and, if gated, W₃ below it, so one matrix multiplication computes both; ``fc2`` holds W₂.

    Args:
        d_model: Size of input and output.
        d_ff: Size of the hidden layer.
        activation: ``"relu"`` (as in the paper), ``"gelu"``, ``"gelu_tanh"`` (GPT-2's approximation) or ``"silu"``.
        dropout: Dropout rate for the hidden layer.
        gated: Whether the hidden layer has a gate; with ``"silu"`` it is Llama's SwiGLU.
        bias: Whether the linear layers have a bias.

    Raises:
        InvalidType: If a size is not an int or dropout is not a number.
        InvalidArgument: If a size is below 1, the activation is unknown, or dropout is not in [0, 1).

    Reference: Vaswani et al. 2017, eq. 2; Shazeer 2020, "GLU variants improve Transformer", eq. 6 (gated).

    Examples:
        >>> import torch
        >>> FeedForward(8, 32)(torch.ones(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        gated: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("d_model", d_model, low=1)
            checks.integer("d_ff", d_ff, low=1)
            checks.choice("activation", activation, ACTIVATIONS)
            checks.number("dropout", dropout, low=0, below=1)
        self.d_model = d_model
        self.fc1 = Linear(d_model, 2 * d_ff if gated else d_ff, bias=bias)
        self.fc2 = Linear(d_ff, d_model, bias=bias)
        self.activation, self.gated = activation, gated
        self.dropout = Dropout(dropout)

    def reset_parameters(self) -> None:
        """Initialize both layers as ``torch.nn.Linear`` does."""
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """Map (..., d_model) to (..., d_model)."""
        activation, hidden = ACTIVATIONS[self.activation], self.fc1(x)  # (..., d_ff), or (..., 2 · d_ff) if gated
        if self.gated:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = activation(gate) * up
        else:
            hidden = activation(hidden)
        return self.fc2(self.dropout(hidden))
