"""Layers of several parts of a model, which the errors of rollout, flow and relevance tell apart."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.analysis import flow, relevance, rollout
from regard.errors import InvalidArgument, InvalidType

transformers = pytest.importorskip("transformers")


def _watched_clip():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    text, vision = {**sizes, "vocab_size": 50}, {**sizes, "image_size": 8, "patch_size": 4}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)).eval()
    with regard.watch(model, weight_gradients=True) as result:
        output = model(input_ids=torch.tensor([[1, 5, 6, 7, 8, 49]]), pixel_values=torch.randn(1, 3, 8, 8))
    output.logits_per_image.sum().backward()
    return result


@pytest.mark.parametrize("analysis", [rollout, relevance, flow])
def test_layers_of_two_models_name_those_of_each(analysis):
    result = _watched_clip()
    instead = r"; pass result\.layers\.within\('vision_model'\) or result\.layers\.within\('text_model'\)$"
    with pytest.raises(InvalidArgument, match=instead) as error:
        analysis(result.layers)
    assert "\n" not in str(error.value)
    assert analysis(result.layers.within("vision_model"), queries=0).shape == (1, 1, 5)
    assert analysis(result.layers.within("text_model"), queries=0).shape == (1, 1, 6)


@pytest.mark.parametrize("lengths", [(6, 4), (5, 5)])
@pytest.mark.parametrize("analysis", [rollout, flow])
def test_layers_of_an_encoder_and_a_decoder_name_those_of_each(analysis, lengths):
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = transformers.T5Model(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()
    source, target = (torch.randint(3, 50, (1, length)) for length in lengths)
    with regard.watch(model) as result, torch.no_grad():
        model(input_ids=source, decoder_input_ids=target)
    message = r"got layers of kind encoder .* and cross .*; pass result\.layers\.encoder or result\.layers\.decoder$"
    with pytest.raises(InvalidArgument, match=message):
        analysis(result.layers)
    assert analysis(result.layers.encoder).shape == (1, lengths[0], lengths[0])
    assert analysis(result.layers.decoder).shape == (1, lengths[1], lengths[1])


def test_layers_within_a_part_of_a_model():
    layers = _watched_clip().layers
    assert [layer.name for layer in layers.within("text_model.encoder.layers.1")] == [layers[-1].name]
    assert repr(layers.within("text_model")) == "LayerList(2 layers: 2 encoder)"
    with pytest.raises(
        InvalidArgument, match=r"part: 'text_mod' has no layer; known: vision_model\.encoder\.layers\.0"
    ):
        layers.within("text_mod")
    with pytest.raises(InvalidType, match="part: expected the name of a part of the model, got 3"):
        layers.within(3)
