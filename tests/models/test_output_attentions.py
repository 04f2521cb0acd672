"""No model keeps the queries, keys and values of its layers, unless its attentions are requested."""

from __future__ import annotations

import inspect
import weakref

import pytest
import torch

import regard.models
import regard.nn
from regard.models import GPT, Bert, BertConfig, GPTConfig, RNNSearch, RNNSearchConfig, Transformer, TransformerConfig
from regard.ops import AttentionOutput
from regard.pipelines import TextEncoder
from regard.text.tokenizer import train_bpe

SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 16}
IDS = torch.randint(1, 19, (2, 7), generator=torch.Generator().manual_seed(0))
MODELS = {
    "gpt": (lambda: GPT(GPTConfig(19, num_layers=3, **SIZES)), 1, 3),
    "bert": (lambda: Bert(BertConfig(19, num_layers=3, **SIZES)), 1, 3),
    "transformer": (
        lambda: Transformer(TransformerConfig(19, num_encoder_layers=3, num_decoder_layers=3, **SIZES)),
        2,
        9,
    ),
    "rnn_search": (lambda: RNNSearch(RNNSearchConfig(19, d_model=16, hidden_size=16)), 2, 1),
}


def signatures():
    for package in (regard.models, regard.nn):
        for name, thing in vars(package).items():
            for method in ("forward", "forward_features", "decode", "encode"):
                function = getattr(thing, method, None) if inspect.isclass(thing) else None
                if inspect.isfunction(function) and "output_attentions" in inspect.signature(function).parameters:
                    yield pytest.param(function, id=f"{name}.{method}")


@pytest.mark.parametrize("function", list(signatures()))
def test_the_default_is_to_return_no_attention(function):
    assert inspect.signature(function).parameters["output_attentions"].default is False


def count(attentions) -> int:
    """Number of `AttentionOutput` in nested tuples."""
    if isinstance(attentions, AttentionOutput):
        return 1
    return sum(map(count, attentions))


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_come_without_attention_unless_it_is_requested(name):
    torch.manual_seed(0)
    make, inputs, layers = MODELS[name]
    model = make().eval()
    hidden, attentions = model.forward_features(*[IDS] * inputs)
    assert count(attentions) == 0
    again, attentions = model.forward_features(*[IDS] * inputs, output_attentions=True)
    assert count(attentions) == layers
    assert torch.equal(hidden, again)


def largest_count(model, run) -> int:
    """How many results of attention layers are alive at once during a run."""
    results: list[weakref.ref] = []
    counts: list[int] = []

    def hook(module, inputs, output):
        results.append(weakref.ref(output.weights))
        counts.append(sum(result() is not None for result in results))

    layers = [module for module in model.modules() if isinstance(module, regard.nn.MultiHeadAttention)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    run()
    for handle in handles:
        handle.remove()
    assert len(counts) >= len(layers)
    return max(counts)


@pytest.mark.parametrize("name", ["gpt", "bert", "transformer"])
@torch.inference_mode()
def test_a_forward_pass_holds_the_attention_of_two_layers_at_most(name):
    make, inputs, layers = MODELS[name]
    model = make().eval()
    assert largest_count(model, lambda: model(*[IDS] * inputs)) <= 4  # a decoder layer has two
    assert largest_count(model, lambda: model(*[IDS] * inputs, output_attentions=True)) == layers


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("sentence_embedding", lambda encoder: encoder.embed(["a cat sat", "b"])),
        ("sequence_classification", lambda encoder: encoder.classify(["a cat sat", "b"])),
        ("token_classification", lambda encoder: encoder.tag(["a cat sat", "b"])),
        ("masked_lm", lambda encoder: encoder.masked_lm_score(["a cat sat", "b"], mlm_probability=1.0)),
        ("masked_lm", lambda encoder: encoder.fill_mask("a <mask> sat")),
    ],
)
def test_a_text_encoder_holds_the_attention_of_two_layers_at_most(head, call):
    tokenizer = train_bpe(["a cat sat on the mat", "b"], 262)
    labels = {"labels": ("x", "y")} if head.endswith("classification") else {}
    model = Bert(BertConfig(tokenizer.vocab_size, num_layers=4, head=head, **labels, **SIZES))
    encoder = TextEncoder(model, tokenizer)
    assert largest_count(model, lambda: call(encoder)) <= 2
