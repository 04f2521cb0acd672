"""What was seen of a model: its layers in one pass, and how each of their calls became one matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.analysis.heads import SEPARATORS, Columns, HeadSums, Tokens
from regard.analysis.recording import Kind, Layer, Layers, Recording
from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.ops import WeightMatrix
from regard.ops.measures import Measure
from regard.ops.tree import map_tensors, tensors_in
from regard.watching.calls import Call, How, joined, merged, real_of
from regard.watching.keeping import Keeping
from regard.watching.steps import Steps


@dataclass(eq=False)
class Seen:
    """One attention layer in one pass.

    Args:
        name: The module that attended, with ``#2`` and so on where it is used several times in a pass.
        kind: Self-attention of an encoder or a decoder, or cross-attention.
        heads: The numbers of the heads in the model, where they are some of it; None for all.
    """

    name: str
    kind: Kind
    heads: tuple[int, ...] | None = None
    _answers: dict[str, Any] = field(default_factory=dict, repr=False)
    _calls: list[Call] = field(default_factory=list, repr=False)
    _reals: list[tuple[Tensor | None, int]] = field(default_factory=list, repr=False)
    _how: How | None = field(default=None, repr=False)
    _stop: int = field(default=0, repr=False)
    _keys: int = field(default=0, repr=False)
    _first_key: int = field(default=0, repr=False)
    _extra: int = field(default=0, repr=False)
    _last: Sequence[Any] | None = field(default=None, repr=False)
    _moved: Literal["beams", "keys", "compressed"] | None = field(default=None, repr=False)
    _has_several_values: bool = field(default=False, repr=False)
    _joined: Call | None = field(default=None, repr=False)
    _steps: Steps = field(default_factory=Steps, repr=False)
    _measures: Mapping[str, Measure] = field(default_factory=dict, repr=False)

    @property
    def measured(self) -> Mapping[str, Any]:
        """The answers to what was asked, by name.

        Raises:
            InvalidArgument: If rows changed places on the way, as beams do.
        """
        self._refuse_beams()
        self.settle()
        return Answers(self._answers)

    @property
    def weights(self) -> WeightMatrix:
        """A view of the weights, (batch, heads, queries, keys).

        Raises:
            InvalidArgument: If only measures were kept, or rows changed places on the way, as beams do.
        """
        return self._call.weights

    @property
    def value(self) -> Tensor:
        """What the weights are weights of, (batch, kv_heads, keys, value_dim).

        Raises:
            InvalidArgument: If values were not kept.
        """
        value = self._call.value
        if self._has_several_values:
            raise InvalidArgument(f"{self.name}: it multiplies its weights by several values, which are not kept")
        if value is None:
            raise InvalidArgument(f"{self.name}: its values were not kept: watch with values=True")
        return value

    @property
    def real(self) -> Tensor | None:
        """(batch, queries) bool, which queries are no padding; None where all are real."""
        return real_of(self._reals)

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept: queries, keys, values if they are, masks and biases, and the answers."""
        held = [*(tensor for call in self._calls for tensor in call.tensors), *tensors_in(self._answers)]
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in held}.values())

    @property
    def _call(self) -> Call:
        if not self._calls:
            raise InvalidArgument(f"{self.name}: its weights were not kept: watch with keep='matrix', or ask measured")
        self._refuse_beams()
        if self._moved == "keys":
            raise InvalidArgument(
                f"{self.name}: the cache changed keys of earlier tokens between the steps, as a quantized cache does: "
                "there is no matrix of all steps; read measured, or watch each step by itself"
            )
        if self._joined is None:
            call = self._calls[0] if self._how is None else joined(self._calls, self._how)
            self._joined = replace(call, real=self.real)
        return self._joined

    def continues(self, call: Call) -> bool:
        """Whether a call goes on from here, as a cache grew."""
        return self.kind != "cross" and 0 < self._stop == call.first

    def _refuse_beams(self) -> None:
        if self._moved == "compressed":
            raise InvalidArgument(
                f"{self.name}: it attends to compressed keys, of which later steps had more: there is no matrix of all "
                "steps; watch each forward pass by itself"
            )
        if self._moved == "beams":
            kept = "" if self._calls else "watch with keep='matrix', and "
            raise InvalidArgument(
                f"{self.name}: rows changed places between the steps, or left, as beams do: {kept}choose what became "
                "of them by seen.select(beam_indices)"
            )

    def _find_moves(self, call: Call) -> Literal["beams", "keys", "compressed"] | None:
        """Whether the key that a cache holds of the last token before is that of another sequence, or a new one."""
        if call.extra != self._extra:
            return "compressed"
        stop, last = self._stop - call.first_key, self._last
        if last is None or stop <= 0:
            return None
        held = _marks(call.key[:, :, stop - 1 : stop])
        if all(_is_same(one, other) for one, other in zip(held, last, strict=False)) and len(held) == len(last):
            return None
        return "beams" if all(any(_is_same(one, other) for other in last) for one in held) else "keys"

    @property
    def device(self) -> torch.device:
        """Where queries and keys are kept."""
        return self._calls[0].query.device

    def size(self) -> tuple[int, int]:
        """How many rows the batch has, and how many calls there were."""
        return len(self._calls[0].query), len(self._calls)

    def select(self, rows: Tensor, measures: Mapping[str, Measure]) -> Seen:
        """What became of some rows: (sequences, steps) the row of each at each step, −1 where it had ended."""
        calls = [call.of_rows(rows[:, step]) for step, call in enumerate(self._calls)]
        found = Seen(
            self.name, self.kind, self.heads, {}, calls, [(call.real, call.query.shape[2]) for call in calls], self._how
        )
        found._answers = found._call.measure(measures)
        return found

    def add(self, call: Call, how: How | None, measures: Mapping[str, Measure], keeping: Keeping) -> WeightMatrix:
        """Take up one more call, and give the view of its weights."""
        view, self._measures = call.weights, measures
        if not self._keys:
            self._first_key, self._extra = call.first_key, call.extra  # a window may have left out keys before
        if how == "tokens":
            self._moved = self._moved or self._find_moves(call)
        if how is not None and self._moved in (None, "keys"):
            raise_problems(
                [
                    f"{name}: is of whole matrices, and {self.name} comes in several calls: ask it of seen.layers later"
                    for name, measure in measures.items()
                    if type(measure).result_index is not Measure.result_index
                ]
            )
        if self._moved in ("beams", "compressed"):
            self._steps.end()  # whose answers nobody can be given
        elif measures and not (how == "tokens" and self._moved is None and self._steps.take(call)):
            self.settle()
            begin = call.first_key - self._first_key if how == "tokens" else self._keys if how == "chunk" else 0
            self._merge(call.measure(measures, view), begin)
            keeping.count(self.name, tensors_in(self._answers))
            if how == "tokens":
                self._steps.follow(call)
        self._stop, self._keys = call.stop, self._keys + call.key.shape[2]
        last = call.stop - call.first_key
        self._last = _marks(call.key[:, :, last - 1 : last]) if self.kind != "cross" and last > 0 else None
        self._reals.append((call.real, call.query.shape[2]))
        if keeping.what == "matrix":
            if how == "tokens" and self._how is None:
                self._calls = [keeping.hold(self.name, self._calls[0].without_room())]
            self._calls.append(keeping.hold(self.name, call.own() if how == "tokens" else call.copy_of_cache()))
            self._how, self._joined = how or self._how, None
        return view

    def repeat(self) -> None:
        """Take up that the last call was made again, with another value: its weights are the same."""
        self._has_several_values = True
        if self._calls:
            self._calls[-1].value = None

    def settle(self) -> None:
        """Measure the steps that wait to be, and let go of their keys."""
        call = self._steps.end()
        if call is not None:
            with torch.no_grad():  # as when the steps were made
                self._merge(call.measure(self._measures), call.first_key - self._first_key)

    def _merge(self, answers: Mapping[str, Any], begin: int) -> None:
        """Add answers about more rows, to keys that begin so far behind the first one."""
        for name, answer in answers.items():
            before = self._answers.get(name)
            after = answer if before is None else merged(before, answer, self._measures[name], begin, self._extra)
            self._answers[name] = after


