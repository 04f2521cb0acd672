"""``regard evaluate``: BLEU, chrF and TER of a model's translations, or of any translations in a file."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import DtypeName, load_pipeline, resolve_dtype
from regard.cli.output import open_output, strip_newlines
from regard.errors import InvalidArgument, InvalidFile
from regard.text.readers import group_references, read_labeled_texts, read_lines, read_pairs

if TYPE_CHECKING:
    from regard.metrics.translation import Score
    from regard.pipelines import TextEncoder

MASKED_TOKENS, MAX_DRAWS = 20_000, 20
"""Masks are drawn until there are so many masked tokens, at least 2 and at most so many times."""
NAMES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def evaluate(
    test: Annotated[
        Path | None,
        typer.Argument(
            help="Pairs: source, tab, reference; `.gz` too. A source line that comes again brings a further reference. "
            "Of a language model a text, of a masked one a text a line, of a classifier texts with classes."
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="The source lines, in place of TEST.")] = None,
    reference: Annotated[
        list[Path] | None,
        typer.Option(help="References aligned with `--source`; give it again for each further reference."),
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(help="Score these lines (one for each different source line) and run no model.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="The folder of a model.", show_default="the bundled model")] = None,
    dtype: Annotated[
        DtypeName | None,
        typer.Option(
            help="What the model computes in.",
            show_default="float32; of a translator bfloat16 if it is faster here",
        ),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept while searching; 1 is greedy.", show_default="5")
    ] = None,
    generated: Annotated[
        Path | None,
        typer.Option(
            help="Measure these texts, which a model wrote: one a line, or a `.jsonl` of `regard generate --json`. "
            "With one `--reference`, what was wanted of each."
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        typer.Option(
            help="How BLEU cuts sentences into words: 13a, intl, char, zh; none if it was done.", show_default="13a"
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the translations to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what a model was made for.

    Of a translator BLEU, chrF and TER by sacreBLEU, each with the signature that makes it comparable; of a language
    model (TEST is a text) perplexity and bits per character; of a masked language model (a text a line) how well it
    tells hidden words; of a classifier (text, tab, class) accuracy and F1; of texts that were generated how varied they
    are (distinct-n, self-BLEU) and how close to references (ROUGE).

    Pairs in one file, where repeated source lines are several references of one sentence:

        regard evaluate test.tsv

    Aligned files, and translations that came from elsewhere:

        regard evaluate --source test.en --reference test.de --hypotheses other-system.de

    Texts that a language model wrote:

        regard evaluate --generated texts.jsonl
    """
    if generated is not None:
        others = {"source": source, "hypotheses": hypotheses, "model": model, "dtype": dtype, "beam": beam}
        others |= {"output": output, "tokenize": tokenize}
        idle = [f"`--{name}`" for name in given(**others)] + (["TEST"] if test is not None else [])
        if idle or len(reference or []) > 1:
            told = ", ".join(idle) or "a second `--reference`"
            raise InvalidArgument(
                f"{told}: `--generated` measures the texts of one file, at most with one reference each"
            )
        _print_values(_generated_scores(generated, (reference or [None])[0]), as_json=as_json)
        return
    from regard.models import GPT, Bert, load_model
    from regard.models.checkpoint import kind_of, model_class

    kind = None if model is None else model_class(model)
    if model is not None and kind in (GPT, Bert):
        idle = given(
            source=source, reference=reference, hypotheses=hypotheses, beam=beam, tokenize=tokenize, output=output
        )
        if test is None or idle:
            named = ", ".join(f"`--{name}`" for name in idle) or "TEST"
            raise InvalidArgument(
                f"{named}: {kind_of(kind)} is measured on one file, TEST, and takes no options of translators"
            )
        found = (_text_scores if kind is GPT else _reader_scores)(model, test, dtype)
        _print_values(found, as_json=as_json)
        return
    from regard.metrics import corpus_scores

    idle = given(model=model, dtype=dtype, beam=beam)
    if hypotheses is not None and idle:
        named = ", ".join(f"`--{name}`" for name in idle)
        raise InvalidArgument(f"{named}: `--hypotheses` runs no model; leave out one or the other")
    if model is not None and kind is None:
        load_model(model)  # which tells why it cannot be read, before the lines of TEST are taken for pairs
    sources, references = _read(test, source, reference or [])
    with nullcontext() if output is None else open_output(output) as file:  # refused before anything is translated
        if hypotheses is not None:
            lines = _hypotheses(hypotheses, len(sources))
        else:
            from regard.cli.translate import translate_lines
            from regard.pipelines import Translator

            named = [(f"the source {text[:40]!r}", text) for text in sources]
            translator = load_pipeline(model, Translator, dtype=dtype or "auto", device="cpu")
            found = translate_lines(translator, named, total=len(sources), **given(beam=beam))
            lines = [strip_newlines(best[0].text) for *_, best in found]
        if file is not None:
            file.writelines(f"{line}\n" for line in lines)
    scores = corpus_scores(lines, references, **given(tokenize=tokenize))
    report(scores, sentences=len(sources), references=sum(map(len, references)), as_json=as_json)
    if tokenize is None and 2 * sum(line.endswith(" .") for line in lines) > len(lines):
        print("note: this text looks tokenized; `--tokenize none` takes its words as they are", file=sys.stderr)


