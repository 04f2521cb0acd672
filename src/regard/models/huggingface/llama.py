"""Llama, Mistral and Qwen2 as transformers keeps them: query, key and value apart, and the gate of the MLP too."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from regard.errors import raise_problems
from regard.models.gpt import GPTConfig
from regard.models.huggingface.converter import (
    CheckpointConverter,
    as_tuple,
    check_architecture,
    default_pad_id,
    drop_unknown_ids,
    generation_config,
    require_fields,
    require_objects,
    require_values,
    special_token_ids,
)
from regard.models.weights import WeightSource

_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class _Llama(CheckpointConverter):
    model_type = "llama"
    name: ClassVar = "Llama"
    fixed_fields: ClassVar[Mapping[str, Any]] = {"sliding_window": None, "attention_out_bias": None}
    """Fields that all models of this kind have in common."""
    allowed_values: ClassVar[Mapping[str, Collection[Any]]] = {}
    """Values of config.json that our model can serve."""
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
        # newer files keep all of it in rope_parameters, older ones in rope_theta and rope_scaling
        bare = (f"{self.name}Model",) if values.get("tie_word_embeddings") else ()  # else it has no map to words
        objections = check_architecture(values, f"{self.name}ForCausalLM", *bare) + require_values(
            values, self.allowed_values
        )
        raise_problems(objections + require_objects(values, "rope_scaling", "rope_parameters"))
        fields = self.read_fields(values)
        drop_unknown_ids(fields)
        rope = {"rope_theta": fields["rotary_base"], **(values.get("rope_scaling") or {})}
        rope |= fields["rotary_scaling"] or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        raise_problems(require_values({"rope_type": kind}, {"rope_type": ("default", "linear", "llama3")}))
        needed = {"default": (), "linear": _SCALING[:1], "llama3": _SCALING}[kind]
        missing = [name for name in needed if name not in rope]
        if missing:
            raise_problems([f"rope_parameters must have {', '.join(missing)} for the type {kind!r}, but is {rope!r}"])
        scaling = {name: rope[name] for name in needed}
        ends, pad = as_tuple(fields["eos_ids"]), fields["pad_id"]
        fields |= {
            "attention_dropout": fields["attention_dropout"] or 0.0,
            "rotary_base": rope["rope_theta"],
            "rotary_scaling": scaling or None,
            "pad_id": default_pad_id(ends) if pad is None or pad == -1 else pad,  # −1 in Llama 2
            "eos_ids": ends,
        }
        return GPTConfig.llama(**fields, **self.fixed_fields)

    def write_config(self, config: GPTConfig) -> dict[str, Any]:
        wanted = {"gated": True, "norm": "rms_norm", "positions": "rotary", **self.fixed_fields}
        raise_problems(require_fields(config, self.name, **wanted))
        scaling = config.rotary_scaling or {}
        kind = {0: "default", 1: "linear"}.get(len(scaling), "llama3")
        return {
            "architectures": [f"{self.name}ForCausalLM"],
            "model_type": self.model_type,
            **self.write_fields(config),
            "num_key_value_heads": config.num_kv_heads or config.num_heads,
            "head_dim": config.resolved_head_dim,
            "rope_parameters": {"rope_theta": config.rotary_base, "rope_type": kind, **scaling},
            **special_token_ids(config),
        }

    def weight_map(self, config: GPTConfig) -> dict[str, WeightSource]:
        found = {
            "token_embedding.weight": WeightSource(
                ("model.embed_tokens.weight",), aliases=("lm_head.weight",) if config.tie_embeddings else ()
            ),
            "decoder.norm.weight": WeightSource(("model.norm.weight",)),
        }
        if not config.tie_embeddings:
            found["lm_head.weight"] = WeightSource(("lm_head.weight",))
        kv_width = config.resolved_head_dim * (config.num_kv_heads or config.num_heads)
        widths = config.resolved_head_dim * config.num_heads, kv_width, kv_width
        biases = {"attention.in_proj": config.attention_bias, "attention.out_proj": config.has_attention_out_bias}
        for number in range(config.num_layers):
            ours, layer = f"decoder.layers.{number}", f"model.layers.{number}"
            found[f"{ours}.attention_residual.norm.weight"] = WeightSource((f"{layer}.input_layernorm.weight",))
            found[f"{ours}.feed_forward_residual.norm.weight"] = WeightSource(
                (f"{layer}.post_attention_layernorm.weight",)
            )
            for name, module, projections, rows in (
                ("attention.in_proj", "self_attn", ("q_proj", "k_proj", "v_proj"), widths),
                ("attention.out_proj", "self_attn", ("o_proj",), ()),
                ("feed_forward.fc1", "mlp", ("gate_proj", "up_proj"), (config.d_ff,) * 2),
                ("feed_forward.fc2", "mlp", ("down_proj",), ()),
            ):
                for part in ("weight", "bias") if biases.get(name, config.feed_forward_bias) else ("weight",):
                    names = tuple(f"{layer}.{module}.{projection}.{part}" for projection in projections)
                    found[f"{ours}.{name}.{part}"] = WeightSource(names, rows)
        return found

    def extra_files(self, config: GPTConfig) -> dict[str, Any]:
        return generation_config(config)


class _Mistral(_Llama):
    model_type = "mistral"
    name = "Mistral"
    fixed_fields: ClassVar = {"attention_bias": False, "attention_out_bias": None, "feed_forward_bias": False}
    config_keys: ClassVar = {
        **{ours: key for ours, key in _Llama.config_keys.items() if not ours.endswith("_bias")},
        "num_kv_heads": ("num_key_value_heads", 8),
        "d_ff": ("intermediate_size", 14336),
        "max_seq_len": ("max_position_embeddings", 131072),
        "sliding_window": ("sliding_window", 4096),
    }


class _Qwen2(_Llama):
    model_type = "qwen2"
    name = "Qwen2"
    fixed_fields: ClassVar = {
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
