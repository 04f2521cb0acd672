"""WatchResult: what a watched model attended to."""

from __future__ import annotations

from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument, short_repr
from regard.ops.tensor_functions import DENSE_LIMIT
from regard.recordings.layer import AttentionKind, LayerList
from regard.recordings.recording import Recording
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.watched_layer import WatchedLayer

LayerKey = tuple[str, int]
"""The name of a module, and which of its calls in one forward pass."""


Recorders = dict[LayerKey, LayerRecorder]
"""The recorders of one forward pass, or of one generation, in the order in which the layers were computed."""


class WatchResult:
    """What a watched model attended to; `watch` yields it. Layers are complete whenever the model is not running.

    Args:
        model: The watched model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._recordings: list[Recorders] = []
        self._built: dict[int, tuple[Recorders, Recording]] = {}  # by the id of the recorders

    @property
    def recordings(self) -> tuple[Recording, ...]:
        """A recording of each forward pass, in order. All steps of a generation are one."""
        return tuple(self._as_recording(each) for each in self._recordings)

    @property
    def recording(self) -> Recording:
        """The last recording.

        Raises:
            InvalidArgument: If the model has not run yet.
        """
        if not self._recordings:
            raise InvalidArgument("nothing was recorded yet: call the model first")
        return self._as_recording(self._recordings[-1])

    @property
    def layers(self) -> LayerList:
        """The layers of the last forward pass: ``layers[0]``, ``layers["encoder.layer.0"]``, ``layers.encoder[1]``."""
        if not self._recordings:
            return LayerList((), type(self.model).__name__)
        return self._as_recording(self._recordings[-1]).layers

    def attentions(
        self, kind: AttentionKind | None = None, *, limit: int = DENSE_LIMIT
    ) -> tuple[Float[Tensor, "batch heads queries keys"], ...]:
        """The weights of all layers of one kind as dense tensors, as ``output_attentions=True`` returns them.

        Args:
            kind: Which layers, as transformers' ``encoder_attentions``, ``decoder_attentions`` and
                ``cross_attentions``. Default: all, in a model that has one kind.
            limit: Largest number of cells in all layers; 2**28 by default, 1 GiB in float32.

        Raises:
            InvalidArgument: If there are several kinds and none is selected, no layer of the kind, or more cells.

        Memory:
            O(layers * batch * heads * tokens²).

        Examples:
            >>> import regard, torch, transformers
            >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
            >>> with regard.watch(transformers.BertModel(config).eval()) as result:
            ...     output = result.model(torch.randint(99, (1, 10)))
            >>> [tuple(weights.shape) for weights in result.attentions()]
            [(1, 4, 10, 10), (1, 4, 10, 10)]
        """
        layers = self.layers if kind is None else self.layers.by_kind(kind)
        kinds = sorted({layer.kind for layer in layers})
        if len(kinds) != 1:
            raise InvalidArgument(
                f"kind: expected one of {', '.join(kinds) or 'none'}, the kinds of layers, got {short_repr(kind)}"
            )
        cells = sum(prod(layer.weights.shape) for layer in layers)
        if cells > limit:
            raise InvalidArgument(
                f"limit: the layers have {cells:,} cells, more than {limit:,}; read single layers "
                "(result.layers[0].weights.dense()), compute measures, or raise limit="
            )
        return tuple(layer.weights.dense(limit) for layer in layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept: queries, keys, values, masks, biases and measures."""
        held = (tensor for each in self._recordings for recorder in each.values() for tensor in recorder.tensors)
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in held}.values())

    def select_beams(self, beam_indices: Int[Tensor, "texts steps"]) -> Recording:
        """What the texts that a beam search returned attended to, in the last forward pass.

        Layers whose batch is not that of the texts, such as those of images, are left out.

        Args:
            beam_indices: (texts, steps) The row of the batch that each text was in at each step, −1 where it had ended:
                the ``beam_indices`` of transformers' ``generate(..., return_dict_in_generate=True)``. It has fewer
                steps than were recorded if all texts had ended.

        Returns:
            Recording: With a batch of texts.

        Raises:
            InvalidType: If it is not a tensor.
            InvalidArgument: If steps were not kept, or it has other rows or another number of steps.
        """
        every = self._recordings[-1] if self._recordings else {}
        of_texts = {key: recorder for key, recorder in every.items() if recorder.batch_axis is None}
        recorders = list(of_texts.values())
        if not recorders or not all(recorder.num_calls for recorder in recorders):
            raise InvalidArgument("select_beams: the steps were not kept; watch a generation with keep_qk=True")
        batch = max(recorder.batch_size for recorder in recorders)
        steps = max(recorder.num_steps for recorder in recorders)
        with Checks() as checks:
            checks.tensor("beam_indices", beam_indices, "integer")
        shape, (low, high) = tuple(beam_indices.shape), beam_indices.aminmax() if beam_indices.numel() else (-2, 0)
        if len(shape) != 2 or low < -1 or high >= batch:
            raise InvalidArgument(
                f"beam_indices: expected (texts, steps) indices from -1 to {batch - 1}, got {shape} from {int(low)} to "
                f"{int(high)}"
            )
        missing = steps - shape[1]  # where the texts have ended before others
        if missing < 0:
            raise InvalidArgument(
                f"beam_indices: expected at most {steps} steps, those of the last recording, got {shape[1]}; without a "
                "KV cache each step is a recording: take result.recordings[step].select(row), with the row of a text"
            )
        if missing and any(recorder.num_more_for_prompt for recorder in recorders):
            raise InvalidArgument(
                f"beam_indices: expected {steps} steps, got {shape[1]}: it is not known which of the first calls read "
                "the prompt; generate without prefill_chunk_size"
            )
        beam_indices = torch.nn.functional.pad(beam_indices, (0, missing), value=-1)
        selected: Recorders = {}
        for key, recorder in of_texts.items():
            beams = batch // recorder.batch_size  # an encoder reads each text once
            rows = torch.where(beam_indices < 0, beam_indices, beam_indices // beams).to(recorder.device)
            selected[key] = recorder.select_beams(rows)
        return self._build(selected)

    def _as_recording(self, forward_pass: Recorders) -> Recording:
        """The recording of a forward pass: the same one at each read, until it has more layers."""
        recorders, built = self._built.get(id(forward_pass), (None, None))
        if recorders is not forward_pass or built is None or len(built.layers) != len(forward_pass):
            built = self._build(forward_pass)
            self._built[id(forward_pass)] = forward_pass, built  # an id alone may be another's in a copy
        return built

    def _build(self, forward_pass: Recorders) -> Recording:
        name = type(self.model).__name__
        layers = LayerList(map(WatchedLayer, forward_pass.values()), name)
        return Recording("", name, layers)

    def __repr__(self) -> str:
        count, kept = len(self._recordings), f"{self.nbytes / 2**20:,.1f} MiB"
        recordings = f"{count} recording{'' if count == 1 else 's'}"
        return f"WatchResult({type(self.model).__name__}: {recordings}, {self.layers!r}, {kept})"
