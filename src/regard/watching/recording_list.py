"""RecordingList: the recordings of a watch, and the recording and the layer that each call belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from regard.ops import WeightMatrix
from regard.ops.measures import Measure
from regard.recordings.layer import AttentionKind
from regard.watching.call import AttentionCall, Continuation
from regard.watching.forward_pass import ForwardPass
from regard.watching.held_keys import HeldKeys
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.result import LayerKey, Recorders
from regard.watching.retention import Retention


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a module.

    Args:
        module: The module.
        kind: Its kind.
        key: The layer, unless the call is none that the layer can have.
        call: The call.
        separate_layers: Whether several calls in one forward of the module are layers, not chunks of one.
        fuses_output: Whether to compute its output with the measures.
    """

    module: nn.Module
    kind: AttentionKind
    key: LayerKey
    call: AttentionCall
    separate_layers: bool = False
    fuses_output: bool = False


class RecordingList:
    """Places calls in recordings.

    Args:
        recordings: The recordings of a result.
        model: The watched model.
        make_recorder: Makes the recorder of a layer, from its name and kind.
        joined: The names of the modules whose calls may be steps of a hand-written KV cache.
        kinds: The kinds of modules, by id. They hold what calls have shown.
    """

    def __init__(
        self,
        recordings: list[Recorders],
        model: nn.Module,
        make_recorder: Callable[[str, str, AttentionKind], LayerRecorder],
        joined: Collection[str],
        kinds: dict[int, AttentionKind],
    ) -> None:
        self._recordings, self._model, self._make_recorder = recordings, model, make_recorder
        self._joined, self._kinds = joined, kinds

    def add(self, forward: ForwardPass, each: LayerCall) -> tuple[WeightMatrix, Tensor | None]:
        """Record a call.

        Returns:
            Its weight matrix; and its output, or None if it was not to be computed with the measures, or not now.
        """
        compares_keys = self._compares_keys(each.call)
        if compares_keys:
            step = self._find_step_before(forward, each)
            if step is not None:
                return step
        if each.separate_layers:
            each = self._as_own_layer(each, {*forward.recorded, *(other.key for other in forward.waiting)})
        if compares_keys and self._waits(forward, each):
            forward.waiting.append(each)
            return each.call.weights, None
        return self._add(forward, each)

    def end_forward(self, forward: ForwardPass) -> None:
        """Record what still waits: it is a further step if any of it continues a layer."""
        if forward.waiting:
            recorders = self._recordings[-1]
            layers = [(recorders.get(each.key), each) for each in forward.waiting]
            if not any(layer is not None and layer.relate(each.call) is not None for layer, each in layers):
                self._start_recording({})
            self._add_waiting(forward)
        self._doubt_steps(forward)

    def repeat(self, forward: ForwardPass, key: LayerKey | None = None) -> None:
        """The call of a layer was made again with another value. Default: the last call."""
        if key is None and forward.waiting:
            forward.waiting[-1].call.value = None
            return
        key = forward.last_key if key is None else key
        if key is not None and key in self._recordings[-1]:
            self._recordings[-1][key].repeat()

    def _compares_keys(self, call: AttentionCall) -> bool:
        """Whether keys say how a call continues the others, because the model does not say its positions."""
        return bool(self._joined) and call.has_assumed_positions

    def _find_step_before(self, forward: ForwardPass, each: LayerCall) -> tuple[WeightMatrix, Tensor | None] | None:
        """Record a call that continues one in the same forward pass, if it does."""
        for key in forward.recorded:
            if key[0] == each.key[0] and key[0] in self._joined:
                recorder = self._recordings[-1][key]
                continuation = recorder.relate(each.call)
                if continuation == "new_queries" and not self._is_next_step(forward, key, each.call):
                    continue
                if continuation is not None:
                    if continuation == "new_queries":
                        self._set_cross(recorder, each.module)
                    forward.last_key = key
                    forward.recorded[key] += 1
                    return recorder.add(each.call, continuation, fuses_output=each.fuses_output)
        return None

    def _is_next_step(self, forward: ForwardPass, key: LayerKey, call: AttentionCall) -> bool:
        """Whether a further call to the same keys in a forward pass is one of the next step, not another layer.

        Where the tokens attend to themselves, too, that has had more steps.
        """
        steps = self._num_steps(forward, call.query.shape[2])
        return steps is None or steps > forward.recorded[key]

    def _num_steps(self, forward: ForwardPass, queries: int) -> int | None:
        """How often so many tokens attended to themselves in a forward pass; None if they do not."""
        recorders = self._recordings[-1]
        counts = [count for key, count in forward.recorded.items() if recorders[key].is_step_of(queries)]
        return max(counts, default=None)

    def _doubt_steps(self, forward: ForwardPass) -> None:
        """Refuse cross-attention that ran more often than the tokens attended to themselves, and its other layers."""
        for key, count in forward.recorded.items():
            recorder = self._recordings[-1][key]
            steps = self._num_steps(forward, recorder.num_last_queries)
            is_joined = recorder.kind == "cross" and key[0] in self._joined
            first = self._recordings[-1].get((key[0], 1), recorder)
            if first.has_doubtful_steps or (is_joined and steps is not None and count > steps):
                recorder.doubt_steps()

    def _waits(self, forward: ForwardPass, each: LayerCall) -> bool:
        """Whether a later call of the forward pass must decide whether it is a further step.

        A layer decides that has a cache. Attention to an encoder's keys, which stay the same, does not.
        """
        if forward.recorded or forward.is_continuation_decided or not self._recordings or not self._recordings[-1]:
            return False
        recorder = self._recordings[-1].get(each.key)
        return recorder is None or each.key[0] not in self._joined or recorder.relate(each.call) == "new_queries"

    def _add(self, forward: ForwardPass, each: LayerCall) -> tuple[WeightMatrix, Tensor | None]:
        is_known = each.key in forward.recorded or forward.is_continuation_decided
        recorders = self._recordings[-1] if is_known else self._recorders_for(forward, each)
        if forward.waiting:
            self._add_waiting(forward)
        key, call, kind = each.key, each.call, each.kind
        continuation: Continuation | None = None
        if key in forward.recorded:
            continuation = "chunk"
        elif key in recorders and self._compares_keys(call):
            continuation = recorders[key].relate(call)
            if continuation == "new_queries":
                self._set_cross(recorders[key], each.module)
            elif continuation is None:  # a matrix of its own
                key = self._as_own_layer(each, recorders).key
        elif key in recorders:
            continuation = "new_queries" if kind == "cross" else "new_tokens"
        if continuation is None:
            name, index = key
            recorders[key] = self._make_recorder(name, name if index == 1 else f"{name}#{index}", kind)
        forward.recorded[key], forward.last_key = forward.recorded.get(key, 0) + 1, key
        return recorders[key].add(call, continuation, fuses_output=each.fuses_output)

    def _set_cross(self, recorder: LayerRecorder, module: nn.Module) -> None:
        recorder.kind = self._kinds[id(module)] = "cross"

    def _add_waiting(self, forward: ForwardPass) -> None:
        waiting, forward.waiting = forward.waiting, []
        forward.is_continuation_decided |= bool(waiting)
        for each in waiting:
            self._add(forward, each)

    @staticmethod
    def _as_own_layer(each: LayerCall, taken: Collection[LayerKey]) -> LayerCall:
        """The call as the first layer of its module that is not taken."""
        name, index = each.key
        while (name, index) in taken:
            index += 1
        return replace(each, key=(name, index))

    def _recorders_for(self, forward: ForwardPass, each: LayerCall) -> Recorders:
        """The recorders of the forward pass or generation that a call belongs to.

        The first call of a forward pass decides whether the recording continues: it does if its query offset is the
        number of tokens recorded for that layer, because the KV cache grew. If another recording has as many tokens,
        the keys must be the same, too. A call whose offset is only assumed continues it if its keys show that. If that
        layer is missing from the recording, as with LayerDrop, a new one starts when the whole model is running and
        layers of the same kind were recorded; otherwise the next layer decides.
        """
        if not self._recordings:
            self._recordings.append({})
        recorders, key, call = self._recordings[-1], each.key, each.call
        if key in recorders:
            forward.is_continuation_decided = True
            if call.has_assumed_positions:
                continues = self._compares_keys(call) and recorders[key].relate(call) is not None
            else:
                others = (each[key] for each in self._recordings[:-1] if key in each)
                is_ambiguous = any(other.is_continued_by(call) for other in others)
                continues = recorders[key].is_continued_by(call, compare_keys=is_ambiguous)
        else:
            is_whole = not forward.recorded and forward.modules[:1] == [self._model]
            continues = not (is_whole and any(recorder.kind == each.kind for recorder in recorders.values()))
        if not continues:
            self._start_recording({each: recorders.pop(each) for each in forward.recorded})
        return self._recordings[-1]

    def _start_recording(self, recorders: Recorders) -> None:
        for recorder in self._recordings[-1].values():
            recorder.flush()
        self._recordings.append(recorders)


def make_recorder(
    measures: Mapping[str, Measure],
    retention: Retention,
    heads: tuple[int, ...] | None,
    joined: Collection[str],
    module: str,
    name: str,
    kind: AttentionKind,
) -> LayerRecorder:
    """The recorder of a layer of a module."""
    held = HeldKeys(module in joined) if joined else None
    return LayerRecorder(name, kind, measures, retention, heads, held)
