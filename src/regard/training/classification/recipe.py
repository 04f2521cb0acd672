"""Classification: texts with their classes, and an encoder, new or of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from regard.training.bert import BertData, BertRecipe
from regard.training.sections import Count, Validation

if TYPE_CHECKING:
    from regard.training.classification.data import ClassificationData
    from regard.training.classification.module import ClassificationModule


class LabeledData(BertData):
    """Which texts, a line each: text, tab, class; and how many at a time."""

    batch_size: Count = 32
    """Texts of a batch."""


class ClassificationValidation(Validation):
    """What is measured while training, and when it is good enough."""

    monitor: Literal["loss", "accuracy", "f1"] = "accuracy"
    """What decides which weights are best; f1 is the mean over the classes."""


class ClassificationRecipe(BertRecipe):
    """A classifier of texts.

    Args:
        task: ``"classification"``.
        data: See :class:`LabeledData`.
        vocabulary: See :class:`regard.training.bert.Vocabulary`.
        model: The keys of :class:`regard.models.BertConfig`, or ``checkpoint``.
        validation: See :class:`ClassificationValidation`.
    """

    task: Literal["classification"]
    data: LabeledData
    validation: ClassificationValidation = ClassificationValidation()

    @property
    def told(self) -> str:
        return "texts"

    @property
    def columns(self) -> list[str]:
        return ["valid_loss", "accuracy", "f1"]

    def parts(self) -> tuple[ClassificationData, ClassificationModule]:
        from regard.training.classification.data import ClassificationData
        from regard.training.classification.module import ClassificationModule

        return ClassificationData(self), ClassificationModule(self)
