"""TransformersModel: a model with its tokenizer or image processor, and recordings of texts and images."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis.head_scores import repeated_random_tokens
from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, RegardError, short_repr
from regard.files import as_path
from regard.pipelines.base import available_device
from regard.recordings.layer import LayerList, is_within
from regard.recordings.recording import Recording
from regard.text.backend import panics_as_errors, readable_tokens
from regard.text.validation import surrogate_errors
from regard.watching.image_tokens import image_as_png, name_image_tokens, pixels_as_png, read_image, vision_tokens
from regard.watching.result import WatchResult
from regard.watching.transformers_checkpoint import first_line, load_checkpoint, silence_transformers
from regard.watching.watch import watch

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""Suffixes of image files."""

GREEDY = {"do_sample": False, "num_beams": 1, "return_dict_in_generate": False}
DEFAULT_MAX_NEW_TOKENS = 64
"""Of an encoder-decoder, unless the caller sets it."""


class TransformersModel:
    """A model of Hugging Face transformers with its tokenizer or its image processor.

    Args:
        model: The model; it is put into evaluation mode.
        tokenizer: Its tokenizer; None for vision models.
        processor: Its image processor, or the processor of its images and texts; None for text models.
        name: The model's name in recordings.
    """

    def __init__(self, model: Any, tokenizer: Any = None, processor: Any = None, name: str = "model") -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(f"model: expected a model of transformers, got {type(model).__name__}; see load(folder)")
        if tokenizer is not None and not hasattr(tokenizer, "all_special_ids"):
            raise InvalidType(f"tokenizer: expected one of transformers, got {type(tokenizer).__name__}")
        self.model: Any = model.eval()
        self.tokenizer: Any = tokenizer
        self.processor, self.name = processor, name

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> TransformersModel:
        """Load a model from a folder. Nothing is downloaded, and no code of the folder runs.

        Args:
            folder: The checkpoint.
            dtype: Compute dtype.
            device: Device of the model, such as ``"cuda"``.

        Raises:
            InvalidArgument: If the device is not available.
            InvalidCheckpoint: If the folder is not a checkpoint of transformers, needs code of its own, its weights
                are incomplete, or it has neither a tokenizer nor an image processor.
            MissingExtra: If transformers is not installed.
        """
        folder, device = as_path(folder, "folder"), available_device(device)
        model, tokenizer, processor = load_checkpoint(folder, dtype)
        return cls(model.to(device), tokenizer, processor, name=folder.resolve().name)

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return self.model.device

    def record(
        self,
        text: str | os.PathLike[str],
        target: str | None = None,
        *,
        image: str | os.PathLike[str] | None = None,
        max_new_tokens: int | None = None,
    ) -> Recording:
        """Record what every layer and head attends to in a text, an image, or both.

        Args:
            text: A text, or the path of an image. With `image`, a text that says where the model reads it, such as
                ``"USER: <image> What is it? ASSISTANT:"``, unless the model has no such token.
            target: The target text of an encoder-decoder; the second text of a pair for an encoder.
            image: The path of the image of a model that reads an image and a text. The tokens of the text that stand
                for it are named by their row and column on it, ``0,0``, where these are known.
            max_new_tokens: Largest number of tokens to generate greedily and to record. Default: none; an
                encoder-decoder without a target generates up to 64 tokens.

        Returns:
            Recording: Layers have the names of their modules. In an encoder-decoder each row of the decoder is a step,
            named by the token that it generated. Of an image that the model cuts into tiles, the layers of the vision
            model have the tiles as batch.

        Raises:
            InvalidType: If the text is not a str or a path.
            InvalidArgument: If the text is empty or too long, or does not say where an image is; or if the model cannot
                generate, or takes no second text or no image.
            InvalidFile: If an image cannot be read.
        """
        if not isinstance(text, (str, os.PathLike)):
            raise InvalidType(f"text: expected a text or the path of an image, got {type(text).__name__}")
        if image is not None and not isinstance(image, (str, os.PathLike)):
            raise InvalidType(f"image: expected the path of an image, got {type(image).__name__}")
        text = os.fspath(text)
        if image is not None and (self.tokenizer is None or self.processor is None):
            missing = "text" if self.tokenizer is None else "images"
            raise InvalidArgument(f"image: {self.name} reads no {missing}; leave image out")
        is_image = (
            image is None
            and self.processor is not None
            and (self.tokenizer is None or text.lower().endswith(IMAGE_SUFFIXES))
        )
        has_decoder = self.model.config.is_encoder_decoder and self.model.can_generate()
        if self.tokenizer is None and not is_image:
            raise InvalidArgument(
                f"tokenizer: {self.name} needs one to read text; pass TransformersModel(model, tokenizer)"
            )
        checks = Checks()
        checks.integer("max_new_tokens", max_new_tokens, low=1, optional=True)
        checks.problems += surrogate_errors([("text", text), ("target", target or "")])
        if not text.strip():
            checks.fail("text: expected a text, but it is empty")
        if is_image and (target is not None or max_new_tokens is not None):
            checks.fail(f"target, max_new_tokens: {self.name} reads an image; leave them out")
        elif image is not None and has_decoder:
            checks.fail(f"image: {self.name} has an encoder and a decoder; call it inside regard.watch(model) instead")
        elif image is not None and target is not None:
            checks.fail("target: with an image, a model takes one text; leave it out")
        elif has_decoder and target is not None and max_new_tokens is not None:
            checks.fail("max_new_tokens: with a target no token is generated; leave one of them out")
        elif not has_decoder and max_new_tokens is not None and not self.model.can_generate():
            checks.fail(f"max_new_tokens: {type(self.model).__name__} cannot generate")
        elif not has_decoder and target is not None and self.model.can_generate():
            checks.fail(f"target: {self.name} has no encoder, so it takes one text")
        checks.raise_problems()
        if is_image:
            return self._record_image(Path(text))
        if image is not None:
            return self._record_text_and_image(text, Path(image), max_new_tokens)
        if has_decoder:
            return self._record_seq2seq(text, target, max_new_tokens)
        if max_new_tokens is not None:
            return self._record_generation(text, max_new_tokens)
        texts = {"text": text} | ({} if target is None else {"second text": target})
        return self._record_ids(self._tokenize(text, target), text, texts)

    def record_repeated_tokens(self, length: int = 50, seed: int = 0) -> Recording:
        """Record a sequence of random tokens followed by the same tokens, which shows induction heads.

        Args:
            length: Number of tokens; fewer if twice as many are too long for the model.
            seed: Seed of the random numbers.

        Raises:
            InvalidArgument: If the model does not read text.

        Reference:
            Olsson et al. 2022, "In-context Learning and Induction Heads".
        """
        with Checks() as checks:
            checks.integer("length", length, low=1)
        if self.tokenizer is None:
            raise InvalidArgument(f"tokenizer: {self.name} has none, so it reads no text")
        special = set(self.tokenizer.all_special_ids)
        vocabulary = [index for index in range(len(self.tokenizer)) if index not in special]
        empty = self._tokenize("")["input_ids"][0].tolist()
        count = (len(empty) + 1) // 2 if self.tokenizer.cls_token_id in empty[:1] else 1
        before, after = empty[:count], empty[count:]
        length = min(length, (self._max_length - len(empty)) // 2)
        ids = torch.tensor([[*before, *repeated_random_tokens(vocabulary, length, seed), *after]], device=self.device)
        return self._record_ids({"input_ids": ids}, "random tokens, twice", {})

    def _record_ids(self, inputs: Mapping[str, Tensor], title: str, texts: dict[str, str]) -> Recording:
        part = getattr(self.model, "text_model", self.model)  # of a model of texts and images
        part = part.get_encoder() if self.model.config.is_encoder_decoder else part
        with self._watched() as result:
            part(**inputs)
        return self._recording(result, title, texts, self.convert_ids_to_tokens(inputs["input_ids"][0]))

    def _record_generation(self, text: str, max_new_tokens: int) -> Recording:
        ids = self._tokenize(text)["input_ids"]
        self._check_length(ids.shape[1] + max_new_tokens - 1, "text and max_new_tokens")
        with self._watched() as result:
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, **GREEDY
            )[0]
        texts = {"text": self.tokenizer.decode(output, skip_special_tokens=True)}
        return self._recording(result, text, texts, self.convert_ids_to_tokens(output[:-1]))  # the last is never read

    def _record_seq2seq(self, text: str, target: str | None, max_new_tokens: int | None) -> Recording:
        ids = self._tokenize(text)["input_ids"]
        if target is None:
            count = DEFAULT_MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens
            with self._watched() as result:
                output = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **GREEDY)
        else:
            start = self.model.generation_config.decoder_start_token_id
            start = self.model.config.decoder_start_token_id if start is None else start
            with self._naming_errors("target"):
                target_ids = self.tokenizer(text_target=target, return_tensors="pt", verbose=False)["input_ids"]
            target_ids = target_ids.to(self.device)
            self._check_length(target_ids.shape[1], "target")
            output = torch.cat([target_ids.new_tensor([[start]]), target_ids], 1)
            with self._watched() as result:
                self.model(input_ids=ids, decoder_input_ids=output[:, :-1])
        inputs, generated = self.convert_ids_to_tokens(output[0, :-1]), self.convert_ids_to_tokens(output[0, 1:])
        texts = {"source": text, "translation": self.tokenizer.decode(output[0], skip_special_tokens=True)}
        recording = self._recording(result, text, texts, self.convert_ids_to_tokens(ids[0]), inputs)
        return recording.replace(
            layers=LayerList(
                layer if layer.kind == "encoder" else layer.replace(query_tokens=generated)
                for layer in recording.layers
            )
        )

    def _record_image(self, path: Path) -> Recording:
        image = read_image(path, self.name)
        pixels = self._pixel_values(image)
        part = getattr(self.model, "vision_model", self.model)
        with self._watched() as result:
            part(pixel_values=pixels.to(self.device, self.model.dtype))
        tokens = self._vision_tokens([layer.weights.shape[3] for layer in result.layers], pixels)
        recording = self._recording(result, path.name, {"image": str(path)}, tokens)
        return recording.replace(image=self._image_as_read(image))

    def _record_text_and_image(self, text: str, path: Path, max_new_tokens: int | None) -> Recording:
        image = read_image(path, self.name)
        inputs = self._text_and_image_inputs(text, image)
        ids = inputs["input_ids"]
        count = 0 if max_new_tokens is None else max_new_tokens - 1
        self._check_length(ids.shape[1] + count, "text" if max_new_tokens is None else "text and max_new_tokens")
        texts = {"text": text, "image": str(path)}
        with self._watched() as result:
            if max_new_tokens is None:
                self.model(**inputs)
            else:
                ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens, **GREEDY)
                texts["text"], ids = self.tokenizer.decode(ids[0], skip_special_tokens=True), ids[:, :-1]
        tokens = name_image_tokens(self.model, inputs, self.convert_ids_to_tokens(ids[0]))
        recording = self._recording(result, text, texts, self._tokens_by_part(result, tokens, inputs))
        return recording.replace(image=self._image_as_read(image, inputs))

    def _text_and_image_inputs(self, text: str, image: Any) -> dict[str, Any]:
        """The model's inputs for a text and an image."""
        if not hasattr(self.processor, "tokenizer"):
            pixels = self._pixel_values(image).to(self.device, self.model.dtype)
            return {**self._tokenize(text), "pixel_values": pixels}
        with silence_transformers(), self._naming_errors("text and image"):
            inputs = self.processor(text=text, images=image, return_tensors="pt")
        token = getattr(self.model.config, "image_token_id", None)
        if token is not None and token not in inputs["input_ids"]:
            name = getattr(self.processor, "image_token", self.tokenizer.convert_ids_to_tokens(token))
            raise InvalidArgument(f"text: expected {name} where {self.name} reads the image, got {short_repr(text)}")
        return {
            name: part.to(self.device, self.model.dtype if part.is_floating_point() else None)
            for name, part in inputs.items()
        }

    def _tokens_by_part(
        self, result: WatchResult, tokens: Sequence[str], inputs: Mapping[str, Any]
    ) -> dict[str, Sequence[str]]:
        """The tokens of the text model, and of the vision model where it reads one image."""
        names = {id(module): name for name, module in self.model.named_modules()}
        text, vision = names.get(id(self.model.get_decoder())), names.get(id(self.model.get_encoder(modality="image")))
        found: dict[str, Sequence[str]] = {}
        if any(is_within(layer.name, str(text)) for layer in result.layers):
            found[str(text)] = tokens
        layers = [layer for layer in result.layers if is_within(layer.name, str(vision))]
        if layers and all(layer.weights.shape[0] == 1 for layer in layers):
            patches = self._vision_tokens([layer.weights.shape[3] for layer in layers], inputs["pixel_values"])
            found |= {} if patches is None else {str(vision): patches}
        return found

    def _vision_tokens(self, counts: Sequence[int], pixels: Tensor) -> list[str] | None:
        if pixels.ndim < 4:  # patches, in an order of the model's
            return None
        config = getattr(self.model.config, "vision_config", self.model.config)
        return vision_tokens(config, counts, pixels.shape[-2:])

    def _image_as_read(self, image: Any, inputs: Mapping[str, Any] | None = None) -> bytes | None:
        """An image as the model reads it, cropped and resized, as a PNG; None if the processor cannot show it."""
        if inputs is not None and inputs.get("image_grid_thw") is not None:
            return image_as_png(image)  # which is not cropped, and resized to a whole number of patches
        return pixels_as_png(self._pixel_values(image, do_normalize=False, do_rescale=False).float())

    def _pixel_values(self, image: Any, **options: bool) -> Tensor:
        """An image as its processor prepares it for the model."""
        processor = getattr(self.processor, "image_processor", self.processor)
        with silence_transformers(), self._naming_errors("image"):
            return processor(images=image, return_tensors="pt", **options)["pixel_values"]

    @contextmanager
    def _naming_errors(self, argument: str) -> Iterator[None]:
        """Raise whatever the tokenizer or the processor raises, because of its configuration, as InvalidArgument."""
        try:
            with panics_as_errors():
                yield
        except Exception as error:  # of any tokenizer or processor of transformers
            raise InvalidArgument(f"{argument}: {self.name} cannot prepare it: {first_line(error)}") from error

    @contextmanager
    def _watched(self) -> Iterator[WatchResult]:
        """Watch the model, and raise what transformers raises for unsuitable inputs as InvalidArgument."""
        with watch(self.model, keep_values=True) as result, torch.no_grad(), silence_transformers():
            try:
                yield result
            except RegardError:
                raise
            except Exception as error:  # whatever the code of the model raises for unsuitable inputs
                name = type(self.model).__name__
                raise InvalidArgument(f"{self.name}: {name} cannot read this: {first_line(error)}") from error

    def convert_ids_to_tokens(self, ids: Tensor) -> list[str]:
        """Each token as readable text, with ``▁`` for the space before a word."""
        numbers: list[int] = ids.tolist()
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return list(self.tokenizer.convert_ids_to_tokens(numbers))
        return readable_tokens(backend, numbers)

    def _recording(
        self,
        result: WatchResult,
        title: str,
        texts: dict[str, str],
        tokens: Sequence[str] | Mapping[str, Sequence[str]] | None,
        target_tokens: Sequence[str] | None = None,
    ) -> Recording:
        recording = result.recording.select(tokens=tokens, target_tokens=target_tokens, title=title)
        return recording.replace(model_name=self.name, texts=texts)

    def _tokenize(self, text: str, second: str | None = None) -> Mapping[str, Tensor]:
        """The model's inputs for a text or a pair, each (1, tokens)."""
        pair = () if second is None else (second,)
        with self._naming_errors("text"):
            inputs = self.tokenizer(text, *pair, return_tensors="pt", verbose=False)
        self._check_length(inputs["input_ids"].shape[1], "text")
        names = ("input_ids", "attention_mask", "token_type_ids")
        return {name: inputs[name].to(self.device) for name in names if name in inputs}

    @property
    def _max_length(self) -> int:
        """The largest number of tokens that the model takes."""
        config = self.model.config.get_text_config()
        limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
        for name, part in self.model.named_modules():  # RoBERTa's positions start after that of padding
            is_table = name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
            if is_table and part.padding_idx is not None:
                limits.append(part.num_embeddings - part.padding_idx - 1)
        limits.append(self.tokenizer.model_max_length)
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=sys.maxsize)

    def _check_length(self, length: int, argument: str) -> None:
        if length > self._max_length:
            raise InvalidArgument(f"{argument}: {length} tokens, but {self.name} takes at most {self._max_length}")
