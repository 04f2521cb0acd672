"""Models with a softmax of their own, watched by the adapters that are shipped: the model's own weights and output."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest
import torch

import regard
from helpers.adapted_models import FAMILIES, LENGTH, PADDED, WRITERS, built, dense, inputs
from regard.errors import InvalidArgument
from regard.watching import adapters
from regard.watching.adapters.shared import with_cache
from regard.watching.adapters.shipped import SHIPPED, shipped_adapter

pytest.importorskip("transformers")
import transformers as hf

NEW = 7
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def check(layers, attentions, atol=1e-6):
    """Compare weights with a model's own, except in rows that are left no key, which are uniform there."""
    for layer, expected in zip(layers, dense(attentions), strict=True):
        weights = layer.weights.dense()
        expected = expected * (weights.sum(-1, keepdim=True) > 0)
        torch.testing.assert_close(weights, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(
    ("name", "side"),
    [*((name, "none") for name in FAMILIES), *((name, side) for name in PADDED for side in ("left", "right"))],
)
def test_weights_and_output_are_those_of_the_unwatched_model(name, side):
    model, words = built(name), inputs(side)
    with torch.no_grad():
        expected, attentions = model(**words), model(**words, output_attentions=True).attentions
        with regard.watch(model, ["entropy", "received"]) as result:
            output = model(**words)
        with regard.watch(model) as again:
            model(**words, output_attentions=True)
    assert torch.equal(output[0], expected[0])
    assert any(float(each.std()) > 0.02 for each in dense(attentions))
    check(result.layers, attentions)
    check(again.layers, attentions)
    real = words.get("attention_mask")
    for layer, each in zip(result.layers, dense(attentions), strict=True):
        rows = each if real is None else each * real[:, None, :, None]
        torch.testing.assert_close(layer.measured["received"], rows.sum(2), atol=1e-5, rtol=1e-5)
        entropy = torch.special.entr(layer.weights.dense()).sum(-1)
        torch.testing.assert_close(layer.measured["entropy"], entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "side", "how"),
    [(name, side, how) for name in WRITERS for side in ("none", "left") for how in FAMILIES[name].writes],
)
def test_a_generation_is_one_matrix(name, side, how):
    model, words = built(name), inputs(side)
    options = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 2 if how == "beams" else 1}
    options |= {"cache_implementation": "static"} if how == "static" else {}
    options |= {"return_dict_in_generate": True, "output_scores": True, "use_cache": True}
    expected = model.generate(**words, **options)
    with regard.watch(model, ["entropy"]) as result:
        output = model.generate(**words, **options)
    assert torch.equal(output.sequences, expected.sequences)
    assert len(result.recordings) == 1
    selected = result.select_beams(output.beam_indices) if how == "beams" else result
    text = output.sequences[:, :-1]
    mask = words.get("attention_mask", torch.ones(2, LENGTH, dtype=torch.int64))
    mask = torch.cat((mask, torch.ones(2, NEW - 1, dtype=mask.dtype)), 1)
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    positions = positions if "position_ids" in inspect.signature(type(model).forward).parameters else {}
    with torch.no_grad():
        attentions = model(text, attention_mask=mask, **positions, output_attentions=True).attentions
    check(selected.layers, attentions, atol=5e-6)  # a prompt and its steps round in other places than the whole text
    for layer in selected.layers:
        torch.testing.assert_close(layer.measured["entropy"], layer.weights.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PADDED)
def test_measures_and_weights_have_the_gradients_of_the_models_own(name):
    model, words = built(name), inputs("right")
    parameters = [each for each in model.parameters() if each.requires_grad]
    valid = words["attention_mask"][:, None, :, None]
    weighing = [torch.randn(2, 4, LENGTH, LENGTH) for _ in range(2)]
    attentions = dense(model(**words, output_attentions=True).attentions)
    loss = sum((each.square() * other * valid).sum() for each, other in zip(attentions, weighing, strict=True))
    expected = torch.autograd.grad(loss, parameters, allow_unused=True)
    with regard.watch(model) as result:
        model(**words)
    weights = [layer.weights.dense() for layer in result.layers]
    loss = sum((each.square() * other * valid).sum() for each, other in zip(weights, weighing, strict=True))
    actual = torch.autograd.grad(loss, parameters, allow_unused=True)
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) <= (other is None)
        zero = torch.zeros(()) if one is None else torch.zeros_like(one)
        torch.testing.assert_close(zero if one is None else one, zero if other is None else other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.projects])
