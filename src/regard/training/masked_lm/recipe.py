"""Masked language models: texts, an encoder, and the words that were hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from regard.training.bert import BertData, BertRecipe
from regard.training.sections import Count, Validation

if TYPE_CHECKING:
    from regard.training.masked_lm.data import MaskedLMData
    from regard.training.masked_lm.module import MaskedLMModule


class MaskedData(BertData):
    """Which texts, a line each, and how many at a time."""

    max_tokens_per_batch: Count = 8000
    """The most words of a batch, padding counted."""
    mlm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """What share of the words is to be told; of these 80 % are hidden, and 10 % replaced by another word."""


class MaskedValidation(Validation):
    """What is measured while training, and when it is good enough."""

    monitor: Literal["loss", "perplexity", "accuracy"] = "loss"
    """What decides which weights are best."""


class MaskedLMRecipe(BertRecipe):
    """A masked language model.

    Args:
        task: ``"masked_lm"``.
        data: See :class:`MaskedData`.
        vocabulary: See :class:`regard.training.bert.Vocabulary`.
        model: The keys of :class:`regard.models.BertConfig`, or ``checkpoint``.
        validation: See :class:`MaskedValidation`.
    """

    task: Literal["masked_lm"]
    data: MaskedData
    validation: MaskedValidation = MaskedValidation()

    @property
    def told(self) -> str:
        return "hidden words"

    @property
    def columns(self) -> list[str]:
        return ["valid_loss", "perplexity", "accuracy"]

    def parts(self) -> tuple[MaskedLMData, MaskedLMModule]:
        from regard.training.masked_lm.data import MaskedLMData
        from regard.training.masked_lm.module import MaskedLMModule

        return MaskedLMData(self), MaskedLMModule(self)

    def conflicts(self) -> list[str]:
        conflicts = super().conflicts()
        if self.data.max_length > self.data.max_tokens_per_batch:
            most = self.data.max_tokens_per_batch
            conflicts.append(
                f"data.max_length: should be at most data.max_tokens_per_batch, {most}, so that any text fits one"
            )
        return conflicts