def given(**options: Any) -> dict[str, Any]:
    """The options that are set."""
    return {name: value for name, value in options.items() if value is not None}


def _text_scores(model: Path, test: Path, dtype: str | None) -> dict[str, float]:
    """How likely a language model holds a text."""
    from regard.pipelines.generator import Generator

    text = "".join(f"{line}\n" for line in read_lines(test))
    found = Generator.load(model, dtype=resolve_dtype(dtype or "float32")).likelihood(text)
    return {
        "tokens": found.num_tokens,
        "characters": found.num_characters,
        "loss": found.nll / found.num_tokens,
        "perplexity": found.perplexity,
        "bits_per_character": found.bits_per_character,
    }


def _reader_scores(model: Path, test: Path, dtype: str | None) -> dict[str, float]:
    """How well a BERT does what its head is for."""
    from regard.pipelines.text_encoder import TextEncoder

    reader = TextEncoder.load(model, dtype=resolve_dtype(dtype or "float32"))
    head = reader.model.config.head
    measures = {"sequence_classification": _class_scores, "masked_lm": _guess_scores}
    if head not in measures:
        told = f"a BERT with the head {head!r}, but what is measured is {' or '.join(map(repr, measures))}"
        raise InvalidArgument(f"{model}: holds {told}")
    return measures[head](reader, test)


def _guess_scores(reader: TextEncoder, test: Path) -> dict[str, float]:
    """How well a masked language model predicts tokens that are masked as in training.

    A few texts have few masked tokens, so masks are drawn several times; ``loss_std`` is the standard deviation of the
    loss over draws.
    """
    from regard.metrics import perplexity

    texts = [line.strip() for line in read_lines(test) if line.strip()]
    if not texts:
        raise InvalidFile(f"{test}: expected texts, one a line, but the file is empty")
    scores = [reader.masked_lm_score(texts)]
    draws = min(max(math.ceil(MASKED_TOKENS / scores[0].num_tokens), 2), MAX_DRAWS)
    scores += [reader.masked_lm_score(texts, seed=seed) for seed in range(1, draws)]
    tokens, loss = sum(each.num_tokens for each in scores), [each.nll / each.num_tokens for each in scores]
    mean = sum(each.nll for each in scores) / tokens
    return {
        "texts": len(texts),
        "draws": draws,
        "masked_tokens": tokens,
        "loss": mean,
        "loss_std": statistics.stdev(loss),
        "perplexity": perplexity(mean),
        "accuracy": 100 * sum(each.num_correct for each in scores) / tokens,
    }


