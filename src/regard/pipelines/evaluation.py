"""Evaluation of models on test data, as by ``regard evaluate``."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.checks import Checks
from regard.errors import InvalidFile, short_repr
from regard.input_files import parse_json
from regard.metrics import classification_metrics, perplexity
from regard.metrics.generation import generation_metrics, generation_signature
from regard.metrics.translation import Score, check_references, corpus_scores
from regard.pipelines.base import Pipeline
from regard.pipelines.generator import Generator
from regard.pipelines.text_encoder import TextEncoder
from regard.pipelines.translator import Translator
from regard.text.readers import group_references, read_labeled_texts, read_lines, read_pairs

CHUNK = 1024  # sentences between two reports of progress
MASKED_TOKENS, MAX_DRAWS = 20_000, 20  # masks are drawn 2 to 20 times, until 20,000 tokens have been masked
Folder = str | os.PathLike[str]
PipelineT = TypeVar("PipelineT", bound=Pipeline[Any])


@dataclass(frozen=True)
class TranslationScores:
    """BLEU, chrF and TER of a translator, with the number of sentences and references, and the translations."""

    sentences: int
    references: int
    bleu: Score
    chrf: Score
    ter: Score
    translations: tuple[str, ...]


@dataclass(frozen=True)
class LanguageModelScores:
    """Likelihood of a text: number of predicted tokens and of their characters; ``loss`` in nats per token."""

    tokens: int
    characters: int
    loss: float
    perplexity: float
    bits_per_character: float


@dataclass(frozen=True)
class MaskedLMScores:
    """Prediction of masked tokens: number of texts, of draws of masks, and of masked tokens in all draws.

    ``loss`` is in nats per masked token, ``loss_std`` its standard deviation over draws, ``accuracy`` in percent.
    """

    texts: int
    draws: int
    masked_tokens: int
    loss: float
    loss_std: float
    perplexity: float
    accuracy: float


@dataclass(frozen=True)
class ClassifierScores:
    """Number of texts, accuracy and macro F1, both in percent."""

    texts: int
    accuracy: float
    f1: float


def read_test_pairs(path: Folder) -> tuple[list[str], list[list[str]]]:
    """Read sources and their references from a TSV file; a repeated source brings a further reference.

    Args:
        path: Lines of source, tab and reference; may be ``.gz``.

    Returns:
        The distinct sources in order, and the references of each.

    Raises:
        InvalidFile: If the file cannot be read or is empty, or a line has no tab or an empty side.
    """
    pairs = list(read_pairs([Path(path)]))
    for number, (source, reference) in enumerate(pairs, start=1):
        if not source or not reference:
            raise InvalidFile(f"{path}, line {number}: expected a source, a tab and a reference, got an empty side")
    if not pairs:
        raise InvalidFile(f"{path}: expected pairs, got an empty file")
    grouped = group_references(pairs)
    return list(grouped), list(grouped.values())


def evaluate_translation(
    translator: Translator | Folder | None,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    beam: int | None = None,
    tokenize: str = "13a",
    progress: Callable[[int], object] | None = None,
) -> TranslationScores:
    """Translate sentences and score the translations.

    Args:
        translator: A translator, its folder, or None for the bundled model.
        sources: Sentences to translate.
        references: At least one reference per sentence. `read_test_pairs` reads both from a file.
        beam: As for `Translator.translate`.
        tokenize: As for `regard.metrics.corpus_scores`.
        progress: Called with the number of sentences that were translated since the last call.

    Raises:
        InvalidType: As `Translator.translate` and `regard.metrics.corpus_scores`.
        InvalidArgument: As those, before anything is translated.

    Examples:
        >>> scores = evaluate_translation(None, ["Thank you."], [["Danke.", "Vielen Dank."]])
        >>> scores.references, scores.translations
        (2, ('Danke!',))
    """
    with Checks() as checks:
        check_references(checks, "sources", sources, references, tokenize)
    translator = _as_pipeline(Translator, translator)
    translations: list[str] = []
    for start in range(0, len(sources), CHUNK):
        chunk = sources[start : start + CHUNK]
        names = [f"the source {source[:40]!r}" for source in chunk]
        best = (hypotheses[0].text for hypotheses in translator.translate(chunk, beam=beam, line_names=names))
        translations += [re.sub(r"[\t\r\n]+", " ", text) for text in best]  # one line each, as in a file
        if progress is not None:
            progress(len(chunk))
    return score_translations(translations, references, tokenize=tokenize)


def score_translations(
    translations: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a"
) -> TranslationScores:
    """Score translations of any system; arguments and errors are those of `regard.metrics.corpus_scores`."""
    scores = corpus_scores(translations, references, tokenize=tokenize)
    num_references = sum(map(len, references))
    return TranslationScores(len(translations), num_references, **scores, translations=tuple(translations))


def evaluate_language_model(generator: Generator | Folder, text: str | Path) -> LanguageModelScores:
    """Perplexity and bits per character of a text.

    Args:
        generator: A generator or its folder.
        text: A text, or the `Path` of a file; a str is always a text.

    Raises:
        InvalidArgument: If the text has fewer than two tokens.
    """
    generator = _as_pipeline(Generator, generator)
    if isinstance(text, Path):
        text = "".join(f"{line}\n" for line in read_lines(text))
    score = generator.likelihood(text)
    return LanguageModelScores(
        tokens=score.num_tokens,
        characters=score.num_characters,
        loss=score.nll / score.num_tokens,
        perplexity=score.perplexity,
        bits_per_character=score.bits_per_character,
    )


def evaluate_masked_lm(encoder: TextEncoder | Folder, texts: Sequence[str] | Path) -> MaskedLMScores:
    """Loss, perplexity and accuracy of masked tokens, which are masked as in training.

    Masks are drawn several times, because a few texts have few masked tokens.

    Args:
        encoder: A text encoder with a masked-LM head, or its folder.
        texts: At least one text, or the `Path` of a file with one text per line; empty lines are skipped.

    Raises:
        InvalidArgument: If there is no text, or as `TextEncoder.masked_lm_score`.
    """
    encoder = _as_pipeline(TextEncoder, encoder)
    name = str(texts) if isinstance(texts, Path) else "texts"
    if isinstance(texts, Path):
        texts = [line.strip() for line in read_lines(texts) if line.strip()]
    with Checks() as checks:
        checks.that(bool(texts), f"{name}: expected at least one text, got none")
    scores = [encoder.masked_lm_score(texts)]
    draws = min(max(math.ceil(MASKED_TOKENS / scores[0].num_tokens), 2), MAX_DRAWS)
    scores += [encoder.masked_lm_score(texts, seed=seed) for seed in range(1, draws)]
    num_tokens = sum(score.num_tokens for score in scores)
    loss = sum(score.nll for score in scores) / num_tokens
    return MaskedLMScores(
        texts=len(texts),
        draws=draws,
        masked_tokens=num_tokens,
        loss=loss,
        loss_std=statistics.stdev(score.nll / score.num_tokens for score in scores),
        perplexity=perplexity(loss),
        accuracy=100 * sum(score.num_correct for score in scores) / num_tokens,
    )


def evaluate_classifier(encoder: TextEncoder | Folder, examples: Sequence[tuple[str, str]] | Path) -> ClassifierScores:
    """Accuracy and macro F1 of predicted classes.

    Args:
        encoder: A text encoder with a classification head, or its folder.
        examples: At least one (text, class), or the `Path` of a file with lines of text, tab and class.

    Raises:
        InvalidType: If examples are not a sequence of (text, class).
        InvalidArgument: If there is no example, or the model does not have a class, or no classification head.
    """
    encoder = _as_pipeline(TextEncoder, encoder)
    name = str(examples) if isinstance(examples, Path) else "examples"
    if isinstance(examples, Path):
        examples = [(text, label) for _, text, label in read_labeled_texts([examples])]
    with Checks() as checks:
        if checks.sequence(name, examples, "(text, class), or a Path"):
            checks.that(bool(examples), f"{name}: expected at least one text with its class, got none")
            for index, example in enumerate(examples):
                if not _is_example(example):
                    checks.fail_type(f"{name}[{index}]: expected (text, class), both str, got {short_repr(example)}")
    encoder.check_head("sequence_classification")
    texts, labels = [text for text, _ in examples], encoder.model.config.labels
    with Checks() as checks:
        for label in sorted({label for _, label in examples} - set(labels)):
            checks.fail(f"{name}: expected one of the classes {', '.join(map(repr, labels))}, got {short_repr(label)}")
    confusion = torch.zeros(len(labels), len(labels), dtype=torch.int64)
    for (_, label), prediction in zip(examples, encoder.classify(texts), strict=True):
        confusion[labels.index(label), labels.index(prediction.label)] += 1
    return ClassifierScores(len(texts), **classification_metrics(confusion))


def evaluate_generated(texts: Sequence[str] | Path, references: Sequence[str] | Path | None = None) -> dict[str, Any]:
    """Diversity of generated texts and their similarity to references.

    Args:
        texts: Texts, or the `Path` of a file with one text per line, or of a ``.jsonl`` file of ``regard generate
            --json``.
        references: One reference per text, in the same forms. Default: none.

    Returns:
        The metrics of `regard.metrics.generation_metrics`, and ``signature``, as of sacreBLEU.
    """
    texts = _read_texts(texts) if isinstance(texts, Path) else texts
    references = _read_texts(references) if isinstance(references, Path) else references
    signature = generation_signature(has_references=references is not None)
    return {**generation_metrics(texts, references), "signature": signature}


def _as_pipeline(pipeline: type[PipelineT], model: PipelineT | Folder | None) -> PipelineT:
    return model if isinstance(model, pipeline) else pipeline.load(model)  # pyright: ignore[reportArgumentType]


def _is_example(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _read_texts(path: Path) -> list[str]:
    """The texts of a file, one per line; of JSON lines the field ``text``."""
    lines = list(read_lines(path))
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        return lines
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            values = parse_json(line, path)
        except InvalidFile:
            values = None
        text = values.get("text") if isinstance(values, dict) else None
        if not isinstance(text, str):
            expected = "an object with a 'text', as `regard generate --json` prints it"
            raise InvalidFile(f"{path}, line {number}: expected {expected}, got {line[:60]!r}")
        texts.append(text)
    return texts
