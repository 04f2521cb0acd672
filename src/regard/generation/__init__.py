"""Decoding: greedy search, beam search and sampling, from token ids to token ids."""

from __future__ import annotations

from regard.generation.beam_search import beam_search
from regard.generation.greedy import greedy
from regard.generation.sampling import SamplingParams, sample
from regard.generation.state import Hypothesis

__all__ = ["Hypothesis", "SamplingParams", "beam_search", "greedy", "sample"]
