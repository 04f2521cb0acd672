"""Gradients with respect to weights against those that autograd gives for dense attention."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest
import torch
from torch import nn

import regard
from helpers import weight_gradients_in_little_memory
from helpers.forked import start
from helpers.model_zoo.families import FAMILIES, LENGTH, attentions, built, padding
from regard.errors import InvalidArgument, InvalidType
from regard.ops import GradientMatrix

pytest.importorskip("transformers")


WINDOWED = {"mistral", "gemma2", "gemma3", "gpt_oss"}
"""Models whose padding has rows without keys, for which dense attention in float64 returns NaN."""


def dtype_of(name):
    return torch.float32 if name == "gpt_oss" else torch.float64  # its experts have no float64


def inputs_of(name):
    torch.manual_seed(1)
    inputs = FAMILIES[name].inputs().items()
    inputs = {key: each.to(dtype_of(name)) if each.is_floating_point() else each for key, each in inputs}
    return inputs | ({"attention_mask": padding("right")} if FAMILIES[name].padded and name not in WINDOWED else {})


def model_of(name, implementation="sdpa"):
    model = built(name).to(dtype_of(name))
    model.set_attn_implementation(implementation)
    return model


def loss_of(output):
    """Something that depends on all layers: of CLIP, on both of its models."""
    if hasattr(output, "text_model_output"):
        return output.logits_per_text.square().sum()
    first = output[0]
    return first[0].square().sum() + first[1, : LENGTH - 4].square().sum()


def dense_gradients(name):
    """The gradients that autograd gives for the weights of dense attention, and the weights."""
    dense = model_of(name, "eager")
    output = dense(**inputs_of(name), output_attentions=True)
    expected = attentions(output)
    for each in expected:
        each.retain_grad()
    loss_of(output).backward()
    return [each.grad for each in expected], expected


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, atol=tolerance * max(1.0, float(expected.abs().max())), rtol=0)


FLOAT32 = 2e-4
"""Tolerance where dense attention has its softmax in float32, as in Llama."""


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_transformers(name, implementation):
    expected, _ = dense_gradients(name)
    if implementation == "sdpa" and not FAMILIES[name].fused:
        implementation = "eager"
    model = model_of(name, implementation)
    plain = loss_of(model(**inputs_of(name)))
    plain.backward()
    of_parameters = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    with regard.watch(model, weight_gradients=True) as result:
        loss = loss_of(model(**inputs_of(name)))
        loss.backward()
    assert loss == plain
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == (of_parameters[key] is None)
        assert parameter.grad is None or torch.equal(parameter.grad, of_parameters[key])
    assert len(result.layers) == len(expected)
    for layer, gradient in zip(result.layers, expected, strict=True):
        assert isinstance(layer.weights.grad, GradientMatrix)
        assert layer.weights.grad.shape == layer.weights.shape
        close(
            layer.weights.grad.dense(),
            gradient,
            1e-5 if name == "gpt_oss" else FLOAT32 if implementation == "sdpa" else 1e-10,
        )


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "vit", "clip"])
def test_a_frozen_model(name):
    expected, _ = dense_gradients(name)
    model = model_of(name).requires_grad_(False)
    with regard.watch(model, weight_gradients=True) as result:
        output = model(**inputs_of(name))
    loss_of(output).backward()  # after the block
    for layer, gradient in zip(result.layers, expected, strict=True):
        close(layer.weights.grad.dense(), gradient, FLOAT32)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_checkpointed_layers(name, frozen):
    expected, _ = dense_gradients(name)
    model = model_of(name)
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.train().requires_grad_(not frozen)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout", "dropout_prob", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    with regard.watch(model, weight_gradients=True) as result:
        loss_of(model(**inputs_of(name))).backward()
    for layer, gradient in zip(result.layers, expected, strict=True):
        close(layer.weights.grad.dense(), gradient, FLOAT32)


def test_reentrant_checkpointing_is_refused():
    model = model_of("bert").train()
    model.activation_checkpointing_enable({"use_reentrant": True})
    embeddings = torch.randn(2, LENGTH, 32, dtype=torch.float64, requires_grad=True)
    message = (
        r"^weight_gradients: encoder.layer.1.attention.self is checkpointed in the reentrant way, in which its output "
        r"has no gradient; checkpoint with use_reentrant=False$"
    )
    with regard.watch(model, weight_gradients=True):
        output = model(inputs_embeds=embeddings)
        with pytest.raises(InvalidArgument, match=message):
            output[0].sum().backward()


def test_backward_passes_add_up_and_forward_passes_are_apart():
    model, inputs = model_of("bert"), inputs_of("bert")
    with regard.watch(model, weight_gradients=True) as result:
        first = model(**inputs)[0]
        weights = result.layers[0].weights
        first[0, 0].sum().backward(retain_graph=True)
        once = weights.grad.dense()
        first[0, 0].sum().backward()
        close(weights.grad.dense(), 2 * once)
        model(**inputs)[0][0, 0].sum().mul(3).backward()
    close(result.layers[0].weights.grad.dense(), 3 * once)
    close(result.recordings[0].layers[0].weights.grad.dense(), 2 * once)


def test_before_a_backward_pass():
    model, inputs = model_of("bert"), inputs_of("bert")
    with regard.watch(model, weight_gradients=True) as result:
        output = model(**inputs, output_attentions=True)
    name = "encoder.layer.0.attention.self"
    message = (
        rf"^{name}: no backward pass has reached the recorded layers yet; call loss.backward\(\) before you read grad$"
    )
    weights = result.layers[0].weights
    for each in (weights, weights.at(heads=1), output.attentions[0]):
        with pytest.raises(InvalidArgument, match=message):
            assert each.grad
    selected, part = result.recording.select(0), weights.at(batch=0, heads=[1, 3])
    assert selected.layers[0].weights.grad is None
    output[0][:, 0].sum().backward()
    assert selected.layers[0].weights.grad is None
    expected = weights.grad.dense()
    assert torch.equal(output.attentions[0].grad.dense(), expected)  # as after retain_grad
    assert torch.equal(part.grad.dense(), expected[:1, [1, 3]])
    later = result.recording.select(0)
    assert torch.equal(later.layers[0].weights.grad.dense(), expected[:1])
    assert torch.equal(pickle.loads(pickle.dumps(later)).layers[0].weights.grad.dense(), expected[:1])
    assert torch.equal(copy.deepcopy(later).layers[0].weights.at(heads=2).grad.dense(), expected[:1, 2:3])


def test_layers_that_the_loss_does_not_depend_on_have_none():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

        def forward(self, x):
            with torch.no_grad():
                third = self.other(x, x, x)[0]
            return self.one(x, x, x)[0], self.other(x, x, x)[0], third

    model, x = Two(), torch.randn(1, 3, 8)
    with regard.watch(model, weight_gradients=True) as result:
        model(x)[0].sum().backward()
    assert [layer.weights.grad is None for layer in result.layers] == [True, False, True]
    assert regard.weights(*torch.randn(2, 1, 1, 3, 4).unbind()).grad is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_without_gradients_is_refused_before_it_runs(mode):
    model, inputs, runs = model_of("bert"), inputs_of("bert"), []
    model.embeddings.register_forward_hook(lambda *_: runs.append(True))
    message = (
        r"^weight_gradients: BertModel runs without gradients, as under torch.no_grad\(\), torch.inference_mode\(\) "
        r"and in generate\(\); call it with gradients, or leave weight_gradients out$"
    )
    with pytest.raises(InvalidArgument, match=message), mode(), regard.watch(model, weight_gradients=True):
        model(**inputs)
    assert not runs
    writer = model_of("llama")
    with pytest.raises(InvalidArgument, match="runs without gradients"), regard.watch(writer, weight_gradients=True):
        writer.generate(torch.randint(3, 90, (1, 5)), max_new_tokens=2)


def test_wrong_arguments():
    model = model_of("bert")
    with pytest.raises(InvalidType, match=r"^weight_gradients: expected True or False, got 'yes'$"):
        regard.watch(model, weight_gradients="yes")
    with pytest.raises(InvalidArgument, match=r"^weight_gradients: they are kept with queries and keys only; pass "):
        regard.watch(model, ["entropy"], weight_gradients=True, keep_qk=False)


def test_some_heads_and_layers_and_where_they_are_kept(tmp_path):
    expected, _ = dense_gradients("llama")
    for options in ({}, {"offload": "cpu"}, {"offload": tmp_path}):
        model = model_of("llama")
        with regard.watch(model, weight_gradients=True, heads=[3, 0], layers=["model.layers.1"], **options) as result:
            loss_of(model(**inputs_of("llama"))).backward()
        (layer,) = result.layers
        close(layer.weights.grad.dense(), expected[1][:, [3, 0]], FLOAT32)
        assert layer.value is not None


def test_what_is_kept_is_counted():
    model = model_of("bert")
    with regard.watch(model, weight_gradients=True) as result:
        loss = loss_of(model(**inputs_of("bert")))
        before = result.nbytes
        loss.backward()
    assert result.nbytes - before == 2 * 2 * LENGTH * 32 * 8
    message = "^max_bytes: with encoder.layer.1.attention.self, the watch would keep"
    with regard.watch(model, weight_gradients=True, max_bytes=before + 100):
        loss = loss_of(model(**inputs_of("bert")))
        with pytest.raises(InvalidArgument, match=message):
            loss.backward()


def test_dropout_and_ablation():
    """The gradient of the weights that multiply the values: those after dropout."""
    model = model_of("bert", "eager").train()
    with regard.watch(model, weight_gradients=True, ablate={"encoder.layer.1.attention.self": [2]}) as result:
        output = model(**inputs_of("bert"), output_attentions=True)
        for each in output.attentions:
            each.retain_grad()
        loss_of(output).backward()
    for layer, weights in zip(result.layers, output.attentions, strict=True):
        close(layer.weights.grad.dense(), weights.grad)
    assert not result.layers[1].weights.grad[:, 2].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_and_autocast(dtype):
    expected, _ = dense_gradients("llama")
    model = model_of("llama").to(dtype)
    with regard.watch(model, weight_gradients=True) as result, torch.autocast("cpu", torch.bfloat16):
        loss_of(model(**inputs_of("llama"))).backward()
    for layer, gradient in zip(result.layers, expected, strict=True):
        actual = layer.weights.grad.dense()
        assert actual.dtype == torch.float32
        error = (actual - gradient).norm() / gradient.norm()
        assert error < 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_memory_is_linear(tmp_path):
    process = start(weight_gradients_in_little_memory.read, 150 * 10**6, errors=tmp_path / "errors")
    process.join(300)
    written = (tmp_path / "errors").read_text()
    assert written.startswith("ran\n"), written
    assert process.exitcode == 1
    assert "memory" in written
