"""GPT-2 as transformers keeps it: weights of linear maps stand transposed, query, key and value in one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from regard.errors import raise_problems
from regard.models.gpt import GptConfig
from regard.models.hub.format import (
    Format,
    assumed_pad,
    demanded,
    drop_unknown_ids,
    fixed,
    generation_file,
    of_another_head,
    one_of,
    special_words,
)
from regard.models.weights import WeightSource


class _Gpt2(Format):
    model_type = "gpt2"
    architecture = "gpt"
    prefix = "transformer."
    needless = re.compile(r"\.attn\.(masked_)?bias$")
    keys: ClassVar = {
        "vocab_size": ("vocab_size", 50257),
        "d_model": ("n_embd", 768),
        "num_heads": ("n_head", 12),
        "num_layers": ("n_layer", 12),
        "d_ff": ("n_inner", None),
        "max_length": ("n_positions", 1024),
        "activation": ("activation_function", "gelu_new"),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1),
        "pad_id": ("pad_token_id", None),
        "bos_id": ("bos_token_id", 50256),
        "eos_ids": ("eos_token_id", 50256),
    }

    aliases: ClassVar = {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    def config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> GptConfig:
        wanted = {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        }
        raise_problems(of_another_head(values, "GPT2LMHeadModel", "GPT2Model") + demanded(values, wanted))
        fields = self.fields(values)
        drop_unknown_ids(fields)
        ends = one_of(fields["eos_ids"])
        fields |= {
            "d_ff": fields["d_ff"] or 4 * fields["d_model"],
            "pad_id": assumed_pad(ends) if fields["pad_id"] is None else fields["pad_id"],
            "eos_ids": ends,
        }
        return GptConfig(**fields)

    def values(self, config: GptConfig) -> dict[str, Any]:
        wanted = {
            "num_kv_heads": None,
            "head_dim": None,
            "gated": False,
            "norm": "layer",
            "attention_bias": True,
            "feed_forward_bias": True,
            "positions": "learned",
            "tie_embeddings": True,
        }
        raise_problems(fixed(config, "GPT-2", **wanted))
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **self.their_values(config),
            "embd_pdrop": config.dropout,
            **special_words(config),
            "tie_word_embeddings": True,
        }

    def names(self, config: GptConfig) -> dict[str, WeightSource]:
        found = {
            "embedding.weight": WeightSource(("transformer.wte.weight",), aliases=("lm_head.weight",)),
            "positions.table": WeightSource(("transformer.wpe.weight",)),
        }
        maps = {
            "attention.in_proj": "attn.c_attn",
            "attention.out_proj": "attn.c_proj",
            "feed_forward.expand": "mlp.c_fc",
            "feed_forward.contract": "mlp.c_proj",
        }
        norms = {"attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}
        for part in ("weight", "bias"):
            found[f"decoder.norm.{part}"] = WeightSource((f"transformer.ln_f.{part}",))
            for layer in range(config.num_layers):
                for ours, name in {**maps, **norms}.items():
                    transposed = part == "weight" and ours in maps
                    stored = WeightSource((f"transformer.h.{layer}.{name}.{part}",), transposed=transposed)
                    found[f"decoder.layers.{layer}.{ours}.{part}"] = stored
        return found

    def files(self, config: GptConfig) -> dict[str, Any]:
        return generation_file(config)


GPT2 = _Gpt2()
