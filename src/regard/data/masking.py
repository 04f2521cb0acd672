"""Words of texts are hidden, so that a masked language model tells them."""

from __future__ import annotations

import numpy as np

IGNORE_INDEX = -100
"""The label of a word that is not told."""


def mask_tokens(
    words: np.ndarray, lengths: np.ndarray, rng: np.random.Generator, *, share: float, mask_id: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hide words, and say what stood there.

    Of the words between the first and the last, which are special tokens, a share is to be told: 80 % of these are
    hidden, 10 % are replaced by a word that is drawn from the whole vocabulary, 10 % stay as they are. At least one
    word of a batch is told.

    Args:
        words: Ids (batch, tokens), filled up to one length.
        lengths: Real words of each text (batch,).
        rng: Draws which words, and what becomes of them.
        share: How many of the words are to be told.
        mask_id: The word that hides another.
        vocab_size: Number of words.

    Returns:
        The ids, of which some are hidden, and what stands at the places that are to be told, `IGNORE_INDEX` elsewhere.

    Reference: Devlin et al. 2019, "BERT", section 3.1 and appendix A.1.
    """
    places = np.arange(words.shape[1])
    inner = (places > 0) & (places < lengths[:, None] - 1)
    told = inner & (rng.random(words.shape) < share)
    if not told.any():
        told.flat[rng.choice(np.flatnonzero(inner if inner.any() else places < lengths[:, None]))] = True
    labels = np.where(told, words, IGNORE_INDEX)
    fate = rng.random(words.shape)
    hidden = np.where(told & (fate < 0.8), mask_id, words)
    other = told & (fate >= 0.8) & (fate < 0.9)
    return np.where(other, rng.integers(vocab_size, size=words.shape), hidden), labels
