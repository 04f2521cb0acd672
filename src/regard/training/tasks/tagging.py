"""Tagging: sentences whose words have tags, such as those of names, and a BERT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from regard.data.batching import ResumableLoader
from regard.data.masking import IGNORE_INDEX
from regard.data.tags import TaggedDataset, read_tag_names, tag_loader, tokenize_tagged
from regard.data.texts import TextBatch
from regard.metrics.tagging import SpanCounts, count_spans, span_f1, span_labels
from regard.models import Bert
from regard.text.tagged import read_tagged_sentences
from regard.training.recipe import VALID_LOSS, Metric
from regard.training.recipe_sections import Count, ValidationConfig
from regard.training.tasks.base import Split
from regard.training.tasks.bert import BertDataConfig, BertRecipe, BertTask


class TaggedDataConfig(BertDataConfig):
    """The sentences: CoNLL columns with the word first and its tag last, or JSON Lines of tokens and tags."""

    batch_size: Count = 32
    """Sentences of a batch, which are of similar length."""


class TaggingValidationConfig(ValidationConfig):
    """Validation during training."""

    monitor: Literal["valid_loss", "accuracy", "precision", "recall", "f1"] = "f1"
    """Metric that selects the best weights; precision, recall and f1 are those of spans, accuracy that of tags."""


class TaggingRecipe(BertRecipe):
    """The recipe of a tagger."""

    head = "token_classification"
    target_unit = "words"
    metrics = (VALID_LOSS, *(Metric(name, "max", "%") for name in ("accuracy", "precision", "recall", "f1")))

    task: Literal["tagging"]
    data: TaggedDataConfig
    validation: TaggingValidationConfig = TaggingValidationConfig()

    def build_task(self) -> TaggingTask:
        return TaggingTask(self)


class TaggingTask(BertTask):
    """Trains a tagger: the first token of each word predicts its tag."""

    recipe: TaggingRecipe

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags in the training and validation files, sorted: rare ones may be in the latter alone."""
        return read_tag_names([*self.train_files, *self.valid_files])

    @cached_property
    def span_labels(self) -> list[str]:
        """The types of spans that the tags have."""
        return span_labels(self.labels)

    def training_texts(self) -> Iterable[str]:
        return (" ".join(sentence.words) for sentence in read_tagged_sentences(self.train_files))

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> TaggedDataset:
        options = {"max_length": self.recipe.data.max_length, "tags": self.labels, "hashes": self.hashes}
        return tokenize_tagged(files, self.tokenizer, cache, **options)

    def describe(self, dataset: TaggedDataset) -> str:
        skipped = f"; skipped: {dataset.num_empty} without readable words" if dataset.num_empty else ""
        return f"{len(dataset)} sentences ({dataset.num_truncated} truncated{skipped})"

    def statistics(self, loader: ResumableLoader) -> list[str]:
        return [f"tags: {', '.join(self.labels)}"]

    def loader(self, dataset: TaggedDataset, **options: Any) -> ResumableLoader:
        return tag_loader(dataset, self.recipe.data.batch_size, self.tokenizer.pad_id, **options)

    def build_model(self) -> Bert:
        return self.build_bert(self.labels)

    def validation_sums(self, model: Bert, batch: TextBatch) -> Sequence[float]:
        """The negative log-likelihood, the numbers of words and of correct tags, and three numbers of each type."""
        nll, predicted, labels = self.predict(model, batch)
        sizes = (batch.labels != IGNORE_INDEX).sum(1).tolist()
        true_tags, predicted_tags = (self._sentences(tags, sizes) for tags in (labels, predicted))
        counts = count_spans(true_tags, predicted_tags)
        spans = [number for label in self.span_labels for number in counts.get(label, SpanCounts(0, 0, 0))]
        return [float(nll), len(labels), int((predicted == labels).sum()), *spans]

    def _sentences(self, tags: Tensor, sizes: Sequence[int]) -> list[list[str]]:
        """The names of the tags of all words, as sentences of some sizes."""
        return [[self.labels[index] for index in part] for part in (each.tolist() for each in tags.split(list(sizes)))]

    def compute_metrics(self, model: Bert, sums: Sequence[float]) -> dict[str, float]:
        nll, num_words, num_correct, *spans = sums
        counts = [SpanCounts(*map(int, spans[start : start + 3])) for start in range(0, len(spans), 3)]
        return {"valid_loss": nll / num_words, "accuracy": 100 * num_correct / num_words, **span_f1(counts)}
