"""Llama as transformers keeps it: query, key and value apart, gate and inner map of the feed-forward network too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import refuse
from regard.models.gpt import GptConfig
from regard.models.hub.format import Format, Stored, activation, demanded, fixed, one_of, theirs

_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class _Llama(Format):
    model_type = "llama"
    prefix = "model."
    needless = re.compile(r"rotary_emb\.inv_freq$")

    def config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> GptConfig:
        # newer files keep all of it in rope_parameters, older ones in rope_theta and rope_scaling
        rope = {"rope_theta": values.get("rope_theta", 10000.0), **(values.get("rope_scaling") or {})}
        rope |= values.get("rope_parameters") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        objections = demanded({"the type of rotary scaling": kind}, {
            "the type of rotary scaling": ("default", "linear", "llama3")
        })  # fmt: skip
        refuse(objections)
        scaling = {name: rope[name] for name in _SCALING[: 1 if kind == "linear" else 4] if name in rope}
        ends = one_of(values.get("eos_token_id", 2))
        pad = values.get("pad_token_id")
        tied = values.get("tie_word_embeddings", False)
        return GptConfig.llama(
            values.get("vocab_size", 32000),
            d_model=values.get("hidden_size", 4096),
            num_heads=values.get("num_attention_heads", 32),
            num_kv_heads=values.get("num_key_value_heads"),
            head_dim=values.get("head_dim"),
            num_layers=values.get("num_hidden_layers", 32),
            d_ff=values.get("intermediate_size", 11008),
            activation=activation(values, "hidden_act", "silu"),
            norm_eps=values.get("rms_norm_eps", 1e-6),
            attention_bias=values.get("attention_bias", False),
            feed_forward_bias=values.get("mlp_bias", False),
            rotary_base=rope["rope_theta"],
            rotary_scaling=None if kind == "default" else scaling,
            max_length=values.get("max_position_embeddings", 2048),
            tie_embeddings=tied,
            attention_dropout=values.get("attention_dropout") or 0.0,
            pad_id=pad if pad is not None and pad >= 0 else (*ends, 0)[0],
            bos_id=values.get("bos_token_id", 1),
            eos_ids=ends,
        )

    def values(self, config: GptConfig) -> dict[str, Any]:
        wanted = {"gated": True, "norm": "rms", "positions": "rotary", "dropout": 0.0}
        refuse(fixed(config, "Llama", **wanted))
        scaling = config.rotary_scaling or {}
        kind = {0: "default", 1: "linear"}.get(len(scaling), "llama3")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads or config.num_heads,
            "head_dim": config.head_width,
            "num_hidden_layers": config.num_layers,
            "intermediate_size": config.d_ff,
            "hidden_act": theirs(config.activation),
            "rms_norm_eps": config.norm_eps,
            "attention_bias": config.attention_bias,
            "mlp_bias": config.feed_forward_bias,
            "attention_dropout": config.attention_dropout,
            "max_position_embeddings": config.max_length,
            "rope_theta": config.rotary_base,
            "rope_parameters": {"rope_theta": config.rotary_base, "rope_type": kind, **scaling},
            "tie_word_embeddings": config.tie_embeddings,
            "pad_token_id": config.pad_id,
            "bos_token_id": config.bos_id,
            "eos_token_id": list(config.eos_ids) or None,
        }

    def to_ours(
        self, config: GptConfig, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], path: Path
    ) -> dict[str, Tensor]:
        """Take the tensors of a file; of a tied model it may hold the final map a second time."""
        if config.tie_embeddings:
            tensors = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        return super().to_ours(config, tensors, parameters, path)

    def names(self, config: GptConfig) -> dict[str, Stored]:
        found = {
            "embedding.weight": Stored(("model.embed_tokens.weight",)),
            "decoder.norm.weight": Stored(("model.norm.weight",)),
        }
        if not config.tie_embeddings:
            found["to_words.weight"] = Stored(("lm_head.weight",))
        kv_width = config.head_width * (config.num_kv_heads or config.num_heads)
        widths = config.head_width * config.num_heads, kv_width, kv_width
        biased = {"self_attn": config.attention_bias, "mlp": config.feed_forward_bias}
        for number in range(config.num_layers):
            ours, layer = f"decoder.layers.{number}", f"model.layers.{number}"
            found[f"{ours}.attention_residual.norm.weight"] = Stored((f"{layer}.input_layernorm.weight",))
            found[f"{ours}.feed_forward_residual.norm.weight"] = Stored((f"{layer}.post_attention_layernorm.weight",))
            for name, module, projections, rows in (
                ("attention.in_proj", "self_attn", ("q_proj", "k_proj", "v_proj"), widths),
                ("attention.out_proj", "self_attn", ("o_proj",), ()),
                ("feed_forward.expand", "mlp", ("gate_proj", "up_proj"), (config.d_ff,) * 2),
                ("feed_forward.contract", "mlp", ("down_proj",), ()),
            ):
                for part in ("weight", "bias") if biased[module] else ("weight",):
                    names = tuple(f"{layer}.{module}.{projection}.{part}" for projection in projections)
                    found[f"{ours}.{name}.{part}"] = Stored(names, rows)
        return found


LLAMA = _Llama()
