"""BatchAxes: follows the entries of each layer's batch from the modules that cut them out to the model's sequences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import nn

from regard.recordings.batch_axis import UNKNOWN_AXIS, BatchAxis
from regard.watching.axis_rules import UNMAPPED, LayerSize, Split, module_call, rules_of
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.result import LayerKey


class BatchAxes:
    """How the modules of one forward pass cut the entries of each layer's batch, the innermost module first."""

    def __init__(self) -> None:
        self._splits: dict[LayerKey, list[Split]] = {}
        self._unknown: set[LayerKey] = set()
        self._seen: set[tuple[LayerKey, int]] = set()
        self._outermost: dict[LayerKey, nn.Module] = {}

    def follow(
        self,
        module: nn.Module,
        name: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        recorded: Collection[LayerKey],
        recorders: Mapping[LayerKey, LayerRecorder],
    ) -> None:
        """Follow the entries of the layers inside a module that has returned.

        Args:
            module: The module, to whose class a rule applies.
            name: Its name in the model.
            args: What it was called with.
            kwargs: The same by name.
            recorded: The layers of the forward pass.
            recorders: The recorder of each.
        """
        rules, call = rules_of(type(module)), module_call(module, args, kwargs)
        # Before it reads the texts, `generate` has called the vision model, in a forward pass of its own.
        earlier = [] if call.image_features is None else [key for key in recorders if key not in recorded]
        for key in (*recorded, *earlier):
            is_inside = not name or f"{key[0]}.".startswith(f"{name}.")
            if not is_inside or (key, id(module)) in self._seen:
                continue
            self._seen.add((key, id(module)))
            recorder = recorders[key]
            splits = self._splits.setdefault(key, [] if key in recorded else list(recorder.splits))
            entries = splits[-1].num_items if splits else recorder.batch_size
            layer = LayerSize(key[0][len(name) :].removeprefix("."), entries, recorder.num_queries, recorder.num_keys)
            split = next(filter(None, (rule.split(call, layer) for rule in rules)), None)
            if split is UNMAPPED:
                self._unknown.add(key)
            elif split is not None:
                splits.append(split)
                self._outermost[key] = module
                self._unknown.discard(key)
            elif key not in recorded and key not in self._outermost:
                self._unknown.add(key)

    def resolve(
        self,
        model: nn.Module,
        counts: Collection[int],
        recorded: Collection[LayerKey],
        recorders: Mapping[LayerKey, LayerRecorder],
    ) -> None:
        """Tell the recorders what the entries of their batches are, once the forward pass has ended.

        Args:
            model: The outermost module that ran.
            counts: The possible numbers of sequences that the model read; none where that is not known.
            recorded: The layers of the forward pass.
            recorders: The recorder of each.
        """
        for key in dict.fromkeys((*recorded, *self._splits)):
            recorder, splits = recorders[key], self._splits.get(key, [])
            if recorder.is_axis_decided and key not in self._splits:  # a later step says less
                continue
            recorder.splits, recorder.is_axis_decided = tuple(splits), True
            count = splits[-1].num_items if splits else recorder.batch_size
            is_known = count in counts or self._outermost.get(key) is model
            is_known = is_known and key not in self._unknown
            recorder.batch_axis = _axis(splits, count) if is_known else UNKNOWN_AXIS


def _axis(splits: Sequence[Split], num_sequences: int) -> BatchAxis | None:
    """What the entries of a batch are, which modules cut, the innermost first; None if they are the sequences."""
    if not splits:
        return None
    first, *others = splits
    items, places = first.items, first.places
    for split in others:
        names = [(split.places[item], place) for item, place in zip(items, places, strict=True)]
        places = tuple(", ".join(filter(None, both)) for both in names)
        items = tuple(split.items[item] for item in items)
    if first.windows is None and first.spans is None and items == tuple(range(num_sequences)):
        return None
    return BatchAxis(first.unit, items, num_sequences, places, first.windows, first.spans)
