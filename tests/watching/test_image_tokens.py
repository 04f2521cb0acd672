"""Recordings of a text and an image: which tokens are patches, and that the weights are those of dense attention."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import regard
from helpers.model_zoo import build, images_of_texts
from helpers.transformers_models import save_llava, tokenizer
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.explore.pack import pack
from regard.watching import TransformersModel
from regard.watching.image_tokens import name_image_tokens

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
PATCHES = ("0,0", "0,1", "0,2", "1,0", "1,1", "1,2", "2,0", "2,1", "2,2")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "square.png"
    Image.fromarray((np.arange(24 * 24 * 3) % 251).astype(np.uint8).reshape(24, 24, 3)).save(path)
    return path


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return save_llava(tmp_path_factory.mktemp("checkpoints") / "llava")


def test_a_text_and_an_image(llava, path, tmp_path):
    loaded = TransformersModel.load(llava)
    recording = loaded.record("the cat <image> on the mat", image=path)
    text = recording.layers["model.language_model.layers.1"]
    assert text.query_tokens == text.key_tokens == ("[CLS]", "▁the", "▁cat", *PATCHES, "▁on", "▁the", "▁mat", "[SEP]")
    vision = recording.layers["model.vision_tower.encoder.layers.1"]
    assert vision.key_tokens == ("[CLS]", *PATCHES)
    assert recording.texts == {"text": "the cat <image> on the mat", "image": str(path)}
    assert Image.open(io.BytesIO(recording.image)).size == (12, 12)
    model = hf.LlavaForConditionalGeneration.from_pretrained(llava, attn_implementation="eager")
    inputs = hf.AutoProcessor.from_pretrained(llava)(
        text="the cat <image> on the mat", images=Image.open(path).convert("RGB"), return_tensors="pt"
    )
    reference = model(**inputs, output_attentions=True).attentions
    for layer, weights in zip(recording.layers.within("model.language_model"), reference, strict=True):
        assert torch.allclose(layer.weights.dense(), weights, atol=1e-5)
    recording.save(tmp_path / "both.regard")
    again = regard.load(tmp_path / "both.regard")
    assert again.image == recording.image
    assert again.layers[text.name].key_tokens == text.key_tokens
    header, _ = pack(again)
    assert header["image"] is not None


def test_a_text_that_continues_after_an_image(llava, path):
    loaded = TransformersModel.load(llava)
    recording = loaded.record("<image> the cat", image=str(path), max_new_tokens=3)
    text = recording.layers["model.language_model.layers.0"]
    assert text.key_tokens[:13] == ("[CLS]", *PATCHES, "▁the", "▁cat", "[SEP]")
    assert len(text.key_tokens) == 15  # the last of three tokens is not read
    assert recording.texts["text"].startswith("the cat ")
    assert recording.layers["model.vision_tower.encoder.layers.0"].key_tokens == ("[CLS]", *PATCHES)


def test_a_text_and_an_image_in_models_of_their_own(path, tmp_path):
    torch.manual_seed(0)
    words = tokenizer()
    text, vision = {**SIZES, "vocab_size": len(words)}, {**SIZES, "image_size": 12, "patch_size": 4}
    hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision)).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    hf.CLIPImageProcessor(size={"height": 12, "width": 12}, do_center_crop=False).save_pretrained(tmp_path)
    loaded = TransformersModel.load(tmp_path)
    recording = loaded.record("the cat", image=path)
    assert recording.layers["text_model.encoder.layers.1"].key_tokens == ("[CLS]", "▁the", "▁cat", "[SEP]")
    assert recording.layers["vision_model.encoder.layers.1"].key_tokens == ("[CLS]", *PATCHES)
    assert {layer.key_tokens for layer in loaded.record(path).layers} == {("[CLS]", *PATCHES)}


def test_what_cannot_be_read_with_an_image_is_refused(llava, path, tmp_path):
    loaded = TransformersModel.load(llava)
    message = "text and image: llava cannot prepare it: .* 0 <image> tokens and 1 images"
    with pytest.raises(InvalidArgument, match=message):
        loaded.record("the cat", image=path)
    with pytest.raises(InvalidArgument, match="target: with an image, a model takes one text; leave it out"):
        loaded.record("<image>", "the cat", image=path)
    with pytest.raises(InvalidType, match="image: expected the path of an image, got int"):
        loaded.record("<image>", image=3)
    with pytest.raises(InvalidFile, match=r"none\.png: there is no such file; llava needs the path of an image"):
        loaded.record("<image>", image=tmp_path / "none.png")
    bert = TransformersModel(hf.BertModel(hf.BertConfig(**SIZES, vocab_size=50)), tokenizer())
    with pytest.raises(InvalidArgument, match="image: model reads no images; leave image out"):
        bert.record("the cat", image=path)
    (llava / "processor_config.json").rename(llava / "moved.json")
    try:
        with pytest.raises(InvalidArgument, match="image: llava reads no images; leave image out"):
            TransformersModel.load(llava).record("<image>", image=path)
    finally:
        (llava / "moved.json").rename(llava / "processor_config.json")


class Careless:
    """A processor that does not check whether a text has a place for the image."""

    def __init__(self, processor: Any) -> None:
        self.tokenizer, self.image_processor = processor.tokenizer, processor.image_processor

    def __call__(self, text: str, images: Any, **options: Any) -> Any:
        return {**self.image_processor(images, **options), **self.tokenizer(text, **options)}


def test_a_text_without_a_place_for_the_image_is_refused(llava, path):
    loaded = TransformersModel.load(llava)
    loaded.processor = Careless(loaded.processor)
    with pytest.raises(InvalidArgument, match="text: expected <image> where llava reads the image, got 'the cat'"):
        loaded.record("the cat", image=path)


NAMED = {
    "AyaVisionModel": (4, 4),
    "Idefics3Model": (4, 4),
    "InternVLModel": (2, 2),
    "LlavaModel": (4, 4),
    "Mistral3Model": (2, 2),
    "PaliGemmaModel": (4, 4),
    "Qwen2VLModel": (2, 4),
    "Qwen2_5_VLModel": (2, 4),
    "Qwen3VLModel": (2, 4),
}


@pytest.mark.parametrize("name", NAMED)
def test_tokens_have_the_names_of_the_patches_that_they_are_of(name, monkeypatch):
    """With vision layers that add nothing, a patch of the image changes only the token that is named by its place."""
    config_of = build.config_of

    def larger(kind):
        config = config_of(kind)
        if name in ("AyaVisionModel", "Idefics3Model", "InternVLModel"):  # which join several patches to a token
            config.vision_config.image_size = [64, 64] if name == "InternVLModel" else 64
        if name == "InternVLModel":
            config.vision_config.patch_size = [16, 16]
        return config

    monkeypatch.setattr(build, "config_of", larger)
    case = images_of_texts.make(name)
    last = r"(out_proj|proj|fc2|projection_layer|down_proj|linear_fc2|o_proj)$"
    for part, module in case.model.get_encoder(modality="image").named_modules():
        if re.search(last, part) and isinstance(module, torch.nn.Linear) and "merger" not in part:
            for parameter in module.parameters():
                torch.nn.init.zeros_(parameter)
    rows, columns = NAMED[name]
    pixels = case.inputs["pixel_values"]
    inputs: dict[str, Any] = {"input_ids": case.inputs["input_ids"][1:].clone()}
    second = case.places[2]
    inputs["input_ids"][0, second] = 9  # only one image of this text
    if "image_grid_thw" in case.inputs:
        inputs["image_grid_thw"] = case.inputs["image_grid_thw"][1:2]
    else:
        one = pixels[1, :1] if pixels.ndim == 5 else pixels[1:2]
        inputs["pixel_values"] = one[None] if pixels.ndim == 5 else one
        inputs["image_sizes"] = torch.tensor([one.shape[-2:]])
    names = name_image_tokens(case.model, inputs, [str(index) for index in inputs["input_ids"][0].tolist()])
    assert names.index("0,0") == case.places[1][0]
    before = case._embeddings(pixels)
    for row in range(rows):
        for column in range(columns):
            changed = pixels.clone()
            if pixels.ndim == 2:  # four patches of a token follow one another
                first = 16 + 4 * (row * columns + column)
                changed[first : first + 4] += 5
            else:
                height, width = pixels.shape[-2] // rows, pixels.shape[-1] // columns
                image = changed[1, 0] if pixels.ndim == 5 else changed[1]
                image[:, row * height : (row + 1) * height, column * width : (column + 1) * width] += 5
            difference = (case._embeddings(changed) - before)[1].abs().sum(-1)
            assert [names[place] for place in (difference > 1e-4 * difference.max()).nonzero()] == [f"{row},{column}"]


def test_tokens_of_unknown_places_keep_their_names():
    case = images_of_texts.make("Idefics2Model")  # whose perceiver mixes all patches
    inputs = {"input_ids": case.inputs["input_ids"][:1], "pixel_values": case.inputs["pixel_values"][:1, :1]}
    names = [str(index) for index in inputs["input_ids"][0].tolist()]
    assert name_image_tokens(case.model, inputs, names) == names
    case = images_of_texts.make("LlavaModel")
    inputs = {"input_ids": case.inputs["input_ids"][1:], "pixel_values": case.inputs["pixel_values"][1:]}
    names = [str(index) for index in inputs["input_ids"][0].tolist()]
    assert name_image_tokens(case.model, inputs, names) == names  # two images
