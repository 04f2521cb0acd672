"""What the batch of each layer is made of: against what the modules cut, and which texts an image changes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

import regard
from regard.errors import InvalidArgument
from regard.recordings import BatchAxis, Windows

transformers = pytest.importorskip("transformers")

from helpers.model_zoo import build, images_of_texts  # noqa: E402
from helpers.model_zoo.outcome import accepted, run  # noqa: E402

OF_TEXTS = {
    "AyaVisionModel": "tile",
    "Cohere2VisionModel": "tile",
    "DeepseekVLModel": "image",
    "Gemma3Model": "image",
    "Idefics2Model": "image",
    "Idefics3Model": "tile",
    "InternVLModel": "tile",
    "JanusModel": "image",
    "LlavaModel": "image",
    "LlavaNextModel": "tile",
    "LlavaNextVideoModel": "tile",
    "LlavaOnevisionModel": "tile",
    "Mistral3Model": "image",
    "ModernVBertModel": "tile",
    "Ovis2Model": "image",
    "PaliGemmaModel": "image",
    "QianfanOCRModel": "tile",
    "Qwen2VLModel": "image",
    "Qwen2_5_VLModel": "image",
    "Qwen3VLModel": "image",
    "SmolVLMModel": "tile",
    "VipLlavaModel": "image",
}


@dataclass
class Called:
    model: Any
    inputs: dict[str, Any]


def watched(case: Any):
    with regard.watch(case.model) as result, torch.no_grad():
        case.model(**case.inputs)
    return result.recording


def of_images(recording: regard.recordings.Recording):
    return [layer for layer in recording.layers if layer.batch_axis is not None]


@pytest.mark.parametrize("name", OF_TEXTS)
def test_images_belong_to_the_texts_that_they_change(name):
    case = images_of_texts.make(name)
    owners = [case.texts_of(image) for image in range(3)]
    assert owners == [{0}, {1}, {1}]
    recording = watched(case)
    layers = of_images(recording)
    assert layers
    for layer in layers:
        axis = layer.batch_axis
        assert (axis.unit, axis.num_sequences) == (OF_TEXTS[name], 2)
        of_image = dict.fromkeys(
            ("LlavaNextModel", "LlavaNextVideoModel", "LlavaOnevisionModel"), (0, 0, 1, 1, 1, 1, 1)
        )
        assert axis.sequences == of_image.get(name, (0, 1, 1))
        assert name in of_image or axis.places == tuple(f"{axis.unit} {number}" for number in (1, 1, 2))
    text = next(layer for layer in recording.layers if layer.batch_axis is None)
    for sequence in (0, 1):
        selected = recording.select(sequence)
        assert [layer.name for layer in selected.layers] == [layer.name for layer in recording.layers]
        assert torch.equal(selected.layers[text.name].weights.dense(), text.weights.at(batch=sequence).dense())
        for layer in layers:
            one, axis = selected.layers[layer.name], layer.batch_axis
            entries = axis.entries_of(sequence)
            if axis.spans is None:
                expected = layer.weights.dense()[entries]
            else:
                own = slice(axis.spans[entries[0]][0], axis.spans[entries[-1]][1])
                expected = layer.weights.dense()[:, :, own, own]
            assert torch.allclose(one.weights.dense(), expected, atol=1e-6)
            assert one.batch_axis.sequences == (0,) * len(entries)
            last = recording.select(sequence, entry=len(entries) - 1).layers[layer.name]
            single = expected[-1:]
            if axis.spans is not None:
                size = axis.spans[entries[-1]][1] - axis.spans[entries[-1]][0]
                single = expected[:, :, -size:, -size:]
            assert torch.allclose(last.weights.dense(), single, atol=1e-6)


CUT = {  # models, the layer that cuts, its norm before that, and the attention
    "SwinModel": ("SwinLayer", "layernorm_before", "attention"),
    "Swinv2Model": ("Swinv2Layer", None, "attention"),
    "DonutSwinModel": ("DonutSwinLayer", "layernorm_before", "attention"),
    "MaskFormerSwinBackbone": ("MaskFormerSwinLayer", "layernorm_before", "attention"),
    "Swin2SRModel": ("Swin2SRLayer", None, "attention"),
    "ClapAudioModel": ("ClapAudioLayer", "layernorm_before", "attention"),
    "SamVisionModel": ("SamVisionLayer", "layer_norm1", "attn"),
    "SamHQVisionModel": ("SamHQVisionLayer", "layer_norm1", "attn"),
    "Sam2HieraDetModel": ("Sam2MultiScaleBlock", "layer_norm1", "attn"),
    "Sam3ViTModel": ("Sam3ViTLayer", "layer_norm1", "attention"),
    "VitDetModel": ("VitDetLayer", "norm1", "attention"),
}


@pytest.mark.parametrize("name", CUT)
def test_windows_are_what_the_layer_cuts(name):
    """Each window of each layer has the tokens that it says, in the order that it says."""
    from regard.watching.axis_rules import LayerSize, module_call, rules_of

    torch.manual_seed(0)
    kind, norm, attention = CUT[name]
    config = build.config_of(build.named(name))
    if hasattr(config, "global_attn_indexes"):
        config.window_size, config.global_attn_indexes = 3, []
    if name == "VitDetModel":
        config.window_size, config.window_block_indices = 3, [0, 1]
    model: Any = build.named(name)(config).eval()
    inputs, _ = accepted(model)
    calls: list[tuple[Any, Any, torch.Tensor, torch.Tensor]] = []
    for module in model.modules():
        if type(module).__name__ != kind:
            continue
        before: dict[str, torch.Tensor] = {}

        def keep(_, args, kwargs, output=None, before=before, name="attention"):
            found = output if isinstance(output, torch.Tensor) else (*args, *kwargs.values())[0]
            before[name] = found

        if norm is not None:
            getattr(module, norm).register_forward_hook(
                lambda m, a, output, keep=keep: keep(m, a, {}, output, name="norm")
            )
        getattr(module, attention).register_forward_pre_hook(
            lambda m, args, kwargs, keep=keep: keep(m, args, kwargs), with_kwargs=True
        )

        def after(module, args, kwargs, _, before=before):
            calls.append((module, module_call(module, args, kwargs), before.get("norm"), before["attention"]))

        module.register_forward_hook(after, with_kwargs=True)
    run(model, inputs)
    assert calls
    cut = 0
    for module, call, normed, windows in calls:
        (rule,) = rules_of(type(module))
        windows = windows.flatten(1, 2) if windows.ndim == 4 else windows
        split = rule.split(call, LayerSize("attention", len(windows), windows.shape[1], windows.shape[1]))
        assert split is not None
        grid = next(iter(call.arguments.values())) if normed is None else normed
        grid = grid.permute(0, 2, 3, 1) if name == "VitDetModel" and normed is None else grid
        grid = grid.flatten(1, -2)  # (images, tokens, width)
        cut += split.windows.count > 1
        for entry, (window, image) in enumerate(zip(windows, split.items, strict=True)):
            tokens = split.windows.tokens[entry % split.windows.count]
            expected = torch.cat([grid[image], torch.zeros_like(grid[image, :1])])[tokens]
            assert torch.equal(window, expected)
    assert cut


def test_a_window_names_its_tokens_by_their_place():
    windows = Windows(4, 4, 2, shift=1)
    assert windows.token_names(0) == ("1,1", "1,2", "2,1", "2,2")
    assert windows.token_names(3) == ("3,3", "3,0", "0,3", "0,0")  # the shift is cyclic
    assert Windows(3, 3, 2).token_names(3) == ("2,2", "[PAD]", "[PAD]", "[PAD]")


def test_windows_of_several_images(tmp_path):
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "window_size": 4, "num_heads": [1, 1]}
    model = transformers.SwinModel(transformers.SwinConfig(**sizes, depths=[2, 1])).eval()
    with regard.watch(model) as result, torch.no_grad():
        model(torch.randn(3, 3, 32, 32))
    first, shifted, last = result.layers
    assert first.batch_axis == BatchAxis(
        "window",
        (0,) * 4 + (1,) * 4 + (2,) * 4,
        3,
        ("window 0,0", "window 0,1", "window 1,0", "window 1,1") * 3,
        Windows(8, 8, 4),
    )
    assert shifted.batch_axis.windows == Windows(8, 8, 4, 2)
    image = result.recording.select(1)
    assert torch.equal(image.layers[0].weights.dense(), first.weights.dense()[4:8])
    assert image.layers[0].batch_axis.places == first.batch_axis.places[4:8]
    assert torch.equal(image.layers[2].weights.dense(), last.weights.dense()[1:2])
    assert image.layers[2].key_tokens[:5] == ("0,0", "0,1", "0,2", "0,3", "1,0")
    with pytest.raises(
        InvalidArgument, match=r"but encoder\S+ has 4 windows of it; select one with recording\.select\(0, e"
    ):
        regard.show(image, tmp_path / "image.html")
    image.save(tmp_path / "image.regard")
    assert regard.load(tmp_path / "image.regard").layers[0].batch_axis == image.layers[0].batch_axis
    window = result.recording.select(1, entry=2)
    window.save(tmp_path / "window.regard")
    assert regard.load(tmp_path / "window.regard").layers[1].key_tokens == window.layers[1].key_tokens
    assert torch.equal(window.layers[1].weights.dense(), shifted.weights.dense()[6:7])
    assert window.layers[1].key_tokens[:3] == ("6,2", "6,3", "6,4")
    with pytest.raises(InvalidArgument, match=r"entry: expected an index from 0 to 3 in encoder\S+, which has 4 win"):
        result.recording.select(1, entry=4)
    with pytest.raises(InvalidArgument, match="has 4 windows of the sequence; select one with entry=0"):
        result.recording.select(1, tokens=list("abcdefghijklmnop"))


def test_a_text_without_an_image_has_no_layers_of_images():
    case = images_of_texts.make("LlavaModel")
    ids, token = case.inputs["input_ids"], case.model.config.image_token_id
    ids[0][ids[0] == token] = 11
    case.inputs["pixel_values"] = case.inputs["pixel_values"][1:]  # two images, as many as texts, in the second
    recording = watched(case)
    assert {layer.weights.shape[0] for layer in recording.layers} == {2}
    without, both = recording.select(0), recording.select(1)
    assert all(layer.name.startswith("language_model") for layer in without.layers)
    of_images = [layer for layer in both.layers if layer.name.startswith("vision_tower")]
    assert [layer.batch_axis.places for layer in of_images] == [("image 1", "image 2")] * len(of_images)
    with pytest.raises(InvalidArgument, match="sequence: expected one that the layers have entries of, got 0"):
        recording.select(0, layers="vision_tower")


def test_images_across_texts_are_not_mapped():
    case = images_of_texts.make("LlavaModel")
    ids, token = case.inputs["input_ids"], case.model.config.image_token_id
    place = (ids[1] == token).nonzero()[0]
    ids[1, place], ids[0, -1] = 11, token  # one place of the second image is in the first text
    recording = watched(case)
    message = r"but vision_tower\.\S+ has a batch of 3, and it is not known which sequence .* with layers=\[\.\.\.\]"
    with pytest.raises(InvalidArgument, match=message):
        recording.select(0)
    assert len(recording.select(2, layers="vision_tower").layers) == 2  # an index in the batch of these layers


@pytest.mark.parametrize("name", ["Cosmos3EdgeVisionModel", "PaddleOCRVisionTransformer"])
def test_images_of_one_sequence_in_a_module_of_the_vision_model(name):
    torch.manual_seed(0)
    model = build.built(build.named(name)).eval()
    inputs, _ = accepted(model)
    with regard.watch(model) as result:
        run(model, inputs)
    assert result.layers[0].batch_axis.spans == ((0, 16), (16, 32))
    expected = result.layers[0].weights.dense()[:, :, 16:, 16:]
    assert torch.allclose(result.recording.select(1).layers[0].weights.dense(), expected, atol=1e-6)


def test_as_many_images_as_texts_are_not_mapped_by_their_number():
    case = images_of_texts.make("LlavaModel")
    ids, token = case.inputs["input_ids"], case.model.config.image_token_id
    ids[ids == token] = 11
    ids[0, 2:10] = ids[1, 1:17] = ids[1, 18:26] = token  # half of an image, one, and the other half
    recording = watched(Called(case.model, {**case.inputs, "pixel_values": case.inputs["pixel_values"][1:]}))
    assert {layer.weights.shape[0] for layer in recording.layers} == {2}
    with pytest.raises(InvalidArgument, match="it is not known which sequence"):
        recording.select(0)


def test_images_of_embedded_texts_are_not_mapped():
    case = images_of_texts.make("LlavaModel")
    model, pixels = case.model, case.inputs["pixel_values"]
    model.config.text_config.pad_token_id = None
    embeddings = model.get_input_embeddings()(case.inputs["input_ids"]).detach()
    recording = watched(Called(model, {"inputs_embeds": embeddings, "pixel_values": pixels}))
    with pytest.raises(InvalidArgument, match="it is not known which sequence"):
        recording.select(0)
    one = {"input_ids": case.inputs["input_ids"][1:], "pixel_values": pixels[1:]}
    assert watched(Called(model, one)).select(0).layers[0].batch_axis.places == ("image 1", "image 2")


def test_chunks_of_one_sequence_are_images():
    """A call of Qwen2-VL's vision model has all images in one sequence, and calls attention once for each."""
    case = images_of_texts.make("Qwen2VLModel")
    with regard.watch(case.model.visual, "entropy") as result, torch.no_grad():
        case.model.visual(case.inputs["pixel_values"], case.inputs["image_grid_thw"])
    whole = result.layers[0]
    bounds = [0, 16, 48, 80]
    assert whole.batch_axis.spans == tuple(pairwise(bounds))
    dense = whole.weights.dense()
    for image, (start, stop) in enumerate(pairwise(bounds)):
        selected = result.recording.select(image).layers[0]
        assert torch.allclose(selected.weights.dense(), dense[:, :, start:stop, start:stop])
        assert not selected.measured
        entropy = selected.weights.measure("entropy")["entropy"]
        assert torch.allclose(entropy, whole.measured["entropy"][:, :, start:stop], atol=1e-5)


