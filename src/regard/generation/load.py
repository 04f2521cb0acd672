"""A folder with a model of any kind, as what uses it."""

from __future__ import annotations

import os

import torch

from regard.generation.generator import Generator
from regard.generation.reader import Reader
from regard.generation.translator import Translator
from regard.models import GPT, Bert
from regard.models.checkpoint import model_class


def load(
    folder: str | os.PathLike[str] | None = None, *, dtype: torch.dtype = torch.float32
) -> Translator | Generator | Reader:
    """Read a model with its tokenizer: what translates, what writes, or what reads, as the model is.

    Args:
        folder: As for :meth:`Translator.load`, :meth:`Generator.load` and :meth:`Reader.load`. Default: the embedded
            translator.
        dtype: What the model computes in.

    Raises:
        InvalidFile: If a file is missing, damaged, or does not fit the others.
    """
    kind = None if folder is None else model_class(folder)
    if folder is None or kind not in (GPT, Bert):
        return Translator.load(folder, dtype=dtype)
    return Generator.load(folder, dtype=dtype) if kind is GPT else Reader.load(folder, dtype=dtype)
