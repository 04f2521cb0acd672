"""A trace begins where the model does: its steps against transformers' hidden states and attention weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertForMaskedLM

import regard
from helpers import transformers_models
from regard.models import Bert, BertConfig, Transformer, TransformerConfig, load_model
from regard.pipelines.tracing import trace_forward, trace_model_layer

IDS = [5, 9, 9, 3, 17]
TOKENS = ["▁a", "▁b", "▁b", "c", "."]
EXACT = {"rtol": 1e-5, "atol": 1e-5}


def saved(tmp_path, model):
    model.save_pretrained(tmp_path)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        outputs = model(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
    return load_model(tmp_path).eval(), outputs


def close(value, expected):
    torch.testing.assert_close(value.float(), expected.float(), **EXACT)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "gemma"])
def test_weights_and_hidden_states_are_those_of_transformers(tmp_path, kind, layer):
    stack = {"bert": "encoder"}.get(kind, "decoder")
    reference = getattr(transformers_models, kind)()
    model, outputs = saved(tmp_path, reference)
    trace = trace_forward(model, stack, IDS, TOKENS, "text", f"{stack}.{layer}")
    close(trace["weights"], outputs.attentions[layer][0])
    hidden = outputs.hidden_states[layer][0]
    if layer:
        close(trace["input" if kind == "bert" else "hidden state"], hidden)
        assert "token embedding" not in trace
    else:
        last = {"bert": "embedding norm", "gpt2": "embedding", "llama": "token embedding", "gemma": "scaled embedding"}[
            kind
        ]
        close(trace[last], hidden)
        close(trace["token embedding"], reference.get_input_embeddings().weight[IDS])
    assert ("final output" in trace) == (layer == 1 and kind != "bert")
    close(trace["final output" if "final output" in trace else "block output"], outputs.hidden_states[layer + 1][0])
    assert ("probabilities" in trace) == (layer == 1 and kind != "bert")
    if "probabilities" in trace:
        probabilities = outputs.logits[0].softmax(-1)
        ids = [int(label) for label in trace.steps[-1].labels[1]]
        close(trace["probabilities"], probabilities[:, ids])
        close(trace["logits"], outputs.logits[0][:, ids])
        assert set(ids) == set(probabilities.topk(3).indices.flatten().tolist())
    if kind == "gpt2":
        close(trace["input"], reference.transformer.h[layer].ln_1(hidden))
    if kind in ("llama", "gemma"):
        close(trace["input"], reference.model.layers[layer].input_layernorm(hidden))
        assert "rotated query" in trace
        assert "mean" not in trace


def test_the_sum_of_an_embedding_has_the_positions_of_the_checkpoint(tmp_path):
    gpt2 = transformers_models.gpt2()
    trace = trace_forward(saved(tmp_path / "gpt2", gpt2)[0], "decoder", IDS, TOKENS, "", None)
    close(trace["position embedding"], gpt2.transformer.wpe.weight[: len(IDS)])
    bert = transformers_models.bert()
    trace = trace_forward(saved(tmp_path / "bert", bert)[0], "encoder", IDS, TOKENS, "", None)
    close(trace["token type embedding"], bert.embeddings.token_type_embeddings.weight[0])
    close(trace["position embedding"], bert.embeddings.position_embeddings.weight[: len(IDS)])
    close(trace["embedding normalized"], nn.functional.layer_norm(trace["embedding"], (32,), eps=1e-12))


@pytest.mark.parametrize("name", ["encoder.0", "decoder.0", "cross.0", "encoder.1", "cross.1"])
def test_a_marian_is_traced_from_its_scaled_embeddings(tmp_path, name):
    marian = transformers_models.marian()
    marian.save_pretrained(tmp_path)
    marian.config._attn_implementation = "eager"
    src, tgt = torch.tensor([[4, 8, 15, 0]]), torch.tensor([[60, 23, 42]])
    with torch.no_grad():
        outputs = marian(src, decoder_input_ids=tgt, output_attentions=True, output_hidden_states=True)
    axes = {"encoder": (list("abcd"),) * 2, "decoder": (list("xyz"), list("wxy")), "cross": (list("xyz"), list("abcd"))}
    trace = trace_model_layer(load_model(tmp_path).eval(), name, (src, tgt), axes, "text")
    kind, number = name.split(".")
    if kind == "decoder":
        assert trace.names[-1] == "attention result"  # the cross-attention is next
    else:
        hidden = outputs.encoder_hidden_states if kind == "encoder" else outputs.decoder_hidden_states
        close(trace["block output"], hidden[int(number) + 1][0])
    assert ("probabilities" in trace) == (name == "cross.1")
    if name == "cross.1":
        ids = [int(label) for label in trace.steps[-1].labels[1]]
        close(trace["probabilities"], outputs.logits[0].softmax(-1)[:, ids])
    weights = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    close(trace["weights"], outputs[weights[kind]][int(number)][0])
    if kind == "cross":
        close(trace["memory"], outputs.encoder_last_hidden_state[0])
        assert "token embedding" not in trace
        return
    close(trace["input"], outputs[f"{kind}_hidden_states"][int(number)][0])
    if number == "0":
        table, ids = marian.get_input_embeddings().weight, (src if kind == "encoder" else tgt)[0]
        close(trace["scaled embedding"], table[ids] * 32**0.5)
        close(trace["position embedding"], outputs[f"{kind}_hidden_states"][0][0] - table[ids] * 32**0.5)
        assert trace.steps[0].labels[0] == tuple("abcd" if kind == "encoder" else "wxy")


POSITIONS = ["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "none"]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("name", ["encoder.0", "decoder.1", "cross.1"])
def test_each_kind_of_position_appears_where_the_layer_adds_it(positions, norm_first, name):
    torch.manual_seed(0)
    config = TransformerConfig(30, d_model=16, num_heads=4, num_encoder_layers=2, num_decoder_layers=2, d_ff=16,
                               positions=positions, norm_first=norm_first)  # fmt: skip
    model = Transformer(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    src, tgt = torch.tensor([[4, 8, 15, 2]]), torch.tensor([[1, 23, 21]])
    kind, number = name.split(".")
    axes = {key: (range(q), range(k)) for key, q, k in (("encoder", 4, 4), ("decoder", 3, 3), ("cross", 3, 4))}
    with regard.watch(model) as watched, torch.no_grad():
        attentions = model(src, tgt, output_attentions=True).attentions
    trace = trace_model_layer(model, name, (src, tgt), axes, "text")
    attention = getattr(attentions, kind)[int(number)]
    torch.testing.assert_close(trace["weights"].float(), attention.weights.dense()[0], rtol=1e-4, atol=1e-5)
    recorded = [layer for layer in watched.layers if layer.kind == kind][int(number)]
    torch.testing.assert_close(trace["weights"].float(), recorded.weights.dense()[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trace["output"].float(), attention.output[0], rtol=1e-4, atol=1e-4)
    first = (kind, number) == ("encoder", "0")
    stack = kind != "cross"
    assert ("position embedding" in trace) == (first and positions in ("sinusoidal", "learned"))
    assert ("rotated key" in trace) == (stack and positions == "rotary")
    assert ("position bias" in trace) == (stack and positions in ("relative", "alibi", "t5"))
    assert ("hidden state" in trace) == (norm_first and not first)
    assert ("norm weight" in trace) == norm_first
    assert ("mask" in trace) == (kind == "decoder")
    assert all(step.value.dtype == torch.float64 and not step.value.requires_grad for step in trace)


def test_the_norm_adds_up():
    torch.manual_seed(0)
    for norm in ("layer_norm", "rms_norm"):
        config = BertConfig(30, d_model=16, num_heads=4, num_layers=1, d_ff=16, norm=norm, norm_first=True)
        model = Bert(config).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        trace = trace_forward(model, "encoder", [4, 8, 15], "abc", "text", None)
        bias = trace["norm bias"] if norm == "layer_norm" else 0
        close(trace["normalized"] * trace["norm weight"] + bias, trace["input"])
        residual = model.encoder.layers[0].self_attention_residual
        close(residual.norm(trace["embedding norm"].float()), trace["input"])


def test_upper_layers_name_the_origin_of_their_input():
    model = Transformer(TransformerConfig(30, d_model=16, num_heads=4, d_ff=16)).eval()
    inputs, axes = (torch.tensor([[4, 8]]),) * 2, {kind: (["a", "b"],) * 2 for kind in ("encoder", "decoder", "cross")}

    def explanation(layer, step):
        trace = trace_model_layer(model, layer, inputs, axes, "text")
        return next(each.explanation for each in trace if each.name == step)

    assert "after encoder.2" in explanation("encoder.3", "input")
    assert "self-attention decoder.2, after its residual connection and norm" in explanation("cross.2", "input")
    assert "output of the encoder" in explanation("cross.2", "memory")
    assert "first layer" in explanation("decoder.0", "input")


def test_a_bert_with_a_masked_language_head_names_the_words(tmp_path):
    reference = transformers_models.bert(BertForMaskedLM)
    model, outputs = saved(tmp_path, reference)
    trace = trace_forward(
        model, "encoder", IDS, TOKENS, "", "encoder.1", lambda ids: [f"word {index}" for index in ids]
    )
    ids = [int(label.removeprefix("word ")) for label in trace.steps[-1].labels[1]]
    close(trace["probabilities"], outputs.logits[0].softmax(-1)[:, ids])
    assert (trace.layer, trace.layers) == ("encoder.1", ("encoder.0", "encoder.1"))
