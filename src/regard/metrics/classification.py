"""Metrics of predicted classes and tokens: accuracy, macro F1 and perplexity."""

from __future__ import annotations

import math

from torch import Tensor


def classification_metrics(confusion: Tensor) -> dict[str, float]:
    """Accuracy and macro F1, both in percent.

    Args:
        confusion: (classes, classes), number of texts of each true class (rows) and predicted class (columns).

    Returns:
        ``accuracy`` and ``f1``, the mean of the F1 of each class; a class that is neither true nor predicted has F1 0.

    Example:
        >>> import torch
        >>> classification_metrics(torch.tensor([[3, 1], [0, 4]]))
        {'accuracy': 87.5, 'f1': 87.3...}
    """
    correct = confusion.diagonal().double()
    f1 = 2 * correct / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    return {"accuracy": 100 * float(correct.sum() / confusion.sum()), "f1": 100 * float(f1.mean())}


def perplexity(loss: float) -> float:
    """``exp(loss)`` for a mean loss per token in nats; infinite if it overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
