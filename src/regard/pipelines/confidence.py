"""Confidence of translations: the probability that a translation is acceptable."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Self

from pydantic import StrictFloat

from regard.errors import InvalidArgument, InvalidFile
from regard.files import atomic_write
from regard.input_files import exists, read_json
from regard.validation import Config, config_class

CONFIDENCE_FILE = "confidence.json"


@config_class
class ConfidenceModel(Config):
    """Logistic regression on the mean log-probability and the number of the tokens of a translation.

    With n tokens (the end-of-sentence token included) of total log-probability L, the confidence is
    σ(intercept + log_prob_weight · L / n + length_weight · n).

    Args:
        intercept: Log-odds at zero.
        log_prob_weight: Weight of the mean log-probability of a token, in nats.
        length_weight: Weight of the number of tokens.
        threshold: Confidence below which a translation is not reliable.

    Examples:
        >>> confidence = ConfidenceModel(intercept=2.8, log_prob_weight=9.0, length_weight=0.0, threshold=0.5)
        >>> [round(confidence(log_prob, 10), 2) for log_prob in (-1.0, -5.0)]
        [0.87, 0.15]
    """

    intercept: StrictFloat
    log_prob_weight: StrictFloat
    length_weight: StrictFloat
    threshold: StrictFloat

    def __call__(self, log_prob: float, num_tokens: int) -> float:
        """The confidence, in [0, 1].

        Args:
            log_prob: Log-probability of the translation, in nats: the sum over its tokens.
            num_tokens: Number of its tokens, at least 1, with the end-of-sentence token.
        """
        logit = self.intercept + self.log_prob_weight * log_prob / num_tokens + self.length_weight * num_tokens
        return 1 / (1 + math.exp(min(-logit, 700)))  # 700: exp overflows above

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The confidence model in a model's folder; None if the folder has none.

        Raises:
            InvalidFile: If the file cannot be read or is not one.
        """
        path = folder / CONFIDENCE_FILE
        if not exists(path):
            return None
        values = read_json(path)
        try:
            if not isinstance(values, dict):
                raise InvalidArgument(f"expected a JSON object, got {type(values).__name__}")
            return cls.from_dict(values)
        except InvalidArgument as error:
            raise InvalidFile(f"{path}: {error}") from error

    def save(self, folder: Path) -> None:
        """Write the confidence model into a model's folder.

        Raises:
            InvalidFile: If it cannot be written.
        """
        with atomic_write(folder / CONFIDENCE_FILE, text=True) as file:
            file.write(json.dumps(asdict(self), indent=2) + "\n")
