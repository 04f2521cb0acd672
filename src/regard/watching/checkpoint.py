"""Any model of transformers in a folder, with what makes its inputs; and what it attends to in a text or an image."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis.heads import random_repeats
from regard.analysis.picture import SIDE
from regard.analysis.recording import Recording
from regard.errors import (
    InvalidArgument,
    InvalidCheckpoint,
    InvalidFile,
    InvalidType,
    MissingExtra,
    RegardError,
    count_problems,
    raise_problems,
)
from regard.models.weights import NO_TENSORS
from regard.text.lines import letter_objections
from regard.text.pipeline import readable_piece
from regard.watching.listening import Watch
from regard.watching.watch import watch

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""The endings of files that are images."""

GREEDY = {"do_sample": False, "num_beams": 1, "return_dict_in_generate": False}
WRITTEN = 64
"""How many tokens an encoder-decoder writes at most where nobody says."""


class Checkpoint:
    """A model of Hugging Face's transformers with its tokenizer or its image processor.

    Args:
        model: Put into evaluation mode.
        tokenizer: Of transformers; None for models of images.
        processor: What makes an image the model's input; None for models of text.
        name: What recordings call the model.
    """

    def __init__(self, model: Any, tokenizer: Any = None, processor: Any = None, name: str = "model") -> None:
        self.model, self.tokenizer, self.processor, self.name = model.eval(), tokenizer, processor, name

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Checkpoint:
        """Read a model and what makes its inputs from a folder; nothing is downloaded, and no code of the folder runs.

        Raises:
            InvalidCheckpoint: If the folder is no checkpoint of transformers, its weights are not whole, or it has
                neither a tokenizer nor an image processor.
            MissingExtra: If transformers is not installed.
        """
        place = Path(folder)
        _check(place)
        try:
            import transformers
        except ImportError:
            raise MissingExtra(
                "models of transformers need transformers: install it with `pip install 'regard[hf]'`"
            ) from None
        with _told(place, "cannot be read"), _quiet():
            config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
            names = getattr(config, "architectures", None) or [""]
            kind = getattr(transformers, names[0], transformers.AutoModel)
            model, about = kind.from_pretrained(
                place,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                attn_implementation=None,
                ignore_mismatched_sizes=True,  # all of them are told below
            )
        _check_weights(place, model, about)
        tokenizer = processor = None
        with _quiet():
            if (place / "preprocessor_config.json").is_file():
                with _told(place, "its image processor cannot be read"):
                    processor = transformers.AutoImageProcessor.from_pretrained(place, local_files_only=True)
            if processor is None and model.main_input_name == "pixel_values":
                raise InvalidCheckpoint(f"{place}: has no image processor (preprocessor_config.json)")
            if processor is None and not _has_words(place):
                raise InvalidCheckpoint(f"{place}: has no tokenizer; a model folder has one beside its weights")
            if _has_words(place):
                with _told(place, "its tokenizer cannot be read"):
                    tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
        return cls(model, tokenizer, processor, name=place.resolve().name)

    def record(
        self, text: str | os.PathLike[str], target: str | None = None, *, generate: int | None = None
    ) -> Recording:
        """Give the model a text, or an image, and keep what every layer and head attended to.

        Args:
            text: Not empty; or the path of an image.
            target: What an encoder-decoder is to write; an encoder reads it as the second text of a pair.
            generate: So many tokens are written, greedily, and watched as they are made. Default: none; an
                encoder-decoder that is given no target writes until it ends, up to 64.

        Returns:
            Recording: The layers by the names of their modules. In an encoder-decoder a row of the decoder is a step,
            named by the token that it wrote.

        Raises:
            InvalidArgument: If the text is empty or too long, or the model cannot do what is asked.
        """
        if not isinstance(text, (str, os.PathLike)):
            raise InvalidType(f"text: expected a text, or the path of an image, got {type(text).__name__}")
        text = os.fspath(text)
        path = Path(text) if text.lower().endswith(PICTURES) else None
        raise_problems(["text: expected a text, but it is empty"] if not text.strip() else [])
        raise_problems(letter_objections([("text", text), ("target", target or "")]))
        raise_problems(count_problems(generate=generate))
        if self.processor is not None and (path is not None or self.tokenizer is None):
            if target is not None or generate is not None:
                raise InvalidArgument(f"{self.name} looks at an image: there is no second text, and nothing is written")
            return self._of_image(Path(text))
        if self.model.config.is_encoder_decoder and self.model.can_generate():
            return self._of_pair(text, target, generate)
        if generate is not None:
            return self._of_generation(text, target, generate)
        return self._of_text(text, target)

    def repeats(self, length: int = 50, seed: int = 0) -> Recording:
        """Give the model random words of its vocabulary twice, and keep what every layer and head attended to.

        Args:
            length: How many words; fewer where they would not fit.
            seed: Of the draw.

        Raises:
            InvalidArgument: If the model reads no text.

        Reference: Olsson et al. 2022, "In-context Learning and Induction Heads".
        """
        raise_problems(count_problems(length=length))
        if self.tokenizer is None:
            raise InvalidArgument(f"{self.name} reads no text")
        marks = set(self.tokenizer.all_special_ids)
        vocabulary = [index for index in range(len(self.tokenizer)) if index not in marks]
        empty = self._read("")["input_ids"][0].tolist()
        before = empty[: (len(empty) + 1) // 2] if self.tokenizer.cls_token_id in empty[:1] else empty[:1]
        length = min(length, (self._longest - len(empty)) // 2)
        words = [*before, *random_repeats(vocabulary, length, seed), *empty[len(before) :]]
        ids = torch.tensor([words])
        return self._of_ids({"input_ids": ids}, "random words, twice", {})

    def _of_text(self, text: str, second: str | None) -> Recording:
        writes = self.model.can_generate() and second is not None
        raise_problems([f"target: {self.name} goes on with a text, and has no second one"] if writes else [])
        texts = {"text": text} | ({} if second is None else {"second text": second})
        return self._of_ids(self._read(text, second), text, texts)

    def _of_ids(self, given: Mapping[str, Tensor], title: str, texts: dict[str, str]) -> Recording:
        part = getattr(self.model, "text_model", self.model)  # of a model of texts and images
        part = part.get_encoder() if self.model.config.is_encoder_decoder else part
        with self._running() as seen:
            part(**given)
        return self._recording(seen, title, texts, self.tokens(given["input_ids"][0]))

    def _of_generation(self, text: str, second: str | None, count: int) -> Recording:
        raise_problems(
            [f"generate: {type(self.model).__name__} does not write"] if not self.model.can_generate() else []
        )
        raise_problems(
            [f"target: {self.name} goes on with a text, and has no second one"] if second is not None else []
        )
        ids = self._read(text)["input_ids"]
        self._check_length(ids.shape[1] + count - 1, "the text and what is to be written")
        with self._running() as seen:
            written = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **GREEDY)[0]
        texts = {"text": self.tokenizer.decode(written, skip_special_tokens=True)}
        return self._recording(seen, text, texts, self.tokens(written[:-1]))  # the last one was never read

    def _of_pair(self, text: str, target: str | None, count: int | None) -> Recording:
        raise_problems(
            ["generate: there is nothing to write where the target is given"]
            if target is not None and count is not None
            else []
        )
        ids = self._read(text)["input_ids"]
        words = None
        if target is not None:
            start = self.model.generation_config.decoder_start_token_id
            start = self.model.config.decoder_start_token_id if start is None else start
            asked = self.tokenizer(text_target=target, return_tensors="pt", verbose=False)["input_ids"]
            self._check_length(asked.shape[1], "the target")
            words = torch.cat([asked.new_tensor([[start]]), asked], 1)
        with self._running() as seen:
            if words is None:
                mask = torch.ones_like(ids)
                count = WRITTEN if count is None else count
                words = self.model.generate(ids, attention_mask=mask, max_new_tokens=count, **GREEDY)
            else:
                self.model(input_ids=ids, decoder_input_ids=words[:, :-1])
        read, wrote = self.tokens(words[0, :-1]), self.tokens(words[0, 1:])
        texts = {"source": text, "translation": self.tokenizer.decode(words[0], skip_special_tokens=True)}
        found = self._recording(seen, text, texts, self.tokens(ids[0]), read)
        layers = (layer if layer.kind == "encoder" else replace(layer, queries=tuple(wrote)) for layer in found.layers)
        return replace(found, layers=tuple(layers))

    def _of_image(self, path: Path) -> Recording:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
                inputs = self.processor(images=image, return_tensors="pt")
        except (OSError, UnidentifiedImageError) as error:
            raise InvalidFile(f"{path}: is no image that can be read: {error}") from error
        part = getattr(self.model, "vision_model", self.model)
        with self._running() as seen:
            part(pixel_values=inputs["pixel_values"].to(self.model.dtype))
        size = inputs["pixel_values"].shape[-2:]
        found = self._recording(seen, path.name, {"image": str(path)}, self._patches(seen, size))
        return replace(found, picture=self._picture(image))

    def _picture(self, image: Any) -> bytes | None:
        """What the model saw of an image, after it was cropped and resized, as a PNG; None where that is no picture."""
        from PIL import Image

        with _quiet():
            seen = self.processor(images=image, return_tensors="pt", do_normalize=False, do_rescale=False)
        pixels = seen["pixel_values"].float()  # (1, channels, height, width), from 0 to 255
        if pixels.ndim != 4 or pixels.shape[:2] != (1, 3) or pixels.min() < 0:  # normalized nevertheless
            return None
        picture = Image.fromarray(pixels[0].permute(1, 2, 0).round().clamp(max=255).to(torch.uint8).numpy())
        picture.thumbnail((SIDE, SIDE))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return file.getvalue()

    @contextmanager
    def _running(self) -> Iterator[Watch]:
        """Watch the model; what transformers raises for inputs that are not enough for it is told in one sentence."""
        with watch(self.model, values=True) as seen, torch.no_grad(), _quiet():
            try:
                yield seen
            except RegardError:
                raise
            except Exception as error:  # of whatever file of transformers the model is in
                kind = type(self.model).__name__
                raise InvalidArgument(f"{self.name}: {kind} cannot read this: {_first_line(error)}") from error

    def tokens(self, ids: Tensor) -> list[str]:
        """Each token as readable text, ``▁`` for the space before a word."""
        numbers: list[int] = ids.tolist()
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return list(self.tokenizer.convert_ids_to_tokens(numbers))
        return [readable_piece(backend, number) for number in numbers]

    def _patches(self, seen: Watch, size: Sequence[int]) -> list[str] | None:
        """Places in an image of a height and a width as ``row,column``, behind the first token and registers.

        None where layers differ in size, or where there are others, of which it is not known where they stand.
        """
        sizes = {seen_layer.weights.shape[3] for seen_layer in seen.layers}
        config = getattr(self.model.config, "vision_config", self.model.config)
        patch = _pair(getattr(config, "patch_size", None))
        if len(sizes) != 1 or patch is None:
            return None
        rows, columns = (side // length for side, length in zip(size, patch, strict=True))
        marks = ["[CLS]", *(f"[REG]{number + 1}" for number in range(getattr(config, "num_register_tokens", 0)))]
        places = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        more = sizes.pop() - len(places)
        return {0: places, len(marks): [*marks, *places]}.get(more)

    def _recording(
        self,
        seen: Watch,
        title: str,
        texts: dict[str, str],
        tokens: Sequence[str] | None,
        target: Sequence[str] | None = None,
    ) -> Recording:
        return replace(seen.recording(tokens=tokens, target=target, title=title, model=self.name), texts=texts)

    def _read(self, text: str, second: str | None = None) -> Mapping[str, Tensor]:
        """What the model is given of a text, or of a pair, each (1, tokens)."""
        pair = () if second is None else (second,)
        given = self.tokenizer(text, *pair, return_tensors="pt", verbose=False)
        self._check_length(given["input_ids"].shape[1], "the text")
        return {name: given[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in given}

    @property
    def _longest(self) -> int:
        """How many tokens the model takes at once."""
        config = self.model.config.get_text_config()
        places = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
        for name, part in self.model.named_modules():  # RoBERTa numbers positions behind that of padding
            own = name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
            if own and part.padding_idx is not None:
                places.append(part.num_embeddings - part.padding_idx - 1)
        return min([self.tokenizer.model_max_length, *(each for each in places if isinstance(each, int) and each > 0)])

    def _check_length(self, length: int, what: str) -> None:
        if length > self._longest:
            raise InvalidArgument(
                f"{what}: {length} tokens, but {self.name} takes at most {self._longest} at once: shorten it"
            )


def _check(folder: Path) -> None:
    """Refuse a folder that is no checkpoint."""
    if not folder.is_dir():
        raise InvalidCheckpoint(f"{folder} is not a folder: expected a checkpoint with config.json and its weights")
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidCheckpoint(f"{path} is missing: {folder} is no checkpoint")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = values["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpoint(f"{path}: is no configuration of transformers: it names no model_type") from error
    if not isinstance(kind, str):
        raise InvalidCheckpoint(f"{path}: model_type is a name, not {kind!r}")


def _check_weights(folder: Path, model: Any, about: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose weights are not whole; tensors that the model has no use for are left to it."""
    objections = [f"{folder}: {name} is missing" for name in sorted(about["missing_keys"])]
    objections += [
        f"{folder}: {name} has the shape {tuple(held)}, but the configuration gives {tuple(wanted)}"
        for name, held, wanted in sorted(about["mismatched_keys"])
    ]
    raise_problems(objections, InvalidCheckpoint, limit=None)
    real = {name: each for name, each in model.named_parameters() if each.element_size() > 1}  # of bytes nobody can say
    broken = [name for name, weight in real.items() if not bool(weight.isfinite().all())]
    raise_problems(
        [f"{folder}: {name} holds NaN or infinite numbers" for name in broken], InvalidCheckpoint, limit=None
    )


def _has_words(folder: Path) -> bool:
    """Whether a folder has a tokenizer; where it has none, transformers may make an empty one."""
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.spm")
    return any(True for name in names for _ in folder.glob(name))


def _pair(size: Any) -> tuple[int, int] | None:
    """Height and width, of one number or of two."""
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, (list, tuple)) and len(size) == 2 else None


@contextmanager
def _told(folder: Path, what: str) -> Iterator[None]:
    """What transformers raises for a folder that is not whole, in one sentence."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise InvalidCheckpoint(f"{folder}: {what}: its weights are refused: {NO_TENSORS}") from error
    except Exception as error:  # of transformers, safetensors, pickle, or whatever reads the weights
        raise InvalidCheckpoint(f"{folder}: {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes and the progress bars of transformers."""
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
