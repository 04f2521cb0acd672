"""Marian and Pegasus in transformers: encoder-decoders with norms after (OPUS-MT) and before the sublayers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from regard.checks import Checks
from regard.errors import short_repr
from regard.models.huggingface.converter import (
    GENERATION_FILE,
    OPTIONAL_BIASES,
    POSITION_TABLES,
    UNUSED_WITHOUT_ROTARY,
    VASWANI_LAYER,
    CheckpointConverter,
    as_tuple,
    require_values,
)
from regard.models.transformer import TransformerConfig
from regard.models.weights import WeightSource
from regard.nn.absolute_positions import sinusoids

_POSITION_TABLE = "embed_positions.weight"
_SHARED_SIZES = {"num_heads": "attention_heads", "d_ff": "ffn_dim"}
"""Fields that are the same in our encoder and decoder; Marian has one key for each side."""


class _Marian(CheckpointConverter):
    name = "Marian"
    model_type = "marian"
    config_type = TransformerConfig
    architectures: ClassVar = {"MarianMTModel": "seq2seq_lm"}
    prefix = "model."
    ignored_weights = re.compile(r"embed_positions\.weight$|^model\.shared\.weight$")  # positions of read_config
    aliases: ClassVar = {
        "model.shared.weight": (
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        ),
        "model.decoder.embed_tokens.weight": ("lm_head.weight",),
    }
    config_keys: ClassVar = {
        "vocab_size": ("vocab_size", 58101),
        "tgt_vocab_size": ("decoder_vocab_size", None),
        "d_model": ("d_model", 1024),
        "num_heads": ("encoder_attention_heads", 16),
        "num_encoder_layers": ("encoder_layers", 12),
        "num_decoder_layers": ("decoder_layers", 12),
        "d_ff": ("encoder_ffn_dim", 4096),
        "activation": ("activation_function", "gelu"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
        "activation_dropout": ("activation_dropout", 0.0),
        "max_seq_len": ("max_position_embeddings", 1024),
        "scale_embeddings": ("scale_embedding", False),
        "pad_id": ("pad_token_id", 58100),
        "bos_id": ("decoder_start_token_id", None),
        "eos_id": ("eos_token_id", 0),
    }
    fixed_fields: ClassVar = {
        **VASWANI_LAYER,
        "norm_first": False,
        "norm_eps": 1e-5,
        "positions": "learned",
        "output_bias": True,
    }
    equivalent_values: ClassVar = {**OPTIONAL_BIASES, "positions": POSITION_TABLES[1:], "output_bias": (False,)}
    computed_fields = ("interleaved_sinusoids", "tie_embeddings")
    unsaved_fields = UNUSED_WITHOUT_ROTARY
    allowed_values: ClassVar[Mapping[str, Collection[Any]]] = {
        "normalize_before": (False,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (False,),
    }
    """Values of config.json that our model supports."""
    attribute_map: ClassVar = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> TransformerConfig:
        with Checks() as checks:
            self.read_head(values, checks)
            require_values(checks, values, self.allowed_values)
            fields = self.read_fields(values, checks)
            for field, key in _SHARED_SIZES.items():
                size, got = fields[field], values.get(f"decoder_{key}", fields[field])
                checks.that(
                    got == size, f"decoder_{key}: expected encoder_{key}={short_repr(size)}, got {short_repr(got)}"
                )
            eos_ids = as_tuple(fields["eos_id"])
            checks.that(len(eos_ids) < 2, f"eos_token_id: expected one token id, got {short_repr(list(eos_ids))}")
        shared, tied = (values.get(f"{name}_embeddings", True) for name in ("share_encoder_decoder", "tie_word"))
        target_size = fields.get("tgt_vocab_size")
        fields |= {
            "tgt_vocab_size": None if target_size == fields["vocab_size"] else target_size,
            "bos_id": fields["pad_id"] if fields["bos_id"] is None else fields["bos_id"],
            "eos_id": eos_ids[0] if eos_ids else 0,
        }
        return TransformerConfig(
            **fields,
            **_positions(tensors, fields["max_seq_len"], fields["d_model"]),
            norm_first=self.fixed_fields["norm_first"],
            tie_embeddings=("all" if shared else "decoder") if tied else "none",
            output_bias=True,
        )

    def write_config(self, config: TransformerConfig) -> dict[str, Any]:
        return super().write_config(config) | {
            "is_encoder_decoder": True,
            "decoder_vocab_size": config.decoder_vocab_size,
            "decoder_attention_heads": config.num_heads,
            "decoder_ffn_dim": config.d_ff,
            "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
            "tie_word_embeddings": config.tie_embeddings != "none",
            "bos_token_id": config.bos_id,
            "forced_eos_token_id": config.eos_id,
        }

    def modules(self, config: TransformerConfig) -> dict[str, str | tuple[str, ...]]:
        modules: dict[str, str | tuple[str, ...]] = {
            "src_positions": "model.encoder.embed_positions",
            "tgt_positions": "model.decoder.embed_positions",
            "src_embedding": "model.shared" if config.tie_embeddings == "all" else "model.encoder.embed_tokens",
            "tgt_embedding": "model.decoder.embed_tokens",
            "lm_head": "lm_head",
        }
        for layer in ("encoder.layers.{}", "decoder.layers.{}"):
            for module, name in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
                projections = tuple(f"model.{layer}.{name}.{each}_proj" for each in "qkv")
                modules[f"{layer}.{module}.in_proj"] = projections
                modules[f"{layer}.{module}.out_proj"] = f"model.{layer}.{name}.out_proj"
                modules[f"{layer}.{module}_residual.norm"] = f"model.{layer}.{name}_layer_norm"
            modules[f"{layer}.feed_forward.fc1"] = f"model.{layer}.fc1"
            modules[f"{layer}.feed_forward.fc2"] = f"model.{layer}.fc2"
            modules[f"{layer}.feed_forward_residual.norm"] = f"model.{layer}.final_layer_norm"
        return modules

    def weight_map(self, config: TransformerConfig, parameters: Collection[str]) -> dict[str, WeightSource]:
        sources = super().weight_map(config, parameters)
        if config.output_bias:
            sources["lm_head.bias"] = WeightSource(("final_logits_bias",), leading_axis=True)
        return sources

    def extra_files(self, config: TransformerConfig) -> dict[str, Any]:
        """The options of transformers' ``generate``."""
        return {
            GENERATION_FILE: {
                "pad_token_id": config.pad_id,
                "eos_token_id": config.eos_id,
                "decoder_start_token_id": config.bos_id,
                "forced_eos_token_id": config.eos_id,
                "max_length": config.max_seq_len,
                "suppress_tokens": sorted({config.pad_id, config.bos_id}),
            }
        }


