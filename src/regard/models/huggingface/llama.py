"""Llama, Mistral and Qwen2 in transformers: query, key, value and the two halves of gated MLPs are separate."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from regard.checks import Checks
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import (
    CheckpointConverter,
    as_tuple,
    default_pad_id,
    drop_unknown_ids,
    generation_config,
    projection_sizes,
    require_objects,
    require_values,
    special_token_ids,
)
from regard.models.weights import WeightSource

_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SHAPE = {"gated": True, "norm": "rms_norm", "norm_first": True, "positions": "rotary"}


class _Llama(CheckpointConverter):
    name = "Llama"
    model_type = "llama"
    architectures: ClassVar = {"LlamaForCausalLM": "causal_lm", "LlamaModel": "none"}
    fixed_fields: ClassVar = {**_SHAPE, "sliding_window": None, "attention_out_bias": None}
    allowed_values: ClassVar[Mapping[str, Collection[Any]]] = {}
    """Values of config.json that our model supports."""
    architecture = "gpt"
    prefix = "model."
    ignored_weights = re.compile(r"rotary_emb\.inv_freq$")
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
        drop_unknown_ids(fields)
        # newer versions of transformers write rope_parameters, older ones rope_theta and rope_scaling
        rope = {"rope_theta": fields["rotary_base"], **(values.get("rope_scaling") or {})}
        rope |= fields["rotary_scaling"] or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        with Checks() as checks:
            require_values(checks, {"rope_type": kind}, {"rope_type": ("default", "linear", "llama3")})
        keys = {"default": (), "linear": _SCALING[:1], "llama3": _SCALING}[kind]
        missing = ", ".join(key for key in keys if key not in rope)
        with Checks() as checks:
            checks.that(
                not missing, f"rope_parameters: expected {missing} for rope_type {kind!r}, got {', '.join(rope)}"
            )
        eos_ids, pad_id = as_tuple(fields["eos_ids"]), fields["pad_id"]
        fields |= {
            "attention_dropout": fields["attention_dropout"] or 0.0,
            "rotary_base": rope["rope_theta"],
            "rotary_scaling": {key: rope[key] for key in keys} or None,
            "pad_id": default_pad_id(eos_ids) if pad_id is None or pad_id == -1 else pad_id,  # −1 in Llama 2
            "eos_ids": eos_ids,
        }
        return GPTConfig.llama(**fields, **self.fixed_fields)

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        with Checks() as checks:
            self.check_fixed_fields(config, checks)
        scaling = config.rotary_scaling or {}
        kind = {0: "default", 1: "linear"}.get(len(scaling), "llama3")
        return {
            "architectures": [next(iter(self.architectures))],
            "model_type": self.model_type,
            **self.write_fields(config),
            "num_key_value_heads": config.num_kv_heads or config.num_heads,
            "head_dim": config.resolved_head_dim,
            "rope_parameters": {"rope_theta": config.rotary_base, "rope_type": kind, **scaling},
            **special_token_ids(config),
        }

    def weight_map(self, config: GPTConfig) -> dict[str, WeightSource]:
        sources = {
            "token_embedding.weight": WeightSource(
                ("model.embed_tokens.weight",), aliases=("lm_head.weight",) if config.tie_embeddings else ()
            ),
            "decoder.norm.weight": WeightSource(("model.norm.weight",)),
        }
        if not config.tie_embeddings:
            sources["lm_head.weight"] = WeightSource(("lm_head.weight",))
        biases = {
            "self_attention.in_proj": config.attention_bias,
            "self_attention.out_proj": config.has_attention_out_bias,
        }
        norms = {
            "self_attention_residual.norm": "input_layernorm",
            "feed_forward_residual.norm": "post_attention_layernorm",
        }
        linear = {
            "self_attention.in_proj": (tuple(f"self_attn.{each}_proj" for each in "qkv"), projection_sizes(config)),
            "self_attention.out_proj": (("self_attn.o_proj",), ()),
            "feed_forward.fc1": (("mlp.gate_proj", "mlp.up_proj"), (config.d_ff, config.d_ff)),
            "feed_forward.fc2": (("mlp.down_proj",), ()),
        }
        for number in range(config.num_layers):
            ours, theirs = f"decoder.layers.{number}", f"model.layers.{number}"
            for name, module in norms.items():
                sources[f"{ours}.{name}.weight"] = WeightSource((f"{theirs}.{module}.weight",))
            for name, (modules, sizes) in linear.items():
                for part in ("weight", "bias") if biases.get(name, config.feed_forward_bias) else ("weight",):
                    names = tuple(f"{theirs}.{module}.{part}" for module in modules)
                    sources[f"{ours}.{name}.{part}"] = WeightSource(names, sizes)
        return sources

    def extra_files(self, config: GPTConfig) -> dict[str, Any]:
        return generation_config(config)


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
    config_keys: ClassVar = {
        **{ours: key for ours, key in _Llama.config_keys.items() if not ours.endswith("_bias")},
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
    allowed_values: ClassVar = {"use_sliding_window": (False,)}
    config_keys: ClassVar = {
        **{ours: key for ours, key in _Llama.config_keys.items() if not ours.endswith("_bias")},
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


LLAMA, MISTRAL, QWEN2 = _Llama(), _Mistral(), _Qwen2()
