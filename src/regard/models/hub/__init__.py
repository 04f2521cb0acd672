"""Checkpoints as Hugging Face's transformers keeps them: their configurations and names, there and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from regard.models.hub.bert import BERT, ROBERTA
from regard.models.hub.format import Format
from regard.models.hub.gpt2 import GPT2
from regard.models.hub.llama import LLAMA, MISTRAL, QWEN2
from regard.models.hub.marian import MARIAN

FORMATS: Mapping[str, Format] = MappingProxyType(
    {each.model_type: each for each in (BERT, GPT2, LLAMA, MARIAN, MISTRAL, QWEN2, ROBERTA)}
)
"""By what config.json calls them."""

__all__ = ["FORMATS", "Format"]
