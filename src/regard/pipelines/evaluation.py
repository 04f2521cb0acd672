"""Evaluation of models on test data, as by ``regard evaluate``."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.checks import Checks
from regard.errors import short_repr
from regard.metrics.classification import classification_metrics, perplexity
from regard.metrics.score import Score
from regard.metrics.tagging import span_labels, tagging_scores
from regard.metrics.translation import check_references, corpus_scores
from regard.pipelines.base import Pipeline
from regard.pipelines.text_encoder import TextEncoder
from regard.pipelines.text_generator import TextGenerator
from regard.pipelines.translator import Translator
from regard.text.lines import read_lines
from regard.text.readers import read_labeled_texts
from regard.text.tagged import read_tagged_sentences

CHUNK = 1024  # sentences between two reports of progress
MASKED_TOKENS, MAX_DRAWS = 20_000, 20  # masks are drawn 2 to 20 times, until 20,000 tokens have been masked
Folder = str | os.PathLike[str]
PipelineT = TypeVar("PipelineT", bound=Pipeline[Any])


def evaluate_translation(
    translator: Translator | Folder | None,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    beam: int | None = None,
    tokenize: str = "13a",
    progress: Callable[[int], object] | None = None,
) -> tuple[dict[str, Score], list[str]]:
    """Translate sentences and score the translations.

    Args:
        translator: A translator, its folder, or None for the bundled model.
        sources: Sentences to translate.
        references: At least one reference per sentence. `regard.text.read_references` reads both from a file.
        beam: As for `Translator.translate`.
        tokenize: As for `regard.metrics.corpus_scores`.
        progress: Called with the number of sentences that were translated since the last call.

    Returns:
        The number of ``sentences`` and ``references`` and the scores ``bleu``, ``chrf`` and ``ter``; and the
        translations.

    Raises:
        InvalidType: As `Translator.translate` and `regard.metrics.corpus_scores`.
        InvalidArgument: As those, before anything is translated.

    Examples:
        >>> scores, translations = evaluate_translation(None, ["Thank you."], [["Danke.", "Vielen Dank."]])
        >>> scores["references"].score, translations
        (2, ['Danke!'])
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
    counts = {
        "sentences": Score(len(translations), "sentences"),
        "references": Score(sum(map(len, references)), "references"),
    }
    return counts | corpus_scores(translations, references, tokenize=tokenize), translations


def evaluate_language_model(generator: TextGenerator | Folder, text: str | Path) -> dict[str, Score]:
    """Perplexity and bits per character of a text.

    Args:
        generator: A generator or its folder.
        text: A text, or the `Path` of a file; a str is always a text.

    Raises:
        InvalidArgument: If the text has fewer than two tokens.
    """
    generator = _as_pipeline(TextGenerator, generator)
    if isinstance(text, Path):
        text = "".join(f"{line}\n" for line in read_lines(text))
    likelihood = generator.likelihood(text)
    return {
        "tokens": Score(likelihood.num_tokens, "predicted tokens"),
        "characters": Score(likelihood.num_characters, "their characters"),
        "loss": Score(likelihood.nll / likelihood.num_tokens, "loss (nats per token)"),
        "perplexity": Score(likelihood.perplexity, "perplexity"),
        "bits_per_character": Score(likelihood.bits_per_character, "bits per character"),
    }


def evaluate_masked_lm(encoder: TextEncoder | Folder, texts: Sequence[str] | Path) -> dict[str, Score]:
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
    loss_std = statistics.stdev(score.nll / score.num_tokens for score in scores)
    return {
        "texts": Score(len(texts), "texts"),
        "draws": Score(draws, "random draws of masks"),
        "masked_tokens": Score(num_tokens, "masked tokens in all draws"),
        "loss": Score(loss, "loss (nats per masked token)"),
        "loss_std": Score(loss_std, "its standard deviation over draws"),
        "perplexity": Score(perplexity(loss), "perplexity"),
        "accuracy": Score(100 * sum(score.num_correct for score in scores) / num_tokens, "accuracy (%)"),
    }


def evaluate_classifier(encoder: TextEncoder | Folder, examples: Sequence[tuple[str, str]] | Path) -> dict[str, Score]:
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
    confusion = torch.zeros(len(labels), len(labels), dtype=torch.int64, device="cpu")
    for (_, label), prediction in zip(examples, encoder.classify(texts), strict=True):
        confusion[labels.index(label), labels.index(prediction.label)] += 1
    metrics = classification_metrics(confusion)
    return {
        "texts": Score(len(texts), "texts"),
        "accuracy": Score(metrics["accuracy"], "accuracy (%)"),
        "f1": Score(metrics["f1"], "macro F1 (%)"),
    }


def evaluate_tagger(
    encoder: TextEncoder | Folder, sentences: Sequence[tuple[Sequence[str], Sequence[str]]] | Path
) -> dict[str, Score]:
    """Accuracy of predicted tags; precision, recall and F1 of their spans.

    Args:
        encoder: A text encoder with the head ``token_classification``, or its folder.
        sentences: At least one (words, tags), or the `Path` of a file as for `regard.text.read_tagged_sentences`.

    Returns:
        The scores of `regard.metrics.tagging_scores`.

    Raises:
        InvalidType: If words or tags are not sequences of str.
        InvalidArgument: If there is no sentence, or the model has no tags of a type that the sentences have.
    """
    encoder = _as_pipeline(TextEncoder, encoder)
    name = str(sentences) if isinstance(sentences, Path) else "sentences"
    if isinstance(sentences, Path):
        sentences = [sentence[1:] for sentence in read_tagged_sentences([sentences])]
    with Checks() as checks:
        if checks.sequence(name, sentences, "(words, tags), or a Path"):
            checks.that(bool(sentences), f"{name}: expected at least one sentence with tags, got none")
    encoder.check_head("token_classification")
    true, known = [tags for _, tags in sentences], span_labels(encoder.model.config.labels)
    with Checks() as checks:
        for label in sorted({*span_labels(tag for tags in true for tag in tags)} - {*known}):
            checks.fail(f"{name}: expected tags of the types {', '.join(map(repr, known))}, got {short_repr(label)}")
    predicted = [[each.label for each in words] for words in encoder.tag([words for words, _ in sentences])]
    return tagging_scores(true, predicted)


def _as_pipeline(pipeline: type[PipelineT], model: PipelineT | Folder | None) -> PipelineT:
    return model if isinstance(model, pipeline) else pipeline.load(model)  # pyright: ignore[reportArgumentType]


def _is_example(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(part, str) for part in value)
