"""Language models: running text, a decoder, and the word that comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from regard.models import GPTConfig
from regard.training.recipe import Recipe, by_architecture
from regard.training.sections import Count, Data, Section, Share, Validation, model_section

if TYPE_CHECKING:
    from regard.training.language_model.data import LanguageModelData
    from regard.training.language_model.module import LanguageModelModule


class TextData(Data):
    """Which text, and how much of it at a time."""

    valid_fraction: Share = 0.0
    """Where no file is named for validation: the last share of the characters of each file is kept for it."""
    sample_by: Literal["document", "line"] = "document"
    """What a text is, behind which the vocabulary's word for an end stands."""
    block_size: Count = 256
    """Words that are read in one row."""
    batch_size: Count = 32
    """Rows of a batch."""


class TextVocabulary(Section):
    """What text is cut into."""

    type: Literal["bpe", "char"] = "bpe"
    """Byte-level BPE of the training text, or the characters of all text."""
    vocab_size: Annotated[int, Field(ge=260)] = 8000
    """Entries of a BPE vocabulary; 4 special tokens and 256 bytes are among them."""


class LanguageModelValidation(Validation):
    """What is measured while training, and when it is good enough."""

    monitor: Literal["loss", "perplexity", "bits_per_character"] = "loss"
    """What decides which weights are best."""


DECIDED = ("vocab_size", "pad_id", "bos_id", "eos_ids", "sample_by")  # by the vocabulary and the data
_LLAMA = GPTConfig.llama(9)
LLAMA = {field.name: getattr(_LLAMA, field.name) for field in fields(GPTConfig) if field.name not in DECIDED}
GptModel = model_section("GptModel", "gpt", GPTConfig, DECIDED)
LlamaModel = model_section("LlamaModel", "llama", GPTConfig, DECIDED, LLAMA)


class LanguageModelRecipe(Recipe):
    """A language model.

    Args:
        task: ``"causal_lm"``.
        data: See :class:`TextData`.
        tokenizer: See :class:`TextVocabulary`.
        model: The keys of :class:`regard.models.GPTConfig`; with ``architecture: llama`` their defaults are Llama's.
        validation: See :class:`LanguageModelValidation`.
    """

    task: Literal["causal_lm"]
    data: TextData
    tokenizer: TextVocabulary = TextVocabulary()
    model: GptModel = GptModel()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of GPTConfig
    validation: LanguageModelValidation = LanguageModelValidation()

    @classmethod
    def variant(cls, keys: Mapping[str, Any]) -> type[Recipe]:
        return by_architecture(keys, {"gpt": LanguageModelRecipe, "llama": LlamaRecipe})

    def config(self, vocab_size: int, **specials: Any) -> GPTConfig:
        """Give the architecture for a vocabulary and its special words."""
        return GPTConfig(vocab_size, **self.model.model_dump(exclude={"architecture"}), **specials)

    @property
    def validates(self) -> bool:
        return super().validates or self.data.valid_fraction > 0

    @property
    def columns(self) -> list[str]:
        return ["valid_loss", "perplexity", "bits_per_character"]

    def parts(self) -> tuple[LanguageModelData, LanguageModelModule]:
        from regard.training.language_model.data import LanguageModelData
        from regard.training.language_model.module import LanguageModelModule

        return LanguageModelData(self), LanguageModelModule(self)

    def conflicts(self) -> list[str]:
        self.config(self.tokenizer.vocab_size)
        conflicts = []
        if self.data.block_size > self.model.max_seq_len:
            most = self.model.max_seq_len
            conflicts.append(
                f"data.block_size: should be at most model.max_seq_len, {most}, but is {self.data.block_size}"
            )
        if self.data.valid is not None and self.data.valid_fraction:
            conflicts.append("data.valid_fraction: is for where data.valid is not given; leave one of them out")
        return conflicts


class LlamaRecipe(LanguageModelRecipe):
    """A language model in the shape of Llama."""

    model: LlamaModel = LlamaModel()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of GPTConfig
