"""Two texts with one and two images for a tiny model, and which text each image changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.model_zoo import build
from helpers.model_zoo.input_values import Numbers

GRIDS = [[1, 4, 4], [1, 4, 8], [1, 8, 4]]
"""Time, rows and columns of the patches of each image, for models that take images of any size."""
LENGTHS = [16, 32, 32]


@dataclass
class ImagesOfTexts:
    """A model and its inputs: the first text has one image, the second has two.

    Args:
        model: The model.
        inputs: What it is called with.
        change: Gives the pixels of other inputs, where one of three images differs.
        places: The positions of the places of each image in its text.
    """

    model: Any
    inputs: dict[str, Any]
    change: Callable[[int], Tensor]
    places: list[list[int]]

    def texts_of(self, image: int) -> set[int]:
        """The texts that an image changes, as the decoder reads them."""
        before, after = self._embeddings(self.inputs["pixel_values"]), self._embeddings(self.change(image))
        return {*(before - after).abs().sum(-1).nonzero()[:, 0].tolist()}

    def _embeddings(self, pixels: Tensor) -> Tensor:
        seen: dict[str, Tensor] = {}
        decoder = self.model.get_decoder()
        hook = decoder.register_forward_pre_hook(
            lambda _, args, kwargs: seen.update(read=kwargs["inputs_embeds"]), with_kwargs=True
        )
        with torch.no_grad():
            self.model(**{**self.inputs, "pixel_values": pixels})
        hook.remove()
        return seen["read"]


def make(name: str) -> ImagesOfTexts:
    """The model of a class, by name, with its inputs."""
    torch.manual_seed(0)
    kind = build.named(name)
    config = build.config_of(kind)
    if name == "Qwen2_5_VLModel":
        config.vision_config.window_size = 32  # a window of 2 × 2 merged patches
    elif name == "Gemma3Model":
        config.mm_tokens_per_image = 4
    elif name == "VipLlavaModel":
        config.vision_feature_layers = [-1, -2]
    model: Any = kind(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # the projection of Gemma 3, until it is trained
            torch.nn.init.normal_(parameter)
    arguments = inspect.signature(kind.forward).parameters
    of = Numbers(model.config, "image_grid_thw" in arguments)
    more: dict[str, Any] = {}
    if of.grids:
        pixels = torch.randn(sum(LENGTHS), of.patches * of(1, "temporal_patch_size"))
        more = {"image_grid_thw": torch.tensor(GRIDS)}
        rows = dict(enumerate(torch.arange(sum(LENGTHS)).split(LENGTHS)))
    else:
        pixels, rows = torch.randn(3, *of.image), {image: torch.tensor([image]) for image in range(3)}
    side = of.image[-1]
    if name.startswith(("LlavaNext", "LlavaOnevision")):
        model.config.image_grid_pinpoints = [[side, side], [side, 2 * side]]
        more = {"image_sizes": torch.tensor([[side, side], [side, 2 * side], [side, side]])}
        pixels = torch.randn(3, 3, *of.image)  # the whole image, and two tiles
    elif name == "Mistral3Model":
        more = {"image_sizes": torch.tensor([[side, side]] * 3)}
    is_nested = name.startswith(("Idefics", "ModernVBert", "SmolVLM"))
    with torch.no_grad():
        options: dict[str, Any] = {"pixel_attention_mask": None} if is_nested else {}
        features = model.get_image_features(pixels[None] if is_nested else pixels, **more, **options).pooler_output
    counts = [part[..., 0].numel() for part in features]
    counts = [sum(counts) // 3] * 3 if is_nested else counts
    token, first = model.config.image_token_id, counts[0]
    texts = [[5, 6, *[token] * first, 7], [5, *[token] * counts[1], 8, *[token] * counts[2], 7]]
    places = [[*range(2, 2 + first)], [*range(1, 1 + counts[1])], [*range(2 + counts[1], 2 + counts[1] + counts[2])]]
    ids = torch.full((2, max(map(len, texts))), 9)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    if of.grids:
        more["mm_token_type_ids"] = (ids == token).long()
    if is_nested:  # an image of zeros is none
        pixels = torch.stack([torch.stack([pixels[0], torch.zeros_like(pixels[0])]), pixels[1:]])

    def change(image: int) -> Tensor:
        changed = pixels.clone()
        part: Any = ([0, 1, 1][image], [0, 0, 1][image]) if is_nested else rows[image]
        changed[part] = torch.randn_like(changed[part])
        return changed

    return ImagesOfTexts(model, {"input_ids": ids, "pixel_values": pixels, **more}, change, places)
