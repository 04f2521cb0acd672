"""`exact_output=False`: the output comes from the pass that computes the measures, equal to the model's to rounding."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import FAMILIES, LENGTH, built, padding
from regard.errors import InvalidType
from regard.ops.kernels.native.kernel import Native
from regard.ops.measures import Measure

pytest.importorskip("transformers")
NEEDS_NATIVE = pytest.mark.skipif(Native().unavailable_reason() is not None, reason="needs the native kernel")
CASES = [(name, side) for name, family in FAMILIES.items() for side in ("none", *(["left", "right"] * family.padded))]
MEASURES = ["entropy", "received"]


class Largest(Measure):
    """The largest weight of each row, which only the kernels for any measure compute."""

    axis = "queries"

    def compute(self, block):
        return block.weights.amax(-1)


def inputs_of(name: str, side: str = "none"):
    torch.manual_seed(1)
    inputs = FAMILIES[name].inputs()
    return inputs | ({"attention_mask": padding(side)} if FAMILIES[name].padded else {})


@pytest.fixture
def sdpa_calls(monkeypatch):
    """The number of calls of torch's SDPA, as a list of their shapes."""
    shapes, sdpa = [], torch.nn.functional.scaled_dot_product_attention

    def count(query, *args, **options):
        shapes.append(tuple(query.shape))
        return sdpa(query, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
    return shapes


def run(model, inputs, exact: bool, **options):
    torch.manual_seed(2)
    with regard.watch(model, **{"measure": MEASURES, "exact_output": exact} | options) as result:
        output = model(**inputs)[0]
    return output, result


def equal_to_rounding(actual, expected, scale: float = 1.0):
    torch.testing.assert_close(actual, expected, atol=scale * 2e-5 * float(expected.abs().max().clamp(min=1)), rtol=0)


@pytest.mark.parametrize(("name", "side"), CASES)
def test_output_and_measures_equal_those_of_the_exact_watch(name, side):
    model, inputs = built(name), inputs_of(name, side)
    with torch.no_grad():
        expected, exact = run(model, inputs, True)
        actual, fused = run(model, inputs, False)
    mask = inputs.get("attention_mask")
    if mask is not None and mask.shape == expected.shape[:2]:  # a padded query may have no key
        actual, expected = actual[mask.bool()], expected[mask.bool()]
    equal_to_rounding(actual, expected)
    for layer, other in zip(fused.layers, exact.layers, strict=True):
        rows = other.weights.valid_queries
        rows = torch.ones(other.weights.shape[0], other.weights.shape[2], dtype=torch.bool) if rows is None else rows
        for name in ("entropy", "received"):
            value, reference = layer.measured[name], other.measured[name]
            if name == "entropy":
                value, reference = value * rows[:, None], reference * rows[:, None]
            equal_to_rounding(value, reference)


@NEEDS_NATIVE
@pytest.mark.parametrize("name", ["bert", "llama", "bart", "vit"])
def test_sdpa_is_not_called(name, sdpa_calls):
    model, inputs = built(name), inputs_of(name)
    with torch.no_grad():
        run(model, inputs, True)
        assert len(sdpa_calls) > 0
        sdpa_calls.clear()
        run(model, inputs, False)
    assert sdpa_calls == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    model, inputs = built("llama").to(dtype), inputs_of("llama")
    with torch.no_grad():
        expected = built("llama").double()(**inputs)[0]
        (exact, _), (actual, result) = run(model, inputs, True), run(model, inputs, False)
    assert actual.dtype == dtype
    error = (actual - expected).abs().max()
    assert error <= 2 * (exact - expected).abs().max() + 1e-12
    assert result.layers[0].measured["entropy"].isfinite().all()


def test_autocast():
    model, inputs = built("bert"), inputs_of("bert")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        (exact, _), (actual, _) = run(model, inputs, True), run(model, inputs, False)
    assert actual.dtype == exact.dtype
    torch.testing.assert_close(actual, exact, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_gradients_through_output_and_measures(name, checkpointed):
    gradients = []
    for exact in (True, False):
        model, inputs = built(name), inputs_of(name, "right")
        if checkpointed:
            model.activation_checkpointing_enable()
            model.train()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
                for attribute in ("attention_dropout", "dropout_prob"):
                    if isinstance(getattr(module, attribute, None), float):
                        setattr(module, attribute, 0.0)
        torch.manual_seed(2)
        with regard.watch(model, MEASURES, exact_output=exact) as result:
            loss = model(**inputs)[0][:, : LENGTH - 4].square().mean()
            for layer in result.layers:
                loss = loss + layer.measured["entropy"][0].mean() + layer.measured["received"].square().mean()
            loss.backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    for key, expected in gradients[0].items():
        assert (expected is None) == (gradients[1][key] is None)
        if expected is not None:
            equal_to_rounding(gradients[1][key], expected, scale=10)


EXACT = {
    "no measures": {"measure": ()},
    "some heads": {"heads": [0, 2]},
    "a measure of the user": {"measure": Largest()},
}


@pytest.mark.parametrize("options", EXACT.values(), ids=EXACT)
def test_calls_that_the_kernel_cannot_fuse_stay_exact(options):
    model, inputs = built("bert"), inputs_of("bert", "right")
    with torch.no_grad():
        expected = model(**inputs)[0]
        actual, result = run(model, inputs, False, **options)
    assert torch.equal(actual, expected)
    assert len(result.layers) == 2


def test_layers_that_are_not_recorded_and_dense_attention_stay_exact(sdpa_calls):
    model, inputs = built("bert"), inputs_of("bert")
    with torch.no_grad():
        run(model, inputs, False, layers=["encoder.layer.1"])
        assert len(sdpa_calls) == 1
        model.set_attn_implementation("eager")
        expected = model(**inputs)[0]
        actual, _ = run(model, inputs, False)
    assert torch.equal(actual, expected)


def test_dropout_of_weights_is_that_of_the_model():
    model, inputs = built("bert").train(), inputs_of("bert")
    assert model.config.attention_probs_dropout_prob > 0
    torch.manual_seed(2)
    expected = model(**inputs)[0]
    actual, result = run(model, inputs, False)
    assert torch.equal(actual, expected)
    torch.testing.assert_close(result.layers[0].weights.entropy(), result.layers[0].measured["entropy"])


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_generation_writes_the_same_text(name):
    model, ids = built(name), torch.randint(3, 90, (2, LENGTH))
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 6}
    results = []
    for exact in (True, False):
        with regard.watch(model, MEASURES, exact_output=exact) as result:
            text = model.generate(ids, **options)
        results.append((text, result))
    assert torch.equal(results[0][0], results[1][0])
    for layer, other in zip(results[1][1].layers, results[0][1].layers, strict=True):
        for name in MEASURES:
            equal_to_rounding(layer.measured[name], other.measured[name], scale=10)


def test_interventions_change_the_output():
    model, inputs = built("llama"), inputs_of("llama")
    changes = {
        "ablate": {"model.layers.0.self_attn": [1]},
        "knockout": {"model.layers.1.self_attn": [(5, 2), (9, 0)]},
    }
    with torch.no_grad():
        (expected, _), (actual, result) = run(model, inputs, True, **changes), run(model, inputs, False, **changes)
        unchanged = model(**inputs)[0]
    equal_to_rounding(actual, expected)
    assert not torch.allclose(actual, unchanged, atol=1e-3)
    assert not result.layers[1].weights[:, :, 5, 2].any()


def test_keep_values():
    model, inputs = built("bert"), inputs_of("bert")
    with torch.no_grad():
        assert run(model, inputs, False)[1].layers[0].value is None
        layer = run(model, inputs, False, keep_values=True)[1].layers[0]
    assert layer.value.shape == (2, 4, LENGTH, 8)


def test_the_argument_is_a_bool():
    with pytest.raises(InvalidType, match="exact_output: expected True or False, got 'no'"):
        regard.watch(torch.nn.Linear(2, 2), exact_output="no")
