"""Recording: the attention of a forward pass, layer by layer, with the tokens of its rows and columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.tree import map_tensors
from regard.recordings.layer import Layer, LayerList, count_kinds

MAX_IMAGE_SIDE = 512
"""Largest height and width of a recording's image, in pixels."""
MAX_IMAGE_BYTES = 4 * 2**20


@dataclass(frozen=True, eq=False)
class Recording:
    """All layers of one forward pass, or of one generation.

    Args:
        title: What was recorded, in words.
        model_name: The name of the model.
        layers: In the order in which they were computed.
        texts: Whole texts by role, ``{"source": ..., "translation": ...}``.
        image: For a vision model: what it saw, as a PNG of at most 512 pixels a side.

    Raises:
        InvalidType: If something has a wrong type; every problem is in the message.
        InvalidArgument: If names repeat.
    """

    title: str
    model_name: str
    layers: LayerList
    texts: dict[str, str] = field(default_factory=dict)
    image: bytes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, LayerList):
            layers: Any = self.layers
            if not isinstance(layers, (list, tuple)) or not all(isinstance(layer, Layer) for layer in layers):
                raise InvalidType(f"layers: expected a list of Layer, got {short_repr(layers)}")
            object.__setattr__(self, "layers", LayerList(layers))
        with Checks() as checks:
            _check_texts(checks, self)
            _check_image(checks, self.image)
            names = Counter(layer.name for layer in self.layers if isinstance(layer.name, str))
            for name, count in names.items():
                checks.that(
                    count == 1,
                    f"recording: expected every layer to have a name of its own, got {short_repr(name)} {count} times",
                )

    def __repr__(self) -> str:
        title = f"{self.title[:40]!r}, " if self.title else ""
        return f"Recording({title}model_name={self.model_name!r}, {count_kinds(self.layers)})"

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of queries and keys, in which the model computed; None if there are no layers."""
        return self.layers[0].weights.request.query.dtype if len(self.layers) else None

    @property
    def nbytes(self) -> int:
        """Bytes of the queries and keys, and of the tensors of masks and scores."""
        return sum(layer.weights.nbytes for layer in self.layers)

    def replace(self, **changes: Any) -> Recording:
        """The same recording with other arguments of the constructor."""
        return replace(self, **changes)

    def select(
        self,
        sequence: int | None = None,
        *,
        tokens: Sequence[str] | None = None,
        target_tokens: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        title: str | None = None,
    ) -> Recording:
        """One sequence of the batch, to be shown or saved.

        Args:
            sequence: Its index in the batch. Default: the only one.
            tokens: Its tokens. Default: 1, 2, 3, and so on.
            target_tokens: Those of the decoder, in a model with encoder and decoder.
            layers: Names of layers, or of parts of the model that have layers, such as the text model of one of images
                and texts. `sequence` is then an index in the batch of these layers. Default: all.
            title: What it is. Default: as it was.

        Raises:
            InvalidType: If the index is not an int, or tokens or layers are not a list.
            InvalidArgument: If there are several sequences and none is selected; if a layer is unknown or has another
                number of tokens; if the layers have batches of different sizes, or without `layers` one has a batch of
                something else than the model's sequences, such as windows of an image; or if a watch kept only
                measures.

        Examples:
            >>> import regard, torch, transformers
            >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
            >>> with regard.watch(transformers.BertModel(config).eval()) as result:
            ...     output = result.model(torch.tensor([[5, 6], [7, 8]]))
            >>> result.recording.select(1, tokens=["seven", "eight"]).layers[0].key_tokens
            ('seven', 'eight')
        """
        with Checks() as checks:
            checks.integer("sequence", sequence, optional=True)
        tokens, target_tokens = _as_names("tokens", tokens), _as_names("target_tokens", target_tokens)
        chosen = self.layers if layers is None else _layers_within(self.layers, layers)
        if target_tokens is not None and all(layer.kind == "encoder" for layer in chosen):
            raise InvalidArgument("target_tokens: the recording has no decoder; pass tokens=")
        _check_batches(chosen, sequence, is_whole=layers is None)
        _check_counts(chosen, tokens, target_tokens)
        selected = LayerList(_select(layer, sequence or 0, tokens, target_tokens) for layer in chosen)
        return replace(self, title=self.title if title is None else title, layers=selected)

    def save(self, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
        """Write the recording as one file, which `regard.load` reads without the model.

        Its size is linear in the tokens: query and key, the mask and score between them, and what was measured. A
        user-defined mask, score or measure is written as the name of its class and the attributes that are named like
        the arguments of its constructor.

        Args:
            path: Path of the file; by convention ``*.regard``.
            dtype: Dtype of queries, keys and values in the file, such as ``torch.float16``. Default: as they are.

        Raises:
            InvalidArgument: If there are several sequences: select one; if a mask or a score holds an object that a
                file cannot hold, or lacks an attribute for an argument of its constructor; or if a mask that is a
                function has more than 64 ranges of keys in a row.
            InvalidFile: If the file cannot be written.
        """
        from regard.recordings.recording_file import save_recording

        save_recording(self, path, dtype)

    def _repr_html_(self) -> str:
        display = import_module("regard.explore.display")  # by name, for explore is built on analysis
        return display.notebook_html(self)


def _layers_within(known: LayerList, names: Any) -> LayerList:
    """The layers with these names, and those of the parts of the model with these names."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidType(f"layers: expected a list of names, got {short_repr(names)}")
    every = [layer.name for layer in known]
    with Checks() as checks:
        checks.that(bool(names), "layers: expected at least one name; leave it out for all")
        for name in names:
            if not any(_is_within(each, name) for each in every):
                checks.fail(
                    f"layers: unknown layer {short_repr(name)}{did_you_mean(name, every)}; known: {', '.join(every)}"
                )
    return LayerList(layer for layer in known if any(_is_within(layer.name, name) for name in names))


