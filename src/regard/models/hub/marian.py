"""Marian as transformers keeps it: the encoder-decoder of OPUS-MT's translators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import refuse
from regard.models.hub.format import Format, Stored, activation, demanded, fixed, one_of, theirs
from regard.models.transformer import TransformerConfig
from regard.nn.positions import sinusoids

_TABLE = "embed_positions.weight"


class _Marian(Format):
    model_type = "marian"
    prefix = "model."
    needless = re.compile(r"embed_positions\.weight$|^lm_head\.weight$|embed_tokens\.weight$|^model\.shared\.weight$")

    def config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> TransformerConfig:
        heads = values.get("encoder_attention_heads", 16)
        wanted = {
            "decoder_attention_heads": (heads,),
            "decoder_ffn_dim": (values.get("encoder_ffn_dim", 4096),),
            "normalize_before": (False,),
            "normalize_embedding": (False,),
            "add_final_layer_norm": (False,),
        }
        ends = one_of(values.get("eos_token_id", 0))
        several = [f"eos_token_id must be one word, which is what this model can do, but is {list(ends)}"]
        refuse(demanded(values, wanted) + (several if len(ends) > 1 else []))
        vocab = values.get("vocab_size", 58101)
        target = values.get("decoder_vocab_size")
        shared = values.get("share_encoder_decoder_embeddings", True)
        tied = values.get("tie_word_embeddings", True)
        pad = values.get("pad_token_id", 58100)
        start = values.get("decoder_start_token_id")
        width, length = values.get("d_model", 1024), values.get("max_position_embeddings", 1024)
        return TransformerConfig(
            vocab,
            tgt_vocab_size=None if target in (None, vocab) else target,
            d_model=width,
            num_heads=heads,
            num_encoder_layers=values.get("encoder_layers", 12),
            num_decoder_layers=values.get("decoder_layers", 12),
            d_ff=values.get("encoder_ffn_dim", 4096),
            dropout=values.get("dropout", 0.1),
            attention_dropout=values.get("attention_dropout", 0.0),
            activation_dropout=values.get("activation_dropout", 0.0),
            activation=activation(values, "activation_function", "gelu"),
            positions="sinusoidal",
            interleaved_sinusoids=_is_interleaved(tensors, length, width),
            max_length=length,
            tie_embeddings=("all" if shared else "decoder") if tied else "none",
            scale_embeddings=values.get("scale_embedding", False),
            output_bias=True,
            pad_id=pad,
            bos_id=pad if start is None else start,
            eos_id=ends[0] if ends else 0,
        )

    def values(self, config: TransformerConfig) -> dict[str, Any]:
        objections = fixed(config, "Marian", norm="post", positions="sinusoidal")
        if config.num_kv_heads not in (None, config.num_heads):
            objections.append(f"num_kv_heads must be num_heads in a checkpoint of Marian, but is {config.num_kv_heads}")
        refuse(objections)
        sizes = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (("attention_heads", config.num_heads), ("ffn_dim", config.d_ff))
        }
        return {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "is_encoder_decoder": True,
            "vocab_size": config.vocab_size,
            "decoder_vocab_size": config.target_vocab_size,
            "d_model": config.d_model,
            "encoder_layers": config.num_encoder_layers,
            "decoder_layers": config.num_decoder_layers,
            **sizes,
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "activation_dropout": config.activation_dropout,
            "activation_function": theirs(config.activation),
            "max_position_embeddings": config.max_length,
            "scale_embedding": config.scale_embeddings,
            "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
            "tie_word_embeddings": config.tie_embeddings != "none",
            "pad_token_id": config.pad_id,
            "bos_token_id": config.bos_id,
            "eos_token_id": config.eos_id,
            "decoder_start_token_id": config.bos_id,
            "forced_eos_token_id": config.eos_id,
        }

    def names(self, config: TransformerConfig) -> dict[str, Stored]:
        source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
        if config.tie_embeddings == "all":
            found = {"src_embedding.weight": Stored(("model.shared.weight",), or_else=(source, target))}
        else:
            found = {"src_embedding.weight": Stored((source,)), "tgt_embedding.weight": Stored((target,))}
        if config.tie_embeddings == "none":
            found["to_words.weight"] = Stored(("lm_head.weight",))
        if config.output_bias:
            found["to_words.bias"] = Stored(("final_logits_bias",), flat=True)
        sides = (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
        layers = [f"{side}.layers.{number}" for side, count in sides for number in range(count)]
        for layer in layers:
            attentions = {"attention": "self_attn"}
            rest = {
                "attention_residual.norm": "self_attn_layer_norm",
                "feed_forward.expand": "fc1",
                "feed_forward.contract": "fc2",
                "feed_forward_residual.norm": "final_layer_norm",
            }
            if layer.startswith("decoder"):
                attentions["cross_attention"] = "encoder_attn"
                rest["cross_attention_residual.norm"] = "encoder_attn_layer_norm"
            for part in ("weight", "bias"):
                for ours, name in attentions.items():
                    inputs = tuple(f"model.{layer}.{name}.{each}_proj.{part}" for each in "qkv")
                    found[f"{layer}.{ours}.in_proj.{part}"] = Stored(inputs, (config.d_model,) * 3)
                    found[f"{layer}.{ours}.out_proj.{part}"] = Stored((f"model.{layer}.{name}.out_proj.{part}",))
                for ours, name in rest.items():
                    found[f"{layer}.{ours}.{part}"] = Stored((f"model.{layer}.{name}.{part}",))
        return found

    def tables(self, config: TransformerConfig) -> dict[str, Tensor]:
        """The table of positions, and the final bias where there is none."""
        table = sinusoids(config.max_length, config.d_model, interleaved=config.interleaved_sinusoids)
        found = {f"model.{side}.{_TABLE}": table.clone() for side in ("encoder", "decoder")}
        if not config.output_bias:
            found["final_logits_bias"] = torch.zeros(1, config.target_vocab_size)
        return found

    def files(self, config: TransformerConfig) -> dict[str, Any]:
        """How transformers is to search."""
        return {
            "generation_config.json": {
                "pad_token_id": config.pad_id,
                "eos_token_id": config.eos_id,
                "decoder_start_token_id": config.bos_id,
                "forced_eos_token_id": config.eos_id,
                "max_length": config.max_length,
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
