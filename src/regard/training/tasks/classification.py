"""Text classification: labeled texts and a BERT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from regard.data.batching import ResumableLoader
from regard.data.streaming import FilePart, StreamLoader
from regard.data.texts import TextBatch, TextDataset, read_label_names, stream_labeled, text_loader, tokenize_texts
from regard.metrics.classification import classification_metrics
from regard.models import Bert
from regard.text.readers import read_labeled_texts
from regard.training.recipe import VALID_LOSS, Metric
from regard.training.recipe_sections import Column, Count, StreamedDataConfig, ValidationConfig
from regard.training.tasks.base import Split
from regard.training.tasks.bert import BertDataConfig, BertRecipe, BertTask


class LabeledDataConfig(StreamedDataConfig, BertDataConfig):
    """The texts, one per line: text, tab, class; or one per row of Parquet or JSON Lines."""

    text_column: Column = "text"
    """Column of the texts in Parquet and JSON Lines."""
    label_column: Column = "label"
    """Column of the classes: names, or numbers."""
    batch_size: Count = 32
    """Texts of a batch, which are of similar length."""


class ClassificationValidationConfig(ValidationConfig):
    """Validation during training."""

    monitor: Literal["valid_loss", "accuracy", "f1"] = "accuracy"
    """Metric that selects the best weights; f1 is the mean over classes."""


class ClassificationRecipe(BertRecipe):
    """The recipe of a text classifier."""

    head = "sequence_classification"
    target_unit = "texts"
    metrics = (VALID_LOSS, Metric("accuracy", "max", "%"), Metric("f1", "max", "%"))

    task: Literal["classification"]
    data: LabeledDataConfig
    validation: ClassificationValidationConfig = ClassificationValidationConfig()

    def build_task(self) -> ClassificationTask:
        return ClassificationTask(self)


class ClassificationTask(BertTask):
    """Trains a text classifier."""

    recipe: ClassificationRecipe

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes in the training files, sorted."""
        return read_label_names(self.train_files, **self.recipe.data.columns)

    def training_texts(self) -> Iterable[str]:
        return (text for _, text, _ in read_labeled_texts(self.train_files, **self.recipe.data.columns))

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> TextDataset:
        options = {"max_length": self.recipe.data.max_length, "labels": self.labels, **self.recipe.data.columns}
        return tokenize_texts(files, self.tokenizer, cache, hashes=self.hashes, **options)

    def statistics(self, loader: ResumableLoader) -> list[str]:
        return [f"classes: {', '.join(self.labels)}"]

    def loader(self, dataset: TextDataset, **options: Any) -> ResumableLoader:
        return text_loader(dataset, self.recipe.data.batch_size, self.tokenizer.pad_id, **options)

    def stream(self, parts: Sequence[FilePart], **options: Any) -> StreamLoader:
        data = self.recipe.data
        limits = {"max_length": data.max_length, "buffer_size": data.buffer_size, **data.columns}
        return stream_labeled(parts, self.tokenizer, data.batch_size, labels=self.labels, **limits, **options)

    def build_model(self) -> Bert:
        return self.build_bert(self.labels)

    def validation_sums(self, model: Bert, batch: TextBatch) -> Sequence[float]:
        """The negative log-likelihood and the confusion matrix: texts of each class (rows) by prediction (columns)."""
        nll, predicted, labels = self.predict(model, batch)
        num_classes = len(self.labels)
        confusion = torch.bincount(labels * num_classes + predicted, minlength=num_classes**2)
        return [float(nll), *confusion.tolist()]

    def compute_metrics(self, model: Bert, sums: Sequence[float]) -> dict[str, float]:
        nll, *confusion = sums
        num_classes = len(self.labels)
        metrics = classification_metrics(torch.tensor(confusion).view(num_classes, num_classes))
        return {"valid_loss": nll / sum(confusion), **metrics}
