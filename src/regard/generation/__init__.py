"""Generating sequences with a model: greedy, beam search, sampling; translators, writers and readers of text."""

from __future__ import annotations

from regard.generation.beam import beam_search
from regard.generation.decoding import Hypothesis
from regard.generation.dtypes import fastest_dtype
from regard.generation.generator import Generator
from regard.generation.greedy import greedy
from regard.generation.load import load
from regard.generation.reader import Guesses, Reader, Tag, Told
from regard.generation.sampling import Sampling, sample
from regard.generation.translator import Translation, Translator

__all__ = [
    "Generator",
    "Guesses",
    "Hypothesis",
    "Reader",
    "Sampling",
    "Tag",
    "Told",
    "Translation",
    "Translator",
    "beam_search",
    "fastest_dtype",
    "greedy",
    "load",
    "sample",
]
