"""A recording: what a forward pass attended to, layer by layer, and the tokens that stand at its rows and keys."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from regard.errors import InvalidArgument, InvalidType, did_you_mean

if TYPE_CHECKING:
    import torch

    from regard.analysis.alignment import Alignment, Heads
    from regard.analysis.heads import Columns
    from regard.explore.frame import Frame
    from regard.explore.widget import PageWidget
    from regard.ops.weight_matrix import WeightMatrix

Kind = Literal["encoder", "decoder", "cross"]
KINDS = ("encoder", "decoder", "cross")


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
        measured: What was measured as the layer was computed, by name.
        value: (1, kv_heads, keys, value_dim), where it was kept.
        heads: The numbers of the heads in the model, where they are some of it. Default: all, from 0.
    """

    name: str
    kind: Kind
    weights: WeightMatrix
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    measured: Mapping[str, Any] = field(default_factory=dict)
    value: torch.Tensor | None = None
    heads: tuple[int, ...] | None = None

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """What the heads are called: their numbers in the model."""
        return tuple(range(self.weights.shape[1])) if self.heads is None else self.heads


Some = TypeVar("Some", bound=Any)


class Layers(Generic[Some]):
    """Layers, found by name and by kind."""

    layers: tuple[Some, ...]
    """In the order in which they were computed."""

    def of(self, kind: Kind) -> tuple[Some, ...]:
        """The layers of one kind, in order."""
        return tuple(layer for layer in self.layers if layer.kind == kind)

    @property
    def encoder(self) -> tuple[Some, ...]:
        """The encoder's self-attention."""
        return self.of("encoder")

    @property
    def decoder(self) -> tuple[Some, ...]:
        """The decoder's self-attention."""
        return self.of("decoder")

    @property
    def cross(self) -> tuple[Some, ...]:
        """Cross-attention."""
        return self.of("cross")

    def __getitem__(self, name: str | int) -> Some:
        if isinstance(name, int):
            if not -len(self.layers) <= name < len(self.layers):
                raise InvalidArgument(f"there is no layer {name}: there are {len(self.layers)}, numbered from 0")
            return self.layers[name]
        if not isinstance(name, str):
            raise InvalidType(f"a layer is asked for by name or number, got {type(name).__name__}")
        names = [layer.name for layer in self.layers]
        if name not in names:
            raise InvalidArgument(f"there is no layer {name!r}{did_you_mean(name, names)} (known: {', '.join(names)})")
        return self.layers[names.index(name)]

    def __contains__(self, layer: object) -> bool:
        return any(each is layer or each.name == layer for each in self.layers)

    def __iter__(self) -> Iterator[Some]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


@dataclass(frozen=True)
class Recording(Layers[Layer]):
    """All layers of one forward pass over one text.

    Args:
        title: What was recorded, in words.
        model: The name of the model.
        layers: In the order in which they were computed.
        texts: Whole texts by role, as ``{"source": ..., "translation": ...}``.
        picture: Of a model of images: what it saw, as a PNG of at most 512 pixels a side.
    """

    title: str
    model: str
    layers: tuple[Layer, ...]
    texts: dict[str, str] = field(default_factory=dict)
    picture: bytes | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the queries and keys, and of the rules of masks and scores."""
        return sum(layer.weights.nbytes for layer in self.layers)

    def heads(self, *, separators: Collection[Hashable] | None = None) -> Columns:
        """Where the attention of each head goes, as columns of a table; see `regard.analysis.head_scores`."""
        from regard.analysis.heads import SEPARATORS, head_scores

        return head_scores(self, separators=SEPARATORS if separators is None else separators)

    def alignment(self, heads: Heads = "mean", *, count: int = 4, merge: bool = True) -> Alignment:
        """Which words of the target belong to which of the source; see `regard.analysis.align`."""
        from regard.analysis.alignment import align

        return align(self, heads, count=count, merge=merge)

    def save(self, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
        """Write the recording as one file, of which `regard.load` makes the same again, without the model.

        Args:
            path: Where the file shall lie; mostly ``*.regard``.
            dtype: What queries, keys and values are written in, as ``torch.float16``. Default: as they are.

        Raises:
            InvalidArgument: If a mask or a score holds an object that a file cannot, or lacks an attribute for an
                argument of its constructor; or if a mask that is a function has more than 64 ranges of keys in a row.
            InvalidFile: If the file cannot be written.

        Its size is linear in the tokens: query and key, the rules between them, and what was measured. A user-defined
        mask, score or measure is written by the name of its class and by its attributes that are named like the
        arguments of its constructor.
        """
        from regard.analysis.checking import check_texts
        from regard.analysis.storage import write

        check_texts(self)
        names = Layer.__annotations__
        layers: list[dict[str, Any]] = [{name: getattr(layer, name) for name in names} for layer in self.layers]
        for layer in layers:
            if dtype is not None and layer["value"] is not None:
                layer["value"] = layer["value"].to(dtype)
        about = {"title": self.title, "model": self.model, "texts": self.texts, "layers": layers}
        write(path, about if self.picture is None else about | {"picture": self.picture}, dtype)

    def show(
        self, path: str | os.PathLike[str] | None = None, *, beside: Recording | None = None
    ) -> Path | PageWidget | Frame:
        """Show what attends to what: in a notebook below the cell, elsewhere as a page in the browser.

        Args:
            path: Where the page shall lie. Default: in a notebook nowhere, elsewhere ``attention.html`` in a new
                temporary folder.
            beside: Another recording, with which this one is compared.

        Returns:
            In a notebook a widget, or a frame where anywidget is not installed; elsewhere the path of the page. See
            `regard.explore.show.show`.

        Raises:
            InvalidArgument: If a recording cannot be shown, or the two not be compared, with every reason.
            InvalidFile: If the page cannot be written there.
        """
        from regard.explore.show import show

        return show(self, path, beside=beside)

    def _repr_html_(self) -> str:
        from regard.explore.frame import preview

        return preview(self)


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording that `Recording.save` wrote.

    Args:
        path: The file. It is data and no code, whoever wrote it: user-defined masks, scores and measures must be
            defined in this process.

    Raises:
        InvalidFile: If it is missing, damaged, of another version, or no recording, or if it names a class that is not
            defined in this process.

    Example:
        >>> import regard, tempfile
        >>> recording = regard.generation.Translator.load().record("Thank you.")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recording.save(f"{folder}/thanks.regard")
        ...     again = regard.load(f"{folder}/thanks.regard")
        >>> again.cross[0].queries == recording.cross[0].queries
        True
    """
    from regard.analysis.checking import check
    from regard.analysis.storage import read, reading

    if not isinstance(path, (str, os.PathLike)):
        raise InvalidType(f"path: expected the path of a recording, got {path!r:.80}")
    with reading(path):
        told = read(path)
        recording = Recording(layers=tuple(Layer(**each) for each in told.pop("layers")), **told)
        check(recording)
    return recording