def _is_within(layer: str, name: str) -> bool:
    return f"{layer}.".startswith(f"{name}.") or layer.startswith(f"{name}#")


def _check_batches(layers: LayerList, sequence: int | None, *, is_whole: bool) -> None:
    """Check that one index means the same sequence in all layers."""
    sizes = {layer.weights.shape[0]: layer.name for layer in layers}
    instead = "select layers that have one, with layers=[...], or read layer.weights.at(batch=...)"
    if len(sizes) > 1:
        differing = " and ".join(f"{size} ({name})" for size, name in sizes.items())
        raise InvalidArgument(
            f"sequence: expected layers with one batch, got batches of {differing}; {instead}; after a beam search, "
            "call result.select_beams(output.beam_indices)"
        )
    own = [layer.name for layer in layers if layer.has_own_batch] if is_whole else []
    if own:
        raise InvalidArgument(
            f"sequence: expected layers whose batch is that of the model's inputs, but {own[0]} has a batch of "
            f"{max(sizes)}, such as windows of an image or several images of a text; {instead}"
        )
    for batch in sizes:
        if sequence is None and batch > 1:
            raise InvalidArgument(f"sequence: expected an index from 0 to {batch - 1}, because there are {batch}")
        if not 0 <= (sequence or 0) < batch:
            raise InvalidArgument(f"sequence: expected an index from 0 to {batch - 1}, got {sequence}")


def _sides(
    layer: Layer, tokens: Sequence[str] | None, target_tokens: Sequence[str] | None
) -> list[tuple[str, Sequence[str] | None, int]]:
    """The argument that names the queries, its names, and their number; and the same for the keys."""
    _, _, queries, keys = layer.weights.shape
    of_source, of_target = ("tokens", tokens), ("target_tokens", target_tokens)
    if target_tokens is None or layer.kind == "encoder":
        of_target = of_source
    argument, names = of_source if layer.kind == "cross" else of_target
    return [(*of_target, queries), (argument, names, keys)]


