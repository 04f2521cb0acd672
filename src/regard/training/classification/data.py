"""The data of a classifier: the vocabulary, the classes and the tokenized texts, and the batches of each process."""

from __future__ import annotations

import logging
from typing import Any

from regard.data.batching import ResumableLoader
from regard.data.texts import TextDataset, TextLoader, read_label_names, tokenize_texts
from regard.text.pipeline import PipelineTokenizer
from regard.text.readers import read_labeled_texts
from regard.training.bert import checkpoint_tokenizer
from regard.training.classification.recipe import ClassificationRecipe
from regard.training.datamodule import TaskDataModule
from regard.training.masked_lm.data import tell_texts

log = logging.getLogger("regard.training")


class ClassificationData(TaskDataModule):
    """Texts with their classes.

    After :meth:`setup` there are ``tokenizer``, ``labels``, ``train`` and ``valid``.

    Args:
        recipe: The recipe.
    """

    recipe: ClassificationRecipe
    tokenizer: PipelineTokenizer
    train: TextDataset
    valid: TextDataset | None

    def make_tokenizer(self) -> PipelineTokenizer:
        if self.recipe.model.checkpoint is not None:
            return checkpoint_tokenizer(self.recipe.model.checkpoint)
        texts = (text for _, text, _ in read_labeled_texts(self.train_files))
        return PipelineTokenizer.train(texts, self.recipe.tokenizer.vocab_size)

    def corpora(self, tokenizer: PipelineTokenizer) -> tuple[TextDataset, TextDataset | None]:
        self.labels = read_label_names(self.train_files)
        longest = self.recipe.data.max_length
        train, valid = (
            tokenize_texts(files, tokenizer, self.folder, max_length=longest, labels=self.labels) if files else None
            for files in (self.train_files, self.valid_files)
        )
        assert train is not None
        return train, valid

    def loader(self, corpus: TextDataset, **options: Any) -> TextLoader:
        return TextLoader(corpus, self.recipe.data.batch_size, self.tokenizer.pad_id, **options)

    def tell(self, loader: ResumableLoader) -> None:
        log.info("vocabulary: %d words", self.tokenizer.vocab_size)
        log.info("classes: %s", ", ".join(self.labels))
        tell_texts(self.train, self.valid)
        log.info("batches: %d an epoch", len(loader.sampler.plan(loader.sampler.epoch)))
