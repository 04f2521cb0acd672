"""Self-attention on images: each place of a feature map takes up features of all places."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from regard.errors import InvalidArgument, InvalidType, count_problems, raise_problems
from regard.nn.linear import dtype_objections
from regard.ops import AttentionOutput, attend


class SelfAttention2d(nn.Module):
    """y = γ · v(Σᵢ βⱼᵢ h(xᵢ)) + x, βⱼᵢ = softmax over the places i of g(xⱼ) · f(xᵢ).

    f, g, h and v are 1 × 1 convolutions, here ``key``, ``query``, ``value`` and ``out``. γ begins at 0, so that the
    layer begins as the identity, and a network learns from what is near before it learns from what is far.

    Args:
        channels: Of the feature map.
        reduction: Queries, keys and values have channels / reduction features.
        spectral: Whether the largest singular value of each convolution is held at 1.

    Raises:
        InvalidArgument: If reduction does not divide channels, or at a call with another number of channels, no
            image, no place, or another dtype than the weights'.
        InvalidType: At a call with no tensor.

    Memory: O(height · width · channels): the weights of all pairs of places are not stored.

    Reference: Zhang, Goodfellow, Metaxas, Odena 2019, "Self-Attention Generative Adversarial Networks", equations 1 to
    3; Miyato et al. 2018, "Spectral normalization for generative adversarial networks".

    Example:
        >>> import torch
        >>> x = torch.randn(2, 16, 5, 7)
        >>> attended = SelfAttention2d(16)(x)
        >>> attended.output.shape, attended.weights.shape, torch.equal(attended.output, x)
        (torch.Size([2, 16, 5, 7]), torch.Size([2, 1, 35, 35]), True)
        >>> attended.weights[0, 0, 17].view(5, 7).shape  # where place (2, 3) looks
        torch.Size([5, 7])
    """

    REDUCTION = 8  # the paper's

    def __init__(self, channels: int, *, reduction: int = REDUCTION, spectral: bool = False) -> None:
        super().__init__()
        raise_problems(count_problems(channels=channels, reduction=reduction))
        if channels % reduction:
            raise InvalidArgument(f"reduction must divide channels, but they are {reduction} and {channels}")
        self.channels = channels
        inner = channels // reduction
        maps = [nn.Conv2d(channels, inner, 1, bias=False) for _ in range(3)] + [
            nn.Conv2d(inner, channels, 1, bias=False)
        ]
        self.query, self.key, self.value, self.out = (spectral_norm(each) for each in maps) if spectral else maps
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> AttentionOutput:
        """Attend from every place to every place.

        Args:
            x: (batch, channels, height, width).

        Returns:
            AttentionOutput: ``output`` (batch, channels, height, width); ``weights`` a view (batch, 1, places, places),
                where places are counted row by row.
        """
        if not isinstance(x, Tensor):
            raise InvalidType(f"x must be a torch.Tensor, but is a {type(x).__name__}")
        objections = dtype_objections(self.gamma, x=x)
        if x.ndim != 4 or x.shape[1] != self.channels or 0 in x.shape:
            expected = f"(batch, channels={self.channels}, height, width)"
            objections.append(f"x must have the shape {expected}, none of them 0, but has {tuple(x.shape)}")
        raise_problems(objections)
        query, key, value = (each(x).flatten(2).mT[:, None] for each in (self.query, self.key, self.value))
        attended = attend(query, key, value, scale=1.0)  # (batch, 1, places, inner)
        seen = attended.output[:, 0].mT.unflatten(2, x.shape[2:])
        return replace(attended, output=self.gamma * self.out(seen) + x)