def test_gradients_of_the_weights_are_those_of_autograd(name):
    model, words = built(name), inputs("right")
    model_output = model(**words, output_attentions=True)
    attentions = dense(model_output.attentions)
    upstream = torch.randn_like(model_output[0])
    expected = torch.autograd.grad(model_output[0], attentions, upstream)
    with regard.watch(model, weight_gradients=True) as result:
        output = model(**words)[0]
    output.backward(upstream)
    for layer, each in zip(result.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.grad.dense(), each, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "missing"), [("xlnet", "to_heads"), ("bloom, in training", "to_heads")])
def test_gradients_that_cannot_be_followed_are_refused(name, missing):
    model = built(name.partition(",")[0]).train("training" in name)
    for module in model.modules():
        if hasattr(module, "hidden_dropout"):
            module.hidden_dropout = 0.5
    message = f"weight_gradients: the adapter of .* returns no {missing}.*layers="
    with pytest.raises(InvalidArgument, match=message), regard.watch(model, weight_gradients=True):
        model(**inputs())


@pytest.mark.parametrize("name", ["bloom", "deberta_v2", "xlnet"])
def test_selected_heads_layers_and_values(name):
    model, words = built(name), inputs("left")
    with torch.no_grad():
        attentions = dense(model(**words, output_attentions=True).attentions)
        with regard.watch(model) as result:
            model(**words)
        last = result.layers[-1].name
        with regard.watch(model, heads=[3, 1], layers=[last], keep_values=True, offload="cpu") as result:
            model(**words)
    (layer,) = result.layers
    weights = layer.weights.dense()
    assert layer.name == last
    assert layer.value.shape == (2, 2, LENGTH, 8)
    expected = attentions[-1][:, [3, 1]] * (weights.sum(-1, keepdim=True) > 0)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", PADDED)
def test_a_recording_is_saved_with_its_rules(name, tmp_path):
    model, words = built(name), inputs("right")
    with torch.no_grad(), regard.watch(model) as result:
        model(**words)
    result.recording.select(1).save(tmp_path / "run.regard")
    loaded = regard.load(tmp_path / "run.regard")
    for one, other in zip(loaded.layers, result.layers, strict=True):
        torch.testing.assert_close(one.weights.dense()[0], other.weights.dense()[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["bloom", "gptj", "deberta", "deberta_v2", "mpnet", "xlnet"])
def test_training_with_dropout_draws_the_same_numbers(name):
    model, words = built(name).train(), inputs("right")
    torch.manual_seed(2)
    expected = model(**words)[0]
    after = torch.rand(3)
    torch.manual_seed(2)
    with regard.watch(model, ["entropy"]) as result:
        output = model(**words)[0]
    assert torch.equal(output, expected)
    assert torch.equal(torch.rand(3), after)
    assert all(layer.measured["entropy"].requires_grad for layer in result.layers)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["bloom", "gptj", "gpt_neo", "deberta_v2"])
