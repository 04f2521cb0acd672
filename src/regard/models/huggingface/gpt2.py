"""GPT-2 in transformers: weights of linear layers are transposed; query, key and value are one matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from regard.checks import Checks
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import (
    CheckpointConverter,
    as_tuple,
    default_pad_id,
    drop_unknown_ids,
    generation_config,
    require_values,
    special_token_ids,
)
from regard.models.weights import WeightSource


class _Gpt2(CheckpointConverter):
    name = "GPT-2"
    model_type = "gpt2"
    architecture = "gpt"
    architectures: ClassVar = {"GPT2LMHeadModel": "causal_lm", "GPT2Model": "none"}
    prefix = "transformer."
    ignored_weights = re.compile(r"\.attn\.(masked_)?bias$")
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
        "pad_id": ("pad_token_id", None),
        "bos_id": ("bos_token_id", 50256),
        "eos_ids": ("eos_token_id", 50256),
    }
    fixed_fields: ClassVar = {
        "num_kv_heads": None,
        "head_dim": None,
        "gated": False,
        "norm": "layer_norm",
        "norm_first": True,
        "attention_bias": True,
        "attention_out_bias": None,
        "feed_forward_bias": True,
        "positions": "learned",
        "sliding_window": None,
        "tie_embeddings": True,
    }
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
            "tie_word_embeddings": (True,),
        }
        with Checks() as checks:
            self.read_head(values, checks)  # without a head, the output is tied to the embeddings
            require_values(checks, values, allowed)
            fields = self.read_fields(values, checks)
        drop_unknown_ids(fields)
        eos_ids = as_tuple(fields["eos_ids"])
        fields |= {
            "d_ff": fields["d_ff"] or 4 * fields["d_model"],
            "pad_id": default_pad_id(eos_ids) if fields["pad_id"] is None else fields["pad_id"],
            "eos_ids": eos_ids,
        }
        return GPTConfig(**fields)

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        with Checks() as checks:
            self.check_fixed_fields(config, checks)
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **self.write_fields(config),
            "embd_pdrop": config.dropout,
            **special_token_ids(config),
            "tie_word_embeddings": True,
        }

    def weight_map(self, config: GPTConfig) -> dict[str, WeightSource]:
        sources = {
            "token_embedding.weight": WeightSource(("transformer.wte.weight",), aliases=("lm_head.weight",)),
            "positions.weight": WeightSource(("transformer.wpe.weight",)),
        }
        linear = {
            "self_attention.in_proj": "attn.c_attn",
            "self_attention.out_proj": "attn.c_proj",
            "feed_forward.fc1": "mlp.c_fc",
            "feed_forward.fc2": "mlp.c_proj",
        }
        norms = {"self_attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}
        for part in ("weight", "bias"):
            sources[f"decoder.norm.{part}"] = WeightSource((f"transformer.ln_f.{part}",))
            for layer in range(config.num_layers):
                for ours, theirs in {**linear, **norms}.items():
                    sources[f"decoder.layers.{layer}.{ours}.{part}"] = WeightSource(
                        (f"transformer.h.{layer}.{theirs}.{part}",), transposed=part == "weight" and ours in linear
                    )
        return sources

    def extra_files(self, config: GPTConfig) -> dict[str, Any]:
        return generation_config(config)


GPT2 = _Gpt2()