class _Pegasus(_Marian):
    """Pegasus: a Marian with norms before the sublayers, and one vocabulary."""

    name = "Pegasus"
    model_type = "pegasus"
    architectures: ClassVar = {"PegasusForConditionalGeneration": "seq2seq_lm"}
    config_keys: ClassVar = {
        **{field: key for field, key in _Marian.config_keys.items() if field != "tgt_vocab_size"},
        "vocab_size": ("vocab_size", 50265),
        "num_heads": ("encoder_attention_heads", 16),
        "pad_id": ("pad_token_id", 0),
        "bos_id": ("decoder_start_token_id", 0),
        "eos_id": ("eos_token_id", 1),
    }
    fixed_fields: ClassVar = {
        **_Marian.fixed_fields,
        "norm_first": True,
        "tgt_vocab_size": None,
        "tie_embeddings": "all",
    }
    computed_fields = ("interleaved_sinusoids",)
    allowed_values: ClassVar = {
        "normalize_before": (True,),
        "normalize_embedding": (False,),
        "add_final_layer_norm": (True,),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
    }

    def modules(self, config: TransformerConfig) -> dict[str, str | tuple[str, ...]]:
        norms = {f"{side}.norm": f"model.{side}.layer_norm" for side in ("encoder", "decoder")}
        return super().modules(config) | norms


def _positions(tensors: Mapping[str, Any], max_length: int, d_model: int) -> dict[str, Any]:
    """The fields of the positions in a checkpoint: sinusoids, which most do not store, or tables of other vectors."""
    tables = [tensors.get(f"model.{side}.{_POSITION_TABLE}") for side in ("encoder", "decoder")]
    tables = [table.float() for table in tables if table is not None]
    shape = (max_length, d_model)
    for interleaved in (False, True):
        if (
            type(max_length) is type(d_model) is int
            and d_model > 1
            and all(tuple(each.shape) == shape for each in tables)
        ):
            expected = sinusoids(*shape, interleaved=interleaved)
            if all((table - expected).abs().max() < 1e-2 for table in tables):  # tables can be in 16 bits
                return {"positions": "sinusoidal", "interleaved_sinusoids": interleaved}
    return {"positions": "learned"}


MARIAN, PEGASUS = _Marian(), _Pegasus()
