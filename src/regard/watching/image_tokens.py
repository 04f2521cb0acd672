"""The tokens of an image: what they are called, and which of a text they are."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import InvalidFile
from regard.input_files import check_file, exists
from regard.recordings.recording import MAX_IMAGE_SIDE
from regard.watching.transformers_checkpoint import first_line

ROW_BY_ROW = (
    *("AyaVisionModel", "Cohere2VisionModel", "DeepseekVLModel", "Idefics3Model", "InternVLModel", "JanusModel"),
    *("LlavaModel", "Ovis2Model", "PaliGemmaModel", "SmolVLMModel"),
)
"""Models whose text has the features of a square image row by row, as many in each row as there are rows."""


def read_image(path: Path, name: str) -> Any:
    """An image file.

    Args:
        path: Its path.
        name: The name of the model, for messages.

    Raises:
        InvalidFile: If it is missing or damaged.
    """
    from PIL import Image

    if not exists(path):
        raise InvalidFile(f"{path}: there is no such file; {name} needs the path of an image")
    check_file(path)
    try:
        with Image.open(path) as file:
            return file.convert("RGB")
    except Exception as error:  # of a damaged file, any of many formats
        raise InvalidFile(f"{path}: cannot be read as an image: {first_line(error)}") from error


def image_as_png(image: Any) -> bytes:
    """An image as a PNG, not larger than a recording holds."""
    picture = image.copy()
    picture.thumbnail((MAX_IMAGE_SIDE, MAX_IMAGE_SIDE))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def pixels_as_png(pixels: Tensor) -> bytes | None:
    """What a model reads, (1, 3, height, width) from 0 to 255, as a PNG; None if it is something else."""
    from PIL import Image

    if pixels.ndim != 4 or pixels.shape[:2] != (1, 3) or pixels.min() < 0:  # below 0: normalized nevertheless
        return None
    return image_as_png(Image.fromarray(pixels[0].permute(1, 2, 0).round().clamp(max=255).to(torch.uint8).numpy()))


def patch_names(rows: int, columns: int) -> list[str]:
    """``row,column`` for each patch, row by row."""
    return [f"{row},{column}" for row in range(rows) for column in range(columns)]


def vision_tokens(config: Any, counts: Collection[int], size: Sequence[int]) -> list[str] | None:
    """``row,column`` for each patch of an image of a height and a width, after ``[CLS]`` and registers.

    None if layers differ in their numbers of tokens, or there are other tokens, whose places are unknown.

    Args:
        config: The configuration of the vision model.
        counts: The numbers of tokens of the layers.
        size: (height, width) in pixels.
    """
    patch = _as_height_width(getattr(config, "patch_size", None))
    if len({*counts}) != 1 or patch is None:
        return None
    patches = patch_names(*(side // length for side, length in zip(size, patch, strict=True)))
    special = ["[CLS]", *(f"[REG{number + 1}]" for number in range(getattr(config, "num_register_tokens", 0)))]
    return {0: patches, len(special): [*special, *patches]}.get(next(iter(counts)) - len(patches))


def name_image_tokens(model: Any, inputs: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The tokens of a text with the places of its only image named ``row,column``.

    They stay as they are if their places on the image are unknown.

    Args:
        model: The model of transformers.
        inputs: What it was called with, for one text.
        names: The tokens of the text, and of what was generated.
    """
    core: Any = model.base_model
    ids: list[int] = inputs["input_ids"][0].tolist()
    places = [place for place, index in enumerate(ids) if index == getattr(core.config, "image_token_id", None)]
    grid = _grid_of(core, inputs, len(places))
    result = list(names)
    if grid is not None:
        for place, name in zip(places, patch_names(*grid), strict=True):
            result[place] = name
    return result


def _grid_of(core: Any, inputs: Mapping[str, Any], count: int) -> tuple[int, int] | None:
    """Rows and columns of the features that a text has of its only image; None if they are unknown."""
    vision = getattr(core.config, "vision_config", None)
    merged = getattr(core.config, "spatial_merge_size", getattr(vision, "spatial_merge_size", 1))
    grid, pixels = inputs.get("image_grid_thw"), inputs.get("pixel_values")
    found = None
    if grid is not None:
        time, height, width = grid[0].tolist()
        found = (height // merged, width // merged) if len(grid) == time == 1 else None
    elif type(core).__name__ == "Mistral3Model" and len(inputs["image_sizes"]) == 1:
        height, width = (int(side) for side in inputs["image_sizes"][0])
        length = merged * core.config.vision_config.patch_size
        found = height // length, width // length
    elif type(core).__name__ in ROW_BY_ROW and isinstance(pixels, Tensor) and pixels[..., 0, 0, 0].numel() == 1:
        found = isqrt(count), isqrt(count)
    return found if found is not None and found[0] * found[1] == count > 0 else None


def _as_height_width(size: Any) -> tuple[int, int] | None:
    """Height and width from a number, which means both, or from a pair."""
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, (list, tuple)) and len(size) == 2 else None
