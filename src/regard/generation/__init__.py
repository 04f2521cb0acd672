"""Generating sequences with a model: greedy, beam search, sampling."""

from __future__ import annotations

from regard.generation.beam import beam_search
from regard.generation.decoding import Hypothesis
from regard.generation.greedy import greedy
from regard.generation.sampling import sample
from regard.generation.translator import Sampling, Translation, Translator

__all__ = ["Hypothesis", "Sampling", "Translation", "Translator", "beam_search", "greedy", "sample"]
