"""Every kind of cache, filled before the watch begins or not: weights and measures are those of dense attention."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, QuantizedCache, StaticCache

import regard
from helpers.model_zoo.families import FAMILIES, built, eager
from helpers.pairwise import pairwise
from regard.errors import InvalidArgument

TOKENS = 16
MEASURES = ["entropy", "received", "lse", "max", regard.TopK(3), regard.Diagonal(0), regard.MeanDistance()]
NAMES = [name for name, family in FAMILIES.items() if family.writes and not family.both]
STEPS = {"tokens": [1] * 5, "chunks": [2, 3], "both": [1, 3, 1]}
CACHES = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=TOKENS + 4),
    "fp8": lambda model: QuantizedCache("fp8", model.config),
}


def run(model, ids, cache, steps):
    """Feed a cache with tokens; returns the last hidden states of the new ones."""
    outputs = []
    with torch.no_grad():
        for count in steps:
            start = cache.get_seq_length()
            outputs.append(model(ids[:, start : start + count], past_key_values=cache, use_cache=True).logits)
    return torch.cat(outputs, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "cache", "filled", "steps", "keep_qk"),
    pairwise(NAMES, ["dynamic", "static"], [0, 3, 4, 11], list(STEPS), [True, False]),
)
def test_a_cache_that_is_filled_before_the_watch(name, cache, filled, steps, keep_qk):
    model = built(name)
    ids = torch.randint(3, 90, (2, TOKENS), generator=torch.Generator().manual_seed(4))
    total = filled + sum(STEPS[steps])
    held = CACHES[cache](model)
    if filled:
        run(model, ids, held, [filled])
    expected = run(model, ids, copy.deepcopy(held), STEPS[steps])
    with regard.watch(model, MEASURES, keep_qk=keep_qk) as result:
        output = run(model, ids, held, STEPS[steps])
    assert torch.equal(output, expected)
    assert len(result.recordings) == 1
    with torch.no_grad():
        reference = eager(model)(ids[:, :total], output_attentions=True).attentions
    for number, layer in enumerate(result.layers):
        rows = reference[number][:, :, filled:]
        keys = layer.measured["received"].shape[2]
        is_static = cache == "static"
        # the first key of the matrix: a window may have left out some before the watch began
        first = max(total - keys, 0) if not is_static else None
        if keep_qk:
            weights = layer.weights.dense()
            first = total - weights.shape[3]
            torch.testing.assert_close(weights, rows[..., first:], atol=1e-5, rtol=0)
            for measure, reference_measure in layer.weights.measure(*MEASURES).items():
                compare(layer.measured[measure], reference_measure)
        if first is not None:
            of_truth = rows[..., first:].sum(2)
            torch.testing.assert_close(layer.measured["received"][..., : total - first], of_truth, atol=1e-5, rtol=0)
        entropy = torch.special.entr(rows).sum(-1)
        torch.testing.assert_close(layer.measured["entropy"], entropy, atol=1e-4, rtol=0)


def compare(one, other):
    if isinstance(one, tuple):
        for left, right in zip(one, other, strict=True):
            compare(left, right)
        return
    if one.ndim == 3 and one.shape != other.shape:  # of keys: a static cache is padded at the end
        assert not one[..., other.shape[2] :].any()
        one = one[..., : other.shape[2]]
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_keys_of_a_quantized_cache():
    model = built("llama")
    ids = torch.randint(3, 90, (2, TOKENS), generator=torch.Generator().manual_seed(4))
    cache = CACHES["fp8"](model)
    with regard.watch(model, MEASURES) as result:
        run(model, ids, cache, [5, 1, 1, 2])
    for layer in result.layers:  # the first call had the keys before they were quantized
        torch.testing.assert_close(layer.measured["received"].sum(-1), torch.full((2, 4), 9.0))
        with pytest.raises(InvalidArgument, match=r"the cache changed the keys of earlier tokens .* quantized"):
            assert layer.weights
    with regard.watch(model, MEASURES) as result:
        run(model, ids, cache, [1, 3, 1, 1])
    for layer in result.layers:
        assert layer.weights.shape == (2, 4, 6, 15)
        for measure, expected in layer.weights.measure(*MEASURES).items():
            compare(layer.measured[measure], expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_a_static_cache_that_is_used_again_leaves_earlier_recordings_as_they_are(name):
    model = built(name)
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    with regard.watch(model) as result:
        model.generate(torch.randint(3, 90, (1, 5)), **options)
        before = [layer.weights.dense() for layer in result.layers]
        model.generate(torch.randint(3, 90, (1, 5)), **options)
    for layer, weights in zip(result.recordings[0].layers, before, strict=True):
        assert torch.equal(layer.weights.dense(), weights)


@pytest.mark.parametrize("keep_qk", [True, False])
def test_a_pass_that_continues_another_cache_is_a_recording_of_its_own(keep_qk):
    model = built("llama")
    torch.manual_seed(4)
    first, second, more = torch.randint(3, 90, (1, 6)), torch.randint(3, 90, (1, 6)), torch.randint(3, 90, (1, 3))
    if keep_qk:
        second[0, -1] = first[0, -1]  # so that the last key of the first layer is the same
    with regard.watch(model, ["received"], keep_qk=keep_qk) as result, torch.no_grad():
        cache = model(first).past_key_values
        model(second)
        model(more, past_key_values=cache)
    with regard.watch(model, ["received"]) as expected, torch.no_grad():
        model(more, past_key_values=_cropped(cache, -3))
    assert len(result.recordings) == 3
    for layer, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.measured["received"], other.measured["received"])


def _cropped(cache, tokens):
    cache.crop(tokens)
    return cache
