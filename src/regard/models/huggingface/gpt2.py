"""GPT-2 in transformers: weights of linear layers are transposed; query, key and value are one matrix."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from regard.checks import Checks
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import (
    OPTIONAL_BIASES,
    POSITION_TABLES,
    UNUSED_WITHOUT_ROTARY,
    VASWANI_LAYER,
    require_values,
)
from regard.models.huggingface.gpt import GPTConverter
from regard.models.weights import WeightSource


class _Gpt2(GPTConverter):
    name = "GPT-2"
    model_type = "gpt2"
    architectures: ClassVar = {"GPT2LMHeadModel": "causal_lm", "GPT2Model": "none"}
    prefix = "transformer."
    ignored_weights = re.compile(r"\.attn\.(masked_)?bias$")
    aliases: ClassVar = {"transformer.wte.weight": ("lm_head.weight",)}
    config_keys: ClassVar = {
        "vocab_size": ("vocab_size", 50257),
        "d_model": ("n_embd", 768),
        "num_heads": ("n_head", 12),
        "num_layers": ("n_layer", 12),
        "d_ff": ("n_inner", None),
        "max_seq_len": ("n_positions", 1024),
        "activation": ("activation_function", "gelu_new"),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "tie_embeddings": ("tie_word_embeddings", True),
        "pad_id": ("pad_token_id", None),
        "bos_id": ("bos_token_id", 50256),
        "eos_ids": ("eos_token_id", 50256),
    }
    fixed_fields: ClassVar = {
        **VASWANI_LAYER,
        "norm_first": True,
        "positions": "learned",
        "sliding_window": None,
        "scale_embeddings": False,
    }
    equivalent_values: ClassVar = {**OPTIONAL_BIASES, "positions": POSITION_TABLES[1:]}
    unsaved_fields = ("activation_dropout", *UNUSED_WITHOUT_ROTARY)
    attribute_map: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> GPTConfig:
        allowed = {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        }
        with Checks() as checks:
            if self.read_head(values, checks) == "none":  # the output is tied to the embeddings
                allowed["tie_word_embeddings"] = (True,)
            require_values(checks, values, allowed)
            fields = self.read_fields(values, checks)
        return GPTConfig(**fields | {"d_ff": fields["d_ff"] or 4 * fields["d_model"]})

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        return super().write_config(config) | {"embd_pdrop": config.dropout}

    def modules(self, config: GPTConfig) -> dict[str, str | tuple[str, ...]]:
        return {
            "token_embedding": "transformer.wte",
            "positions": "transformer.wpe",
            "decoder.layers.{}.self_attention.in_proj": "transformer.h.{}.attn.c_attn",
            "decoder.layers.{}.self_attention.out_proj": "transformer.h.{}.attn.c_proj",
            "decoder.layers.{}.self_attention_residual.norm": "transformer.h.{}.ln_1",
            "decoder.layers.{}.feed_forward.fc1": "transformer.h.{}.mlp.c_fc",
            "decoder.layers.{}.feed_forward.fc2": "transformer.h.{}.mlp.c_proj",
            "decoder.layers.{}.feed_forward_residual.norm": "transformer.h.{}.ln_2",
            "decoder.norm": "transformer.ln_f",
            "lm_head": "lm_head",
        }

    def weight_map(self, config: GPTConfig, parameters: Collection[str]) -> dict[str, WeightSource]:
        sources = super().weight_map(config, parameters)
        linear = ("in_proj.weight", "out_proj.weight", "fc1.weight", "fc2.weight")
        return {name: replace(source, transposed=name.endswith(linear)) for name, source in sources.items()}


GPT2 = _Gpt2()