def generator():
    torch.manual_seed(0)
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**text, image_size=8, patch_size=4),
        text_config=transformers.LlamaConfig(**text, vocab_size=50, eos_token_id=None),
        image_token_id=49,
        vision_feature_layer=-1,
    )
    ids = torch.randint(40, (2, 12))
    ids[:, 2:6] = ids[0, 7:11] = 49
    return transformers.LlavaForConditionalGeneration(config).eval(), ids


def test_a_generation_reads_images_before_its_texts():
    model, ids = generator()
    pixels = torch.randn(3, 3, 8, 8)
    with regard.watch(model) as result:
        model.generate(ids, pixel_values=pixels, max_new_tokens=3, do_sample=False)
    recording = result.recording
    of_images = recording.layers["model.vision_tower"]
    assert of_images.batch_axis.sequences == (0, 0, 1)
    second = recording.select(1)
    assert torch.equal(second.layers[of_images.name].weights.dense(), of_images.weights.dense()[2:])
    assert second.layers["model.language_model"].weights.shape == (1, 2, 14, 14)
    with regard.watch(model) as result:  # as many images as texts
        ids[1, 2:6] = 48
        model.generate(ids, pixel_values=pixels[:2], max_new_tokens=3, do_sample=False)
    assert [layer.name for layer in result.recording.select(1).layers] == ["model.language_model.layers.0.self_attn"]