class Answers(dict[str, Any]):
    """Answers by name."""

    def __missing__(self, name: str) -> Any:
        asked = f"only {', '.join(self)} was asked" if self else "nothing was asked"
        raise InvalidArgument(f"measured: there is no {name!r}: {asked}; watch with measure=[{name!r}]")


def _marks(key: Tensor) -> Sequence[Any]:
    """What tells the key of each sequence from others: itself, and on a CPU a hash of its bytes.

    A small tensor that lasts may lie where a large one of the model ended, and glibc (before 2.38, memalign(3)) then
    never gives that place away again: one layer after another would need new ones.
    """
    key = key.detach()
    if key.device.type != "cpu":  # whose hash would have to be waited for
        return key.clone().unbind()
    return [hash(row.tobytes()) for row in key.contiguous().view(torch.uint8).numpy()]


def _is_same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


@dataclass(eq=False, repr=False)
class Pass(Layers[Seen]):
    """What was attended to in one forward pass, or in a generation."""

    places: dict[tuple[str, int], Seen] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[Seen, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(self.places.values())

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return sum(layer.nbytes for layer in self.layers)

    def __repr__(self) -> str:
        kinds = Counter(layer.kind for layer in self.layers)
        of_each = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"Pass({of_each} layers, {self.nbytes / 2**20:,.1f} MiB)"

    def settle(self) -> None:
        """Measure what waits to be."""
        for layer in self.layers:
            layer.settle()

    def recording(
        self,
        sequence: int | None = None,
        *,
        tokens: Sequence[str] | None = None,
        target: Sequence[str] | None = None,
        title: str = "",
        model: str = "",
    ) -> Recording:
        """What one sequence attended to, to be looked at or saved.

        Args:
            sequence: Which of the batch. Default: the only one.
            tokens: What its tokens are called. Default: 1, 2, 3, and so on.
            target: The same of a decoder's, where there is an encoder, too.
            title: What it is.
            model: The name of the model.

        Raises:
            InvalidArgument: If there are several sequences and none is chosen, if tokens are not as many as a layer
                has, or if only measures were kept.
        """
        if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int)):
            raise InvalidType(f"sequence: expected a number of the batch, from 0, got {sequence!r:.80}")
        tokens, target = _names_of("tokens", tokens), _names_of("target", target)
        layers = []
        for seen in self.layers:
            weights = seen.weights
            batch = weights.shape[0]
            if sequence is None and batch > 1:
                raise InvalidArgument(f"sequence: there are {batch}; choose one, from 0 to {batch - 1}")
            at = 0 if sequence is None else sequence
            if not 0 <= at < batch:
                raise InvalidArgument(f"sequence: expected a number from 0 to {batch - 1}, got {at}")
            call = seen._call.of_rows(torch.tensor([at], device=weights.device)) if batch > 1 else seen._call
            given = tokens if target is None or seen.kind == "encoder" else target
            axes = [given, tokens if seen.kind == "cross" else given]
            names = ("target" if given is target and target is not None else "tokens", "tokens")
            rows, keys = (
                _named(seen.name, name, axis, size)
                for name, axis, size in zip(names, axes, weights.shape[2:], strict=True)
            )
            answers = map_tensors(dict(seen.measured), lambda tensor, at=at: tensor[at : at + 1].detach())
            value = None if call.value is None else call.value.detach()
            layers.append(Layer(seen.name, seen.kind, call.weights.detach(), rows, keys, answers, value, seen.heads))
        return Recording(title, model, tuple(layers))

    def heads(
        self,
        tokens: Tensor | Tokens | None = None,
        target: Tensor | Tokens | None = None,
        *,
        separators: Collection[Hashable] = SEPARATORS,
    ) -> Columns:
        """What each head does, as `regard.analysis.head_scores` tells it: means over all rows that are no padding.

        Args:
            tokens: (batch, tokens) The ids that the model was given, or words. Default: nobody knows; then
                ``separator``, ``duplicate`` and ``induction`` are NaN.
            target: The same of a decoder's, where there is an encoder, too.
            separators: What marks that end texts or part them are called in `tokens`.

        Raises:
            InvalidArgument: If tokens are not as many as a layer has, or if only measures were kept.
        """
        sums = HeadSums(separators)
        tokens, target = _of_batch("tokens", tokens), _of_batch("target", target)
        for seen in self.layers:
            given = target if seen.kind == "decoder" and target is not None else tokens
            sums.add(seen.name, seen.kind, seen.weights, given, seen.heads)
        return sums.means()