def _class_scores(reader: TextEncoder, test: Path) -> dict[str, float]:
    """How well a classifier tells the classes of texts."""
    import torch

    from regard.metrics import classification_metrics

    labels = reader.model.config.labels
    pairs = [(text, label) for _, text, label in read_labeled_texts([test])]
    if not pairs:
        raise InvalidFile(f"{test}: expected texts with their classes, but the file is empty")
    unknown = sorted({label for _, label in pairs} - set(labels))
    if unknown:
        raise InvalidFile(f"{test}: has the class {unknown[0]!r}, but the model knows {', '.join(map(repr, labels))}")
    confusion = torch.zeros(len(labels), len(labels), dtype=torch.int64)
    for (_, label), told in zip(pairs, reader.classify([text for text, _ in pairs]), strict=True):
        confusion[labels.index(label), labels.index(told.label)] += 1
    return {"texts": len(pairs), **classification_metrics(confusion)}


def _generated_scores(path: Path, reference: Path | None) -> dict[str, Any]:
    """How varied generated texts are, and how close to what was wanted."""
    from regard.metrics import generation_metrics, generation_signature

    return {
        **generation_metrics(_texts(path), None if reference is None else _texts(reference)),
        "by": generation_signature(),
    }


def _texts(path: Path) -> list[str]:
    """The texts of a file, one a line; of JSON lines what each names so."""
    lines = read_lines(path)
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        return list(lines)
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("text"), str):
            expected = "an object with a 'text', as `regard generate --json` prints it"
            raise InvalidFile(f"{path}, line {number}: expected {expected}")
        texts.append(found["text"])
    return texts


def _print_values(values: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(values))
        return
    for name, value in values.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else value
        shown = "none: the texts are too short" if value is None else shown
        print(f"{name.replace('_', ' ')}: {shown}")


def report(scores: Mapping[str, Score], *, sentences: int, references: int, as_json: bool) -> None:
    """Print the scores, for people or as JSON."""
    if as_json:
        named = {name: {"score": found.score, "signature": found.signature} for name, found in scores.items()}
        print(json.dumps({"sentences": sentences, "references": references, **named}))
        return
    print(f"{_count(sentences, 'sentence')}, {_count(references, 'reference')}")
    for name, found in scores.items():
        print(f"{NAMES[name]:6}{found.score:6.2f}  {found.signature}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _read(test: Path | None, source: Path | None, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    """The sources and the references of each."""
    if test is not None and source is None and not reference:
        return _pairs(test)
    if test is None and source is not None and reference:
        return _aligned(source, reference)
    raise InvalidArgument("expected either TEST, a file of pairs, or `--source` with one `--reference` or more")


def _hypotheses(path: Path, wanted: int) -> list[str]:
    lines = list(read_lines(path))
    if len(lines) != wanted:
        raise InvalidFile(
            f"{path}: expected {wanted:,} lines, one for each different source line in its first order, but there are "
            f"{len(lines):,}"
        )
    return lines


def _pairs(test: Path) -> tuple[list[str], list[list[str]]]:
    grouped = group_references(_whole(test))
    if not grouped:
        raise InvalidFile(f"{test}: expected pairs, but the file is empty")
    return list(grouped), list(grouped.values())


def _whole(test: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a file, of which none may have an empty side: a test is measured whole."""
    for number, (source, target) in enumerate(read_pairs([test]), start=1):
        if not source or not target:
            raise InvalidFile(f"{test}, line {number}: expected a source, a tab and a reference, but one is empty")
        yield source, target


def _aligned(source: Path, reference: list[Path]) -> tuple[list[str], list[list[str]]]:
    sources = list(read_lines(source))
    columns = [list(read_lines(path)) for path in reference]
    counted = zip(reference, map(len, columns), strict=True)
    uneven = [f"{path} has {count:,}" for path, count in counted if count != len(sources)]
    if uneven:
        raise InvalidFile(f"expected as many lines as {source} has, {len(sources):,}, but {' and '.join(uneven)}")
    if not sources:
        raise InvalidFile(f"{source}: expected lines, but the file is empty")
    return sources, [list(row) for row in zip(*columns, strict=True)]
