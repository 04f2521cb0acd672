"""Marian as transformers keeps it: the encoder-decoder of OPUS-MT's translators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import raise_problems
from regard.models.huggingface.converter import (
    GENERATION_FILE,
    CheckpointConverter,
    as_tuple,
    check_architecture,
    require_fields,
    require_values,
)
from regard.models.transformer import TransformerConfig
from regard.models.weights import WeightSource
from regard.nn.absolute_positions import sinusoids

_TABLE = "embed_positions.weight"


_BOTH_SIDES = {"num_heads": "attention_heads", "d_ff": "ffn_dim"}
"""Sizes that are the same in our encoder and decoder."""


class _Marian(CheckpointConverter):
    model_type = "marian"
    architecture = "transformer"
    prefix = "model."
    ignored_weights = re.compile(r"embed_positions\.weight$|^model\.shared\.weight$")
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

    attribute_map: ClassVar = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> TransformerConfig:
        fields = self.read_fields(values)
        wanted = {
            "normalize_before": (False,),
            "normalize_embedding": (False,),
            "add_final_layer_norm": (False,),
        }
        ends = as_tuple(fields["eos_id"])
        several = [f"eos_token_id must be one word, which is what this model can do, but is {list(ends)}"]
        sides = {
            name: (fields[ours], values.get(f"decoder_{name}", fields[ours])) for ours, name in _BOTH_SIDES.items()
        }
        unequal = [
            f"encoder_{name} and decoder_{name} must be equal, but are {one!r} and {other!r}"
            for name, (one, other) in sides.items()
            if one != other
        ]
        objections = check_architecture(values, "MarianMTModel") + require_values(values, wanted) + unequal
        raise_problems(objections + (several if len(ends) > 1 else []))
        shared, tied = (values.get(f"{name}_embeddings", True) for name in ("share_encoder_decoder", "tie_word"))
        fields |= {
            "tgt_vocab_size": None if fields["tgt_vocab_size"] == fields["vocab_size"] else fields["tgt_vocab_size"],
            "bos_id": fields["pad_id"] if fields["bos_id"] is None else fields["bos_id"],
            "eos_id": ends[0] if ends else 0,
        }
        return TransformerConfig(
            **fields,
            positions="sinusoidal",
            interleaved_sinusoids=_is_interleaved(tensors, fields["max_seq_len"], fields["d_model"]),
            tie_embeddings=("all" if shared else "decoder") if tied else "none",
            output_bias=True,
        )

    def write_config(self, config: TransformerConfig) -> dict[str, Any]:
        objections = require_fields(config, "Marian", norm_first=False, positions="sinusoidal")
        if config.num_kv_heads not in (None, config.num_heads):
            objections.append(f"num_kv_heads must be num_heads in a checkpoint of Marian, but is {config.num_kv_heads}")
        raise_problems(objections)
        return {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "is_encoder_decoder": True,
            **self.write_fields(config),
            "decoder_vocab_size": config.decoder_vocab_size,
            "decoder_attention_heads": config.num_heads,
            "decoder_ffn_dim": config.d_ff,
            "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
            "tie_word_embeddings": config.tie_embeddings != "none",
            "bos_token_id": config.bos_id,
            "forced_eos_token_id": config.eos_id,
        }

    def weight_map(self, config: TransformerConfig) -> dict[str, WeightSource]:
        shared, final = "model.shared.weight", "lm_head.weight"
        source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
        if config.tie_embeddings == "all":
            found = {"src_embedding.weight": WeightSource((shared,), aliases=(source, target, final))}
        else:
            found = {"src_embedding.weight": WeightSource((source,)), "tgt_embedding.weight": WeightSource((target,))}
        if config.tie_embeddings == "decoder":
            found["tgt_embedding.weight"] = WeightSource((target,), aliases=(final,))
        if config.tie_embeddings == "none":
            found["lm_head.weight"] = WeightSource((final,))
        if config.output_bias:
            found["lm_head.bias"] = WeightSource(("final_logits_bias",), leading_axis=True)
        sides = (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
        layers = [f"{side}.layers.{number}" for side, count in sides for number in range(count)]
        for layer in layers:
            attentions = {"attention": "self_attn"}
            rest = {
                "attention_residual.norm": "self_attn_layer_norm",
                "feed_forward.fc1": "fc1",
                "feed_forward.fc2": "fc2",
                "feed_forward_residual.norm": "final_layer_norm",
            }
            if layer.startswith("decoder"):
                attentions["cross_attention"] = "encoder_attn"
                rest["cross_attention_residual.norm"] = "encoder_attn_layer_norm"
            for part in ("weight", "bias"):
                for ours, name in attentions.items():
                    inputs = tuple(f"model.{layer}.{name}.{each}_proj.{part}" for each in "qkv")
                    found[f"{layer}.{ours}.in_proj.{part}"] = WeightSource(inputs, (config.d_model,) * 3)
                    found[f"{layer}.{ours}.out_proj.{part}"] = WeightSource((f"model.{layer}.{name}.out_proj.{part}",))
                for ours, name in rest.items():
                    found[f"{layer}.{ours}.{part}"] = WeightSource((f"model.{layer}.{name}.{part}",))
        return found

    def extra_weights(self, config: TransformerConfig) -> dict[str, Tensor]:
        """The table of positions, and the final bias where there is none."""
        table = sinusoids(config.max_seq_len, config.d_model, interleaved=config.interleaved_sinusoids)
        found = {f"model.{side}.{_TABLE}": table.clone() for side in ("encoder", "decoder")}
        if not config.output_bias:
            found["final_logits_bias"] = torch.zeros(1, config.decoder_vocab_size)
        return found

    def extra_files(self, config: TransformerConfig) -> dict[str, Any]:
        """How transformers is to search."""
        return {
            GENERATION_FILE: {
                "pad_token_id": config.pad_id,
                "eos_token_id": config.eos_id,
                "decoder_start_token_id": config.bos_id,
                "forced_eos_token_id": config.eos_id,
                "max_seq_len": config.max_seq_len,
                "suppress_tokens": sorted({config.pad_id, config.bos_id}),
            }
        }


def _is_interleaved(tensors: Mapping[str, Any], length: int, width: int) -> bool:
    """Whether a file has a table of positions in which sines and cosines take turns; most have none."""
    table = tensors.get(f"model.encoder.{_TABLE}")
    if table is None or tuple(table.shape) != (length, width):
        return False
    return bool((table.float() - sinusoids(length, width)).abs().max() < 1e-2)  # the table may be stored in 16 bits


MARIAN = _Marian()