def _of_batch(name: str, tokens: Any) -> Tokens | None:
    """Tokens as lists, one for each sequence; those of one sequence may come without the axis of the batch."""
    if tokens is None:
        return None
    found = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise InvalidType(f"{name}: expected (batch, tokens) ids or words, got {type(tokens).__name__}")
    alone = [each for each in found if isinstance(each, str) or not isinstance(each, Sequence)]
    return [found] if alone else found


def _names_of(argument: str, tokens: Any) -> tuple[str, ...] | None:
    """What tokens are called: texts, or ids as texts."""
    if tokens is None:
        return None
    found = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(found, str) or not isinstance(found, Sequence) or any(isinstance(each, list) for each in found):
        raise InvalidType(f"{argument}: expected a name for each token of one sequence, got {tokens!r:.80}")
    return tuple(map(str, found))


def _named(layer: str, argument: str, tokens: Sequence[str] | None, size: int) -> tuple[str, ...]:
    """What stands at an axis."""
    if tokens is None:
        return tuple(map(str, range(1, size + 1)))
    if len(tokens) != size:
        more = "; target= names those of the decoder" if argument == "tokens" else ""
        if len(tokens) == size + 1:
            more = "; the token that a generation ends with was not read: leave its name out"
        raise InvalidArgument(f"{argument}: {layer} has {size}, but {len(tokens)} were named{more}")
    return tuple(tokens)
