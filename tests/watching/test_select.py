"""One sequence of a watched batch: which layers it has, errors of measures that were not computed, and identity."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from helpers.small_translators import SMALL
from regard.errors import InvalidArgument, InvalidType
from regard.models import Transformer

transformers = pytest.importorskip("transformers")

BERT = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def _watched(model, *args, measure=(), **kwargs):
    with regard.watch(model.eval(), measure) as result, torch.no_grad():
        model(*args, **kwargs)
    return result


def _bert(layers=2):
    return transformers.BertModel(transformers.BertConfig(**BERT, num_hidden_layers=layers))


def test_windows_in_a_module_of_torch():
    class Windows(nn.Module):
        def forward(self, images):
            x = images.unflatten(2, (2, 16)).permute(0, 2, 3, 1).flatten(0, 1)[:, None]  # (windows, 1, tokens, width)
            return functional.scaled_dot_product_attention(x, x, x).mean((1, 2, 3)).view(len(images), -1)

    recording = _watched(Windows(), torch.randn(3, 8, 32)).recording
    with pytest.raises(InvalidArgument, match="sequence: expected layers whose batch is that of the model's inp"):
        recording.select(1)


def test_images_of_texts_are_those_of_their_text():
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = {**text, "image_size": 8, "patch_size": 4}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision),
        text_config=transformers.LlamaConfig(**text, vocab_size=50),
        image_token_id=49,
        vision_feature_layer=-1,
    )
    model, ids = transformers.LlavaForConditionalGeneration(config), torch.randint(40, (2, 20))
    ids[:, 2:10] = 49  # two images of four patches in each text
    recording = _watched(model, input_ids=ids, pixel_values=torch.randn(4, 3, 8, 8)).recording
    tokens = [str(token) for token in ids[1].tolist()]
    selected = recording.select(1, tokens={"model.language_model": tokens})
    language, vision_name = "model.language_model.layers.0.self_attn", "model.vision_tower.encoder.layers.0.self_attn"
    assert torch.equal(selected.layers[language].weights.dense(), recording.layers[language].weights.dense()[1:])
    assert selected.layers[language].key_tokens == tuple(tokens)
    images = selected.layers[vision_name]
    assert torch.equal(images.weights.dense(), recording.layers[vision_name].weights.dense()[2:])
    assert images.batch_axis.places == ("image 1", "image 2")
    assert [layer.name for layer in recording.select(1, tokens=tokens, layers=["model.language_model"]).layers] == [
        language
    ]


def test_tokens_of_a_text_with_a_vision_tower():
    model = _clip()
    ids, tokens = torch.tensor([[1, 5, 6, 7, 8, 49]]), list("abcdef")
    recording = _watched(model, input_ids=ids, pixel_values=torch.randn(1, 3, 8, 8)).recording
    message = r"tokens: expected 5 tokens for vision_model\.\S+, got 6; to name only the layers with 6, "
    with pytest.raises(InvalidArgument, match=message + r"pass layers=\['text_model'\]"):
        recording.select(tokens=tokens)
    selected = recording.select(tokens=tokens, layers=["text_model"])
    assert [layer.key_tokens for layer in selected.layers] == [tuple(tokens)] * 2
    assert len(recording.select(layers="vision_model").layers) == 2


def _clip():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    text, vision = {**sizes, "vocab_size": 50}, {**sizes, "image_size": 8, "patch_size": 4}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision))


def test_tokens_of_each_part():
    ids, patches = torch.tensor([[1, 5, 6, 7, 8, 49]]), ["[CLS]", "0,0", "0,1", "1,0", "1,1"]
    recording = _watched(_clip(), input_ids=ids, pixel_values=torch.randn(1, 3, 8, 8)).recording
    selected = recording.select(tokens={"text_model": ids[0], "vision_model": patches})
    assert selected.layers["text_model.encoder.layers.1"].query_tokens == ("1", "5", "6", "7", "8", "49")
    assert selected.layers["vision_model.encoder.layers.1"].key_tokens == tuple(patches)
    inner = {"vision_model": patches, "vision_model.encoder.layers.1": list("abcde"), "text_model": None}
    selected = recording.select(tokens=inner)
    assert selected.layers["vision_model.encoder.layers.0"].key_tokens == tuple(patches)
    assert selected.layers["vision_model.encoder.layers.1"].key_tokens == tuple("abcde")
    assert not selected.layers["text_model.encoder.layers.1"].has_tokens


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ({"text_mod": ["a"]}, InvalidArgument, "tokens: unknown layer 'text_mod'.*; known: vision_model"),
        ({"text_model": "abcdef"}, InvalidType, r"tokens\['text_model'\]: expected a list with a name for each token"),
        ({3: ["a"]}, InvalidType, "tokens: expected names of parts of the model, got 3"),
        ({"text_model": list("abc")}, InvalidArgument, r"tokens: expected 6 tokens for text_model\.\S+, got 3$"),
        (list("abcdef"), InvalidArgument, r"pass layers=\['text_model'\], or tokens=\{'text_model': \[\.\.\.\]\}"),
    ],
)
def test_tokens_of_each_part_are_checked(tokens, error, message):
    ids = torch.tensor([[1, 5, 6, 7, 8, 49]])
    recording = _watched(_clip(), input_ids=ids, pixel_values=torch.randn(1, 3, 8, 8)).recording
    with pytest.raises(error, match=message):
        recording.select(tokens=tokens)


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (["encoder.layer.7"], InvalidArgument, r"layers: unknown layer 'encoder.layer.7'.*; known: encoder.layer.0"),
        (["encoder.lay"], InvalidArgument, "layers: unknown layer 'encoder.lay'"),
        ([], InvalidArgument, "layers: expected at least one name; leave it out for all"),
        (3, InvalidType, "layers: expected a list of names, got 3"),
    ],
)
def test_layers_are_checked(layers, error, message):
    recording = _watched(_bert(), torch.tensor([[5, 6, 7]])).recording
    with pytest.raises(error, match=message):
        recording.select(layers=layers)


def test_beams_are_not_texts():
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with regard.watch(model) as result:
        model.generate(torch.tensor([[5, 6, 7], [8, 9, 5]]), num_beams=2, max_new_tokens=1, do_sample=False)
    with pytest.raises(InvalidArgument, match=r"got batches of 2 \(enc.* and 4 \(dec.*result\.select_beams"):
        result.recording.select(1)


@pytest.mark.parametrize("is_batch_first", [True, False])
def test_batches_of_torch_and_of_this_library_are_sequences(is_batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=is_batch_first)
    models = {
        "torch": (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [torch.randn(2, 5, 16)]),
        "regard": (Transformer(SMALL), [torch.randint(3, 20, (2, 5)), torch.randint(3, 20, (2, 4))]),
        "bert": (_bert(), [torch.randint(50, (2, 5))]),
    }
    for model, inputs in models.values():
        recording = _watched(model, *inputs).recording
        for one, full in zip(recording.select(1).layers, recording.layers, strict=True):
            assert torch.equal(one.weights.dense(), full.weights.at(batch=1).dense())


@pytest.mark.parametrize("is_selected", [False, True])
def test_measures_that_were_not_computed(is_selected, tmp_path):
    recording = _watched(_bert(), torch.tensor([[5, 6, 7]]), measure="entropy").recording
    recording = recording.select() if is_selected else recording
    message = r"measured: unknown name 'max'; measured are entropy; watch with measure=\['max'\], or compute it now: "
    with pytest.raises(InvalidArgument, match=message + r"layer\.weights\.measure\('max'\)"):
        recording.layers[0].measured["max"]
    if is_selected:
        recording.save(tmp_path / "one.regard")
        with pytest.raises(InvalidArgument, match=message):
            regard.load(tmp_path / "one.regard").layers[0].measured["max"]


def test_layers_are_the_same_at_each_read():
    model = _bert().eval()
    with regard.watch(model) as result, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
        first = result.recording
        assert result.layers[0] in result.layers
        assert result.layers[0] is result.layers[0]
        model(torch.tensor([[5, 6, 7]]))
    assert result.recordings[0] is first
    assert result.layers[0] is not first.layers[0]


def test_layers_that_follow_are_read():
    model = _bert().eval()
    with regard.watch(model) as result, torch.no_grad():
        model.encoder.layer[0](torch.randn(1, 3, 16))
        assert len(result.layers) == 1
        model.encoder.layer[1](torch.randn(1, 3, 16))
        assert len(result.layers) == 2