def test_beams_of_texts_with_images():
    model, ids = generator()
    options = {"num_beams": 2, "max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True}
    with regard.watch(model) as result:
        output = model.generate(ids, pixel_values=torch.randn(3, 3, 8, 8), **options)
    recording = result.select_beams(output.beam_indices)
    assert [layer.name for layer in recording.layers] == ["model.language_model.layers.0.self_attn"]
    assert recording.layers[0].weights.shape[0] == 2


PARTS = {
    "IdeficsModel": ("pixel_values", "image"),
    "InstructBlipVideoModel": ("pixel_values", "frame"),
    "RagModel": ("context_input_ids", "document"),
    "Sam2VisionModel": ("pixel_values", "window"),
    "SwinModel": ("pixel_values", "window"),
    "VideoPrismVisionModel": ("pixel_values_videos", "frame patch"),
    "VideomtForUniversalSegmentation": ("pixel_values_videos", "frame"),
    "XCLIPModel": ("pixel_values", "frame"),
}


@pytest.mark.parametrize("name", PARTS)
def test_only_the_parts_of_a_sequence_change_with_it(name):
    torch.manual_seed(0)
    argument, unit = PARTS[name]
    config = build.config_of(build.named(name))
    if name == "VideomtForUniversalSegmentation":
        config.num_blocks = 1  # its last layers take one frame at a time
    if name == "VideoPrismVisionModel":
        config.tubelet_size = [1, 8, 8]
    model: Any = build.named(name)(config).eval()
    for parameter in model.parameters():  # some are 1e-10 at first
        torch.nn.init.normal_(parameter, std=0.1)
    inputs, _ = accepted(model)
    second = inputs[argument].chunk(2)[1]
    changed = torch.randn_like(second) if second.is_floating_point() else (second + 7) % 50 + 5
    other = {**inputs, argument: torch.cat([inputs[argument].chunk(2)[0], changed])}
    recordings = []
    for each in (inputs, other):
        with regard.watch(model) as result:
            run(model, each)
        recordings.append(result.recording)
    units, changes = set(), 0
    for one, two in zip(recordings[0].layers, recordings[1].layers, strict=True):
        axis = one.batch_axis
        if axis is None:
            continue
        units.add(axis.unit)
        differs = (one.weights.dense() - two.weights.dense()).abs().amax((1, 2, 3)) > 1e-7
        others = [entry for entry, sequence in enumerate(axis.sequences) if sequence == 0]
        assert not differs[others].any()
        changes += int(differs[axis.entries_of(1)].sum())
    assert changes
    assert units == {*unit.split()}
