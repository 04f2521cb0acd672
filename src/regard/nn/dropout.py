"""Dropout as a layer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.ops.dropout import dropout


class Dropout(nn.Module):
    """Zero each element with probability p in training, and scale the others by 1 / (1 − p).

    On a CPU, the random numbers of `regard.ops.dropout.dropout` are several times cheaper than those of
    ``torch.nn.Dropout``.

    Args:
        p: Dropout rate, at least 0 and below 1.

    Raises:
        InvalidType: If p is not a number.
        InvalidArgument: If p is not in [0, 1).

    Reference: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Examples:
        >>> import torch
        >>> Dropout(0.1).eval()(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        with Checks() as checks:
            checks.number("p", p, low=0, below=1)
        self.p = p

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Drop elements of x, of any shape, in training; return x itself in evaluation."""
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
