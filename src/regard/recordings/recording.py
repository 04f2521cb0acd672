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
from regard.errors import InvalidType, short_repr
from regard.recordings.layer import Layer, LayerList, count_kinds
from regard.recordings.selection import select_layers

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
        entry: int | None = None,
        tokens: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        target_tokens: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        title: str | None = None,
    ) -> Recording:
        """One sequence that the model read, to be shown or saved.

        A layer whose batch is not the sequences themselves (`Layer.batch_axis`) keeps what belongs to the sequence: the
        windows of an image, or the images of a text. A layer that has nothing of it, such as those of images for a text
        without one, is left out.

        Args:
            sequence: Its index among the sequences. Default: the only one.
            entry: The index of one of several windows, images or tiles that a layer has of the sequence. Default: all,
                which then are the batch of the layer.
            tokens: Its tokens. A dict names those of parts of the model, ``{"text_model": [...], "vision_model":
                [...]}``; other layers keep theirs. Default: ``row,column`` of the tokens of a window, otherwise 1, 2,
                3, and so on.
            target_tokens: Those of the decoder, in a model with encoder and decoder.
            layers: Names of layers, or of parts of the model that have layers, such as the text model of one of images
                and texts. Default: all.
            title: What it is. Default: as it was.

        Raises:
            InvalidType: If an index is not an int, or tokens or layers are not a list.
            InvalidArgument: If there are several sequences and none is selected; if a layer is unknown or has another
                number of tokens; if the layers have different numbers of sequences; if it is not known which sequence
                the entries of a layer belong to, unless `layers` names it: `sequence` is then an index in its batch; or
                if a watch kept only measures.

        Examples:
            >>> import regard, torch, transformers
            >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
            >>> with regard.watch(transformers.BertModel(config).eval()) as result:
            ...     output = result.model(torch.tensor([[5, 6], [7, 8]]))
            >>> result.recording.select(1, tokens=["seven", "eight"]).layers[0].key_tokens
            ('seven', 'eight')
        """
        selected = select_layers(self.layers, sequence, entry, tokens, target_tokens, layers)
        return replace(self, title=self.title if title is None else title, layers=selected)

    def save(self, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
        """Write the recording as one file, which `regard.load` reads without the model.

        Its size is linear in the tokens: query and key, the mask and score between them, what was measured, and the two
        factors of ``layer.weights.grad``, if that was recorded. A user-defined mask, score or measure is written as the
        name of its class and the attributes that are named like the arguments of its constructor.

        Args:
            path: Path of the file; by convention ``*.regard``.
            dtype: Dtype of queries, keys and values in the file, such as ``torch.float16``. Default: as they are.

        Raises:
            InvalidArgument: If there are several sequences, which are not windows or images of one: select one; if a
                mask or a score holds an object that a file cannot hold, or lacks an attribute for an argument of its
                constructor; or if a mask that is a function has more than 64 ranges of keys in a row.
            InvalidFile: If the file cannot be written.
        """
        from regard.recordings.recording_file import save_recording

        save_recording(self, path, dtype)

    def _repr_html_(self) -> str:
        display = import_module("regard.explore.display")  # by name, for explore is built on analysis
        return display.notebook_html(self)


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
