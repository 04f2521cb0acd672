"""A recording: what a forward pass attended to, layer by layer, and the tokens that stand at its rows and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from regard.ops.matrix import WeightMatrix

Kind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Layer:
    """The weights of one attention layer, and the tokens at its axes.

    Args:
        name: Where the layer stands in its model, as ``"encoder.0"``.
        kind: Self-attention of an encoder or a decoder, or cross-attention from decoder to encoder.
        weights: A view, (1, heads, queries, keys).
        queries: The tokens at the rows. In a decoder that writes a row is a step, named by the token that it wrote.
        keys: The tokens at the columns; for a decoder's self-attention the tokens that were read, the first ``<s>``.
            Where a decoder reads what is given, these are the rows' too.
    """

    name: str
    kind: Kind
    weights: WeightMatrix
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Recording:
    """All layers of one forward pass.

    Args:
        title: What was recorded, in words.
        model: The name of the model.
        layers: In the order in which they were computed.
        texts: Whole texts by role, as ``{"source": ..., "translation": ...}``.
    """

    title: str
    model: str
    layers: tuple[Layer, ...]
    texts: dict[str, str] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[Layer, ...]:
        """The layers of one kind, in order."""
        return tuple(layer for layer in self.layers if layer.kind == kind)
