"""The data of a language model: the vocabulary and the text in ids, made once, and the blocks of each process."""

from __future__ import annotations

import logging

from regard.data.batching import Loader
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
        kept = 1 - self.recipe.data.valid_share
        return (0.0, kept), (kept, 1.0)

    def make_tokenizer(self) -> Tokenizer:
        keys, sample_by = self.recipe.vocabulary, self.recipe.sample_by
        if keys.kind == "characters":  # of all text, so that validation meets no other
            files = [*self.train_files, *self.valid_files]
            return train_char(all_lines(files, (0.0, 1.0)), sample_by=sample_by)
        return train_bpe(all_lines(self.train_files, self.shares[0]), keys.size, sample_by=sample_by)

    def corpora(self, tokenizer: Tokenizer) -> tuple[TokenStream, TokenStream | None]:
        documents = self.recipe.data.documents
        learned, kept = self.shares
        train = tokenize_stream(self.train_files, tokenizer, self.folder, share=learned, documents=documents)
        if self.valid_files:
            return train, tokenize_stream(self.valid_files, tokenizer, self.folder, documents=documents)
        if not self.recipe.data.valid_share:
            return train, None
        return train, tokenize_stream(self.train_files, tokenizer, self.folder, share=kept, documents=documents)

    def loader(self, corpus: TokenStream, *, seed: int | None, rank: int, world: int) -> BlockLoader:
        keys = self.recipe.data
        return BlockLoader(corpus, keys.block, keys.batch, seed=seed, rank=rank, world=world)

    def tell(self, loader: Loader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        for name, stream in (("training", self.train), ("validation", self.valid)):
            if stream is not None:
                log.info("%s: %d words, %d characters", name, len(stream), stream.characters)
        log.info("batches: %d an epoch", len(loader.plan(loader.epoch)))
