"""The data of a language model: the vocabulary and the text in ids, made once, and the blocks of each process."""

from __future__ import annotations

import logging

from regard.data.batching import ResumableLoader
from regard.data.blocks import BlockLoader, TokenStream, all_lines, tokenize_stream
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
            return PipelineTokenizer.of_characters(all_lines(files, (0.0, 1.0)), self.documents)
        return PipelineTokenizer.train(all_lines(self.train_files, self.shares[0]), config.vocab_size, self.documents)

    def corpora(self, tokenizer: PipelineTokenizer) -> tuple[TokenStream, TokenStream | None]:
        documents = self.documents
        learned, kept = self.shares
        train = tokenize_stream(self.train_files, tokenizer, self.folder, share=learned, documents=documents)
        if self.valid_files:
            return train, tokenize_stream(self.valid_files, tokenizer, self.folder, documents=documents)
        if not self.recipe.data.valid_fraction:
            return train, None
        return train, tokenize_stream(self.train_files, tokenizer, self.folder, share=kept, documents=documents)

    def loader(self, corpus: TokenStream, *, seed: int | None, rank: int, world_size: int) -> BlockLoader:
        keys = self.recipe.data
        return BlockLoader(corpus, keys.block_size, keys.batch_size, seed=seed, rank=rank, world_size=world_size)

    def tell(self, loader: ResumableLoader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        for name, stream in (("training", self.train), ("validation", self.valid)):
            if stream is not None:
                log.info("%s: %d words, %d characters", name, len(stream), stream.num_characters)
        log.info("batches: %d an epoch", len(loader.plan(loader.epoch)))
