"""Recipe sections, tokenizer and model that the tasks on a BERT share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag
from torch import Tensor

from regard.checks import Checks
from regard.data.masking import IGNORE_INDEX
from regard.data.texts import TextBatch, TextDataset
from regard.models import Bert, BertConfig, load_model
from regard.models.bert import CLASSIFIERS, Head
from regard.text.tokenizer import Tokenizer, check_vocab_size, train_bpe
from regard.training.recipe import Recipe
from regard.training.recipe_sections import Count, DataConfig, ModelSection, PretrainedSection, get_key
from regard.training.tasks.base import Task
from regard.validation import config_class

DERIVED_FIELDS = (
    "vocab_size",
    "pad_id",
    "head",
    "labels",
    "pooler",
    "pooling",
    "normalize_embeddings",
    "truncation_length",
)


@config_class
class BertSection(ModelSection, BertConfig, derived=DERIVED_FIELDS):
    """A new BERT."""

    architecture: Literal["bert"] = "bert"
    checkpoint: None = Field(None, description="No pretrained model.")


class PretrainedBertSection(PretrainedSection):
    """A pretrained BERT; only its dropout rates can be changed."""

    new_section = BertSection
    architecture: Literal["bert"] = "bert"


class BertDataConfig(DataConfig):
    """The texts."""

    max_length: Count = 128
    """Maximum length of a text in tokens, special tokens included; longer texts are truncated."""


class BertRecipe(Recipe):
    """The recipe of a BERT with a head: a new one, or a pretrained one with ``model.checkpoint``."""

    head: ClassVar[Head]
    """The head of the model."""

    data: BertDataConfig
    model: Annotated[
        Annotated[BertSection, Tag("new")] | Annotated[PretrainedBertSection, Tag("pretrained")],
        Discriminator(lambda model: "new" if get_key(model, "checkpoint") is None else "pretrained"),
    ] = BertSection.from_dict({})

    @property
    def placeholder_config(self) -> BertConfig:
        labels = ("a", "b") if self.head in CLASSIFIERS else ()  # stand for those of the data
        if self.model.checkpoint is None:
            return self.model.build_config(2**16, head=self.head, labels=labels)
        return replace(self.model.load_config(Bert), head=self.head, labels=labels)

    def check(self, checks: Checks) -> None:
        super().check(checks)
        if self.model.checkpoint is None:
            name, limit = "model.max_seq_len", self.model.max_seq_len
        else:
            name, limit = "the checkpoint's max_seq_len", self.placeholder_config.max_seq_len
        length = self.data.max_length
        checks.that(length <= limit, f"data.max_length: expected at most {name}={limit}, got {length}")


class BertTask(Task):
    """Trains a BERT with a head."""

    recipe: BertRecipe
    train_data: TextDataset
    valid_data: TextDataset | None

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """The texts to train the tokenizer on."""

    def train_tokenizer(self) -> Tokenizer:
        folder = self.recipe.model.checkpoint
        if folder is None:
            return train_bpe(self.tokenizer_texts(self.training_texts()), self.recipe.tokenizer.vocab_size)
        return Tokenizer.load(folder)

    def describe(self, dataset: TextDataset) -> str:
        return f"{len(dataset)} texts ({dataset.num_truncated} truncated; skipped: {dataset.num_empty} empty lines)"

    def build_bert(self, labels: Sequence[str] = ()) -> Bert:
        """Build the model with initial weights, or with those of the pretrained model."""
        model, tokenizer, head = self.recipe.model, self.tokenizer, self.recipe.head
        if isinstance(model, BertSection):
            derived = {"head": head, "labels": tuple(labels), "pad_id": tokenizer.pad_id}
            return Bert(model.build_config(tokenizer.vocab_size, **derived))
        pretrained = load_model(model.checkpoint, expected=Bert)
        check_vocab_size(tokenizer, pretrained.config.vocab_size, str(model.checkpoint))
        return pretrained.with_head(head, labels, **model.rates).train()

    def losses(self, model: Bert, batch: TextBatch) -> dict[str, Tensor]:
        smoothing = self.recipe.loss.label_smoothing
        return {"loss": model.loss(batch.input_ids, batch.lengths, batch.labels, label_smoothing=smoothing).loss}

    def predict(self, model: Bert, batch: TextBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The summed negative log-likelihood of the labels of a batch, the predicted labels and the true ones."""
        loss = model.loss(batch.input_ids, batch.lengths, batch.labels, output_predictions=True)
        assert loss.predictions is not None
        return loss.nll, loss.predictions, batch.labels[batch.labels != IGNORE_INDEX]
