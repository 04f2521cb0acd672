"""WatchedLayer: a layer of a watched model, whose parts are computed when they are read."""

# pyright: reportIncompatibleVariableOverride=false
# Properties stand where a layer has fields: both are only read.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.ops import WeightMatrix
from regard.recordings.batch_axis import BatchAxis
from regard.recordings.layer import Layer, Measurements, Numbers
from regard.watching.layer_recorder import LayerRecorder


class WatchedLayer(Layer):
    """A layer whose weights and measures are those of a recorder, also while it records.

    Args:
        recorder: What recorded it.
    """

    _recorder: LayerRecorder

    def __init__(self, recorder: LayerRecorder) -> None:
        object.__setattr__(self, "name", recorder.name)
        object.__setattr__(self, "kind", recorder.kind)
        object.__setattr__(self, "_recorder", recorder)

    @property
    def weights(self) -> WeightMatrix:
        """The weight matrix, (batch, heads, queries, keys).

        Raises:
            InvalidArgument: If a watch kept only measures, or its calls are not rows of one matrix.
        """
        return self._recorder.weights

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """A number for each row."""
        return Numbers.up_to(self.weights.shape[2])

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """A number for each column."""
        return Numbers.up_to(self.weights.shape[3])

    @property
    def measured(self) -> Mapping[str, Any]:
        """Results of measures, by name.

        Raises:
            InvalidArgument: If the sequences of a batch changed places between the steps of a generation; reading an
                unknown name, too.
        """
        return Measurements(self._recorder.measured)

    @property
    def value(self) -> Tensor | None:
        """(batch, kv_heads, keys, value_dim), if it was recorded."""
        return self._recorder.value

    @property
    def head_indices(self) -> tuple[int, ...]:
        """The index of each head in the model."""
        indices = self._recorder.head_indices
        return tuple(range(self.weights.shape[1])) if indices is None else indices

    @property
    def batch_axis(self) -> BatchAxis | None:
        """What the entries of the batch are; None if they are the sequences that the model read."""
        return self._recorder.batch_axis

    @property
    def is_dense(self) -> bool:
        """Whether it holds scores captured at a softmax, in memory of the size queries × keys."""
        return self._recorder.is_dense
