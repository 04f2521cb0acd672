"""Rules that say what the batch of layers inside a module is made of: windows of images, images of texts, and so on.

Each rule knows some classes of transformers and reads how one call of them cut its inputs. To support another model,
add its class to a rule in `RULES`, or a rule. A layer to which no rule applies keeps an unknown axis, unless its batch
is that of the model's inputs.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from regard.recordings.batch_axis import Windows


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module that has returned.

    Args:
        module: The module.
        arguments: By the names of the parameters of its forward.
    """

    module: nn.Module
    arguments: dict[str, Any]

    @property
    def image_features(self) -> Sequence[Tensor] | Tensor | None:
        """The features of each image, where ``generate`` computed them before the model read the texts."""
        found = (self.arguments.get("mm_encoder_outputs") or {}).get("image")
        features = getattr(found, "pooler_output", None)
        return features if isinstance(features, (list, tuple, Tensor)) else None


@dataclass(frozen=True)
class LayerSize:
    """A layer that a module computed.

    Args:
        name: Its name inside the module; empty for the module itself.
        entries: The number of entries of its batch, or of the items that these are already known to be parts of.
        queries: Its number of queries.
        keys: Its number of keys.
    """

    name: str
    entries: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Split:
    """How a module cut larger items into the entries of a layer.

    Args:
        unit: What an entry is.
        items: The index of the item that each entry is a part of.
        num_items: The number of items.
        places: Where each entry is in its item, empty if it is the whole item. Default: numbers from 1, by the unit.
        windows: How an item was cut, if entries are windows.
        spans: The tokens of each entry, if the entries follow one another in one sequence; see `BatchAxis`.
    """

    unit: str
    items: tuple[int, ...]
    num_items: int
    places: tuple[str, ...] = ()
    windows: Windows | None = None
    spans: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if not self.places:
            count = [self.items[: entry + 1].count(item) for entry, item in enumerate(self.items)]
            object.__setattr__(self, "places", tuple(f"{self.unit} {number}" for number in count))


UNMAPPED = Split("unknown", (), 0)
"""A call cut its inputs, but which item an entry is a part of is not known."""


class AxisRule(ABC):
    """What the batch of layers inside some modules is made of."""

    def applies_to(self, cls: type[nn.Module]) -> bool:
        """Whether the rule may know the calls of a class."""
        return cls.__name__ in self.classes

    classes: Iterable[str] = ()
    """Names of classes."""

    @abstractmethod
    def split(self, call: ModuleCall, layer: LayerSize) -> Split | None:
        """How a call cut its inputs into the entries of a layer; None if it did not, `UNMAPPED` if that is unknown."""


class WindowsOfImages(AxisRule):
    """Layers that cut a grid of tokens into windows, an image after the other."""

    classes = (
        *("ClapAudioLayer", "DonutSwinLayer", "MaskFormerSwinLayer", "Swin2SRLayer", "SwinLayer", "Swinv2Layer"),
        *("DeepseekOcr2SamVisionLayer", "GotOcr2VisionLayer", "PPFormulaNetVisionLayer", "SLANeXtVisionLayer"),
        *("Sam2MultiScaleBlock", "Sam3ViTLayer", "SamHQVisionLayer", "SamVisionLayer", "UnlimitedOcrSamVisionLayer"),
        *("Florence2VisionWindowAttention", "VitDetLayer"),
    )

    def split(self, call: ModuleCall, layer: LayerSize) -> Split | None:
        module: Any = call.module
        size, shift, states = int(module.window_size), int(getattr(module, "shift_size", 0)), _first_tensor(call)
        if size <= 0 or states is None:
            return None
        images, *grid = states.shape
        if "input_dimensions" in call.arguments:
            height, width = call.arguments["input_dimensions"]
        else:
            height, width = grid[1:] if type(module).__name__ == "VitDetLayer" else grid[:2]
        windows = Windows(int(height), int(width), size, shift)
        if layer.entries != images * windows.count or layer.keys != size**2:
            return None
        places = [f"window {index // windows.columns},{index % windows.columns}" for index in range(windows.count)]
        items = [image for image in range(images) for _ in places]
        return Split("window", tuple(items), images, tuple(places * images), windows)


class ImagesInOneSequence(AxisRule):
    """Vision models that read all images as one sequence, in which the tokens of an image attend to one another."""

    def applies_to(self, cls: type[nn.Module]) -> bool:
        parameters = _parameters(cls)
        return "grid_thw" in parameters or {"pixel_values", "image_sizes"} == {*parameters[:2]}

    def split(self, call: ModuleCall, layer: LayerSize) -> Split | None:
        lengths = _numbers_of_patches(call)
        if lengths is None or not layer.queries == layer.keys == sum(lengths):
            return None
        if layer.entries not in (1, len(lengths)):
            return None
        is_one = layer.entries == 1  # or a module inside has read the images
        spans = tuple(pairwise(accumulate(lengths, initial=0))) if is_one else None
        return Split("image", tuple(range(len(lengths))), len(lengths), ("",) * len(lengths), spans=spans)


