"""Layer: one attention layer with its weights and tokens; LayerList: layers by number, name and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, overload

from torch import Tensor

from regard.checks import Checks, describe
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.weight_matrix import WeightMatrix

AttentionKind = Literal["encoder", "decoder", "cross"]
ATTENTION_KINDS = ("encoder", "decoder", "cross")


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
        measured: Results of measures, by name.
        value: (batch, kv_heads, keys, value_dim), if it was recorded.
        head_indices: The indices of the heads in the model, where only some were recorded. Default: all.
        has_own_batch: Whether the entries of the batch are not the sequences that the model read, but windows of an
            image, for example.

    All from `weights` on but the tokens may be functions that return them; a watched layer computes them when they are
    read.
    """

    def __init__(
        self,
        name: str,
        kind: AttentionKind,
        weights: WeightMatrix | Callable[[], WeightMatrix],
        query_tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
        measured: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        value: Tensor | Callable[[], Tensor | None] | None = None,
        head_indices: Sequence[int] | None = None,
        has_own_batch: bool | Callable[[], bool] = False,
    ) -> None:
        self.name = name
        self.kind: AttentionKind = kind
        self._query_tokens, self._key_tokens = query_tokens, key_tokens
        self._weights, self._measured, self._value = weights, {} if measured is None else measured, value
        self._head_indices, self._has_own_batch = head_indices, has_own_batch

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """The token of each row."""
        return self._tokens(self._query_tokens, 2)

    @property
    def key_tokens(self) -> tuple[str, ...]:
        """The token of each column."""
        return self._tokens(self._key_tokens, 3)

    def _tokens(self, tokens: Sequence[str] | None, axis: int) -> tuple[str, ...]:
        return tuple(map(str, range(1, self.weights.shape[axis] + 1))) if tokens is None else tuple(tokens)

    @property
    def has_tokens(self) -> bool:
        """Whether rows and columns are named by tokens, not by numbers."""
        return self._query_tokens is not None and self._key_tokens is not None

    @property
    def weights(self) -> WeightMatrix:
        """The weight matrix, (batch, heads, queries, keys), computed on demand.

        Raises:
            InvalidArgument: If a watch kept only measures, or its calls are not rows of one matrix.
        """
        return cast("WeightMatrix", self._weights() if callable(self._weights) else self._weights)

    @property
    def measured(self) -> Mapping[str, Any]:
        """Results of measures, by name; an unknown name raises InvalidArgument, which says what was measured.

        Raises:
            InvalidArgument: If the sequences of a batch changed places between the steps of a generation.
        """
        return Measurements(self._measured() if callable(self._measured) else self._measured)

    @property
    def value(self) -> Tensor | None:
        """(batch, kv_heads, keys, value_dim), if it was recorded."""
        return self._value() if callable(self._value) else self._value

    @property
    def head_indices(self) -> tuple[int, ...]:
        """The index of each head in the model."""
        return tuple(range(self.weights.shape[1])) if self._head_indices is None else tuple(self._head_indices)

    @property
    def has_own_batch(self) -> bool:
        """Whether the entries of the batch are not the sequences that the model read."""
        return self._has_own_batch() if callable(self._has_own_batch) else self._has_own_batch

    @property
    def is_lazy(self) -> bool:
        """Whether its weights are computed when they are read, as those of a watched layer are."""
        return callable(self._weights)

    def replace(self, **changes: Any) -> Layer:
        """The same layer with other arguments of the constructor."""
        arguments: dict[str, Any] = {name.removeprefix("_"): value for name, value in vars(self).items()}
        return Layer(**arguments | changes)

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {self.kind})"


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
        if not self._layers:
            raise InvalidArgument(f"layers: there are no layers in {self._owner}, got {index}")
        if not -len(self) <= index < len(self):
            raise InvalidArgument(
                f"layers: expected a number below {len(self)}, the layers of {self._owner}, got {index}"
            )
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


def check_head_indices(checks: Checks, layer: Layer, heads: Iterable[int]) -> None:
    """Add a problem for each index that is not that of a recorded head."""
    indices = ", ".join(map(str, layer.head_indices))
    for head in heads:
        checks.that(head in layer.head_indices, f"heads: {layer.name} has the heads {indices}, got {short_repr(head)}")


def require_one_sequence(layers: Iterable[Layer], name: str = "recording") -> None:
    """Raise InvalidArgument, naming the argument, if there is a batch of several sequences."""
    owner = "recording" if name == "layer" else name
    for layer in layers:
        batch = layer.weights.shape[0]
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


def check_layer(checks: Checks, layer: Layer) -> None:
    """Check that the parts of a layer have the right types and fit each other."""
    where = f"layer {short_repr(layer.name)}"
    weights, value, indices = layer._weights, layer._value, layer._head_indices
    tokens = {"query_tokens": layer._query_tokens, "key_tokens": layer._key_tokens}
    expected = [
        ("name", layer.name, isinstance(layer.name, str), "a str"),
        (
            "weights",
            weights,
            isinstance(weights, WeightMatrix),
            "a weight matrix, as regard.weights(query, key) returns",
        ),
        *((name, each, each is None or _are(str, each), "a tuple of str, or None") for name, each in tokens.items()),
        ("measured", layer._measured, isinstance(layer._measured, Mapping), "measures by name"),
        ("value", value, value is None or isinstance(value, Tensor), "a tensor, or None"),
        ("head_indices", indices, indices is None or _are(int, indices), "a tuple of int, or None"),
    ]
    wrong = [(name, part, what) for name, part, is_right, what in expected if not is_right]
    for name, part, what in wrong:
        actual = describe(part) if isinstance(part, Tensor) else f"{short_repr(part)}"
        checks.fail_type(f"{where}: {name}: expected {what}, got {actual}")
    if wrong:
        return
    kinds = ", ".join(ATTENTION_KINDS)
    checks.that(layer.kind in ATTENTION_KINDS, f"{where}: kind: expected one of {kinds}, got {short_repr(layer.kind)}")
    batch, heads, *sizes = layer.weights.shape
    for (name, each), size in zip(tokens.items(), sizes, strict=True):
        if each is not None and len(each) != size:
            checks.fail(f"{where}: {name}: expected {size} tokens, as the weights have, got {len(each)}")
    if any(each is not None for each in tokens.values()) and batch != 1:
        checks.fail(f"{where}: weights: expected one sequence where tokens are named, got a batch of {batch}")
    if isinstance(value, Tensor):
        shape = tuple(value.shape)
        fits = len(shape) == 4 and value.is_floating_point() and shape[0] == batch and shape[2] == sizes[1]
        if not fits or not shape[1] or heads % shape[1]:
            checks.fail(
                f"{where}: value: expected floats of shape ({batch}, kv_heads, {sizes[1]}, value_dim), where kv_heads "
                f"divides {heads}, got {value.dtype} of {shape}"
            )
    numbers = layer.head_indices
    if len(set(numbers)) != len(numbers) or len(numbers) != heads or min(numbers, default=0) < 0:
        checks.fail(
            f"{where}: head_indices: expected {heads} different numbers from 0, one for each head, got "
            f"{short_repr(numbers)}"
        )


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, (tuple, list)) and all(isinstance(each, kind) for each in values)
