"""``regard heads``: what each head of a model does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import ExactDtype
from regard.cli.show import sentence_objections
from regard.errors import InvalidArgument, did_you_mean, raise_problems

if TYPE_CHECKING:
    from rich.table import Table

    from regard.analysis.head_scores import Columns
    from regard.analysis.recording import Recording

STRONGEST = 3
WIDTH = 110
"""How many columns the tables take: a narrower terminal breaks their lines, as numbers are not to be cut."""
FIGURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet")


def heads(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text for the model to read, in quotes; for a model of images the path of one.",
            show_default="those of --file",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read these texts, one a line.", show_default="none", dir_okay=False)
    ] = None,
    sort_by: Annotated[
        str | None,
        typer.Option(help="Show all heads, sorted by this score.", show_default="the strongest of each score"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"Write all scores as a table ({', '.join(TABLES)}) or as a figure ({', '.join(FIGURES)}).",
            show_default="none",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="The folder of a model, or minilm.", show_default="the bundled model"),
    ] = None,
    dtype: ExactDtype = "float32",
) -> None:
    """Show what each head of a model does: where its attention goes, on average over the words of a text.

    To the word before (previous_token), after (next_token), to itself (self), to the first (first_token), to marks as
    `[SEP]` (separator), to the same word elsewhere (duplicate_token), to what came after it (induction); how spread it
    is (entropy, in nats), and how far away (mean_distance, in words). The scores duplicate_token and induction are
    measured on random words that come twice; a translator's on the text. The words of an image are its patches.

        regard heads "The cat sat on the mat." --model gpt2/
        regard heads --file texts.txt --model minilm --sort-by separator
        regard heads --file texts.txt --model llama/ -o heads.png
    """
    from regard.analysis.head_scores import HEAD_SCORES, head_scores

    given = [name for name, value in (("TEXT", text), ("--file", file)) if value is not None]
    if len(given) != 1:
        raise InvalidArgument("give a text, or --file with texts" + (", and not both" if given else ""))
    raise_problems([] if text is None else sentence_objections("TEXT", text))
    if sort_by is not None and sort_by not in HEAD_SCORES:
        raise InvalidArgument(
            f"--sort-by: no score {sort_by!r}{did_you_mean(sort_by, HEAD_SCORES)} (known: {', '.join(HEAD_SCORES)})"
        )
    if output is not None and output.suffix not in (*TABLES, *FIGURES):
        raise InvalidArgument(f"--output: expected a name with {', '.join((*TABLES, *FIGURES))}, got {output.name!r}")
    from rich.console import Console

    from regard.cli.options import load_model
    from regard.pipelines import Translator
    from regard.watching import TransformersModel

    texts = {"TEXT": text} if text is not None else _lines(file)
    loaded = load_model(model, dtype=dtype)
    scores = head_scores(_recordings(loaded, texts))
    looks = isinstance(loaded, TransformersModel) and loaded.tokenizer is None  # at images, which have no words
    if not isinstance(loaded, Translator) and not looks:
        again = head_scores(loaded.record_repeated_tokens())
        at = {pair: row for row, pair in enumerate(zip(again["layer"], again["head"], strict=True))}
        for score in ("duplicate_token", "induction"):
            pairs = zip(scores["layer"], scores["head"], strict=True)
            scores[score] = [again[score][at[pair]] if pair in at else math.nan for pair in pairs]
    if output is not None:
        _write(scores, output)
    Console(width=max(Console().width, WIDTH)).print(_summary(scores) if sort_by is None else _all(scores, sort_by))


def _lines(file: Path | None) -> dict[str, str]:
    """The lines of a file that are not empty, by name."""
    from regard.text.readers import read_lines

    assert file is not None
    lines = {f"{file}, line {number}": line for number, line in enumerate(read_lines(file), 1) if line.strip()}
    if not lines:
        raise InvalidArgument(f"--file: {file} has no text")
    return lines


def _recordings(loaded: Any, texts: dict[str, str]) -> Iterator[Recording]:
    """Record each text.

    Raises:
        InvalidArgument: If a text is too long, with its name.
    """
    from rich.console import Console
    from rich.progress import track

    hidden = len(texts) == 1
    for name, text in track(texts.items(), "Reading", console=Console(stderr=True), transient=True, disable=hidden):
        try:
            recording = loaded.record(text)
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}: {error}") from error
        yield recording


def _write(scores: Columns, path: Path) -> None:
    from regard.analysis.tables import save_table
    from regard.files import atomic_write

    if path.suffix in TABLES:
        save_table(scores, path)
        return
    from regard.analysis.plots import plot_head_scores

    figure = plot_head_scores(scores)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:])


def _summary(scores: Columns) -> Table:
    """The strongest heads of each score."""
    from rich.table import Table
    from rich.text import Text

    from regard.analysis.head_scores import HEAD_SCORES

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("score")
    table.add_column("the strongest heads, by layer and number", overflow="fold")
    for score in HEAD_SCORES:
        rows = _order(scores, score)[:STRONGEST]
        if rows:
            table.add_row(score, Text("   ".join(f"{_name(scores, row)} {scores[score][row]:.2f}" for row in rows)))
    return table


def _all(scores: Columns, by: str) -> Table:
    """All heads, strongest first."""
    from rich.table import Table
    from rich.text import Text

    from regard.analysis.head_scores import HEAD_SCORES

    told = [score for score in HEAD_SCORES if not all(map(math.isnan, scores[score]))]
    if by not in told:
        raise InvalidArgument(f"--sort-by: {by} is told of no head of this model")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("head", no_wrap=True)
    for score in told:
        heading = score.removesuffix("_token").removeprefix("mean_")  # all names in full are too wide
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if score == by else None)
    for row in _order(scores, by):
        values = ("" if math.isnan(scores[score][row]) else f"{scores[score][row]:.2f}" for score in told)
        table.add_row(Text(_name(scores, row)), *values)
    return table


def _order(scores: Columns, by: str) -> list[int]:
    """The rows of which a score is told, strongest first."""
    rows = [row for row, value in enumerate(scores[by]) if not math.isnan(value)]
    return sorted(rows, key=lambda row: -scores[by][row])


def _name(scores: Columns, row: int) -> str:
    return f"{scores['layer'][row]}/{scores['head'][row]}"
