"""Models of transformers, watched in one forward pass: unchanged, and equal to what their dense attention gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from helpers.model_zoo.families import FAMILIES, attentions, built, eager, padding
from regard.errors import InvalidArgument, InvalidType
from regard.ops.measures import Measure
from regard.watching.transformers_attention import call_from_transformers
from regard.watching.transformers_masks import MaskOrigins

pytest.importorskip("transformers")
CASES = [(name, side) for name, family in FAMILIES.items() for side in ("none", *(["left", "right"] * family.padded))]


def inputs_of(name, side):
    torch.manual_seed(1)
    inputs = FAMILIES[name].inputs()
    return inputs | ({"attention_mask": padding(side)} if FAMILIES[name].padded else {})


@pytest.mark.parametrize(("name", "side"), CASES)
def test_outputs_are_unchanged_and_weights_are_those_of_dense_attention(name, side):
    model, inputs = built(name), inputs_of(name, side)
    assert model.config._attn_implementation == ("sdpa" if FAMILIES[name].fused else "eager")
    with torch.no_grad():
        expected = model(**inputs)
        with regard.watch(model, ["entropy", "received"]) as result:
            output = model(**inputs)
        dense = attentions(eager(model)(**inputs, output_attentions=True))
    assert torch.equal(output[0], expected[0])
    assert len(result.layers) == len(dense)
    for layer, reference in zip(result.layers, dense, strict=True):
        weights = layer.weights.dense()
        some = weights.sum(-1, keepdim=True) > 0  # a row that sees no key is 0, where dense attention makes it uniform
        reference = reference * some
        torch.testing.assert_close(weights, reference, atol=1e-5, rtol=0)
        real = (
            torch.ones(reference.shape[0], reference.shape[2])
            if layer.weights.valid_queries is None
            else layer.weights.valid_queries
        )
        torch.testing.assert_close(
            layer.measured["received"], (reference * real[:, None, :, None]).sum(2), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(
            layer.measured["entropy"], torch.special.entr(reference).sum(-1), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_unchanged(name):
    model, inputs = built(name), inputs_of(name, "right")
    gradients = []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            with regard.watch(model, "received", keep_qk=False):
                total = model(**inputs)[0].square().mean()
        else:
            total = model(**inputs)[0].square().mean()
        total.backward()
        gradients.append([None if each.grad is None else each.grad.clone() for each in model.parameters()])
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_kinds_names_and_order():
    model = built("bart")
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs_of("bart", "none"))
    assert [layer.kind for layer in result.layers] == ["encoder"] * 2 + ["decoder", "cross"] * 2
    assert [layer.name for layer in result.layers.cross] == [f"model.decoder.layers.{i}.encoder_attn" for i in range(2)]
    assert result.layers["model.encoder.layers.1.self_attn"].name == result.layers.encoder[1].name
    with pytest.raises(InvalidArgument, match=r"did you mean 'model\.encoder\.layers\.1\.self_attn'"):
        result.layers["model.encoder.layer.1.self_attn"]


def test_a_module_that_is_used_again_is_another_layer():
    model = built("albert")
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs_of("albert", "none"))
    first, second = result.layers
    assert second.name == f"{first.name}#2"


def test_passes_are_kept_apart_and_chosen_layers_and_heads_are_kept():
    model = built("llama")
    chosen = "model.layers.1.self_attn"
    with regard.watch(model, layers=[chosen], heads=[3, 1]) as result, torch.no_grad():
        for _ in range(3):
            model(**inputs_of("llama", "left"), use_cache=False)
    with regard.watch(model) as full, torch.no_grad():
        model(**inputs_of("llama", "left"), use_cache=False)
    assert len(result.recordings) == 3
    assert [layer.name for layer in result.layers] == [chosen]
    torch.testing.assert_close(result.layers[chosen].weights.dense(), full.layers[chosen].weights.dense()[:, [3, 1]])


@pytest.mark.parametrize("name", FAMILIES)
def test_chosen_heads_of_every_family(name):
    model = built(name)
    inputs = inputs_of(name, "right" if FAMILIES[name].padded else "none")
    with regard.watch(model) as full, torch.no_grad():
        model(**inputs)
    with regard.watch(model, "received", heads=[3, 1]) as result, torch.no_grad():
        model(**inputs)
    assert len(result.layers) == len(full.layers)
    for some, every in zip(result.layers, full.layers, strict=True):
        dense = every.weights.dense()[:, [3, 1]]
        torch.testing.assert_close(some.weights.dense(), dense)
        valid = every.weights.valid_queries
        real = dense if valid is None else dense * valid[:, None, :, None]
        torch.testing.assert_close(some.measured["received"], real.sum(2))


@pytest.mark.parametrize("positions", ["alibi", "t5", "relative", "rotary"])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        regard.Causal(),
        torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(3)) > -1,
        lambda batch, head, query, key: (key <= query) | (head == 3),
        regard.Causal() & (lambda batch, head, query, key: (query - key) <= head),
    ],
    ids=["none", "causal", "dense", "function", "both"],
)
def test_chosen_heads_of_layers_of_this_library(tmp_path, positions, mask):
    torch.manual_seed(0)
    rule = {
        "alibi": regard.nn.AlibiPositions(4),
        "t5": regard.nn.T5Positions(4, bidirectional=True),
        "relative": regard.nn.RelativePositions(8),
        "rotary": regard.nn.RotaryPositions([1.0, 0.1, 0.01]),
    }[positions]
    layer = regard.nn.MultiHeadAttention(32, 4, num_kv_heads=2, positions=rule).eval()
    x = torch.randn(1, 7, 32)
    with regard.watch(layer) as full, torch.no_grad():
        layer(x, mask=mask)
    with regard.watch(layer, ["received", "entropy"], heads=[3, 1]) as result, torch.no_grad():
        layer(x, mask=mask)
    dense = full.layers[0].weights.dense()[:, [3, 1]]
    torch.testing.assert_close(result.layers[0].weights.dense(), dense)
    torch.testing.assert_close(result.layers[0].measured["received"], dense.sum(2))
    torch.testing.assert_close(result.layers[0].weights[0, 1, 4], dense[0, 1, 4])
    result.recording.select().save(tmp_path / "some.regard")
    torch.testing.assert_close(regard.load(tmp_path / "some.regard").layers[0].weights.dense(), dense)


def test_a_loss_on_attention_reaches_the_weights_of_a_fused_model():
    model, other, inputs = built("gpt2"), None, inputs_of("gpt2", "none")
    other = eager(model)
    with regard.watch(model, "entropy", keep_qk=False) as result:
        model(**inputs)
    sum(layer.measured["entropy"].mean() for layer in result.layers).backward()
    dense = attentions(other(**inputs, output_attentions=True))
    sum(-(each * each.clamp(min=1e-30).log()).sum(-1).mean() for each in dense).backward()
    for name, parameter in model.named_parameters():
        expected = other.get_parameter(name).grad
        assert (parameter.grad is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(parameter.grad, expected, atol=1e-5, rtol=1e-4)


def test_a_checkpointed_layer_is_recorded_once():
    model = built("llama").train()
    model.activation_checkpointing_enable()
    with regard.watch(model, "entropy") as result:
        model(**inputs_of("llama", "none"), use_cache=False)[0].sum().backward()
    assert len(result.recordings) == 1
    assert result.layers[0].weights.shape == (2, 4, 11, 11)


def test_output_attentions_of_fused_attention_are_lazy():
    model, inputs = built("bert"), inputs_of("bert", "right")
    with regard.watch(model) as result, torch.no_grad():
        returned = model(**inputs, output_attentions=True).attentions
    for layer, view in zip(result.layers, returned, strict=True):
        assert isinstance(view, regard.WeightMatrix)
        assert torch.equal(view.dense(), layer.weights.dense())


def test_everything_is_as_before_also_after_an_error():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, before = built("bert"), dict(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(IndexError), regard.watch(model):
        model(torch.full((1, 3), 99))  # not in the vocabulary
    assert dict(ALL_ATTENTION_FUNCTIONS) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_two_models_are_watched_at_once_and_one_not_twice():
    one, other = built("bert"), built("gpt2")
    first, second = regard.watch(one, "entropy"), regard.watch(other, "entropy")
    first.__enter__()
    with second, torch.no_grad():
        with (
            pytest.raises(InvalidArgument, match="BertModel is being watched already"),
            regard.watch(one),
        ):
            pass
        one(**inputs_of("bert", "none"))
        first.__exit__(None, None, None)
        one(**inputs_of("bert", "none"))
        other(**inputs_of("gpt2", "none"))
    assert [len(each.result.recordings) for each in (first, second)] == [1, 1]
    assert len(second.result.layers) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ["h.0.atn"]}, "layers: unknown module 'h.0.atn', did you mean 'h.0.attn'"),
        ({"keep_qk": False}, "keep_qk: False keeps only measures; pass measure="),
        ({"heads": [0, -1]}, "heads: expected indices from 0, got -1"),
    ],
)
def test_invalid_arguments_are_named(options, message):
    with pytest.raises(InvalidArgument, match=message):
        regard.watch(built("gpt2").transformer, **options)


def test_invalid_models_and_heads_are_refused():
    with pytest.raises(InvalidType, match=r"model: expected a torch\.nn\.Module, got str"):
        regard.watch("gpt2")
    model, inputs = built("gpt2"), inputs_of("gpt2", "none")
    with (
        pytest.raises(InvalidArgument, match=r"heads: expected indices below 4, .*, got 4"),
        regard.watch(model, heads=[0, 4]),
    ):
        model(**inputs)


def test_a_watch_without_any_attention_is_an_error():
    model = torch.nn.Linear(3, 3)
    with (
        pytest.raises(InvalidArgument, match=r"Linear: nothing was recorded: no attention was found in its code$"),
        regard.watch(model),
    ):
        model(torch.zeros(1, 3))
    with (
        pytest.raises(InvalidArgument, match=r"Linear: nothing was recorded: the model was not called, or only"),
        regard.watch(model),
    ):
        pass


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_gets_its_window_as_a_number(causal):
    """It is given no mask; it takes a GPU, so that its call is read alone."""
    query, key = torch.randn(2, 1, 2, 9, 4)
    options = {"sliding_window": 3, "is_causal": causal, "scaling": 0.5}
    module, masks = torch.nn.Identity(), MaskOrigins()
    call = call_from_transformers("flash_attention_2", module, query, key, None, options, "decoder", masks)
    distance = torch.arange(9) - torch.arange(9)[:, None]
    allowed = (distance.abs() < 3) & ((distance <= 0) | (not causal))
    expected = (query @ key.mT * 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
    assert torch.allclose(call.weights.dense(), expected, atol=1e-6)


class MeanWeight(Measure):
    """The mean over the valid rows of the weight on each key, (batch, heads, keys)."""

    valid: torch.Tensor | None = None
    axis = "keys"

    def compute(self, block):
        valid = torch.ones(block.shape[0], 1, block.shape[2]) if self.valid is None else self.valid[:, None]
        rows = block.slice_rows(valid / valid.sum(-1, keepdim=True))
        return (block.weights * rows[..., None]).sum(2)

    def for_valid_queries(self, valid):
        return MeanWeight(valid)


def test_a_measure_of_a_user_counts_only_valid_queries():
    model, mask = built("bert"), padding("right")
    with regard.watch(model, [MeanWeight()]) as result, torch.no_grad():
        model(torch.randint(5, 90, mask.shape), attention_mask=mask)
    layer, valid = result.layers[0], mask.bool()[:, None, :, None]
    expected = (layer.weights.dense() * valid).sum(2) / valid.sum(2)
    assert not valid.all()
    torch.testing.assert_close(layer.measured["mean_weight"], expected)


def test_layers_that_were_added_or_replaced_between_two_watches_are_recorded():
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)).eval()

    def recorded() -> list[str]:
        with regard.watch(model) as result:
            model(torch.randn(1, 3, 8))
        return [layer.name for layer in result.layers]

    assert recorded() == ["1.self_attn"]
    model[0] = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    assert recorded() == ["0.self_attn", "1.self_attn"]
    model.append(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval())
    del model[1]
    assert recorded() == ["0.self_attn", "1.self_attn"]
