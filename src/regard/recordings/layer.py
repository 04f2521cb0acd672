"""Layer: one attention layer with its weights and tokens; LayerList: layers by number, name and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, overload

from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.weight_matrix import WeightMatrix
from regard.recordings.batch_axis import BatchAxis

AttentionKind = Literal["encoder", "decoder", "cross"]
ATTENTION_KINDS = ("encoder", "decoder", "cross")


class Numbers(tuple[str, ...]):
    """Numbers from 1, which stand for tokens that have no names."""

    @classmethod
    def up_to(cls, count: int) -> Numbers:
        """The numbers from 1 to a count."""
        return cls(map(str, range(1, count + 1)))


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One attention layer of a forward pass: its weights, and what is known about them.

    Args:
        name: The module in its model, ``"encoder.layer.0.attention.self"``, with ``#2`` and so on where a forward pass
            uses it several times.
        kind: Self-attention of an encoder or a decoder, or cross-attention from decoder to encoder.
        weights: (batch, heads, queries, keys); in a saved recording the batch is 1.
        query_tokens: The token of each row. In a decoder that writes a text, a row is a step, named by the token that
            it wrote. Default: numbers from 1.
        key_tokens: The token of each column; for a decoder's self-attention those that were read. Default: numbers.
        measured: Results of measures, by name. Reading an unknown name raises InvalidArgument, which lists the known.
        value: (batch, kv_heads, keys, value_dim), if it was recorded.
        head_indices: The indices of the heads in the model, where only some were recorded. Default: all.
        batch_axis: What the entries of the batch are, such as windows of an image; None if they are the sequences that
            the model read.
        is_dense: Whether it holds scores captured at the softmax of a module, in memory of the size queries × keys.
            Its query and key are then 0, and the scores a bias.

    A watched layer computes all from `weights` on when it is read.

    Raises:
        InvalidType: If something has a wrong type; every problem is in the message.
        InvalidArgument: If tokens, values or head indices do not fit the weights.
    """

    name: str
    kind: AttentionKind
    weights: WeightMatrix
    query_tokens: tuple[str, ...] = None  # pyright: ignore[reportAssignmentType] # __post_init__ numbers them
    key_tokens: tuple[str, ...] = None  # pyright: ignore[reportAssignmentType]
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])
    value: Tensor | None = None
    head_indices: tuple[int, ...] = None  # pyright: ignore[reportAssignmentType]
    batch_axis: BatchAxis | None = None
    is_dense: bool = False

    def __post_init__(self) -> None:
        with Checks() as checks:
            _check_types(checks, self)
        heads, queries, keys = self.weights.shape[1:]
        complete = {
            "query_tokens": _as_tokens(self.query_tokens, queries),
            "key_tokens": _as_tokens(self.key_tokens, keys),
            "measured": Measurements(self.measured),
            "head_indices": _as_indices(self.head_indices, heads),
        }
        for name, part in complete.items():
            object.__setattr__(self, name, part)
        with Checks() as checks:
            _check_values(checks, self)

    @property
    def has_tokens(self) -> bool:
        """Whether rows and columns are named by tokens, not by numbers."""
        return not isinstance(self.query_tokens, Numbers) and not isinstance(self.key_tokens, Numbers)

    def replace(self, **changes: Any) -> Layer:
        """The same layer with other arguments of the constructor."""
        kept = [each.name for each in fields(Layer) if each.name not in changes]
        return Layer(**{name: getattr(self, name) for name in kept}, **changes)

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {self.kind}{', dense' if self.is_dense else ''})"


