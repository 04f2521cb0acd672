"""The data of a masked language model: the vocabulary and the tokenized texts, and the batches of each process."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from regard.data.batching import ResumableLoader
from regard.data.masking import MaskedLMLoader
from regard.data.texts import TextDataset, tokenize_texts
from regard.errors import InvalidFile
from regard.text.pipeline import PipelineTokenizer
from regard.text.readers import read_lines
from regard.training.bert import checkpoint_tokenizer
from regard.training.datamodule import TaskDataModule
from regard.training.masked_lm.recipe import MaskedLMRecipe

log = logging.getLogger("regard.training")


class MaskedLMData(TaskDataModule):
    """Texts, a line each.

    Args:
        recipe: The recipe.
    """

    recipe: MaskedLMRecipe
    tokenizer: PipelineTokenizer
    train: TextDataset
    valid: TextDataset | None

    def make_tokenizer(self) -> PipelineTokenizer:
        if self.recipe.model.checkpoint is not None:
            return checkpoint_tokenizer(self.recipe.model.checkpoint)
        lines = itertools.chain.from_iterable(map(read_lines, self.train_files))
        return PipelineTokenizer.train(lines, self.recipe.tokenizer.vocab_size)

    def corpora(self, tokenizer: PipelineTokenizer) -> tuple[TextDataset, TextDataset | None]:
        if tokenizer.mask_id is None:
            raise InvalidFile(f"{self.recipe.model.checkpoint}: its vocabulary has no word that hides another, [MASK]")
        longest = self.recipe.data.max_length
        train = tokenize_texts(self.train_files, tokenizer, self.folder, max_length=longest)
        if not self.valid_files:
            return train, None
        return train, tokenize_texts(self.valid_files, tokenizer, self.folder, max_length=longest)

    def loader(self, corpus: TextDataset, **options: Any) -> MaskedLMLoader:
        assert self.tokenizer.mask_id is not None
        return MaskedLMLoader(
            corpus,
            self.recipe.data.max_tokens_per_batch,
            pad_id=self.tokenizer.pad_id,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.tokenizer.vocab_size,
            mlm_probability=self.recipe.data.mlm_probability,
            **options,
        )

    def tell(self, loader: ResumableLoader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        tell_texts(self.train, self.valid)
        log.info("batches: %d an epoch", len(loader.sampler.plan(loader.sampler.epoch)))


def tell_texts(train: TextDataset, valid: TextDataset | None) -> None:
    """Log how many texts there are."""
    for name, corpus in (("training", train), ("validation", valid)):
        if corpus is not None:
            log.info(
                "%s: %d texts (%d cut; skipped: %d empty lines)",
                name,
                len(corpus),
                corpus.num_truncated,
                corpus.num_empty,
            )
