"""Models of transformers whose attention is unusual: each is exact, or refused for the right reason."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from helpers.pairwise import everything
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
from helpers.model_zoo import build  # noqa: E402
from helpers.model_zoo.families import SMALL, built, padding  # noqa: E402
from helpers.model_zoo.outcome import _same, accepted, run, tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def small(name):
    build.quiet()
    model = build.built(build.named(name))
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model


IDS = torch.randint(3, 90, (2, 7), generator=torch.Generator().manual_seed(0))
WRITING = {"max_new_tokens": 5, "do_sample": False, "use_cache": True}


def test_calls_with_the_same_query_and_key_are_one_layer():
    model = small("DiffLlamaForCausalLM")
    expected = model.generate(IDS, **WRITING)
    with regard.watch(model, ["entropy", "received"], keep_values=True) as result:
        output = model.generate(IDS, **WRITING)
    assert torch.equal(output, expected)
    for layer in result.layers:
        assert layer.weights.shape == (2, 4, 11, 11)
        assert layer.measured["entropy"].shape == (2, 4, 11)
        torch.testing.assert_close(layer.measured["received"], layer.weights.received())
        assert layer.value is None  # several values


class Twice(nn.Module):
    def forward(self, x, y):
        once = functional.scaled_dot_product_attention(x, x, y)
        return once + functional.scaled_dot_product_attention(x, x, -y)


def test_equal_chunks_are_not_one_call():
    x = torch.randn(1, 2, 5, 8)
    with regard.watch(Twice()) as result:
        result.model(x, x)
    assert [layer.name for layer in result.layers] == [""]

    class Chunks(nn.Module):
        def forward(self, x):
            return [functional.scaled_dot_product_attention(part, part, part) for part in x.chunk(2)]

    with regard.watch(Chunks()) as result:
        result.model(torch.cat([x, x]))
    assert [layer.name for layer in result.layers] == ["", "#2"]


@pytest.mark.parametrize(
    "name",
    ["DeepseekV32", "GlmMoeDsa", "AXK2", "HYV4", "Doge", "Qwen4Exp"] if everything() else ["DeepseekV32", "Doge"],
)
def test_a_generation_with_masks_of_the_layer_s_own_is_one_matrix(name):
    model = small(f"{name}ForCausalLM")
    expected = model.generate(IDS, **WRITING)
    with regard.watch(model, ["entropy", "received"]) as result:
        output = model.generate(IDS, **WRITING)
    assert torch.equal(output, expected)
    assert len(result.recordings) == 1
    for layer in result.layers:
        assert layer.kind == "decoder"
        assert layer.weights.shape == (2, 4, 11, 11)
        assert not layer.weights.dense().triu(1).any()
        torch.testing.assert_close(layer.weights.dense().sum(-1), torch.ones(2, 4, 11))
        for measure, reference in layer.weights.measure("entropy", "received").items():
            torch.testing.assert_close(layer.measured[measure], reference, atol=1e-5, rtol=1e-5)
    pairs = {result.layers[-1].name: [(9, 3)]}
    with regard.watch(model, knockout=pairs) as changed:
        model.generate(IDS, **WRITING)
    assert not changed.layers[-1].weights[:, :, 9, 3].any()
    assert changed.layers[-1].weights[:, :, 8, 3].all() == result.layers[-1].weights[:, :, 8, 3].all()


def test_self_and_cross_attention_in_one_softmax():
    model = small("T5Gemma2ForConditionalGeneration")
    expected = model.generate(IDS, **WRITING)
    with regard.watch(model, ["entropy", "received", regard.TopK(12)]) as result:
        actual = model.generate(IDS, **WRITING)
    assert torch.equal(actual, expected)
    assert len(result.recordings) == 1
    dense = copy.deepcopy(model)
    dense.set_attn_implementation("eager")
    with torch.no_grad():
        output = dense(input_ids=IDS, decoder_input_ids=actual[:, :-1], output_attentions=True)
    for layer, self_weights, cross in zip(
        result.layers.decoder, output.decoder_attentions, output.cross_attentions, strict=True
    ):
        expected = torch.cat([cross, self_weights], -1)  # the encoder's tokens come first
        torch.testing.assert_close(layer.weights.dense(), expected, atol=1e-5, rtol=0)
        for measure in ("entropy", "received"):
            reference = layer.weights.measure(measure)[measure]
            torch.testing.assert_close(layer.measured[measure], reference, atol=1e-5, rtol=1e-5)
        values, indices = layer.measured["topk"]
        torch.testing.assert_close(
            values, expected.gather(-1, indices.clamp(min=0)) * (indices >= 0), atol=1e-5, rtol=0
        )


def test_steps_with_compressed_keys_are_not_joined_and_the_error_says_why():
    model = small("DeepseekV4ForCausalLM")
    expected = model.generate(IDS, **WRITING)
    with regard.watch(model, ["entropy"]) as result:
        output = model.generate(IDS, **WRITING)
    assert torch.equal(output, expected)
    with pytest.raises(InvalidArgument, match="it attends to compressed keys, and later steps had more"):
        assert result.layers[2].measured
    assert result.layers[0].weights.shape == (2, 4, 11, 11)


CASTING = ["DeepseekV3Model", "MiniCPM3Model", "Aimv2Model", "ParakeetEncoder", "CanaryModel", "BertModel", "T5Model"]


@pytest.mark.parametrize("name", list(build.classes()) if everything() else CASTING)
def test_autocast_changes_nothing_but_the_dtype(name):
    try:
        model = small(name)
        inputs, _ = accepted(model)
        with torch.autocast("cpu", torch.bfloat16):
            expected = run(model, inputs)
    except Exception as error:  # noqa: BLE001 (a model that cannot be built, or does not run so, is no case)
        pytest.skip(str(error))
    with torch.autocast("cpu", torch.bfloat16):
        try:
            with regard.watch(model, ["entropy"]) as result:
                output = run(model, inputs)
        except InvalidArgument as error:
            assert name not in CASTING
            assert "query" not in str(error)  # noqa: PT017
            return
    assert all(map(_same, tensors(output), tensors(expected)))
    if name in CASTING:
        assert {layer.weights.request.query.dtype for layer in result.layers} == {torch.bfloat16}


def test_the_error_for_attention_that_was_not_called():
    model = built("bert")
    message = "nothing was recorded: the model was not called, or only a part of it without attention"
    with pytest.raises(InvalidArgument, match=message), regard.watch(model):
        model.embeddings(IDS)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8)
    with pytest.raises(InvalidArgument, match=r"its attention was not called \(self_attn\)$"), regard.watch(layer):
        layer.linear1(torch.zeros(1, 8))


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_measures_of_cross_attention_that_is_checkpointed(name, reentrant):
    gradients = []
    for checkpointed in (False, True):
        model = built(name).train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.config.dropout = model.config.dropout_rate = 0.0
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        inputs = {"input_ids": IDS, "attention_mask": padding("right")[:, -7:], "decoder_input_ids": IDS[:, :5]}
        inputs["decoder_attention_mask"] = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
        with regard.watch(model, ["received", "entropy"]) as result:
            loss = model(**inputs, use_cache=False)[0].pow(2).mean()
            if not reentrant:
                loss = loss + sum(layer.measured["received"].pow(2).mean() for layer in result.layers)
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class CrossEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross_encoder = built("bert")

    def forward(self, ids):
        return self.cross_encoder(ids)


def test_self_attention_within_a_cross_encoder_is_self_attention():
    with regard.watch(CrossEncoder()) as result, torch.no_grad():
        result.model(IDS)
    assert {layer.kind for layer in result.layers} == {"encoder"}
    decoder = transformers.BertModel(transformers.BertConfig(**SMALL, is_decoder=True, add_cross_attention=True)).eval()
    with regard.watch(decoder) as result, torch.no_grad():
        decoder(IDS, encoder_hidden_states=torch.randn(2, 5, 32))
    assert [layer.kind for layer in result.layers] == ["decoder", "cross"] * 2


def test_attentions_are_those_of_the_model():
    model, mask = built("t5"), padding("none")
    inputs = {"input_ids": torch.randint(3, 90, (2, 11)), "attention_mask": mask, "decoder_input_ids": IDS[:, :5]}
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs)
    dense = copy.deepcopy(model)
    dense.set_attn_implementation("eager")
    with torch.no_grad():
        output = dense(**inputs, output_attentions=True)
    expected = {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }
    for kind, weights in expected.items():
        torch.testing.assert_close(result.attentions(kind), weights, atol=1e-5, rtol=0)
    with pytest.raises(InvalidArgument, match="kind: expected one of cross, decoder, encoder"):
        result.attentions()
    with pytest.raises(InvalidArgument, match="limit: the layers have 1,936 cells, more than 100"):
        result.attentions("encoder", limit=100)


def test_the_name_of_a_module_selects_the_attention_inside():
    model = built("bert")
    with regard.watch(model, layers=["encoder.layer.1"]) as result, torch.no_grad():
        model(IDS)
    assert [layer.name for layer in result.layers] == ["encoder.layer.1.attention.self"]


def test_checkpointing_without_a_backward_pass_warns():
    model = built("bert").train()
    model.gradient_checkpointing_enable()
    with (
        pytest.warns(UserWarning, match=r"run loss\.backward\(\) inside the with block"),
        regard.watch(model, "entropy"),
    ):
        loss = model(IDS)[0].sum()
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        loss.backward()


@pytest.mark.parametrize("layer", [nn.MultiheadAttention, nn.TransformerEncoderLayer])
def test_torch_s_fast_path_is_the_only_difference(layer):
    """A documented exception of `watch`: hooks disable it, and its rounding differs."""
    torch.manual_seed(0)
    model, x = layer(32, 4, batch_first=True).eval(), torch.randn(2, 9, 32)
    args = (x, x, x) if layer is nn.MultiheadAttention else (x,)
    with torch.no_grad():
        expected = model(*args)
        with regard.watch(model):
            output = model(*args)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    expected = model(*args)  # with gradients there is no fast path
    with regard.watch(model):
        output = model(*args)
    assert all(map(_same, tensors(output), tensors(expected)))
