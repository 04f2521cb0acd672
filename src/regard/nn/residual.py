"""The residual connection around a sublayer, with its layer norm before or after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import raise_problems
from regard.nn.dropout import Dropout
from regard.nn.feed_forward import choice_objections

NormOrder = Literal["post", "pre"]
MakeNorm = Callable[[int], nn.Module]
"""What makes a norm of a width: ``nn.LayerNorm``, ``nn.RMSNorm``, or one of these with an ``eps`` of its own."""


class Residual(nn.Module):
    """What stands around one sublayer f: residual connection, layer norm, dropout.

    - post-norm: norm(x + dropout(f(x))), as in the paper
    - pre-norm: x + dropout(f(norm(x))), which trains deep stacks without warm-up

    The sublayer itself is called between :meth:`enter` and :meth:`leave`, because attention returns more than a tensor.

    Args:
        d_model: Width of the hidden states.
        norm: ``"post"`` or ``"pre"``.
        dropout: Dropped share of what the sublayer gives.
        make_norm: Makes the norm of this width. Default: ``nn.LayerNorm``.

    Raises:
        InvalidArgument: If norm is neither, or dropout no probability.

    Reference:
        Vaswani et al. 2017, section 3.1 and 5.4 (post); Xiong et al. 2020, "On layer normalization in the Transformer
        architecture" (pre).

    Example:
        >>> import torch
        >>> residual, x = Residual(8), torch.ones(2, 5, 8)
        >>> residual.leave(x, torch.tanh(residual.enter(x))).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, d_model: int, *, norm: NormOrder = "post", dropout: float = 0.0, make_norm: MakeNorm = nn.LayerNorm
    ) -> None:
        super().__init__()
        raise_problems(choice_objections("norm", norm, get_args(NormOrder)))
        self.order: NormOrder = norm
        self.norm = make_norm(d_model)
        self.dropout = Dropout(dropout)

    def enter(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """What the sublayer is given."""
        return self.norm(x) if self.order == "pre" else x

    def leave(
        self, x: Float[Tensor, "*axes d_model"], change: Float[Tensor, "*axes d_model"]
    ) -> Float[Tensor, "*axes d_model"]:
        """The sum of the hidden states and of what the sublayer gave."""
        total = x + self.dropout(change)
        return self.norm(total) if self.order == "post" else total
