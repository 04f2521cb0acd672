"""Models of images and texts with a softmax of their own, and cross-attention with a cache, watched by adapters."""

from __future__ import annotations

import pytest
import torch

import regard

hf = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGE = SIZES | {"image_size": 16, "patch_size": 4}
TEXT = SIZES | {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "encoder_hidden_size": 32}
DECODER = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
SPECIAL = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def varied(model):
    """A model whose weights differ from cell to cell."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def picture():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def words():
    return torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(1))


READERS = {
    "blip.BlipAttention": (
        lambda: hf.BlipVisionModel(hf.BlipVisionConfig(**IMAGE)),
        lambda: {"pixel_values": picture()},
    ),
    "flava.FlavaSelfAttention": (
        lambda: hf.FlavaImageModel(hf.FlavaImageConfig(**IMAGE)),
        lambda: {"pixel_values": picture()},
    ),
    "vilt.ViltSelfAttention": (
        lambda: hf.ViltModel(hf.ViltConfig(**IMAGE, vocab_size=99, max_image_length=-1)),
        lambda: {"input_ids": words(), "pixel_values": picture()},
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_weights_output_and_gradients(name):
    make, inputs = READERS[name]
    model = varied(make())

    def run(**options):
        torch.manual_seed(2)  # ViLT draws which patches it reads
        return model(**inputs(), **options)

    expected = run(output_attentions=True)
    attentions, upstream = expected.attentions, torch.randn_like(expected[0])
    gradients = torch.autograd.grad(expected[0], attentions, upstream)
    with regard.watch(model, weight_gradients=True) as result:
        output = run()
    assert torch.equal(output[0], run()[0])
    output[0].backward(upstream)
    assert len(result.layers) == 2
    for layer, weights, gradient in zip(result.layers, attentions, gradients, strict=True):
        torch.testing.assert_close(layer.weights.dense(), weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.weights.grad.dense(), gradient, atol=1e-4, rtol=1e-4)


def test_the_text_model_of_blip_attends_to_an_image():
    model, ids = varied(hf.BlipTextModel(hf.BlipTextConfig(**TEXT), add_pooling_layer=False)), words()
    options = {
        "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2]),
        "encoder_hidden_states": torch.randn(2, 11, 32),
        "encoder_attention_mask": torch.tensor([[1] * 11, [1] * 9 + [0] * 2]),
    }
    with torch.no_grad():
        expected = model(ids, **options, is_decoder=True, output_attentions=True)
        with regard.watch(model) as result:
            output = model(ids, **options, is_decoder=True)
    assert torch.equal(output[0], expected[0])
    pairs = zip(expected.attentions, expected.cross_attentions, strict=True)
    for layer, weights in zip(result.layers, [each for pair in pairs for each in pair], strict=True):
        torch.testing.assert_close(layer.weights.dense(), weights, atol=1e-6, rtol=0)
    assert [layer.kind for layer in result.layers][1::2] == ["cross", "cross"]


@pytest.mark.parametrize("beams", [1, 3])
def test_a_text_that_is_read_off_an_image_is_one_matrix_of_each_kind(beams):
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**IMAGE), hf.TrOCRConfig(**DECODER, **SPECIAL)
    )
    config.pad_token_id, config.decoder_start_token_id = 0, 1
    model = varied(hf.VisionEncoderDecoderModel(config))
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "return_dict_in_generate": True}
    expected = model.generate(picture(), **options, output_scores=True)
    with regard.watch(model, ["mean_distance"]) as result:
        output = model.generate(picture(), **options, output_scores=True)
    assert torch.equal(output.sequences, expected.sequences)
    recording = result.select_beams(output.beam_indices) if beams > 1 else result.recording
    text = output.sequences[:, :-1]
    with torch.no_grad():
        whole = model(pixel_values=picture(), decoder_input_ids=text, output_attentions=True)
    pairs = zip(whole.decoder_attentions, whole.cross_attentions, strict=True)
    of_text = [each for pair in pairs for each in pair]
    for layer, weights in zip(recording.layers[2:], of_text, strict=True):
        torch.testing.assert_close(layer.weights.dense(), weights, atol=5e-6, rtol=0)
        distance = layer.weights.measure("mean_distance")["mean_distance"]
        torch.testing.assert_close(layer.measured["mean_distance"], distance, atol=1e-5, rtol=1e-5)
    assert [layer.kind for layer in recording.layers[2:]] == ["decoder", "cross"] * 2
