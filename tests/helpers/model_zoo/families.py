"""Tiny models of many families of transformers, made from their configurations, and their inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BOTH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "forced_eos_token_id": None,
    **SPECIAL,
}
IMAGE = {**SMALL, "image_size": 16, "patch_size": 4, "num_channels": 3}
LENGTH, TARGET = 11, 7


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Args:
        make: Makes one.
        inputs: Its inputs, without a mask.
        padded: Whether it takes padding.
        writes: Whether it writes text.
        both: Whether it has an encoder and a decoder.
        fused: Whether it computes by torch's SDPA.
    """

    make: Callable[[], Any]
    inputs: Callable[[], dict[str, Tensor]]
    padded: bool = True
    writes: bool = False
    both: bool = False
    fused: bool = True


def words() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 90, (2, LENGTH))}


def words_of_both() -> dict[str, Tensor]:
    return words() | {"decoder_input_ids": torch.randint(3, 90, (2, TARGET))}


def sound() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 30), "decoder_input_ids": torch.randint(3, 90, (2, TARGET))}


def image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def _reader(name: str, **options: Any) -> Family:
    return Family(lambda: getattr(hf, f"{name}Model")(getattr(hf, f"{name}Config")(**SMALL, **options)), words)


def _writer(model: str, config: str, fused: bool = True, **options: Any) -> Family:
    return Family(
        lambda: getattr(hf, model)(getattr(hf, config)(**(GROUPED | options))), words, writes=True, fused=fused
    )


FAMILIES = {
    "bert": _reader("Bert"),
    "roberta": _reader("Roberta", pad_token_id=1, max_position_embeddings=64),
    "albert": _reader("Albert", embedding_size=16),
    "gpt2": Family(
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, pad_token_id=0)),
        words,
        writes=True,
    ),
    "llama": _writer("LlamaForCausalLM", "LlamaConfig"),
    "mistral": _writer("MistralForCausalLM", "MistralConfig", sliding_window=4),
    "qwen2": _writer("Qwen2ForCausalLM", "Qwen2Config"),
    "qwen3": _writer("Qwen3ForCausalLM", "Qwen3Config"),
    "gemma2": _writer("Gemma2ForCausalLM", "Gemma2Config", fused=False, sliding_window=4),
    "gemma3": _writer("Gemma3ForCausalLM", "Gemma3TextConfig", sliding_window=4),
    "gpt_oss": _writer("GptOssForCausalLM", "GptOssConfig", fused=False, sliding_window=4, num_local_experts=4),
    "t5": Family(
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99, **SPECIAL)
        ),
        words_of_both,
        writes=True,
        both=True,
    ),
    "bart": Family(
        lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BOTH)), words_of_both, writes=True, both=True
    ),
    "marian": Family(lambda: hf.MarianMTModel(hf.MarianConfig(**BOTH)), words_of_both, writes=True, both=True),
    "whisper": Family(
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(**BOTH, num_mel_bins=8, max_source_positions=15, max_target_positions=40)
        ),
        sound,
        padded=False,
        both=True,
    ),
    "vit": Family(lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)), image, padded=False),
    "clip": Family(
        lambda: hf.CLIPModel(
            hf.CLIPConfig(text_config=SMALL | {"eos_token_id": 2}, vision_config=IMAGE, projection_dim=16)
        ),
        lambda: words() | image(),
    ),
}


def built(name: str) -> Any:
    """A model of a family, always the same."""
    torch.manual_seed(0)
    model = FAMILIES[name].make().eval()
    for module in model.modules():  # scores that differ, so that a wrong weight shows
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.2)
    if FAMILIES[name].writes:
        model.generation_config.eos_token_id = None
    return model


def eager(model: Any) -> Any:
    """The same model with dense attention, which gives all weights."""
    other = type(model)(copy.deepcopy(model.config)).eval()
    other.load_state_dict(model.state_dict())
    other.set_attn_implementation("eager")
    return other


def padding(side: str) -> Tensor:
    """(2, LENGTH), of which the second sequence is padded."""
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    if side == "left":
        mask[1, :4] = 0
    if side == "right":
        mask[1, -4:] = 0
    return mask


def attentions(output: Any) -> list[Tensor]:
    """All weights that a model gives, in the order in which they were computed."""
    if hasattr(output, "text_model_output"):
        return [*output.vision_model_output.attentions, *output.text_model_output.attentions]
    if not hasattr(output, "decoder_attentions"):
        return list(output.attentions)
    pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return [*output.encoder_attentions, *(each for pair in pairs for each in pair)]
