"""Checkpoints as Hugging Face's transformers keeps them: their configurations and names, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from regard.models.huggingface.bert import BERT, ROBERTA
from regard.models.huggingface.converter import CheckpointConverter
from regard.models.huggingface.gpt2 import GPT2
from regard.models.huggingface.llama import LLAMA, MISTRAL, QWEN2
from regard.models.huggingface.marian import MARIAN

CONVERTERS: Mapping[str, CheckpointConverter] = MappingProxyType(
    {each.model_type: each for each in (BERT, GPT2, LLAMA, MARIAN, MISTRAL, QWEN2, ROBERTA)}
)
"""By what config.json calls them."""

__all__ = ["CONVERTERS", "CheckpointConverter"]
