"""The data of a language model: the vocabulary and the text in ids, made once, and the blocks of each process."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from regard.data.batching import ResumableLoader
from regard.data.blocks import BlockLoader, TokenStream, read_text, tokenize_stream
from regard.text.pipeline import Documents, PipelineTokenizer
from regard.training.datamodule import TaskDataModule
from regard.training.language_model.recipe import LanguageModelRecipe

log = logging.getLogger("regard.training")


class LanguageModelData(TaskDataModule):
    """Running text.

    Args:
        recipe: The recipe.
    """

    recipe: LanguageModelRecipe
    tokenizer: PipelineTokenizer
    train: TokenStream
    valid: TokenStream | None

    @property
    def documents(self) -> Documents:
        return "line" if self.recipe.data.sample_by == "line" else "file"

    @property
    def shares(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Which part of the training files is learned from, and which is kept for validation."""
        kept = 1 - self.recipe.data.valid_fraction
        return (0.0, kept), (kept, 1.0)

    def make_tokenizer(self) -> PipelineTokenizer:
        config = self.recipe.tokenizer
        if config.type == "char":  # of all text, so that validation meets no other
            files = [*self.train_files, *self.valid_files]
            return PipelineTokenizer.of_characters(itertools.chain.from_iterable(read_text(files)), self.documents)
        lines = itertools.chain.from_iterable(read_text(self.train_files, self.shares[0]))
        return PipelineTokenizer.train(lines, config.vocab_size, self.documents)

    def corpora(self, tokenizer: PipelineTokenizer) -> tuple[TokenStream, TokenStream | None]:
        sample_by = self.recipe.data.sample_by
        learned, kept = self.shares
        train = tokenize_stream(self.train_files, tokenizer, self.folder, fraction_range=learned, sample_by=sample_by)
        if self.valid_files:
            return train, tokenize_stream(self.valid_files, tokenizer, self.folder, sample_by=sample_by)
        if not self.recipe.data.valid_fraction:
            return train, None
        return train, tokenize_stream(
            self.train_files, tokenizer, self.folder, fraction_range=kept, sample_by=sample_by
        )

    def loader(self, corpus: TokenStream, **options: Any) -> BlockLoader:
        keys = self.recipe.data
        return BlockLoader(corpus, keys.block_size, keys.batch_size, **options)

    def tell(self, loader: ResumableLoader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        for name, stream in (("training", self.train), ("validation", self.valid)):
            if stream is not None:
                log.info("%s: %d words, %d characters", name, len(stream), stream.num_characters)
        log.info("batches: %d an epoch", len(loader.sampler.plan(loader.sampler.epoch)))
