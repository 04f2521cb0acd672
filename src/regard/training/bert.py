"""What the recipes of all tasks that train a BERT share: its keys, its vocabulary, and where it may begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from regard.models import Bert, BertConfig
from regard.models.bert import Head
from regard.models.checkpoint import load_model
from regard.models.minilm import resolve_folder
from regard.text.tokenizer import Tokenizer, check_vocab_size
from regard.training.recipe import Recipe
from regard.training.sections import Count, Data, Folder, Section, model_section

DECIDED = ("vocab_size", "pad_id", "head", "labels", "pooler", "pooling", "normalize_embeddings", "truncation_length")
BESIDE = {"checkpoint", "architecture", "dropout", "attention_dropout"}  # what a checkpoint leaves to say


class Vocabulary(Section):
    """What text is cut into; a checkpoint brings its own."""

    vocab_size: Annotated[int, Field(ge=260)] = 8000
    """Entries of the byte-level BPE vocabulary; 4 special tokens and 256 bytes are among them."""


class BertModel(model_section("BertKeys", "bert", BertConfig, DECIDED)):
    """The architecture, or a checkpoint to begin with."""

    checkpoint: Annotated[Folder | None, AfterValidator(lambda folder: folder and resolve_folder(folder))] = None
    """The folder of a model whose weights and vocabulary the training begins with, or ``minilm``, with its package;
    beside it stand only dropouts."""


class BertData(Data):
    """Which texts."""

    max_length: Count = 128
    """Words of a text, special ones counted; longer texts are cut, and counted."""


class BertRecipe(Recipe):
    """A BERT under some head."""

    data: BertData
    tokenizer: Vocabulary = Vocabulary()
    model: BertModel = BertModel()

    def config(self, vocab_size: int, head: Head, labels: Sequence[str], pad_id: int) -> BertConfig:
        """Give the architecture for a vocabulary, where no checkpoint does."""
        keys = self.model.model_dump(exclude={"architecture", "checkpoint"})
        return BertConfig(vocab_size, head=head, labels=tuple(labels), pad_id=pad_id, **keys)

    def build(self, tokenizer: Tokenizer, head: Head, labels: Sequence[str] = ()) -> Bert:
        """Make the model, with new weights or those of the checkpoint."""
        if self.model.checkpoint is None:
            return Bert(self.config(tokenizer.vocab_size, head, labels, tokenizer.pad_id))
        given = self.model.model_dump(exclude_unset=True, exclude={"architecture", "checkpoint"})
        model = load_model(self.model.checkpoint, expected=Bert)
        check_vocab_size(tokenizer, model.config.vocab_size, str(self.model.checkpoint))
        return model.with_head(head, labels, **given).train()

    def absolute(self, keys: dict[str, Any]) -> dict[str, Any]:
        if self.model.checkpoint is not None:
            keys["model"] = self.model.model_dump(mode="json", exclude_unset=True)
            keys["model"]["checkpoint"] = str(self.model.checkpoint.absolute())
        return super().absolute(keys)

    def conflicts(self) -> list[str]:
        if self.model.checkpoint is not None:
            said = sorted(self.model.model_fields_set - BESIDE)
            if said:
                return [f"model.{key}: is what model.checkpoint decides; leave one of them out" for key in said]
            most, whose = (
                load_model(self.model.checkpoint, expected=Bert).config.max_seq_len,
                "that of model.checkpoint",
            )
        else:
            self.config(self.tokenizer.vocab_size, "none", (), 0)
            most, whose = self.model.max_seq_len, "model.max_seq_len"
        if self.data.max_length > most:
            return [f"data.max_length: should be at most {whose}, {most}, but is {self.data.max_length}"]
        return []
