"""Small models of transformers with random weights, as its own code saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    CLIPImageProcessor,
    CLIPVisionConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

from helpers.model_zoo.families import SPECIAL

VOCAB = 61
WORDS = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {"vocab_size": VOCAB}


def _random(model: PreTrainedModel) -> PreTrainedModel:
    """Random biases and norms too, so that a missing one is detected."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def bert(kind: type[PreTrainedModel] = BertModel, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    return _random(kind(BertConfig(**{**SIZES, "max_position_embeddings": 40, **sizes, **changes})))


def gpt2(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 40}
    return _random(GPT2LMHeadModel(GPT2Config(**{**SIZES, **sizes, **ids, **changes})))


def llama(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = LlamaConfig(**{**SIZES, "intermediate_size": 48, "max_position_embeddings": 40, **sizes, **changes})
    return _random(LlamaForCausalLM(config))


def mistral(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 40, "head_dim": 8}
    return _random(MistralForCausalLM(MistralConfig(**{**SIZES, **sizes, **changes})))


def qwen2(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 40}
    return _random(Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **sizes, **changes})))


def gemma(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 40, "head_dim": 12}
    return _random(GemmaForCausalLM(GemmaConfig(**{**SIZES, **sizes, **changes})))


def roberta(kind: type[PreTrainedModel] = RobertaModel, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    return _random(kind(RobertaConfig(**{**SIZES, "max_position_embeddings": 40, **sizes, **changes})))


def marian(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (
        ("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    last = changes.get("vocab_size", VOCAB) - 1
    ids = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0, "forced_eos_token_id": 0}
    kind = {"scale_embedding": True, "activation_function": "swish", "d_model": 32, "max_position_embeddings": 40}
    model = MarianMTModel(MarianConfig(**{**SIZES, **kind, **sizes, **ids, **changes}))
    model.generation_config.update(bad_words_ids=[[last]], max_length=40, **ids)
    model.final_logits_bias.normal_(std=0.5)
    return _random(model)


def pegasus(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (
        ("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    kind = {"scale_embedding": True, "activation_function": "relu", "d_model": 32, "max_position_embeddings": 40}
    model = PegasusForConditionalGeneration(PegasusConfig(**{**SIZES, **kind, **sizes, **changes}))
    model.final_logits_bias.normal_(std=0.5)
    return _random(model)


BERTS = {
    "none": BertModel,
    "masked_lm": BertForMaskedLM,
    "pre-training": BertForPreTraining,
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
}
ROBERTAS = {
    "none": RobertaModel,
    "masked_lm": RobertaForMaskedLM,
    "sequence_classification": RobertaForSequenceClassification,
    "token_classification": RobertaForTokenClassification,
}


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99, **SPECIAL}


def tokenizer():
    """Words of a few letters, cut into pieces as BERT's are."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "cat", "sat", "on", "mat", "ma", "##t", "##s", "dog", "a"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{f"{name}_token": word for name, word in names.items()})


def save_llava(folder: Path) -> Path:
    """A model of images of 3 × 3 patches and texts that say where they are by ``<image>``, with its processor."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**sizes, image_size=12, patch_size=4),
        text_config=LlamaConfig(**sizes, vocab_size=len(words), eos_token_id=None, pad_token_id=0),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    images = CLIPImageProcessor(size={"height": 12, "width": 12}, do_center_crop=False)
    options: Any = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    LlavaProcessor(images, words, **options).save_pretrained(folder)
    return folder
