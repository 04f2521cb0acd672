"""Llama, Mistral, Qwen2 and Gemma in transformers: query, key, value and the two halves of gated MLPs are separate."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from regard.checks import Checks
from regard.errors import short_repr
from regard.models.config import ROTARY_SCALING_KEYS
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import require_objects, require_values
from regard.models.huggingface.gpt import GPTConverter
from regard.models.weights import WeightSource

_SHAPE = {"gated": True, "norm": "rms_norm", "norm_first": True, "positions": "rotary", "scale_embeddings": False}


class _Llama(GPTConverter):
    name = "Llama"
    model_type = "llama"
    architectures: ClassVar = {"LlamaForCausalLM": "causal_lm", "LlamaModel": "none"}
    fixed_fields: ClassVar = {**_SHAPE, "sliding_window": None, "attention_out_bias": None}
    equivalent_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {"attention_out_bias": (True, False)}
    unsaved_fields = ("dropout", "activation_dropout", "max_distance")
    allowed_values: ClassVar[Mapping[str, Collection[Any]]] = {}
    """Values of config.json that our model supports."""
    prefix = "model."
    ignored_weights = re.compile(r"rotary_emb\.inv_freq$")
    aliases: ClassVar = {"model.embed_tokens.weight": ("lm_head.weight",)}
    config_keys: ClassVar = {
        "vocab_size": ("vocab_size", 32000),
        "d_model": ("hidden_size", 4096),
        "num_heads": ("num_attention_heads", 32),
        "num_kv_heads": ("num_key_value_heads", None),
        "head_dim": ("head_dim", None),
        "num_layers": ("num_hidden_layers", 32),
        "d_ff": ("intermediate_size", 11008),
        "activation": ("hidden_act", "silu"),
        "norm_eps": ("rms_norm_eps", 1e-6),
        "attention_bias": ("attention_bias", False),
        "feed_forward_bias": ("mlp_bias", False),
        "attention_dropout": ("attention_dropout", 0.0),
        "max_seq_len": ("max_position_embeddings", 2048),
        "rotary_base": ("rope_theta", 10000.0),
        "rotary_scaling": ("rope_parameters", None),
        "tie_embeddings": ("tie_word_embeddings", False),
        "pad_id": ("pad_token_id", None),
        "bos_id": ("bos_token_id", 1),
        "eos_ids": ("eos_token_id", 2),
    }

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> GPTConfig:
        with Checks() as checks:
            if self.read_head(values, checks) == "none" and not values.get("tie_word_embeddings"):
                checks.fail(f"architectures: expected a class with a head or tied embeddings, got {self.name}Model")
            require_values(checks, values, self.allowed_values)
            require_objects(checks, values, "rope_scaling", "rope_parameters")
            fields = self.read_fields(values, checks)
        # transformers prefers rope_scaling, which older versions wrote, to rope_parameters
        rope = {"rope_theta": fields["rotary_base"], **(values.get("rope_scaling") or fields["rotary_scaling"] or {})}
        kind = rope.get("rope_type", rope.get("type", "default"))
        with Checks() as checks:
            require_values(checks, {"rope_type": kind}, {"rope_type": ("default", "linear", "llama3")})
        keys = {"default": (), "linear": ("factor",), "llama3": ROTARY_SCALING_KEYS}[kind]
        missing = ", ".join(key for key in keys if key not in rope)
        with Checks() as checks:
            checks.that(
                not missing,
                f"rope_parameters: expected {missing} for rope_type {short_repr(kind)}, got {', '.join(rope)}",
            )
        fields |= {
            "attention_dropout": fields["attention_dropout"] or 0.0,
            "rotary_base": rope["rope_theta"],
            "rotary_scaling": {key: rope[key] for key in keys} or None,
        }
        return GPTConfig.llama(**fields, **self.fixed_fields)

    def read_fields(self, values: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
        if values.get("pad_token_id") == -1:  # Llama 2
            values = {**values, "pad_token_id": None}
        return super().read_fields(values, checks)

    def equivalent_config(self, config: GPTConfig) -> GPTConfig:
        """All projections of attention have a bias, or none has."""
        return replace(
            super().equivalent_config(config), attention_bias=config.attention_bias or config.has_attention_out_bias
        )

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        scaling = config.rotary_scaling or {}
        kind = {0: "default", 1: "linear"}.get(len(scaling), "llama3")
        return super().write_config(config) | {
            "num_key_value_heads": config.num_kv_heads or config.num_heads,
            "head_dim": config.resolved_head_dim,
            "rope_parameters": {"rope_theta": config.rotary_base, "rope_type": kind, **scaling},
        }

    def modules(self, config: GPTConfig) -> dict[str, str | tuple[str, ...]]:
        return {
            "token_embedding": "model.embed_tokens",
            "decoder.layers.{}.self_attention.in_proj": (
                "model.layers.{}.self_attn.q_proj",
                "model.layers.{}.self_attn.k_proj",
                "model.layers.{}.self_attn.v_proj",
            ),
            "decoder.layers.{}.self_attention.out_proj": "model.layers.{}.self_attn.o_proj",
            "decoder.layers.{}.self_attention_residual.norm": "model.layers.{}.input_layernorm",
            "decoder.layers.{}.feed_forward.fc1": ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"),
            "decoder.layers.{}.feed_forward.fc2": "model.layers.{}.mlp.down_proj",
            "decoder.layers.{}.feed_forward_residual.norm": "model.layers.{}.post_attention_layernorm",
            "decoder.norm": "model.norm",
            "lm_head": "lm_head",
        }


class _Mistral(_Llama):
    name = "Mistral"
    model_type = "mistral"
    architectures: ClassVar = {"MistralForCausalLM": "causal_lm", "MistralModel": "none"}
    fixed_fields: ClassVar = {
        **_SHAPE,
        "attention_bias": False,
        "attention_out_bias": None,
        "feed_forward_bias": False,
    }
    equivalent_values: ClassVar = {"attention_out_bias": (False,)}
    config_keys: ClassVar = {
        **{field: key for field, key in _Llama.config_keys.items() if not field.endswith("_bias")},
        "num_kv_heads": ("num_key_value_heads", 8),
        "d_ff": ("intermediate_size", 14336),
        "max_seq_len": ("max_position_embeddings", 131072),
        "sliding_window": ("sliding_window", 4096),
    }


class _Qwen2(_Llama):
    name = "Qwen2"
    model_type = "qwen2"
    architectures: ClassVar = {"Qwen2ForCausalLM": "causal_lm", "Qwen2Model": "none"}
    fixed_fields: ClassVar = {
        **_SHAPE,
        "attention_bias": True,
        "attention_out_bias": False,
        "feed_forward_bias": False,
        "sliding_window": None,
    }
    equivalent_values: ClassVar = {}
    allowed_values: ClassVar = {"use_sliding_window": (False,)}
    config_keys: ClassVar = {
        **{field: key for field, key in _Llama.config_keys.items() if not field.endswith("_bias")},
        "vocab_size": ("vocab_size", 151936),
        "num_kv_heads": ("num_key_value_heads", 32),
        "d_ff": ("intermediate_size", 22016),
        "max_seq_len": ("max_position_embeddings", 32768),
        "bos_id": ("bos_token_id", None),
        "eos_ids": ("eos_token_id", None),
    }

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        values = super().write_config(config)
        return values if config.head_dim is not None else {key: values[key] for key in values if key != "head_dim"}


class _Gemma(_Llama):
    """Gemma: embeddings are multiplied by √d_model, and norms are stored minus 1."""

    name = "Gemma"
    model_type = "gemma"
    architectures: ClassVar = {"GemmaForCausalLM": "causal_lm", "GemmaModel": "none"}
    fixed_fields: ClassVar = {**_Llama.fixed_fields, "scale_embeddings": True, "feed_forward_bias": False}
    allowed_values: ClassVar = {"use_bidirectional_attention": (None, False)}
    config_keys: ClassVar = {
        **{field: key for field, key in _Llama.config_keys.items() if field != "feed_forward_bias"},
        "vocab_size": ("vocab_size", 256000),
        "d_model": ("hidden_size", 3072),
        "num_heads": ("num_attention_heads", 16),
        "num_kv_heads": ("num_key_value_heads", 16),
        "head_dim": ("head_dim", 256),
        "num_layers": ("num_hidden_layers", 28),
        "d_ff": ("intermediate_size", 24576),
        "activation": ("hidden_act", "gelu_pytorch_tanh"),
        "max_seq_len": ("max_position_embeddings", 8192),
        "tie_embeddings": ("tie_word_embeddings", True),
        "pad_id": ("pad_token_id", 0),
        "bos_id": ("bos_token_id", 2),
        "eos_ids": ("eos_token_id", 1),
    }

    def read_fields(self, values: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
        if values.get("hidden_act") == "gelu":  # of Google's files, which mean the approximation
            values = {**values, "hidden_act": "gelu_pytorch_tanh"}
        return super().read_fields(values, checks)

    def activation_name(self, activation: str) -> str:
        return "gelu_python" if activation == "gelu" else super().activation_name(activation)

    def weight_map(self, config: GPTConfig, parameters: Collection[str]) -> dict[str, WeightSource]:
        sources = super().weight_map(config, parameters)
        return {name: replace(source, offset=1.0) if "norm" in name else source for name, source in sources.items()}


LLAMA, MISTRAL, QWEN2, GEMMA = _Llama(), _Mistral(), _Qwen2(), _Gemma()
