"""The data of a language model: the vocabulary and the text in ids, made once, and the blocks of each process."""

from __future__ import annotations

import logging

from regard.data.batching import ResumableLoader
from regard.data.blocks import BlockLoader, TokenStream, all_lines, tokenize_stream
from regard.text.tokenizer import Tokenizer, train_bpe, train_char
from regard.training.datamodule import TaskDataModule
from regard.training.language_model.recipe import LanguageModelRecipe

log = logging.getLogger("regard.training")


class LanguageModelData(TaskDataModule):
    """Running text.

    Args:
        recipe: The recipe.
    """

    recipe: LanguageModelRecipe
    tokenizer: Tokenizer
    train: TokenStream
    valid: TokenStream | None

    @property
    def shares(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Which part of the training files is learned from, and which is kept for validation."""
        kept = 1 - self.recipe.data.valid_fraction
        return (0.0, kept), (kept, 1.0)

    def make_tokenizer(self) -> Tokenizer:
        config, sample_by = self.recipe.tokenizer, self.recipe.data.sample_by
        if config.type == "char":  # of all text, so that validation meets no other
            files = [*self.train_files, *self.valid_files]
            return train_char(all_lines(files, (0.0, 1.0)), sample_by=sample_by)
        return train_bpe(all_lines(self.train_files, self.shares[0]), config.vocab_size, sample_by=sample_by)

    def corpora(self, tokenizer: Tokenizer) -> tuple[TokenStream, TokenStream | None]:
        sample_by = self.recipe.data.sample_by
        learned, kept = self.shares
        train = tokenize_stream(self.train_files, tokenizer, self.folder, share=learned, sample_by=sample_by)
        if self.valid_files:
            return train, tokenize_stream(self.valid_files, tokenizer, self.folder, sample_by=sample_by)
        if not self.recipe.data.valid_fraction:
            return train, None
        return train, tokenize_stream(self.train_files, tokenizer, self.folder, share=kept, sample_by=sample_by)

    def loader(self, corpus: TokenStream, *, seed: int | None, rank: int, world_size: int) -> BlockLoader:
        keys = self.recipe.data
        return BlockLoader(corpus, keys.block_size, keys.batch_size, seed=seed, rank=rank, world_size=world_size)

    def tell(self, loader: ResumableLoader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        for name, stream in (("training", self.train), ("validation", self.valid)):
            if stream is not None:
                log.info("%s: %d words, %d characters", name, len(stream), stream.num_characters)
        log.info("batches: %d an epoch", len(loader.plan(loader.epoch)))