def _as_tokens(tokens: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Tokens as a tuple; a number for each if they have no names."""
    return Numbers.up_to(count) if tokens is None or isinstance(tokens, Numbers) else tuple(tokens)


def _as_indices(indices: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """Indices of heads as a tuple; all if they are not given."""
    return tuple(range(count) if indices is None else indices)


class Measurements(dict[str, Any]):
    """Results of measures by name."""

    def __missing__(self, name: str) -> Any:
        known = f"measured are {', '.join(self)}" if self else "nothing was measured"
        shown = short_repr(name)
        raise InvalidArgument(
            f"measured: unknown name {shown}; {known}; watch with measure=[{shown}], or compute it now: "
            f"layer.weights.measure({shown})"
        )


class LayerList(Sequence[Layer]):
    """Layers in the order in which they were computed, found by number, by name and by kind.

    ``layers["encoder.layer.0"]`` also finds the one layer below that module.
    """

    def __init__(self, layers: Iterable[Layer] = (), owner: str = "the recording") -> None:
        self._layers, self._owner = tuple(layers), owner

    @overload
    def __getitem__(self, index: int | str) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> LayerList: ...
    def __getitem__(self, index: int | str | slice) -> Layer | LayerList:
        if isinstance(index, slice):
            return LayerList(self._layers[index], self._owner)
        if isinstance(index, str):
            return self._find(index)
        if isinstance(index, bool) or not isinstance(index, int):
            raise InvalidType(f"layers: expected a name or a number, got {type(index).__name__}")
        count = len(self._layers)
        if not count:
            raise InvalidArgument(f"layers: there are no layers in {self._owner}, got {index}")
        if not -count <= index < count:
            raise InvalidArgument(f"layers: expected a number below {count}, the layers of {self._owner}, got {index}")
        return self._layers[index]

    def _find(self, name: str) -> Layer:
        names = [layer.name for layer in self._layers]
        below = [each for each in names if each.startswith(f"{name}.")]
        if name in names or len(below) == 1:
            return self._layers[names.index(name if name in names else below[0])]
        if below:
            raise InvalidArgument(f"layers: {short_repr(name)} has several layers: {', '.join(below)}")
        raise InvalidArgument(
            f"layers: unknown layer {short_repr(name)}{did_you_mean(name, names)}; known: {', '.join(names)}"
        )

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __contains__(self, layer: object) -> bool:
        return any(each is layer or each.name == layer for each in self._layers)

    def __repr__(self) -> str:
        return f"LayerList({count_kinds(self)})"

    def by_kind(self, kind: AttentionKind) -> LayerList:
        """The layers of one kind."""
        with Checks() as checks:
            checks.choice("kind", kind, ATTENTION_KINDS)
        found = [layer for layer in self._layers if layer.kind == kind]
        return LayerList(found, f"{self._owner} of kind '{kind}' (it has {count_kinds(self)})")

    def within(self, part: str) -> LayerList:
        """The layers of a part of the model, by the name of the module: ``layers.within("vision_model")``.

        Raises:
            InvalidType: If it is not a str.
            InvalidArgument: If the part has no layer.
        """
        if not isinstance(part, str):
            raise InvalidType(f"part: expected the name of a part of the model, got {short_repr(part)}")
        found = [layer for layer in self._layers if is_within(layer.name, part)]
        if not found:
            names = [layer.name for layer in self._layers]
            raise InvalidArgument(
                f"part: {short_repr(part)} has no layer{did_you_mean(part, names)}; known: {', '.join(names)}"
            )
        return LayerList(found, f"{self._owner} within {short_repr(part)}")

    @property
    def encoder(self) -> LayerList:
        """The encoder's self-attention."""
        return self.by_kind("encoder")

    @property
    def decoder(self) -> LayerList:
        """The decoder's self-attention."""
        return self.by_kind("decoder")

    @property
    def cross(self) -> LayerList:
        """Cross-attention."""
        return self.by_kind("cross")


def is_within(layer: str, part: str) -> bool:
    """Whether a layer is a part of the model, or in it, by their names."""
    return f"{layer}.".startswith(f"{part}.") or layer.startswith(f"{part}#")


def common_part(names: Sequence[str], others: Sequence[str]) -> str | None:
    """The name of a part of the model that has some layers and not others; None if there is none."""
    parts = names[0].split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if all(is_within(name, part) for name in names) and not any(is_within(name, part) for name in others):
            return part
    return None


def check_head_indices(checks: Checks, layer: Layer, heads: Iterable[int]) -> None:
    """Add a problem for each index that is not that of a recorded head."""
    indices = ", ".join(map(str, layer.head_indices))
    for head in heads:
        checks.that(head in layer.head_indices, f"heads: {layer.name} has the heads {indices}, got {short_repr(head)}")


def require_one_sequence(layers: Iterable[Layer], name: str = "recording") -> None:
    """Raise InvalidArgument, naming the argument, if there is a batch of several sequences."""
    owner = "recording" if name == "layer" else name
    for layer in layers:
        batch, axis = layer.weights.shape[0], layer.batch_axis
        if batch != 1 and axis is not None and axis.num_sequences == 1:
            raise InvalidArgument(
                f"{name}: expected one sequence, but {layer.name} has {batch} {axis.unit}s of it; select one with "
                f"{owner}.select(0, entry=0), or other layers with {owner}.select(0, layers=[...])"
            )
        if batch != 1:
            raise InvalidArgument(
                f"{name}: expected one sequence, got a batch of {batch}; select one with {owner}.select(0), "
                "of a watch with result.recording.select(0)"
            )


def count_kinds(layers: Iterable[Layer]) -> str:
    """How many layers there are of each kind: ``12 layers: 6 encoder, 6 cross``."""
    kinds = Counter(layer.kind for layer in layers)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{sum(kinds.values())} layers" + (f": {counts}" if counts else "")


def _check_types(checks: Checks, layer: Any) -> None:
    """Check that the arguments of a layer have the right types."""
    value, indices = layer.value, layer.head_indices
    is_matrix, matrix = (
        isinstance(layer.weights, WeightMatrix),
        "a weight matrix, as regard.weights(query, key) returns",
    )
    expected: list[tuple[str, Any, bool, str]] = [
        ("name", layer.name, isinstance(layer.name, str), "a str"),
        ("weights", layer.weights, is_matrix, matrix),
        *(
            (name, tokens, tokens is None or _are(str, tokens), "a tuple of str, or None")
            for name, tokens in (("query_tokens", layer.query_tokens), ("key_tokens", layer.key_tokens))
        ),
        ("measured", layer.measured, isinstance(layer.measured, Mapping), "measures by name"),
        ("value", value, value is None or isinstance(value, Tensor), "a tensor, or None"),
        ("head_indices", indices, indices is None or _are(int, indices), "a tuple of int, or None"),
        ("batch_axis", layer.batch_axis, isinstance(layer.batch_axis, BatchAxis | None), "a BatchAxis, or None"),
    ]
    for name, part, is_right, what in expected:
        if not is_right:
            actual = describe(part) if isinstance(part, Tensor) else short_repr(part)
            checks.fail_type(f"layer {short_repr(layer.name)}: {name}: expected {what}, got {actual}")


def _check_values(checks: Checks, layer: Layer) -> None:
    """Check that the parts of a layer fit each other."""
    where, kinds = f"layer {short_repr(layer.name)}", ", ".join(ATTENTION_KINDS)
    checks.that(layer.kind in ATTENTION_KINDS, f"{where}: kind: expected one of {kinds}, got {short_repr(layer.kind)}")
    batch, heads, queries, keys = layer.weights.shape
    sides = (("query_tokens", layer.query_tokens, queries), ("key_tokens", layer.key_tokens, keys))
    for name, tokens, size in sides:
        if len(tokens) != size:
            checks.fail(f"{where}: {name}: expected {size} tokens, as the weights have, got {len(tokens)}")
    if any(not isinstance(tokens, Numbers) for _, tokens, _ in sides) and batch != 1:
        checks.fail(f"{where}: weights: expected one sequence where tokens are named, got a batch of {batch}")
    value, numbers = layer.value, layer.head_indices
    if value is not None:
        shape = tuple(value.shape)
        fits = len(shape) == 4 and value.is_floating_point() and shape[0] == batch and shape[2] == keys
        if not fits or not shape[1] or heads % shape[1]:
            checks.fail(
                f"{where}: value: expected floats of shape ({batch}, kv_heads, {keys}, value_dim), where kv_heads "
                f"divides {heads}, got {value.dtype} of {shape}"
            )
    axis = layer.batch_axis
    if axis is not None and axis.is_known and axis.spans is None and len(axis.sequences) != batch:
        checks.fail(f"{where}: batch_axis: expected a sequence for each of {batch} entries, got {len(axis.sequences)}")
    if len(set(numbers)) != len(numbers) or len(numbers) != heads or min(numbers, default=0) < 0:
        checks.fail(
            f"{where}: head_indices: expected {heads} different numbers from 0, one for each head, got "
            f"{short_repr(numbers)}"
        )


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, (tuple, list)) and all(isinstance(each, kind) for each in values)