def _check_counts(layers: LayerList, tokens: Sequence[str] | None, target_tokens: Sequence[str] | None) -> None:
    """Check that there are as many names as tokens in each layer."""
    fits = {
        layer.name: [names is None or len(names) == size for _, names, size in _sides(layer, tokens, target_tokens)]
        for layer in layers
    }
    fitting = [name for name, sides in fits.items() if all(sides)]
    for layer in layers:
        for argument, names, size in _sides(layer, tokens, target_tokens):
            if names is None or len(names) == size:
                continue
            hint = ""
            if len(names) == size + 1 and not fitting:
                hint = "; leave out the last one, which a generation wrote but did not read"
            elif argument == "tokens" and layer.kind == "cross":
                hint = "; pass target_tokens= for those of the decoder"
            elif fitting:
                part = _common_part(fitting, [name for name in fits if name not in fitting])
                hint = f"; to name only the layers with {len(names)}, pass layers={part}"
            raise InvalidArgument(f"{argument}: expected {size} tokens for {layer.name}, got {len(names)}{hint}")


def _common_part(names: Sequence[str], others: Sequence[str]) -> str:
    """What to pass as ``layers=`` for some layers and not for others: the part of the model that only they are in."""
    parts = names[0].split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        if all(_is_within(name, part) for name in names) and not any(_is_within(name, part) for name in others):
            return repr([part])
    return "[...]"


def _select(layer: Layer, index: int, tokens: Sequence[str] | None, target_tokens: Sequence[str] | None) -> Layer:
    """One sequence of a layer, detached, with the names of its tokens."""
    weights = layer.weights.detach()
    query_tokens, key_tokens = (
        known if names is None else tuple(names)
        for (_, names, _), known in zip(
            _sides(layer, tokens, target_tokens), (layer.query_tokens, layer.key_tokens), strict=True
        )
    )
    part = slice(index, index + 1)
    value = layer.value
    return layer.replace(
        weights=weights if weights.shape[0] == 1 else weights.at(batch=index),
        query_tokens=query_tokens,
        key_tokens=key_tokens,
        measured=map_tensors(dict(layer.measured), lambda tensor: tensor[part].detach()),
        value=None if value is None else value[part].detach(),
        has_own_batch=False,
    )


def _as_names(argument: str, tokens: Any) -> tuple[str, ...] | None:
    """Tokens as texts; ids become numbers."""
    if tokens is None:
        return None
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(listed, str) or not isinstance(listed, Sequence) or any(isinstance(each, list) for each in listed):
        raise InvalidType(
            f"{argument}: expected a list with a name for each token of one sequence, got {short_repr(tokens)}"
        )
    return tuple(map(str, listed))


def _check_texts(checks: Checks, recording: Recording) -> None:
    texts = recording.texts if isinstance(recording.texts, Mapping) else {}
    if texts is not recording.texts:
        checks.fail_type(f"texts: expected a dict of texts by role, got {short_repr(recording.texts)}")
    for name, text in (("title", recording.title), ("model_name", recording.model_name), *texts.items()):
        if not isinstance(name, str):
            checks.fail_type(f"texts: expected a str as role, got {short_repr(name)}")
        if not isinstance(text, str):
            checks.fail_type(f"{name}: expected a str, got {short_repr(text)}")


def _check_image(checks: Checks, image: Any) -> None:
    """Check the signature and the size of a PNG; what follows its header is for whoever draws it."""
    if image is None:
        return
    if not isinstance(image, bytes):
        checks.fail_type(f"image: expected the bytes of a PNG, or None, got {type(image).__name__}")
    elif len(image) > MAX_IMAGE_BYTES:
        checks.fail(f"image: expected at most {MAX_IMAGE_BYTES:,} bytes, got {len(image):,}")
    elif not image.startswith(b"\x89PNG\r\n\x1a\n") or image[12:16] != b"IHDR":
        checks.fail(f"image: expected the bytes of a PNG, got {len(image):,} bytes that begin with {image[:8]!r}")
    else:  # the first chunk has width and height, four bytes each, highest byte first
        width, height = int.from_bytes(image[16:20], "big"), int.from_bytes(image[20:24], "big")
        if not (0 < width <= MAX_IMAGE_SIDE and 0 < height <= MAX_IMAGE_SIDE):
            checks.fail(f"image: expected 1 to {MAX_IMAGE_SIDE} pixels a side, got {width} × {height}")
