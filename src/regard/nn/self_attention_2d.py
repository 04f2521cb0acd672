"""Self-attention on images: each position of a feature map attends to all positions."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from regard.checks import Checks
from regard.ops import AttentionOutput, attend


class SelfAttention2d(nn.Module):
    """y = γ · v(Σᵢ βⱼᵢ h(xᵢ)) + x, βⱼᵢ = softmax over the positions i of g(xⱼ) · f(xᵢ).

    f, g, h and v are 1 × 1 convolutions, here ``key``, ``query``, ``value`` and ``out``. γ starts at 0, so the layer
    starts as the identity, and the network learns local features before distant ones.

    Args:
        channels: Number of channels of the feature map.
        reduction: Queries, keys and values have channels / reduction features. Default: 8, as in the paper.
        spectral_norm: Whether spectral normalization holds the largest singular value of each convolution at 1.

    Raises:
        InvalidType: If a size is not an int; in a call, if x is not a tensor.
        InvalidArgument: If a size is below 1 or reduction does not divide channels; in a call, if x has another shape,
            an empty axis, or another dtype than the weights.

    Memory: O(height · width · channels): the weights of all pairs of positions are not stored.

    Reference: Zhang, Goodfellow, Metaxas, Odena 2019, "Self-Attention Generative Adversarial Networks", equations 1 to
    3; Miyato et al. 2018, "Spectral normalization for generative adversarial networks".

    Examples:
        >>> import torch
        >>> x = torch.randn(2, 16, 5, 7)
        >>> attended = SelfAttention2d(16)(x)
        >>> attended.output.shape, attended.weights.shape, torch.equal(attended.output, x)
        (torch.Size([2, 16, 5, 7]), torch.Size([2, 1, 35, 35]), True)
        >>> attended.weights[0, 0, 17].view(5, 7).shape  # the weights of position (2, 3)
        torch.Size([5, 7])
    """

    REDUCTION = 8

    def __init__(self, channels: int, *, reduction: int = REDUCTION, spectral_norm: bool = False) -> None:
        super().__init__()
        with Checks() as checks:
            valid = [checks.integer("channels", channels, low=1), checks.integer("reduction", reduction, low=1)]
            if all(valid) and channels % reduction:
                checks.fail(f"reduction: expected a divisor of channels={channels}, got {reduction}")
        self.channels = channels
        inner = channels // reduction
        sizes = [(channels, inner)] * 3 + [(inner, channels)]
        convolutions = [nn.Conv2d(*size, kernel_size=1, bias=False) for size in sizes]
        if spectral_norm:
            convolutions = [parametrizations.spectral_norm(convolution) for convolution in convolutions]
        self.query, self.key, self.value, self.out = convolutions
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> AttentionOutput:
        """Attend from every position to every position.

        Args:
            x: (batch, channels, height, width).

        Returns:
            AttentionOutput: ``output`` (batch, channels, height, width); ``weights`` a view (batch, 1, positions,
                positions), in which positions are in row-major order.
        """
        with Checks() as checks:
            sizes = {"batch": None, "channels": self.channels, "height": None, "width": None}
            if checks.input("x", x, sizes, self.gamma) and 0 in x.shape:
                checks.fail(f"x: expected no empty axis in (batch, channels, height, width), got {tuple(x.shape)}")
        query, key, value = (each(x).flatten(2).mT[:, None] for each in (self.query, self.key, self.value))
        attended = attend(query, key, value, scale=1.0)  # (batch, 1, positions, inner)
        features = attended.output[:, 0].mT.unflatten(2, x.shape[2:])  # (batch, inner, height, width)
        return replace(attended, output=self.gamma * self.out(features) + x)
