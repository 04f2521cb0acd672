"""The data of a translator: the vocabulary and the tokenized pairs, made once, and the batches of each process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from regard.data.batching import ResumableLoader, padding_fraction
from regard.data.pairs import PairDataset, PairLoader, tokenize_pairs
from regard.errors import InvalidFile
from regard.text.readers import group_references, read_pairs
from regard.text.tokenizer import Tokenizer
from regard.training.datamodule import TaskDataModule
from regard.training.translation.recipe import TranslationRecipe

log = logging.getLogger("regard.training")


class TranslationData(TaskDataModule):
    """Pairs of sentences.

    After :meth:`setup` there are ``tokenizer``, ``train``, ``valid`` (pairs) and ``sentences``: the sources to
    translate in validation, each with all its references.

    Args:
        recipe: The recipe.
    """

    recipe: TranslationRecipe
    tokenizer: Tokenizer
    train: PairDataset
    valid: PairDataset | None

    def __init__(self, recipe: TranslationRecipe) -> None:
        super().__init__(recipe)
        alignment = recipe.attention_loss.alignment
        self.alignments = recipe.data.folder / alignment.file if alignment.weight and alignment.file else None

    @property
    def files(self) -> dict[str, list[Path]]:
        alignments = {} if self.alignments is None else {"attention_loss.alignment.file": [self.alignments]}
        return {**super().files, **alignments}

    def make_tokenizer(self) -> Tokenizer:
        texts = (text for pair in read_pairs(self.train_files) for text in pair)
        return Tokenizer.train(texts, self.recipe.tokenizer.vocab_size)

    def read_tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    def corpora(self, tokenizer: Tokenizer) -> tuple[PairDataset, PairDataset | None]:
        longest = self.recipe.data.max_length
        train = tokenize_pairs(self.train_files, tokenizer, self.folder, max_length=longest, alignments=self.alignments)
        # a validation set is measured whole; only what fits no batch or no position is left out
        limit = min(self.recipe.data.max_tokens_per_batch, self.recipe.positions) - 1
        valid = tokenize_pairs(self.valid_files, tokenizer, self.folder, max_length=limit) if self.valid_files else None
        return train, valid

    def setup(self, stage: str) -> None:
        """Map the corpora into memory (on every process)."""
        super().setup(stage)
        translated = self.valid is not None and self.recipe.validation.bleu_sentences
        grouped = group_references(read_pairs(self.valid_files)) if translated else {}
        lengths = map(len, self.tokenizer.encode(list(grouped)))
        fitting = [
            item for item, length in zip(grouped.items(), lengths, strict=True) if length < self.recipe.positions
        ]
        self.too_long = len(grouped) - len(fitting)
        if grouped and not fitting:
            raise InvalidFile(f"{self.valid_files[0]}: every sentence is longer than the model takes")
        # spread over the file, which may be sorted
        step = max(1, len(fitting) // max(1, self.recipe.validation.bleu_sentences))
        self.sentences = fitting[::step][: self.recipe.validation.bleu_sentences]

    def loader(self, corpus: PairDataset, **options: Any) -> PairLoader:
        return PairLoader(corpus, self.recipe.data.max_tokens_per_batch, **options)

    def tell(self, loader: ResumableLoader) -> None:
        plan = loader.sampler.plan(loader.sampler.epoch)
        padding = padding_fraction(self.train.source.lengths, self.train.target.lengths, plan)
        log.info("vocabulary: %d subwords", self.tokenizer.vocab_size)
        for name, corpus in (("training", self.train), ("validation", self.valid)):
            if corpus is not None:
                log.info(
                    "%s: %d pairs (skipped: %d empty, %d too long)",
                    name,
                    len(corpus),
                    corpus.num_empty,
                    corpus.num_too_long,
                )
        if self.too_long:
            log.info("validation: not translated: %d sentences that are longer than the model takes", self.too_long)
        log.info("batches: %d an epoch; %.1f %% of their tokens are padding", len(plan), 100 * padding)
