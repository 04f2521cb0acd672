"""Interventions against the untouched run."""

from __future__ import annotations

import pytest
import torch

from helpers.model_zoo.families import FAMILIES, built
from regard.errors import InvalidArgument
from regard.watching import intervention_effect

NAME = {"gpt2": "transformer.h.1.attn", "bert": "encoder.layer.1.attention.self"}


def test_the_effect_of_a_head_on_logits():
    model, inputs = built("gpt2"), FAMILIES["gpt2"].inputs()
    effect = intervention_effect(model, inputs, ablate={NAME["gpt2"]: [0, 2]})
    with torch.no_grad():
        untouched = model(**inputs).logits
        attention = model.transformer.h[1].attn  # silent heads are columns of the output's projection that are 0
        kept = attention.c_proj.weight.clone()
        attention.c_proj.weight[:8] = attention.c_proj.weight[16:24] = 0
        silent = model(**inputs).logits
        attention.c_proj.weight.copy_(kept)
    assert torch.equal(effect.baseline, untouched)
    assert torch.allclose(effect.intervened, silent, atol=1e-5)
    expected = torch.nn.functional.kl_div(
        silent.log_softmax(-1), untouched.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(effect.divergence, expected, atol=1e-5)
    assert torch.equal(effect.top_tokens[1], silent.argmax(-1))
    assert repr(effect).startswith(
        f"InterventionEffect({tuple(effect.divergence.shape)} tokens: mean {effect.divergence.mean():.3g}"
    )
    assert torch.equal(effect.watched[0].layers[0].weights.dense(), effect.watched[1].layers[0].weights.dense())


def test_the_effect_of_a_knockout_on_hidden_states():
    model, inputs = built("bert"), FAMILIES["bert"].inputs()
    effect = intervention_effect(model, inputs, knockout={NAME["bert"]: [(3, 4), (3, 5)]})
    changed = effect.divergence > 1e-6  # the last layer's row of that query, and no other
    assert changed.nonzero()[:, 1].unique().tolist() == [3]
    ratio = (effect.intervened - effect.baseline).norm(dim=-1) / effect.baseline.norm(dim=-1)
    assert torch.allclose(effect.divergence, ratio)
    with pytest.raises(InvalidArgument, match="hidden states, not logits"):
        effect.top_tokens  # noqa: B018 - the property raises


def test_both_runs_start_with_the_same_random_state():
    model, ids = built("gpt2"), torch.randint(3, 90, (1, 6))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    inputs = {"input_ids": ids[:, :2], "past_key_values": cache}
    effect = intervention_effect(model, inputs, ablate={NAME["gpt2"]: [0]})
    assert {layer.weights.shape for result in effect.watched for layer in result.layers} == {(1, 4, 2, 8)}
    assert cache.get_seq_length() == 6
    with pytest.raises(InvalidArgument, match="model: is in training mode, where dropout differs"):
        intervention_effect(built("gpt2").train(), inputs, ablate={NAME["gpt2"]: [0]})


def test_what_changes_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="pass ablate= or knockout="):
        intervention_effect(built("bert"), {})
    with pytest.raises(InvalidArgument, match="unknown module"):
        intervention_effect(built("bert"), FAMILIES["bert"].inputs(), ablate={"nowhere": [0]})
