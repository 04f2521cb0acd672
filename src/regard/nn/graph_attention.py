"""Graph attention (GAT): each node of a graph attends to its neighbors."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import Checks, describe
from regard.nn.dropout import Dropout
from regard.ops import AttentionOutput, attend
from regard.ops.masks import Neighbors
from regard.ops.scores import Additive


class GraphAttention(nn.Module):
    """Attention of each node to its neighbors with an additive score, in one or more heads.

    hᵢ = W xᵢ, Pᵢⱼ = softmax over the neighbors j of i of LeakyReLU(a₁ · hᵢ + a₂ · hⱼ), outputᵢ = Σⱼ Pᵢⱼ hⱼ + b

    LeakyReLU has the slope 0.2 below 0. Because the score is a sum, query and key are one number per head. Parameters
    have the names and shapes of PyG's ``GATConv``, so `load_state_dict` takes its state dict: ``lin`` is W, ``att_dst``
    is a₁ and ``att_src`` is a₂. ``GATConv`` adds an edge from each node to itself; here the graph must have it.

    Args:
        in_features: Number of features of each node.
        head_dim: Size of each head.
        num_heads: Number of heads.
        concat: Whether the output concatenates the heads; False averages them, as in a last layer.
        dropout: Dropout rate for the input.
        attention_dropout: Dropout rate for the attention weights.

    Raises:
        InvalidType: If a size is not an int or a rate is not a number; in a call, if x is not a tensor or graph is not
            a `Neighbors`.
        InvalidArgument: If a size is below 1 or a rate is not in [0, 1); in a call, if x has another shape or dtype.

    Memory: O(nodes + edges), and so is the time.

    Reference: Veličković et al. 2018, "Graph Attention Networks", equations 1 to 6.

    Examples:
        >>> import torch
        >>> from regard import Neighbors
        >>> ring = Neighbors(*torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 0, 1, 2]]))
        >>> attended = GraphAttention(5, 4, 2)(torch.randn(3, 5), ring)
        >>> attended.output.shape, attended.weights.shape
        (torch.Size([3, 8]), torch.Size([1, 2, 3, 3]))
    """

    def __init__(
        self,
        in_features: int,
        head_dim: int,
        num_heads: int = 1,
        *,
        concat: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        with Checks() as checks:
            for name, size in (("in_features", in_features), ("head_dim", head_dim), ("num_heads", num_heads)):
                checks.integer(name, size, low=1)
            for name, rate in (("dropout", dropout), ("attention_dropout", attention_dropout)):
                checks.number(name, rate, low=0, below=1)
        self.in_features, self.head_dim, self.num_heads, self.concat = in_features, head_dim, num_heads, concat
        self.dropout, self.attention_dropout = Dropout(dropout), attention_dropout
        self.lin = nn.Linear(in_features, num_heads * head_dim, bias=False)
        self.att_dst = nn.Parameter(torch.empty(1, num_heads, head_dim))
        self.att_src = nn.Parameter(torch.empty(1, num_heads, head_dim))
        self.bias = nn.Parameter(torch.empty(num_heads * head_dim if concat else head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize with Glorot's uniform distribution, a₁ and a₂ as matrices of one column, and biases with 0."""
        nn.init.xavier_uniform_(self.lin.weight)
        for vector in (self.att_dst, self.att_src):
            bound = (6 / (self.head_dim + 1)) ** 0.5
            nn.init.uniform_(vector, -bound, bound)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "nodes in_features"], graph: Neighbors) -> AttentionOutput:
        """Attend from every node to its neighbors.

        Args:
            x: (nodes, in_features).
            graph: The neighbors of each node; a node attends to itself only through an edge to itself.

        Returns:
            AttentionOutput: ``output`` (nodes, num_heads · head_dim), or (nodes, head_dim) without concat; ``weights``
                a view (1, num_heads, nodes, nodes).
        """
        with Checks() as checks:
            checks.input("x", x, {"nodes": None, "in_features": self.in_features}, self.lin.weight)
            if not isinstance(graph, Neighbors):  # pyright: ignore[reportUnnecessaryIsInstance]
                checks.fail_type(f"graph: expected a regard.Neighbors(query_idx, key_idx), got {describe(graph)}")
        value = self.lin(self.dropout(x)).unflatten(1, (self.num_heads, -1)).transpose(0, 1)  # (heads, nodes, dim)
        query, key = (value @ vector[0, :, :, None] for vector in (self.att_dst, self.att_src))  # (heads, nodes, 1)
        score = Additive(x.new_ones(1), activation="leaky_relu")
        rate = self.attention_dropout if self.training else 0.0
        attended = attend(query[None], key[None], value[None], mask=graph, score=score, dropout=rate)
        heads = attended.output[0].transpose(0, 1)  # (nodes, heads, dim)
        output = (heads.flatten(1) if self.concat else heads.mean(1)) + self.bias
        return replace(attended, output=output)
