"""GAT (Veličković et al. 2018): a graph attention network that tells the classes of a graph's nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks
from regard.models.config import Rate, Size, check_config, validate
from regard.nn.graph_attention import GraphAttention
from regard.ops import AttentionOutput
from regard.ops.masks import Neighbours


@dataclass(frozen=True)
class GatConfig:
    """What a GAT is built from; the defaults are the paper's for Cora.

    Args:
        num_features: Width of a node's features.
        num_classes: Number of classes.
        head_dim: Width of each head of the first layer.
        num_heads: Heads of the first layer.
        out_heads: Heads of the last layer, of which the mean is taken.
        dropout: Dropped share of the inputs of both layers.
        attention_dropout: Dropped share of attention weights.

    Raises:
        InvalidArgument: With everything that does not fit.
    """

    num_features: Size
    num_classes: Size
    head_dim: Size = 8
    num_heads: Size = 8
    out_heads: Size = 1
    dropout: Rate = 0.6
    attention_dropout: Rate = 0.6

    def __post_init__(self) -> None:
        with Checks() as checks:
            validate(self, checks)


class GatOutput(NamedTuple):
    """What a GAT gives."""

    logits: Tensor
    """(nodes, classes)"""
    attentions: tuple[AttentionOutput, ...] | None
    """Views of the weights of both layers, if they were asked for."""


class Gat(nn.Module):
    """Two layers of graph attention with an ELU between them.

    Args:
        config: Sizes and rates.

    Reference: Veličković et al. 2018, "Graph Attention Networks", section 3.3 (transductive learning).

    Example:
        >>> import torch
        >>> from regard import Neighbours
        >>> ring = Neighbours(*torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 0, 1, 2]]))
        >>> model = Gat(GatConfig(num_features=5, num_classes=2)).eval()
        >>> output = model(torch.randn(3, 5), ring, output_attentions=True)
        >>> output.logits.shape, output.attentions[0].weights.shape
        (torch.Size([3, 2]), torch.Size([1, 8, 3, 3]))
    """

    def __init__(self, config: GatConfig) -> None:
        super().__init__()
        self.config = check_config(config, GatConfig)
        layer = partial(GraphAttention, dropout=config.dropout, attention_dropout=config.attention_dropout)
        self.first = layer(config.num_features, config.head_dim, config.num_heads)
        self.last = layer(config.head_dim * config.num_heads, config.num_classes, config.out_heads, concat=False)

    def forward(self, features: Tensor, graph: Neighbours, *, output_attentions: bool = False) -> GatOutput:
        """Tell the class of each node.

        Args:
            features: (nodes, num_features).
            graph: The edges, of each node to itself too.
            output_attentions: Whether to give views of the attention weights.

        Returns:
            GatOutput: ``logits`` (nodes, classes), ``attentions`` if asked for.

        Raises:
            InvalidArgument: If shapes do not fit.
        """
        first = self.first(features, graph)
        last = self.last(functional.elu(first.output), graph)
        return GatOutput(last.output, (first, last) if output_attentions else None)
