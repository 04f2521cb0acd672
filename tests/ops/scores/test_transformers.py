"""Scores equal what the modules of transformers compute."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import GPTJConfig, LlamaConfig, T5Config, Wav2Vec2BertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from regard.ops import attend, rotary, weights
from regard.ops.masks import Causal, to_dense
from regard.ops.scores import Alibi, Bias, RelativeKey, ScaledDotProduct, Sinks, SoftCap, T5RelativeBias

HEADS, TOKENS, DIM = 4, 30, 8


def tensors(tokens=TOKENS, heads=HEADS):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, tokens, DIM, generator=random) for _ in range(3)]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5(bidirectional):
    config = T5Config(
        d_model=HEADS * DIM, num_heads=HEADS, d_kv=DIM, relative_attention_num_buckets=8,
        relative_attention_max_distance=20, is_decoder=not bidirectional,
    )  # fmt: skip
    reference = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    query, key, _ = tensors()
    actual = ScaledDotProduct() + T5RelativeBias(
        reference.relative_attention_bias.weight, bidirectional, max_distance=20
    )
    expected = query @ key.mT + reference.compute_bias(TOKENS, TOKENS)
    torch.testing.assert_close(weights(query, key, score=actual, scale=1.0).scores.dense(), expected)


def causal_bias():
    return torch.zeros(TOKENS, TOKENS).masked_fill(~to_dense(Causal(), (1, 1, TOKENS, TOKENS)), -torch.inf)


def test_gemma_2():
    query, key, value = tensors()
    module = SimpleNamespace(num_key_value_groups=1, training=False)
    output, expected = modeling_gemma2.eager_attention_forward(
        module, query, key, value, causal_bias(), scaling=0.3, softcap=2.0
    )
    att = attend(query, key, value, score=SoftCap(ScaledDotProduct(), 2.0), scale=0.3, mask=Causal())
    torch.testing.assert_close(att.weights.dense(), expected)
    torch.testing.assert_close(att.output, output.transpose(1, 2))


def test_gpt_oss():
    query, key, value = tensors()
    sinks = torch.randn(HEADS)
    module = SimpleNamespace(num_key_value_groups=1, training=False, sinks=sinks)
    output, expected = modeling_gpt_oss.eager_attention_forward(module, query, key, value, causal_bias(), scaling=0.3)
    att = attend(query, key, value, score=Sinks(ScaledDotProduct(), sinks), scale=0.3, mask=Causal(), measure="lse")
    torch.testing.assert_close(att.weights.dense(), expected)
    torch.testing.assert_close(att.output, output.transpose(1, 2))
    mass = (sinks[:, None] - att.measured["lse"]).exp()
    torch.testing.assert_close(att.weights.dense().sum(-1) + mass, torch.ones(2, HEADS, TOKENS))


@pytest.mark.parametrize("heads", [4, 6])
def test_bloom(heads):
    query, key, _ = tensors(heads=heads)
    reference = build_alibi_tensor(torch.ones(2, TOKENS), heads, torch.float32).view(2, heads, 1, TOKENS)
    expected = (query @ key.mT * DIM**-0.5 + reference + causal_bias()).softmax(-1)  # up to a constant per row
    actual = weights(query, key, score=ScaledDotProduct() + Alibi.for_heads(heads), mask=Causal())
    torch.testing.assert_close(actual.dense(), expected)


def test_relative_keys():
    config = Wav2Vec2BertConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        left_max_position_embeddings=5, right_max_position_embeddings=5,
    )  # fmt: skip
    reference = Wav2Vec2BertSelfAttention(config).eval()
    x = torch.randn(2, TOKENS, HEADS * DIM)
    query, key = (
        linear(x).view(2, TOKENS, HEADS, DIM).transpose(1, 2) for linear in (reference.linear_q, reference.linear_k)
    )
    score = ScaledDotProduct() + RelativeKey(reference.distance_embedding.weight)
    _, expected = reference(x, output_attentions=True)
    torch.testing.assert_close(weights(query, key, score=score).dense(), expected)


def test_rotary_of_llama_and_gpt_j():
    query, key, _ = tensors()
    positions = torch.stack((torch.arange(TOKENS), torch.arange(TOKENS) + 7))
    config = LlamaConfig(hidden_size=HEADS * DIM, num_attention_heads=HEADS)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(query, positions)
    expected = modeling_llama.apply_rotary_pos_emb(query, key, cos, sin)
    torch.testing.assert_close((rotary(query, positions), rotary(key, positions)), expected)
    table = modeling_gptj.create_sinusoidal_positions(GPTJConfig().n_positions, 6)[positions]
    sin, cos = table.chunk(2, -1)
    turned = modeling_gptj.apply_rotary_pos_emb(query.transpose(1, 2)[..., :6], sin, cos).transpose(1, 2)
    actual = rotary(query, positions, rotary_dim=6, interleaved=True)
    torch.testing.assert_close(actual, torch.cat((turned, query[..., 6:]), -1))


def test_a_float_mask_of_transformers_is_a_bias():
    query, key, value = tensors()
    padded = causal_bias().clamp(min=torch.finfo(torch.float32).min).expand(2, 1, -1, -1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=padded)
    torch.testing.assert_close(attend(query, key, value, score=ScaledDotProduct() + Bias(padded)).output, expected)