class ImagesOfTexts(AxisRule):
    """Models that put the features of images in the places of a token in texts, in order.

    An image belongs to the text that has its places. All images, or tiles, have as many; or as many as the sizes that
    the model was called with say.
    """

    images = (
        *("AriaModel", "Blip2Model", "DeepseekVLModel", "Florence2Model", "Gemma3Model", "InstructBlipModel"),
        *("Idefics2Model", "JanusModel", "LightOnOcrModel", "LlavaModel", "Mistral3Model", "Ovis2Model"),
        *("PaliGemmaModel", "T5Gemma2Encoder", "VipLlavaModel"),
    )
    tiles = (
        *("AyaVisionModel", "Cohere2VisionModel", "GotOcr2Model", "GraniteDoclingModel", "Idefics3Model"),
        *(
            "InternVLModel",
            "Llama4ForConditionalGeneration",
            "ModernVBertModel",
            "QianfanOCRModel",
            "SmolVLMModel",
            "UltraVBertModel",
        ),
    )
    pyramids = ("LlavaNextModel", "LlavaNextVideoModel", "LlavaOnevisionModel")
    """Those that cut an image into tiles and join the features of these."""
    texts = ("decoder", "language_model", "text_decoder", "text_model")
    """Parts of a model that read texts."""

    def applies_to(self, cls: type[nn.Module]) -> bool:
        is_known = cls.__name__ in (*self.images, *self.tiles, *self.pyramids)
        more = {"image_grid_thw", "mm_encoder_outputs"} & {*_parameters(cls)}
        return is_known or ("input_ids" in _parameters(cls) and bool(more))

    def split(self, call: ModuleCall, layer: LayerSize) -> Split | None:
        ids, token = call.arguments.get("input_ids"), getattr(_config(call), "image_token_id", None)
        parts = {name for name, _ in call.module.named_children()}
        is_text = layer.name.split(".")[0] in self.texts or parts.isdisjoint(self.texts)
        pixels, videos = (call.arguments.get(name) for name in ("pixel_values", "pixel_values_videos"))
        if is_text or (pixels is None and videos is None and call.image_features is None):
            return None
        name = type(call.module).__name__
        unit = "tile" if name in (*self.tiles, *self.pyramids) else "image"
        if isinstance(ids, Tensor) and len(ids) == 1:
            return Split(unit, (0,) * layer.entries, 1)
        if not isinstance(ids, Tensor) or token is None or videos is not None:
            return UNMAPPED
        is_place = (ids == token).cpu()
        if not is_place.any():  # the model joins images and texts in another way
            return None
        if name in self.pyramids:
            return self._of_tiles(call, layer, is_place)
        places = self._numbers_of_places(call, layer, int(is_place.sum()))
        if places is None or len(places) != layer.entries or sum(places) != int(is_place.sum()):
            return UNMAPPED
        texts = _texts_of(is_place, places)
        return UNMAPPED if texts is None else Split(unit, texts, len(ids))

    def _numbers_of_places(self, call: ModuleCall, layer: LayerSize, total: int) -> list[int] | None:
        """How many places each image has; None if the call does not say it."""
        if call.image_features is not None:
            return [part[..., 0].numel() for part in call.image_features]
        if "image_grid_thw" in call.arguments or call.arguments.get("image_sizes") is not None:
            patches, vision = _numbers_of_patches(call), getattr(_config(call), "vision_config", None)
            merged = getattr(_config(call), "spatial_merge_size", getattr(vision, "spatial_merge_size", 1)) ** 2
            return None if patches is None else [count // merged for count in patches]
        is_known = type(call.module).__name__ in (*self.images, *self.tiles)
        return [total // layer.entries] * layer.entries if is_known else None

    def _of_tiles(self, call: ModuleCall, layer: LayerSize, is_place: Tensor) -> Split:
        """Each image has places of its own that follow one another, and a number of tiles by its size."""
        sizes, single = call.arguments.get("image_sizes"), call.arguments.get("batch_num_images")
        if sizes is None:
            return UNMAPPED
        file: Any = sys.modules[type(call.module).__module__]
        config = _config(call)
        grid = config.image_grid_pinpoints, config.vision_config.image_size
        tiles = [file.image_size_to_num_patches(size, *grid) for size in sizes]
        if single is not None:  # a text with several images has no tiles
            is_cut = [count == 1 for count in single for _ in range(count)]
            tiles = [count if cut else 1 for count, cut in zip(tiles, is_cut, strict=True)]
        starts = is_place & ~torch.nn.functional.pad(is_place, (1, 0))[:, :-1]
        texts: list[int] = starts.nonzero()[:, 0].tolist()
        if len(texts) != len(tiles) or sum(tiles) != layer.entries:
            return UNMAPPED
        images = Split("image", tuple(texts), len(is_place)).places
        each = [(image, tile) for image, count in enumerate(tiles) for tile in range(count)]
        places = tuple(f"{images[image]}, tile {tile + 1}" for image, tile in each)
        return Split("tile", tuple(texts[image] for image, _ in each), len(is_place), places)


@dataclass(frozen=True)
class PartsInOrder(AxisRule):
    """Models that cut each sequence of an input into as many parts, and put those of a sequence one after the other.

    Args:
        cls: The name of the class.
        argument: The input, whose first axis is that of the sequences.
        unit: What a part is.
        part: The part of the model that has the layers; empty for all.
    """

    cls: str
    argument: str
    unit: str
    part: str = ""

    def applies_to(self, cls: type[nn.Module]) -> bool:
        return cls.__name__ == self.cls

    def split(self, call: ModuleCall, layer: LayerSize) -> Split | None:
        sequences = call.arguments.get(self.argument)
        is_inside = f"{layer.name}.".startswith(f"{self.part}.") or not self.part
        if not isinstance(sequences, Tensor) or not is_inside or layer.entries % len(sequences):
            return None
        count = layer.entries // len(sequences)
        items = tuple(entry // count for entry in range(layer.entries))
        return Split(self.unit, items, len(sequences))


RULES: tuple[AxisRule, ...] = (
    WindowsOfImages(),
    ImagesInOneSequence(),
    ImagesOfTexts(),
    PartsInOrder("IdeficsModel", "pixel_values", "image", "vision_model"),
    PartsInOrder("IdeficsModel", "pixel_values", "image", "perceiver_resampler"),
    PartsInOrder("InstructBlipVideoModel", "pixel_values", "frame", "vision_model"),
    PartsInOrder("InstructBlipVideoModel", "pixel_values", "frame", "qformer"),
    PartsInOrder("MllamaModel", "pixel_values", "image", "vision_model"),
    PartsInOrder("MusicgenForConditionalGeneration", "input_ids", "text"),
    PartsInOrder("MusicgenMelodyForConditionalGeneration", "input_ids", "text"),
    PartsInOrder("RagModel", "input_ids", "document", "generator"),
    PartsInOrder("VideoPrismVisionModel", "pixel_values_videos", "frame", "spatial_layers"),
    PartsInOrder("VideoPrismVisionModel", "pixel_values_videos", "patch", "temporal_layers"),
    PartsInOrder("VideomtForUniversalSegmentation", "pixel_values_videos", "frame"),
    PartsInOrder("XCLIPModel", "pixel_values", "frame", "vision_model"),
)


@cache
def rules_of(cls: type[nn.Module]) -> tuple[AxisRule, ...]:
    """The rules that may know the calls of a class."""
    return tuple(rule for rule in RULES if rule.applies_to(cls))


def module_call(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> ModuleCall:
    """A call of a module, whose arguments have the names of parameters."""
    return ModuleCall(module, dict(zip(_parameters(type(module)), args, strict=False)) | kwargs)


@cache
def _parameters(cls: type[nn.Module]) -> tuple[str, ...]:
    """The names of the parameters of the forward of a class, in order."""
    try:
        return tuple(inspect.signature(cls.forward).parameters)[1:]
    except (AttributeError, TypeError, ValueError):  # a ScriptModule's class, or a compiled function
        return ()


def _config(call: ModuleCall) -> Any:
    return getattr(call.module, "config", None)


def _first_tensor(call: ModuleCall) -> Tensor | None:
    return next((value for value in call.arguments.values() if isinstance(value, Tensor)), None)


def _numbers_of_patches(call: ModuleCall) -> list[int] | None:
    """The number of patches of each image, if the call says it."""
    arguments = call.arguments
    grid = arguments.get("grid_thw", arguments.get("image_grid_thw"))
    if grid is not None:
        grid = torch.as_tensor(grid)
        return grid.prod(-1).tolist() if grid.ndim == 2 else None
    sizes, vision = arguments.get("image_sizes"), getattr(_config(call), "vision_config", None)
    patch = getattr(call.module, "patch_size", getattr(vision, "patch_size", None))
    if sizes is None or not isinstance(patch, int):
        return None
    sizes = torch.as_tensor(sizes)
    return (sizes // patch).prod(-1).tolist() if sizes.ndim == 2 and sizes.shape[1] == 2 else None


def _texts_of(is_place: Tensor, counts: Sequence[int]) -> tuple[int, ...] | None:
    """The text of each image, which has so many of the places in texts; None if one has places in several texts."""
    text_of_place = is_place.nonzero()[:, 0].split(list(counts))
    if any(not len(places) or bool((places != places[0]).any()) for places in text_of_place):
        return None
    return tuple(int(places[0]) for places in text_of_place)
