"""A translation of a line: what a search found, as text, with signs that it may be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.generation.state import Hypothesis
from regard.pipelines.confidence import ConfidenceModel
from regard.pipelines.missing_words import find_missing_words
from regard.text.base import BaseTokenizer


@dataclass(frozen=True)
class Translation:
    """A translation of one line.

    Args:
        text: The translation.
        score: Its log-probability; from beam search divided by the length penalty. For a line that was translated in
            parts, the sum over the parts.
        tokens: Its tokens, readable.
        finished: Whether it ends with EOS; False if the length limit cut it, or one of its parts.
        confidence: Probability in [0, 1] that the translation is acceptable: for the bundled model, that its chrF
            against a reference is at least 60. For a line that was translated in parts, the smallest of the parts.
            None with sampling, for an empty line, and for models without a ``confidence.json``.
        missing: Numbers and names of the source that the translation lacks, as the source spells them, in order; see
            `regard.pipelines.find_missing_words`.
        is_reliable: False if a number or name is missing, or the confidence is below the threshold in
            ``confidence.json``, 0.5 for the bundled model. None if none is missing and there is no confidence.
    """

    text: str
    score: float
    tokens: tuple[str, ...]
    finished: bool = True
    confidence: float | None = None
    missing: tuple[str, ...] = ()
    is_reliable: bool | None = None


def join_parts(
    source: str,
    parts: Sequence[Sequence[Hypothesis]],
    tokenizer: BaseTokenizer,
    confidence_model: ConfidenceModel | None,
    length_penalty: float | None,
) -> list[Translation]:
    """Translations of a line: the best of each part joined, the second best of each, and so on.

    Args:
        source: The line.
        parts: The hypotheses of each part, best first.
        tokenizer: Decodes them.
        confidence_model: Computes the confidence of each part.
        length_penalty: The exponent of their scores; None for sampled ones, which have no confidence.
    """
    if not parts:
        return [Translation("", 0.0, ())]
    translations = []
    for hypotheses in zip(*parts, strict=False):
        tokens = [hypothesis.tokens for hypothesis in hypotheses]
        text = " ".join(tokenizer.decode(tokens))
        missing = find_missing_words(source, text)
        confidence, is_reliable = None, False if missing else None
        if confidence_model is not None and length_penalty is not None:
            confidence = min(_confidence(confidence_model, each, length_penalty) for each in hypotheses)
            is_reliable = confidence >= confidence_model.threshold and not missing
        translations.append(
            Translation(
                text=text,
                score=sum(hypothesis.score for hypothesis in hypotheses),
                tokens=tuple(token for ids in tokens for token in tokenizer.convert_ids_to_tokens(ids)),
                finished=all(hypothesis.finished for hypothesis in hypotheses),
                confidence=confidence,
                missing=missing,
                is_reliable=is_reliable,
            )
        )
    return translations


def _confidence(model: ConfidenceModel, hypothesis: Hypothesis, length_penalty: float) -> float:
    length = len(hypothesis.tokens) + hypothesis.finished
    return model(hypothesis.score * length**length_penalty, length)