def test_gradient_checkpointing_changes_nothing(name):
    words, gradients = inputs("right"), []
    for checkpoints in (False, True):
        model = built(name).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        with regard.watch(model, ["entropy"]) as result:
            output = model(**words, **({"use_cache": False} if name in WRITERS else {}))[0]
            loss = output.sum() + sum(layer.measured["entropy"].sum() for layer in result.layers)
            loss.backward()
        assert len(result.layers) == 2
        gradients.append([each.grad for each in model.parameters() if each.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", ["segments", "permutation", "targets", "memory"])
def test_xlnet_with_two_streams_and_memory(options):
    model, words = built("xlnet"), inputs("left")
    if options == "segments":
        words["token_type_ids"] = torch.tensor([0] * 6 + [1] * 5 + [2] * 2).expand(2, -1)
    if options in ("permutation", "targets"):
        words["perm_mask"] = torch.zeros(2, LENGTH, LENGTH).masked_fill(torch.rand(2, LENGTH, LENGTH) < 0.3, 1.0)
        words["target_mapping"] = torch.eye(LENGTH)[[4, 9]].expand(2, -1, -1)
    if options == "permutation":
        words["target_mapping"] = torch.eye(LENGTH).expand(2, -1, -1)
    if options == "memory":
        words |= {"use_mems": True, "token_type_ids": torch.tensor([0] * 6 + [1] * 7).expand(2, -1)}
        with torch.no_grad():
            words["mems"] = [each[-5:] for each in model(**inputs(), use_mems=True).mems]
    with torch.no_grad():
        expected = model(**words, output_attentions=True)
        with regard.watch(model) as result:
            output = model(**words)
    assert torch.equal(output[0], expected[0])
    check(result.layers, expected.attentions)
    if options in ("permutation", "targets"):
        assert [layer.name.rpartition("rel_attn")[2] for layer in result.layers] == ["", "#2"] * 2


def test_memory_of_a_layer_grows_with_its_tokens_not_with_their_square():
    model, sizes = built("deberta_v2, buckets"), []
    for tokens in (256, 512):
        with torch.no_grad(), regard.watch(model, layers=["encoder.layer.1"]) as result:
            model.encoder(torch.randn(1, tokens, 32), torch.ones(1, tokens))
        (recorder,) = (layer._recorder for layer in result.layers)
        sizes.append(sum(tensor.nbytes for tensor in recorder.tensors))
    assert sizes[1] < 2.1 * sizes[0]


@pytest.mark.parametrize("name", ["falcon, one key head", "falcon, linear biases"])
def test_falcon_calls_torchs_attention_or_has_its_own(name):
    model, words = built(name), inputs("left")
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), regard.watch(model) as fused:
        model(**words)
    with torch.no_grad(), regard.watch(model) as result:
        attentions = model(**words, output_attentions=True).attentions
    check(result.layers, attentions)
    assert [layer.name for layer in fused.layers] == [layer.name for layer in result.layers]


def test_a_subclass_that_changes_a_method_has_no_adapter():
    from transformers.models.bloom.modeling_bloom import BloomAttention

    class Same(BloomAttention):
        """As it is."""

    class Changed(BloomAttention):
        def _reshape(self, fused_qkv):
            return super()._reshape(2 * fused_qkv)

    assert shipped_adapter(Same) is shipped_adapter(BloomAttention) is not None
    assert shipped_adapter(Changed) is None


def test_every_adapter_is_shipped_for_a_class_that_exists_and_is_tested():
    functions = set()
    for info in pkgutil.iter_modules(adapters.__path__):
        module = import_module(f"{adapters.__name__}.{info.name}")
        functions |= {
            each
            for name, each in vars(module).items()
            if inspect.isfunction(each)
            and list(inspect.signature(each).parameters) == ["module", "arguments", "output"]
        }
    assert functions == set(SHIPPED.values())
    of_images = "blip.BlipAttention", "blip.BlipTextSelfAttention", "flava.FlavaSelfAttention", "vilt.ViltSelfAttention"
    tested = {family.adapted for family in FAMILIES.values()}.union(of_images)  # test_adapters_vision.py
    for path in SHIPPED:
        place, _, name = path.rpartition(".")
        if place.startswith("transformers."):
            assert inspect.isclass(getattr(import_module(place), name))
            assert f"{place.split('.')[2]}.{name}" in tested


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_cache_that_does_not_keep_its_keys_is_refused():
    model = built("bloom")
    config = hf.MistralConfig(sliding_window=4, num_hidden_layers=2)
    cache = hf.DynamicCache(config=config)
    message = "a cache with a DynamicSlidingWindowLayer does not keep the keys .* use a DynamicCache"
    with pytest.raises(InvalidArgument, match=message), regard.watch(model), torch.no_grad():
        model(**inputs(), past_key_values=cache)


def test_an_unknown_name_of_the_cache_is_refused():
    tensor = torch.ones(1, 1, 2, 2)
    with pytest.raises(InvalidArgument, match="no argument for a KV cache among layer_past, past_key_values, cache"):
        with_cache({"past": None}, 0, tensor, tensor)
