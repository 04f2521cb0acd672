"""A folder with a model of any kind, as what uses it."""

from __future__ import annotations

import os

import torch

from regard.models import GPT, Bert
from regard.models.checkpoint import model_class
from regard.pipelines.generator import Generator
from regard.pipelines.text_encoder import TextEncoder
from regard.pipelines.translator import Translator


def load(
    folder: str | os.PathLike[str] | None = None, *, dtype: torch.dtype = torch.float32
) -> Translator | Generator | TextEncoder:
    """Read a model with its tokenizer: what translates, what writes, or what reads, as the model is.

    Args:
        folder: As for :meth:`Translator.load`, :meth:`Generator.load` and :meth:`TextEncoder.load`.
            Default: the bundled translator.
        dtype: What the model computes in.

    Raises:
        InvalidFile: If a file is missing, damaged, or does not fit the others.
    """
    kind = None if folder is None else model_class(folder)
    if folder is None or kind not in (GPT, Bert):
        return Translator.load(folder, dtype=dtype)
    return Generator.load(folder, dtype=dtype) if kind is GPT else TextEncoder.load(folder, dtype=dtype)
