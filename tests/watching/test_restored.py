"""After a watch, however it ended, the model, transformers and torch are as before, and a second watch works."""

from __future__ import annotations

import gc
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import regard

transformers = pytest.importorskip("transformers")
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface  # noqa: E402

from helpers.model_zoo.families import built  # noqa: E402

IDS = torch.arange(3, 23).view(2, 10)
MASKS = ALL_MASK_ATTENTION_FUNCTIONS


class Stopped(Exception):
    pass


@cache  # to look through all objects at each comparison would take most of the time
def interfaces():
    return [each for each in gc.get_objects() if type(each) in (AttentionInterface, type(MASKS))]


@pytest.fixture(scope="module", autouse=True)
def _no_interface_is_new():
    interfaces.cache_clear()
    before = {id(each) for each in interfaces()}
    yield
    interfaces.cache_clear()
    assert {id(each) for each in interfaces()} == before


def state(*models):
    """Everything that a watch may touch, by value or identity."""
    files = [module for name, module in sys.modules.items() if name.startswith("transformers.models.")]
    return {
        "interfaces": {
            id(each): (dict(vars(each)["_local_mapping"]), set(vars(each)), dict(type(each)._global_mapping))
            for each in interfaces()
        },
        "classes": [dict(vars(cls)) for cls in (AttentionInterface, type(MASKS), nn.Module, nn.MultiheadAttention)],
        "dense": {
            (file.__name__, name): function
            for file in files
            for name, function in vars(file).items()
            if name.endswith("attention_forward")
        },
        "torch": (functional.scaled_dot_product_attention, functional.multi_head_attention_forward),
        "modes": torch.overrides._get_current_function_mode_stack(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "models": [
            (
                [(name, id(module), dict(module._forward_hooks), dict(module._forward_pre_hooks), sorted(vars(module)))
                 for name, module in model.named_modules()],
                model.config._attn_implementation,
            )
            for model in models
        ],
    }  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["bert", "gpt2", "gemma2", "t5"]),
    stop=st.integers(0, 80),
    error=st.sampled_from([Stopped, KeyboardInterrupt]),
    override=st.booleans(),
    nested=st.booleans(),
)
def test_nothing_is_left_of_a_watch(name, stop, error, override, nested):
    model, other = built(name), built("llama")
    inputs = {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :4]} if name == "t5" else {})
    with torch.no_grad():
        expected = model(**inputs)[0]
    if override:  # as transformers documents it
        ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda *args, **kwargs: sdpa_attention_forward(*args, **kwargs)
    count = 0

    def maybe_stop(*_):
        nonlocal count
        count += 1
        if count == stop:
            raise error

    handles = [part.register_forward_pre_hook(maybe_stop) for part in model.modules()]
    try:
        before = state(model, other)
        try:
            with regard.watch(model, ["entropy"]) as result, torch.no_grad():
                if nested:
                    with regard.watch(other):
                        other(IDS)
                        model(**inputs)
                else:
                    model(**inputs)
        except (Stopped, KeyboardInterrupt):
            assert count == stop
        assert state(model, other) == before
        stop = 0
        with regard.watch(model, ["entropy"]) as result, torch.no_grad():
            output = model(**inputs)[0]
        assert torch.equal(output, expected)
        assert len(result.layers) > 0
        assert state(model, other) == before
    finally:
        for handle in handles:
            handle.remove()
        if override:
            del ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_a_function_that_is_set_during_a_watch_stays():
    model = built("bert")

    def replacement(*args, **kwargs):
        return sdpa_attention_forward(*args, **kwargs)

    with regard.watch(model), torch.no_grad():
        model(IDS)
        ALL_ATTENTION_FUNCTIONS["sdpa"] = replacement
    try:
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is replacement
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward


def test_a_watch_that_cannot_begin_leaves_nothing(monkeypatch):
    model = built("bert")
    before = state(model)

    def fail(*args):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("regard.watching.transformers_attention.wrap_interfaces", fail)
        with pytest.raises(Stopped), regard.watch(model):
            pass
    assert state(model) == before
    with regard.watch(model) as result, torch.no_grad():
        model(IDS)
    assert len(result.layers) == 2
