"""Convert checkpoints of Hugging Face's transformers, in both directions: configurations and names of weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from regard.models.huggingface.bert import BERT, ROBERTA
from regard.models.huggingface.converter import CheckpointConverter
from regard.models.huggingface.gpt2 import GPT2
from regard.models.huggingface.llama import LLAMA, MISTRAL, QWEN2
from regard.models.huggingface.marian import MARIAN

CONVERTERS: Mapping[str, CheckpointConverter] = MappingProxyType(
    {converter.model_type: converter for converter in (BERT, GPT2, LLAMA, MARIAN, MISTRAL, QWEN2, ROBERTA)}
)
"""The converters by ``model_type`` in config.json."""

__all__ = ["CONVERTERS", "CheckpointConverter"]
