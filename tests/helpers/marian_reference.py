"""A MarianMT of transformers with the weights of a Transformer: an independent oracle."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from regard.models import Transformer


def with_weights_of(model: Transformer) -> MarianMTModel:
    config = model.config
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function=config.activation,
            max_position_embeddings=config.max_seq_len,
            scale_embedding=True,
            pad_token_id=config.pad_id,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
            forced_eos_token_id=None,
        )
    ).eval()
    marian.generation_config = GenerationConfig(
        pad_token_id=config.pad_id,
        eos_token_id=config.eos_id,
        decoder_start_token_id=config.bos_id,
        suppress_tokens=[config.pad_id, config.bos_id],
    )
    state = {"final_logits_bias": torch.zeros(1, config.vocab_size)}
    for name in marian.state_dict():
        if name.endswith(("embed_tokens.weight", "shared.weight", "lm_head.weight")):
            state[name] = model.src_embedding.weight
        elif name.endswith("embed_positions.weight"):
            state[name] = model.src_positions.table[: config.max_seq_len]
        elif ".layers." in name:
            state[name] = _of_layer(model, name)
    marian.load_state_dict(state)
    return marian


def _of_layer(model: Transformer, name: str) -> torch.Tensor:
    _, side, _, index, *rest = name.split(".")
    state = model.state_dict(prefix="")
    layer = f"{side}.layers.{index}"
    part, kind = rest[0], rest[-1]
    attention = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
    if part in attention:
        if rest[1] == "out_proj":
            return state[f"{layer}.{attention[part]}.out_proj.{kind}"]
        packed = state[f"{layer}.{attention[part]}.in_proj.{kind}"].chunk(3)
        return packed["qkv".index(rest[1][0])]
    module = {
        "self_attn_layer_norm": "self_attention_residual.norm",
        "encoder_attn_layer_norm": "cross_attention_residual.norm",
        "final_layer_norm": "feed_forward_residual.norm",
        "fc1": "feed_forward.fc1",
        "fc2": "feed_forward.fc2",
    }[part]
    return state[f"{layer}.{module}.{kind}"]
