"""The stack of layers that all Transformers share."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, TransformerLayerConfig
from regard.models.layers import build_stack
from regard.ops.masks import Causal

SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 48, "dropout": 0.0, "attention_dropout": 0.0}
LLAMA = {
    "num_kv_heads": 2,
    "head_dim": 12,
    "activation": "silu",
    "gated": True,
    "norm": "rms_norm",
    "norm_first": True,
    "norm_eps": 1e-6,
    "attention_bias": False,
    "feed_forward_bias": False,
    "positions": "rotary",
}


def randomize(module: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


@torch.no_grad()
def test_a_stack_of_llama_layers_equals_transformers():
    model = build_stack(TransformerLayerConfig(**SIZES, **LLAMA), 2, causal=True).eval()
    randomize(model)
    config = LlamaConfig(
        vocab_size=9, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=48,
        num_hidden_layers=2, rms_norm_eps=1e-6,
    )  # fmt: skip
    reference = LlamaModel(config).eval()
    for layer, reference_layer in zip(model.layers, reference.layers, strict=True):
        query, key, value = layer.self_attention.in_proj.weight.split(layer.self_attention.projection_sizes)
        gate, up = layer.feed_forward.fc1.weight.chunk(2)
        reference_layer.load_state_dict(
            {
                "self_attn.q_proj.weight": query,
                "self_attn.k_proj.weight": key,
                "self_attn.v_proj.weight": value,
                "self_attn.o_proj.weight": layer.self_attention.out_proj.weight,
                "mlp.gate_proj.weight": gate,
                "mlp.up_proj.weight": up,
                "mlp.down_proj.weight": layer.feed_forward.fc2.weight,
                "input_layernorm.weight": layer.self_attention_residual.norm.weight,
                "post_attention_layernorm.weight": layer.feed_forward_residual.norm.weight,
            }
        )
    reference.norm.weight.copy_(model.norm.weight)
    hidden = torch.randn(2, 7, 32)
    expected = reference(inputs_embeds=hidden).last_hidden_state
    torch.testing.assert_close(model(hidden).hidden, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_stacks_of_bert_and_the_translator_are_that_of_gpt():
    fields = {**SIZES, **LLAMA}
    gpt = GPT(GPTConfig(9, num_layers=2, **fields)).eval().decoder
    bert = Bert(BertConfig(9, num_layers=2, **fields)).eval().encoder
    translator = Transformer(TransformerConfig(9, num_encoder_layers=2, num_decoder_layers=1, **fields)).eval().encoder
    randomize(gpt)
    hidden = torch.randn(2, 7, 32)
    for stack in (bert, translator):
        stack.load_state_dict(gpt.state_dict())
        torch.testing.assert_close(stack(hidden, mask=Causal()).hidden, gpt(hidden).hidden)
        assert not torch.allclose(stack(hidden).hidden, gpt(hidden).hidden)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_a_translator_of_llama_layers_decodes_alike_with_a_cache(positions):
    model = Transformer(TransformerConfig(20, **{**SIZES, **LLAMA, "positions": positions})).eval()
    randomize(model)
    src, tgt = torch.randint(3, 20, (2, 5)), torch.randint(3, 20, (4, 6))
    memory, cache = model.encode(src), model.new_cache()
    steps = [model.decode(part, memory, cache=cache) for part in tgt.split(1, 1)]
    torch.testing.assert_close(torch.cat(steps, 1), model.decode(tgt, memory), rtol=0, atol=1e-4)
