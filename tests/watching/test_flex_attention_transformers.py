"""Models of transformers with the implementation "flex_attention", watched: weights are those of dense attention."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
from helpers.model_zoo import build  # noqa: E402
from helpers.transformers_models import bert, llama, mistral  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


def watched(model, name, run, *arguments, **options):
    model.set_attn_implementation(name)
    with regard.watch(model, *arguments, **options) as result, torch.no_grad():
        return result, run(model)


def assert_same(actual, expected):
    assert [layer.name for layer in actual.layers] == [layer.name for layer in expected.layers]
    assert [layer.kind for layer in actual.layers] == [layer.kind for layer in expected.layers]
    for one, other in zip(actual.layers, expected.layers, strict=True):
        torch.testing.assert_close(one.weights.dense(), other.weights.dense(), atol=1e-5, rtol=0)
        assert one.weights.request.offset == other.weights.request.offset


IDS = torch.randint(3, 60, (2, 11), generator=torch.Generator().manual_seed(0))
LEFT = torch.ones(2, 11, dtype=torch.int64)
LEFT[1, :4] = 0
NAMES = ["LlamaModel", "Gemma2Model", "MistralModel", "Cohere2Model", "Qwen2Model", "BartModel", "Gemma3TextModel"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_dense_attention(name, padded):
    build.quiet()
    model = build.built(build.named(name)).eval()
    inputs = {"input_ids": IDS, "attention_mask": LEFT if padded else None}

    def run(model):
        return model(**inputs)

    model.set_attn_implementation("eager")
    with torch.no_grad():
        dense = model(**inputs, output_attentions=True)
    result, output = watched(model, "flex_attention", lambda model: model(**inputs, output_attentions=True))
    is_real = LEFT.bool() if padded else torch.ones_like(LEFT).bool()
    torch.testing.assert_close(output[0][is_real], dense[0][is_real], atol=1e-4, rtol=1e-4)
    expected, _ = watched(model, "eager", run)
    assert_same(result, expected)
    attentions = dense.attentions if "attentions" in dense else dense.decoder_attentions
    own = [layer for layer in result.layers if layer.kind == "decoder"]
    for layer, weights in zip(own, attentions, strict=True):
        rows = is_real[:, None].expand(weights.shape[:3])
        torch.testing.assert_close(layer.weights.dense()[rows], weights[rows], atol=1e-5, rtol=0)
    returned = output.attentions if "attentions" in output else output.decoder_attentions
    assert [type(weights) for weights in returned] == [regard.WeightMatrix] * len(returned)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("make", [llama, mistral])
def test_a_generation_is_one_matrix(make, padded):
    model = make(**{"sliding_window": 6} if make is mistral else {})

    def run(model):
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        return model.generate(IDS, attention_mask=LEFT if padded else None, pad_token_id=0, **options)

    expected, tokens = watched(model, "eager", run, ["received"])
    result, output = watched(model, "flex_attention", run, ["received"])
    assert torch.equal(output, tokens)
    assert len(result.recordings) == 1
    assert_same(result, expected)
    for one, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(one.measured["received"], other.measured["received"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_mask_tensor_is_added_as_it_is(dtype, heads):
    mask = torch.randn(2, heads, 11, 11, generator=torch.Generator().manual_seed(2))
    mask = mask > 0 if dtype == torch.bool else mask
    model = llama()
    result, _ = watched(model, "flex_attention", lambda model: model(IDS, attention_mask=mask))
    for layer in result.layers:
        request = layer.weights.request
        key = request.key.repeat_interleave(2, 1)
        scores = request.query @ key.mT * request.scale + mask[:, :1].float()
        torch.testing.assert_close(layer.weights.dense(), scores.softmax(-1), atol=1e-5, rtol=0)


def test_interventions():
    model = llama()
    layer = "model.layers.1.self_attn"
    changes = {"ablate": {layer: [2]}, "knockout": {layer: [(5, 2), (7, 7)]}}

    def run(model):
        return model(IDS, attention_mask=LEFT).logits

    expected, plain = watched(model, "sdpa", run, **changes)
    result, output = watched(model, "flex_attention", run, **changes)
    assert_same(result, expected)
    torch.testing.assert_close(output[LEFT.bool()], plain[LEFT.bool()], atol=1e-4, rtol=1e-4)


def test_padding_of_an_encoder():
    model = bert()
    padding = LEFT.flip(1)

    def run(model):
        return model(IDS, attention_mask=padding).last_hidden_state

    expected, _ = watched(model, "sdpa", run, ["received"])
    result, _ = watched(model, "flex_attention", run, ["received"])
    assert_same(result, expected)
    torch.testing.assert_close(
        result.layers[1].measured["received"], expected.layers[1].measured["received"], atol=1e-5, rtol=0
    )


def test_without_gradients_on_a_cpu_flex_attention_itself_refuses():
    model = llama()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"), regard.watch(model):
        model(IDS)


def test_a_module_that_passes_another_mask_is_refused():
    model = llama()
    model.set_attn_implementation("sdpa")
    message = "'sdpa', whose mask is not a tensor of all cells"
    attention = model.model.layers[0].self_attn
    embeddings = attention.rotary = model.model.rotary_emb(torch.randn(1, 4, 32), torch.arange(4)[None])
    with pytest.raises(InvalidArgument, match=message), regard.watch(attention), torch.no_grad():
        attention(torch.randn(1, 4, 32), embeddings, attention_mask=torch.ones(4, 4))
