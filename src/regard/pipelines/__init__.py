"""A model with its tokenizer: text in, answers out."""

from __future__ import annotations

from regard.pipelines.dtypes import fastest_dtype
from regard.pipelines.generator import Generator
from regard.pipelines.load import load
from regard.pipelines.text_encoder import MaskedLMScore, Prediction, TextEncoder, TokenPrediction
from regard.pipelines.translator import Translation, Translator

__all__ = [
    "Generator",
    "MaskedLMScore",
    "Prediction",
    "TextEncoder",
    "TokenPrediction",
    "Translation",
    "Translator",
    "fastest_dtype",
    "load",
]
