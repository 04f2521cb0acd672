"""BERT's masking of tokens, and batches for training masked language models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import ResumableLoader, token_budget_batches
from regard.data.texts import TextDataset, padded_rows

IGNORE_INDEX = -100
"""The label of a token that is not to be predicted."""


class MaskedBatch(NamedTuple):
    """A padded batch of texts with masked tokens.

    Args:
        input_ids: Token ids, some of them masked (batch, tokens), int64.
        lengths: Tokens of each text (batch,), int64.
        labels: The original ids of the tokens to predict, `IGNORE_INDEX` elsewhere (batch, tokens), int64.
        num_targets: Number of tokens to predict.
    """

    input_ids: Tensor
    lengths: Tensor
    labels: Tensor
    num_targets: int


def mask_tokens(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
    *,
    mlm_probability: float,
    mask_id: int,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Select tokens for prediction and mask them.

    Selects each token with probability ``mlm_probability``, except the first and last (special) ones. Of the selected
    tokens, 80 % become the mask token and 10 % a random token; 10 % stay. At least one token per batch is selected.

    Args:
        input_ids: Padded token ids (batch, tokens), integers.
        lengths: Tokens of each text (batch,), integers.
        rng: Draws the tokens and what replaces them.
        mlm_probability: Probability of selecting a token.
        mask_id: Id of the mask token.
        vocab_size: Random tokens are drawn from ids below it.

    Returns:
        The masked ids, and the labels: the original ids of selected tokens, `IGNORE_INDEX` elsewhere; both
        (batch, tokens).

    Reference: Devlin et al. 2019, "BERT", section 3.1 and appendix A.1.
    """
    positions = np.arange(input_ids.shape[1])
    is_inner = (positions > 0) & (positions < lengths[:, None] - 1)
    is_selected = is_inner & (rng.random(input_ids.shape) < mlm_probability)
    if not is_selected.any():
        candidates = is_inner if is_inner.any() else positions < lengths[:, None]
        is_selected.flat[rng.choice(np.flatnonzero(candidates))] = True
    labels = np.where(is_selected, input_ids, IGNORE_INDEX)
    draw = rng.random(input_ids.shape)
    masked = np.where(is_selected & (draw < 0.8), mask_id, input_ids)
    is_random = is_selected & (draw >= 0.8) & (draw < 0.9)
    return np.where(is_random, rng.integers(vocab_size, size=input_ids.shape), masked), labels


class MaskedLMLoader(ResumableLoader):
    """Token-budget batches of texts of like length, masked differently in each epoch; see `ResumableLoader`.

    Args:
        corpus: The texts.
        tokens: Maximum size of a batch in tokens, with padding.
        pad_id: Id of the padding token.
        mask_id: Id of the mask token.
        vocab_size: Size of the vocabulary.
        mlm_probability: Fraction of tokens to predict.
        seed: As for `ResumableLoader`.
        rank: As for `ResumableLoader`.
        world_size: As for `ResumableLoader`.
    """

    def __init__(
        self,
        corpus: TextDataset,
        tokens: int,
        *,
        pad_id: int,
        mask_id: int,
        vocab_size: int,
        mlm_probability: float = 0.15,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world_size=world_size)
        self.corpus, self.tokens = corpus, tokens
        self.pad_id, self.mask_id = pad_id, mask_id
        self.vocab_size, self.mlm_probability = vocab_size, mlm_probability
        self.lengths = corpus.lengths()

    def batches(self, rng: np.random.Generator | None) -> list[np.ndarray]:
        return token_budget_batches(self.lengths - 1, self.lengths - 1, self.tokens, rng)

    def collate(self, rows: np.ndarray) -> MaskedBatch:
        ids, _ = self.corpus.rows(rows)
        input_ids, lengths = padded_rows(ids, self.pad_id)
        # In training, masks depend on the seed and the step, so that a resumed run draws the same; in validation on the
        # batch alone, so that the loss does not depend on the number of processes.
        step = () if self.seed is None else (self.seed, self.epoch, self.position, self.rank)
        rng = np.random.default_rng((*step, int(rows[0])))
        options = {"mlm_probability": self.mlm_probability, "mask_id": self.mask_id, "vocab_size": self.vocab_size}
        masked, labels = mask_tokens(input_ids, lengths.numpy(), rng, **options)
        num_targets = int((labels != IGNORE_INDEX).sum())
        return MaskedBatch(torch.from_numpy(masked), lengths, torch.from_numpy(labels), num_targets)
