"""Tiny models whose attention has a softmax of its own, and which a watch records by adapters that are shipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

LENGTH = 13
GROWING = "greedy", "beams"
WAYS = *GROWING, "static"
SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = SMALL | {"intermediate_size": 48, "pad_token_id": 0, "max_position_embeddings": 40}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BOTH_WAYS = BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Args:
        adapted: The class of its attention, after the name of its package.
        make: Makes one.
        writes: How it can generate text with a KV cache.
        projects: Whether the gradient of its heads follows from that of the module.
        padded: Whether it takes padding.
    """

    adapted: str
    make: Callable[[], Any]
    writes: tuple[str, ...] = ()
    projects: bool = True
    padded: bool = True


def _falcon(writes: tuple[str, ...] = WAYS, **options: Any) -> Family:
    options = {"attn_implementation": "eager", "max_position_embeddings": 64, **SMALL, **SPECIAL, **options}
    return Family("falcon.FalconAttention", lambda: hf.FalconForCausalLM(hf.FalconConfig(**options)), writes)


def _deberta(**options: Any) -> Family:
    return Family("deberta.DisentangledSelfAttention", lambda: hf.DebertaModel(hf.DebertaConfig(**BOTH_WAYS | options)))


def _deberta_v2(**options: Any) -> Family:
    return Family(
        "deberta_v2.DisentangledSelfAttention", lambda: hf.DebertaV2Model(hf.DebertaV2Config(**BOTH_WAYS | options))
    )


def _xlnet(padded: bool = True, **options: Any) -> Family:
    sizes = {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37, **SPECIAL, **options}
    return Family("xlnet.XLNetRelativeAttention", lambda: hf.XLNetModel(hf.XLNetConfig(**sizes)), (), False, padded)


FAMILIES = {
    "bloom": Family(
        "bloom.BloomAttention",
        lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4, **SPECIAL)),
        writes=WAYS,
    ),
    "gptj": Family(
        "gptj.GPTJAttention",
        lambda: hf.GPTJForCausalLM(
            hf.GPTJConfig(vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64, **SPECIAL)
        ),
        writes=WAYS,
    ),
    "gpt_neo": Family(
        "gpt_neo.GPTNeoSelfAttention",
        lambda: hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                vocab_size=99,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                attention_types=[[["global", "local"], 1]],
                window_size=5,
                max_position_embeddings=64,
                **SPECIAL,
            )
        ),
        writes=GROWING,
    ),
    "falcon, several key heads": _falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon, one key head": _falcon(multi_query=True),
    "falcon, linear biases": _falcon(GROWING, alibi=True, multi_query=False),
    "megatron_bert": Family(
        "megatron_bert.MegatronBertSelfAttention", lambda: hf.MegatronBertModel(hf.MegatronBertConfig(**BERT))
    ),
    "mpt": Family(
        "mpt.MptAttention",
        lambda: hf.MptForCausalLM(
            hf.MptConfig(vocab_size=99, d_model=32, n_heads=4, n_layers=2, max_seq_len=40, **SPECIAL)
        ),
        writes=WAYS,
    ),
    "rembert": Family(
        "rembert.RemBertSelfAttention",
        lambda: hf.RemBertForCausalLM(hf.RemBertConfig(**BERT, is_decoder=True, bos_token_id=1, eos_token_id=2)),
        writes=GROWING,
    ),
    "tapas": Family("tapas.TapasSelfAttention", lambda: hf.TapasModel(hf.TapasConfig(**BERT))),
    "visual_bert": Family(
        "visual_bert.VisualBertSelfAttention", lambda: hf.VisualBertModel(hf.VisualBertConfig(**BERT))
    ),
    "trocr": Family(
        "trocr.TrOCRAttention",
        lambda: hf.TrOCRForCausalLM(
            hf.TrOCRConfig(
                vocab_size=99, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, **SPECIAL
            )
        ),
        writes=GROWING,
    ),
    "xglm": Family(
        "xglm.XGLMAttention",
        lambda: hf.XGLMForCausalLM(
            hf.XGLMConfig(vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48, **SPECIAL)
        ),
        writes=GROWING,
    ),
    "mpnet": Family("mpnet.MPNetSelfAttention", lambda: hf.MPNetModel(hf.MPNetConfig(**BERT))),
    "deberta": _deberta(),
    "deberta, near positions": _deberta(max_relative_positions=5),
    "deberta, one way": _deberta(pos_att_type=["p2c"]),
    "deberta, contents only": _deberta(relative_attention=False, pos_att_type=[]),
    "deberta_v2": _deberta_v2(),
    "deberta_v2, buckets": _deberta_v2(position_buckets=4, max_relative_positions=8, share_att_key=True),
    "deberta_v2, one way": _deberta_v2(pos_att_type=["c2p"], max_relative_positions=6),
    "xlnet": _xlnet(),
    "xlnet, causal": _xlnet(padded=False, attn_type="uni"),
    "xlnet, both directions": _xlnet(bi_data=True),
}
PADDED = [name for name, family in FAMILIES.items() if family.padded]
WRITERS = [name for name, family in FAMILIES.items() if family.writes]


def built(name: str) -> Any:
    """A model of a family, always the same, whose weights differ from cell to cell and head to head."""
    torch.manual_seed(0)
    model = FAMILIES[name].make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")  # which returns weights
    if FAMILIES[name].writes:
        model.generation_config.eos_token_id = None
    return model


def inputs(side: str = "none") -> dict[str, Tensor]:
    """Token ids, and the mask of a batch whose first sequence is padded."""
    torch.manual_seed(1)
    words = {"input_ids": torch.randint(3, 99, (2, LENGTH))}
    if side == "none":
        return words
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, slice(0, 4) if side == "left" else slice(-4, None)] = 0
    return words | {"attention_mask": mask}


def dense(attentions: Any) -> list[Tensor]:
    """All weights that a model gives, one tensor for each layer."""
    return [part for each in attentions for part in (each if isinstance(each, tuple) else [each])]
