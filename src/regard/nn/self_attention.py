"""Self-attention with one head and no options, for teaching and for looking at each step."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks
from regard.ops import AttentionOutput, attend
from regard.ops.masks import MaskLike


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ / √feature_size) V with Q = x W_Q, K = x W_K, V = x W_V.

    Each projection is a square matrix without a bias, initialized at random and learned by backpropagation:
    ``query``, ``key`` and ``value`` are `torch.nn.Linear`, which store the transposes of W_Q, W_K and W_V.

    Args:
        feature_size: Size of the input, of query, key and value, and of the output.

    Raises:
        InvalidType: If feature_size is not an int; in a call, if x is not a tensor.
        InvalidArgument: If feature_size is below 1; in a call, if x has another shape.

    Reference: Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Examples:
        Train the layer to output the features of the first of three tokens for all of them, and print the first row of
        each projection before and after:

        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(1, 3, 4, dtype=torch.float64)
        >>> attention = SelfAttention(4).double()
        >>> def show():
        ...     for name in ("query", "key", "value"):
        ...         print(f"{name:5}", [f"{weight:5.2f}" for weight in getattr(attention, name).weight[0]])
        >>> show()
        query ['-0.08', ' 0.05', ' 0.45', '-0.46']
        key   [' 0.03', '-0.26', ' 0.08', '-0.47']
        value [' 0.09', '-0.39', '-0.35', '-0.26']
        >>> optimizer = torch.optim.Adam(attention.parameters(), lr=0.05)
        >>> for _ in range(200):
        ...     loss = (attention(x).output - x[:, :1]).square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        >>> show()
        query [' 0.44', '-0.05', ' 0.23', '-0.16']
        key   [' 0.64', '-0.39', '-0.30', ' 0.34']
        value ['-0.12', '-1.03', '-1.27', ' 0.43']
        >>> bool(loss < 1e-6)
        True
        >>> attended = attention(x)
        >>> attended.output.shape, attended.weights[0, 0].shape
        (torch.Size([1, 3, 4]), torch.Size([3, 3]))
    """

    def __init__(self, feature_size: int) -> None:
        super().__init__()
        with Checks() as checks:
            checks.integer("feature_size", feature_size, low=1)
        self.feature_size = feature_size
        self.query, self.key, self.value = (nn.Linear(feature_size, feature_size, bias=False) for _ in range(3))

    def forward(self, x: Float[Tensor, "batch tokens feature_size"], mask: MaskLike | None = None) -> AttentionOutput:
        """Attend from every token to every token that the mask allows.

        Args:
            x: (batch, tokens, feature_size).
            mask: As in `regard.attend`: True means may attend.

        Returns:
            AttentionOutput: ``output`` (batch, tokens, feature_size); ``weights`` a view (batch, 1, tokens, tokens),
                of the same query and key.
        """
        with Checks() as checks:
            checks.input("x", x, {"batch": None, "tokens": None, "feature_size": self.feature_size})
        query, key, value = (project(x)[:, None] for project in (self.query, self.key, self.value))
        attended = attend(query, key, value, mask=mask)
        return replace(attended, output=attended.output[:, 0])
