"""A model with its tokenizer: text in, results out."""

from __future__ import annotations

import os

import torch

from regard.models.checkpoint import model_class
from regard.pipelines.base import fastest_dtype
from regard.pipelines.missing_words import find_missing_words
from regard.pipelines.text_encoder import MaskedLMScore, Prediction, TextEncoder, WordPrediction
from regard.pipelines.text_generator import Likelihood, TextGenerator
from regard.pipelines.translation import Translation
from regard.pipelines.translator import Translator

__all__ = [
    "Likelihood",
    "MaskedLMScore",
    "Prediction",
    "TextEncoder",
    "TextGenerator",
    "Translation",
    "Translator",
    "WordPrediction",
    "fastest_dtype",
    "find_missing_words",
    "load",
]


def load(
    folder: str | os.PathLike[str] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Translator | TextGenerator | TextEncoder:
    """Load a model with its tokenizer as the pipeline for its architecture.

    Args:
        folder: As for `Translator.load`, `TextGenerator.load` and `TextEncoder.load`.
            Default: the bundled translator.
        dtype: Compute dtype.
        device: Device of the model.

    Raises:
        InvalidFile: If a file is missing, damaged, or does not fit the others.
        InvalidArgument: If models cannot compute in the dtype, or the device is not available.
    """
    architecture = None if folder is None else model_class(folder)
    if folder is not None:
        for pipeline in (TextGenerator, TextEncoder):
            if architecture is pipeline.model_type:
                return pipeline.load(folder, dtype=dtype, device=device)
    return Translator.load(folder, dtype=dtype, device=device)
