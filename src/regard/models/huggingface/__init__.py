"""Convert checkpoints of Hugging Face's transformers, in both directions: configurations and names of weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from regard.models.huggingface.bert import BERT, ROBERTA
from regard.models.huggingface.converter import CheckpointConverter
from regard.models.huggingface.gpt2 import GPT2
from regard.models.huggingface.llama import GEMMA, LLAMA, MISTRAL, QWEN2
from regard.models.huggingface.marian import MARIAN, PEGASUS

CONVERTERS: Mapping[str, CheckpointConverter] = MappingProxyType(
    {
        converter.model_type: converter
        for converter in (ROBERTA, BERT, GPT2, QWEN2, LLAMA, MISTRAL, GEMMA, MARIAN, PEGASUS)
    }
)
"""The converters by ``model_type`` in config.json. The first that can express a model saves it."""

__all__ = ["CONVERTERS", "CheckpointConverter"]
