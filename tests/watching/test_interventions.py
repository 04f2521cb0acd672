"""Ablated heads and knocked-out cells against models that are changed by hand."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import FAMILIES, LENGTH, built, eager
from regard.errors import InvalidArgument

OUTPUTS = {
    "bert": ("encoder.layer.1.attention.self", "encoder.layer.1.attention.output.dense"),
    "llama": ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj"),
    "t5": ("decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.1.EncDecAttention.o"),
    "gemma2": ("model.layers.1.self_attn", "model.layers.1.self_attn.o_proj"),
}


def given_to(name):
    torch.manual_seed(1)
    return FAMILIES[name].inputs()


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_ablated_head_equals_zeros_in_the_output_projection(name):
    model, inputs = built(name), given_to(name)
    path, projection = OUTPUTS[name]
    with regard.watch(model, ablate={path: [0, 2]}) as result, torch.no_grad():
        output = model(**inputs)[0]
    assert result.layers[path].weights.shape[1] == 4
    with torch.no_grad():
        untouched = model(**inputs)[0]
        weight = model.get_submodule(projection).weight
        width = weight.shape[1] // 4
        weight[:, :width] = 0
        weight[:, 2 * width : 3 * width] = 0
        expected = model(**inputs)[0]
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(output, untouched, atol=1e-3)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_a_knocked_out_cell_equals_a_masked_one(name):
    model, inputs = built(name), given_to(name)
    layers = [path for path, _ in model.named_modules() if path.endswith(("attention.self", "self_attn", ".attn"))]
    pairs = [(5, 2), (5, 5), (9, 0)]
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    allowed = allowed if name == "bert" else allowed.tril()
    for query, key in pairs:
        allowed[query, key] = False
    with regard.watch(model, knockout=dict.fromkeys(layers, pairs)) as result, torch.no_grad():
        output = model(**inputs)[0]
    dense = eager(model)
    with torch.no_grad():
        mask = allowed[None, None].expand(2, -1, -1, -1)
        expected = dense(**inputs, attention_mask=torch.where(mask, 0.0, torch.finfo(torch.float32).min))[0]
    for layer in result.layers:
        assert not layer.weights.dense()[:, :, ~allowed].any()
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)


def test_a_generation_without_a_cell():
    model = built("gpt2")
    ids = torch.randint(3, 90, (1, LENGTH))
    name = "transformer.h.0.attn"
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 5, "do_sample": False}
    with regard.watch(model, knockout={name: [(LENGTH + 2, 3), (4, 1)]}) as result:
        model.generate(**options)
    weights = result.layers[name].weights.dense()
    assert not weights[0, :, LENGTH + 2, 3].any()
    assert not weights[0, :, 4, 1].any()
    assert (weights[0, :, LENGTH + 1, 3] > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ablate": {"h.0.atn": [0]}}, "ablate: unknown module 'h.0.atn', did you mean 'h.0.attn'"),
        ({"ablate": {"h.0.attn": [-1]}}, "ablate: expected indices of heads from 0 for h.0.attn, got -1"),
        (
            {"knockout": {"h.0.attn": [(1, 2, 3)]}},
            r"knockout: expected pairs of positions from 0 for h.0.attn, got \(1, 2, 3\)",
        ),
    ],
)
def test_invalid_arguments_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        regard.watch(built("gpt2").transformer, **options)


def test_missing_heads_and_modules_that_cannot_be_changed():
    model, inputs = built("gpt2"), given_to("gpt2")
    result = regard.watch(model, ablate={"transformer.h.0.attn": [4]})
    with pytest.raises(InvalidArgument, match=r"ablate: expected heads below 4 for .*h\.0\.attn, got 4"), result:
        model(**inputs)
    layer = torch.nn.MultiheadAttention(8, 2)
    result = regard.watch(torch.nn.Sequential(layer), ablate={"0": [0]})
    with pytest.raises(InvalidArgument, match="is a MultiheadAttention, which can be watched but not changed"), result:
        layer(*[torch.randn(3, 1, 8)] * 3)


def test_a_reused_watch_must_reach_its_pairs_again():
    model = built("gpt2")
    watch = regard.watch(model, knockout={"transformer.h.0.attn": [(5, 2)]})
    with watch, torch.no_grad():
        model(torch.randint(3, 90, (1, 8)))
    with pytest.raises(InvalidArgument, match="may query 5 attend to key 2"), watch, torch.no_grad():
        model(torch.randint(3, 90, (1, 4)))


def test_a_pair_that_is_masked_anyway_is_named():
    model = built("gpt2")
    watch = regard.watch(model, knockout={"transformer.h.0.attn": [(2, 5)]})
    with pytest.raises(InvalidArgument, match=r"may query 2 attend to key 5; pairs are \(query, key\)"), watch:
        model(torch.randint(3, 90, (1, 8)))
