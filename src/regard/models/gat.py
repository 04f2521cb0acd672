"""GAT (Veličković et al. 2018): a graph attention network that classifies the nodes of a graph."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from regard.models.config import Rate, Size, check_config
from regard.nn.graph_attention import GraphAttention
from regard.ops import AttentionOutput
from regard.ops.masks import Neighbors
from regard.validation import Config, config_class


@config_class
class GATConfig(Config):
    """Sizes and dropout rates of a GAT; the defaults are the paper's for Cora.

    Args:
        num_features: Size of a node's feature vector.
        num_classes: Number of classes.
        head_dim: Size of each head of the first layer.
        num_heads: Number of heads of the first layer.
        out_heads: Number of heads of the last layer, which are averaged.
        dropout: Dropout rate for the inputs of both layers.
        attention_dropout: Dropout rate for the attention weights of both layers.

    Raises:
        InvalidArgument: If a size or a rate is out of range or of the wrong type.
    """

    num_features: Size = field(kw_only=False)
    num_classes: Size = field(kw_only=False)
    head_dim: Size = 8
    num_heads: Size = 8
    out_heads: Size = 1
    dropout: Rate = 0.6
    attention_dropout: Rate = 0.6


class GATOutput(NamedTuple):
    """Output of `GAT`."""

    logits: Tensor
    """(nodes, classes)"""
    attentions: tuple[AttentionOutput, ...] | None
    """Output of each layer, with a lazy view of its attention weights; None unless requested."""


class GAT(nn.Module):
    """Two graph attention layers with an ELU between them.

    The heads of the first layer are concatenated, those of the last averaged.

    Args:
        config: Sizes and dropout rates.

    Reference: Veličković et al. 2018, "Graph Attention Networks", section 3.3 (transductive learning).

    Examples:
        >>> import torch
        >>> from regard import Neighbors
        >>> ring = Neighbors(*torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 0, 1, 2]]))
        >>> model = GAT(GATConfig(num_features=5, num_classes=2)).eval()
        >>> output = model(torch.randn(3, 5), ring, output_attentions=True)
        >>> output.logits.shape, output.attentions[0].weights.shape
        (torch.Size([3, 2]), torch.Size([1, 8, 3, 3]))
    """

    def __init__(self, config: GATConfig) -> None:
        super().__init__()
        self.config = check_config(config, GATConfig)
        layer = partial(GraphAttention, dropout=config.dropout, attention_dropout=config.attention_dropout)
        self.first = layer(config.num_features, config.head_dim, config.num_heads)
        self.last = layer(config.head_dim * config.num_heads, config.num_classes, config.out_heads, concat=False)

    def forward(self, features: Tensor, graph: Neighbors, *, output_attentions: bool = False) -> GATOutput:
        """Compute the class logits of each node.

        Args:
            features: (nodes, num_features), floating-point.
            graph: The edges. Include one from each node to itself, as in the paper.
            output_attentions: Whether to return the attention weights. Default: False.

        Returns:
            GATOutput: ``logits`` (nodes, num_classes), and ``attentions`` if requested.

        Raises:
            InvalidType: If features is not a tensor or graph is not a `Neighbors`.
            InvalidArgument: If features has the wrong shape or another dtype than the weights.
        """
        first = self.first(features, graph)
        last = self.last(functional.elu(first.output), graph)
        return GATOutput(last.output, (first, last) if output_attentions else None)
