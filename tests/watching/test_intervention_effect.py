"""Interventions beside the untouched run."""

from __future__ import annotations

import pytest
import torch

from helpers.model_zoo.families import FAMILIES, built
from regard.errors import InvalidArgument
from regard.watching import intervention_effect

NAME = {"gpt2": "transformer.h.1.attn", "bert": "encoder.layer.1.attention.self"}


def test_what_a_head_does_to_the_words():
    model, given = built("gpt2"), FAMILIES["gpt2"].inputs()
    found = intervention_effect(model, given, ablate={NAME["gpt2"]: [0, 2]})
    with torch.no_grad():
        untouched = model(**given).logits
        attention = model.transformer.h[1].attn  # silent heads are columns of the output's projection that are 0
        kept = attention.c_proj.weight.clone()
        attention.c_proj.weight[:8] = attention.c_proj.weight[16:24] = 0
        silent = model(**given).logits
        attention.c_proj.weight.copy_(kept)
    assert torch.equal(found.baseline, untouched)
    assert torch.allclose(found.intervened, silent, atol=1e-5)
    expected = torch.nn.functional.kl_div(
        silent.log_softmax(-1), untouched.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(found.divergence, expected, atol=1e-5)
    assert torch.equal(found.top_tokens[1], silent.argmax(-1))
    assert repr(found).startswith(
        f"InterventionEffect({tuple(found.divergence.shape)} tokens: mean {found.divergence.mean():.3g}"
    )
    assert torch.equal(found.watched[0].layers[0].weights.dense(), found.watched[1].layers[0].weights.dense())


def test_what_a_knockout_does_to_vectors():
    model, given = built("bert"), FAMILIES["bert"].inputs()
    found = intervention_effect(model, given, knockout={NAME["bert"]: [(3, 4), (3, 5)]})
    changed = found.divergence > 1e-6  # the last layer's row of that query, and no other
    assert changed.nonzero()[:, 1].unique().tolist() == [3]
    ratio = (found.intervened - found.baseline).norm(dim=-1) / found.baseline.norm(dim=-1)
    assert torch.allclose(found.divergence, ratio)
    with pytest.raises(InvalidArgument, match="hidden states, not logits"):
        found.top_tokens  # noqa: B018 - it is asked


def test_both_runs_begin_alike():
    model, ids = built("gpt2"), torch.randint(3, 90, (1, 6))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    given = {"input_ids": ids[:, :2], "past_key_values": cache}
    found = intervention_effect(model, given, ablate={NAME["gpt2"]: [0]})
    assert {layer.weights.shape for seen in found.watched for layer in seen.layers} == {(1, 4, 2, 8)}
    assert cache.get_seq_length() == 6
    with pytest.raises(InvalidArgument, match="model: is in training mode, where dropout differs"):
        intervention_effect(built("gpt2").train(), given, ablate={NAME["gpt2"]: [0]})


def test_what_changes_nothing_is_refused():
    with pytest.raises(InvalidArgument, match="pass ablate= or knockout="):
        intervention_effect(built("bert"), {})
    with pytest.raises(InvalidArgument, match="unknown module"):
        intervention_effect(built("bert"), FAMILIES["bert"].inputs(), ablate={"nowhere": [0]})
