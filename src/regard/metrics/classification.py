"""Metrics of predicted classes and tokens: accuracy, macro F1 and perplexity."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.checks import Checks, describe


def classification_metrics(confusion: Tensor) -> dict[str, float]:
    """Accuracy and macro F1, both in percent.

    Args:
        confusion: (classes, classes), number or proportion of texts of each true class (rows) and predicted class
            (columns).

    Returns:
        ``accuracy`` and ``f1``, the mean of the F1 of each class; a class that is neither true nor predicted has F1 0.

    Raises:
        InvalidType: If it is not a tensor.
        InvalidArgument: If it is not a square matrix, or there are no texts.

    Examples:
        >>> import torch
        >>> classification_metrics(torch.tensor([[3, 1], [0, 4]]))
        {'accuracy': 87.5, 'f1': 87.3...}
    """
    with Checks() as checks:
        if checks.tensor("confusion", confusion):
            if confusion.ndim != 2 or len(confusion) != confusion.shape[1]:
                checks.fail(f"confusion: expected a matrix (classes, classes), got {describe(confusion)}")
            else:
                checks.that(bool(confusion.any()), "confusion: expected at least one text, got zeros")
    confusion = confusion.double()
    correct, total = confusion.diagonal(), confusion.sum(0) + confusion.sum(1)
    f1 = 2 * correct / torch.where(total > 0, total, 1)
    return {"accuracy": 100 * float(correct.sum() / confusion.sum()), "f1": 100 * float(f1.mean())}


def perplexity(loss: float) -> float:
    """``exp(loss)`` for a mean loss per token in nats; infinite if it overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
