"""The data of a masked language model: the vocabulary and the tokenised texts, and the batches of each process."""

from __future__ import annotations

import itertools
import logging

from regard.errors import InvalidFile
from regard.text.batches import Loader
from regard.text.lines import read_lines
from regard.text.pipeline import PipelineTokenizer
from regard.text.sentences import MaskingLoader, Sentences, build_sentences
from regard.training.bert import checkpoint_tokenizer
from regard.training.data import TaskData
from regard.training.masked_words.recipe import MaskedWordsRecipe

log = logging.getLogger("regard.training")


class MaskedWordsData(TaskData):
    """Texts, a line each.

    Args:
        recipe: The recipe.
    """

    recipe: MaskedWordsRecipe
    tokenizer: PipelineTokenizer
    train: Sentences
    valid: Sentences | None

    def make_tokenizer(self) -> PipelineTokenizer:
        if self.recipe.model.checkpoint is not None:
            return checkpoint_tokenizer(self.recipe.model.checkpoint)
        lines = itertools.chain.from_iterable(map(read_lines, self.train_files))
        return PipelineTokenizer.train(lines, self.recipe.vocabulary.size)

    def corpora(self, tokenizer: PipelineTokenizer) -> tuple[Sentences, Sentences | None]:
        if tokenizer.mask_id is None:
            raise InvalidFile(f"{self.recipe.model.checkpoint}: its vocabulary has no word that hides another, [MASK]")
        longest = self.recipe.data.max_length
        train = build_sentences(self.train_files, tokenizer, self.folder, max_length=longest)
        if not self.valid_files:
            return train, None
        return train, build_sentences(self.valid_files, tokenizer, self.folder, max_length=longest)

    def loader(self, corpus: Sentences, *, seed: int | None, rank: int, world: int) -> MaskingLoader:
        assert self.tokenizer.mask_id is not None
        return MaskingLoader(
            corpus,
            self.recipe.data.batch_tokens,
            pad_id=self.tokenizer.pad_id,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.tokenizer.vocab_size,
            share=self.recipe.data.masked,
            seed=seed,
            rank=rank,
            world=world,
        )

    def tell(self, loader: Loader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        tell_texts(self.train, self.valid)
        log.info("batches: %d an epoch", len(loader.plan(loader.epoch)))


def tell_texts(train: Sentences, valid: Sentences | None) -> None:
    """Log how many texts there are."""
    for name, corpus in (("training", train), ("validation", valid)):
        if corpus is not None:
            log.info("%s: %d texts (%d cut; skipped: %d empty lines)", name, len(corpus), corpus.cut, corpus.empty)
