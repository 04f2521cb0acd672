"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
        "silu": functional.silu,
    }
)


class FeedForward(nn.Module):
    """Two linear maps with an activation between them, applied to each position alike.

    FFN(x) = dropout(activation(x W₁ + b₁)) W₂ + b₂, or gated: dropout(activation(x W₁ + b₁) ∘ (x W₃ + b₃)) W₂ + b₂

    W₃ is the lower half of ``fc1``, so that both need one product.

    Args:
        d_model: Width of input and output.
        d_ff: Width between the two maps.
        activation: ``"relu"`` (the paper's), ``"gelu"``, ``"gelu_tanh"`` (its approximation in GPT-2) or ``"silu"``.
        dropout: Dropped share of what the activation gives.
        gated: Whether there is a gate; with ``"silu"`` it is Llama's SwiGLU.
        bias: Whether the maps add a bias.

    Raises:
        InvalidType: If a size is not an int or dropout is not a number.
        InvalidArgument: If a size is below 1, the activation is unknown, or dropout is not a probability below 1.

    Reference:
        Vaswani et al. 2017, eq. 2; Shazeer 2020, "GLU variants improve Transformer", eq. 6 (gated).

    Example:
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
        """Draw both maps as torch draws a linear map."""
        self.fc1.reset_parameters()
        self.fc2.reset_parameters()

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """Map (..., d_model) to (..., d_model)."""
        expanded = self.fc1(x)  # (..., d_ff), or twice that with a gate
        if self.gated:
            gate, up = expanded.chunk(2, dim=-1)
            active = ACTIVATIONS[self.activation](gate) * up
        else:
            active = ACTIVATIONS[self.activation](expanded)
        return self.fc2(self.dropout(active))
