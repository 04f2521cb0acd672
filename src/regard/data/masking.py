"""BERT's masking of tokens, and batches for training masked language models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.batching import BatchIndices, ResumableLoader, token_budget_batches
from regard.data.streaming import Corpus, FilePart, StreamLoader
from regard.data.texts import TextBatch, TextDataset, encode_texts, nonempty
from regard.data.token_dataset import TokenDataset, chunked
from regard.nn.linear_cross_entropy import IGNORE_INDEX
from regard.text.tables import read_texts


def mask_tokens(
    input_ids: Tensor,
    lengths: Tensor,
    rng: np.random.Generator,
    *,
    mlm_probability: float,
    mask_id: int,
    vocab_size: int,
) -> tuple[Tensor, Tensor]:
    """Select tokens for prediction and mask them.

    Selects each token with probability ``mlm_probability``, except the first and last (special) ones. Of the selected
    tokens, 80 % become the mask token and 10 % a random token; 10 % stay. At least one token per batch is selected.

    Args:
        input_ids: Padded token ids (batch, tokens), int64.
        lengths: Tokens of each text (batch,), int64.
        rng: Draws the tokens and what replaces them.
        mlm_probability: Probability of selecting a token.
        mask_id: Id of the mask token.
        vocab_size: Random tokens are drawn from ids below it.

    Returns:
        The masked ids and the labels, both (batch, tokens), int64. Labels are the original ids of selected tokens and
        `IGNORE_INDEX` elsewhere.

    Reference: Devlin et al. 2019, "BERT", section 3.1 and appendix A.1.
    """
    ids, ends = input_ids.cpu().numpy(), lengths.cpu().numpy()[:, None]
    positions = np.arange(ids.shape[1])
    is_inner = (positions > 0) & (positions < ends - 1)
    is_selected = is_inner & (rng.random(ids.shape) < mlm_probability)
    if not is_selected.any():
        candidates = is_inner if is_inner.any() else positions < ends
        is_selected.flat[rng.choice(np.flatnonzero(candidates))] = True
    labels = np.where(is_selected, ids, IGNORE_INDEX)
    draw = rng.random(ids.shape)
    masked = np.where(is_selected & (draw < 0.8), mask_id, ids)
    is_random = is_selected & (draw >= 0.8) & (draw < 0.9)
    masked = np.where(is_random, rng.integers(vocab_size, size=ids.shape), masked)
    return torch.from_numpy(masked).to(input_ids.device), torch.from_numpy(labels).to(input_ids.device)


def masked_lm_loader(
    dataset: TextDataset,
    max_tokens: int,
    *,
    pad_id: int,
    mask_id: int,
    vocab_size: int,
    mlm_probability: float = 0.15,
    **options: Any,
) -> ResumableLoader:
    """Token-budget batches of texts of similar length, masked differently in each epoch: `TextBatch`.

    Args:
        dataset: The texts.
        max_tokens: Maximum tokens of a batch, with padding.
        pad_id: Id of the padding token.
        mask_id: Id of the mask token.
        vocab_size: Random tokens are drawn from ids below it.
        mlm_probability: Probability of selecting a token, above 0 and at most 1.
        options: Those of `ResumableLoader`, whose errors are raised.

    Raises:
        InvalidType: If a number has a wrong type.
        InvalidArgument: If a number is out of range.
    """
    with Checks() as checks:
        if checks.number("mlm_probability", mlm_probability, above=0):
            checks.that(mlm_probability <= 1, f"mlm_probability: expected at most 1, got {mlm_probability}")
    lengths = dataset.texts.lengths - 1  # the budget counts one special token more
    make_batches = partial(token_budget_batches, lengths, lengths, max_tokens)
    masking = {"mlm_probability": mlm_probability, "mask_id": mask_id, "vocab_size": vocab_size}
    return ResumableLoader(dataset, make_batches, partial(collate_masked, pad_id=pad_id, **masking), **options)


def stream_masked(
    parts: Sequence[FilePart],
    tokenizer: Any,
    max_tokens: int,
    *,
    mask_id: int,
    max_length: int,
    seed: int,
    buffer_size: int,
    mlm_probability: float = 0.15,
    text_column: str = "text",
    **options: Any,
) -> StreamLoader:
    """Token-budget batches of texts that are tokenized in passing, masked differently in each epoch: `TextBatch`.

    Args:
        parts: Parts of files, from `split_files`.
        tokenizer: The tokenizer.
        max_tokens: Maximum tokens of a batch, with padding.
        mask_id: Id of the mask token.
        max_length: Longer texts are truncated to as many tokens, as in `tokenize_texts`.
        seed: Seed of the order and of masks.
        buffer_size: Characters of the texts of which similarly long ones are shuffled together.
        mlm_probability: Probability of selecting a token, above 0 and at most 1.
        text_column: The column of the texts in Parquet and JSON Lines.
        options: Those of `StreamLoader`, whose errors are raised.
    """
    masking = {"mlm_probability": mlm_probability, "mask_id": mask_id, "vocab_size": tokenizer.vocab_size}
    sizes = {"max_length": max_length, "max_tokens": max_tokens}
    make_loader = partial(_load_buffer, tokenizer=tokenizer, pad_id=tokenizer.pad_id, **sizes, **masking)
    read = partial(_read_part, text_column=text_column)
    return StreamLoader(Corpus(parts, read, len, make_loader, buffer_size, seed), **options)


def _read_part(part: FilePart, *, text_column: str) -> Iterator[str]:
    return nonempty(read_texts(part.path, text_column, part.part), Counter())


def _load_buffer(
    texts: Sequence[str], *, tokenizer: Any, max_length: int, max_tokens: int, **options: Any
) -> ResumableLoader:
    encode = partial(encode_texts, tokenizer=tokenizer, max_length=max_length, counts=Counter())
    (rows,) = TokenDataset.from_chunks([encode(chunk, split_special_tokens=True)] for chunk in chunked(texts, len))
    dataset = TextDataset(rows, np.full(len(rows), -1, np.int32), 0, 0)
    return masked_lm_loader(dataset, max_tokens, **options)


def collate_masked(dataset: TextDataset, indices: BatchIndices, *, pad_id: int, **masking: Any) -> TextBatch:
    """Pad texts and mask tokens; ``masking`` are the options of `mask_tokens`."""
    input_ids, lengths = dataset.texts.pad(indices.rows, pad_id)
    masked, labels = mask_tokens(input_ids, lengths, np.random.default_rng(indices.seed), **masking)
    return TextBatch(masked, lengths, labels, int((labels != IGNORE_INDEX).sum()))
