"""``regard heads``: scores that say what each head of a model does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.models import load_any
from regard.cli.options import (
    TABLE_SUFFIXES,
    AnyModelOption,
    DeviceOption,
    FileOption,
    LinesOption,
    TextArgument,
    WeightsDtypeOption,
    check_suffix,
)
from regard.cli.output import note, progress
from regard.cli.texts import InputText, find_recording, note_file_name, read_texts
from regard.errors import InvalidArgument, short_repr

if TYPE_CHECKING:
    from rich.table import Table

    from regard.analysis.tables import Columns
    from regard.recordings.recording import Recording

NUM_STRONGEST = 3
MIN_WIDTH = 120
"""Width of the tables: numbers are not to be cut, so a narrower terminal wraps lines."""
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def heads(
    context: typer.Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    lines: LinesOption = False,
    sort_by: Annotated[
        str | None,
        typer.Option(
            help="Show all heads, sorted by this score: previous_token, next_token, self, first_token, separator, "
            "duplicate_token, induction, entropy or mean_distance. These take longer: effective_rank, hodge_gradient, "
            "hodge_curl."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write all scores as a table (.csv, .parquet) or figure (.png, .svg, .pdf)."
        ),
    ] = None,
    model: AnyModelOption = None,
    dtype: WeightsDtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Score each head: what its attention goes to, averaged over the tokens of a text.

    Prints the strongest heads of each score, as layer/head. Scores are attention weights from 0 to 1: to the previous,
    next, same (self) or first token; to separators such as `[SEP]`; to other occurrences of the token (duplicate_token)
    and to what followed them (induction). Two are not weights: entropy (nats) and mean_distance (tokens).

        regard heads "The cat sat on the mat." --model gpt2/
        regard heads --file texts.txt --lines --model minilm --sort-by separator -o heads.csv

    duplicate_token and induction are measured on random tokens that are repeated; those of translators, on the text.
    With `--lines` scores are means over all lines. The tokens of an image are its patches. A recording is scored as it
    is, all scores on its tokens:

        regard heads run.regard
    """
    path = find_recording(context, text, file, ("model", "dtype", "device", "lines"))
    inputs = [] if path is not None else read_texts(text, file, lines)
    from regard.analysis.head_scores import HEAD_SCORES, SPECTRAL_SCORES, head_scores, rank_heads
    from regard.checks import Checks

    check_suffix(output, (*TABLE_SUFFIXES, *FIGURE_SUFFIXES))
    with Checks() as checks:
        if sort_by is not None:
            checks.choice("--sort-by", sort_by, (*HEAD_SCORES, *SPECTRAL_SCORES))
    spectral = sort_by in SPECTRAL_SCORES
    from rich.console import Console

    from regard.pipelines import Translator
    from regard.watching import TransformersModel

    if path is not None:
        from regard.recordings.recording_file import load

        scores = head_scores(load(path), spectral=spectral)
    else:
        loaded = load_any(model, dtype=dtype, device=device)
        reads_images = isinstance(loaded, TransformersModel) and loaded.tokenizer is None
        if not reads_images:
            note_file_name(text)
        repeated = None if reads_images or isinstance(loaded, Translator) else loaded.record_repeated_tokens()
        tokenizer = loaded.tokenizer if isinstance(loaded, TransformersModel) else None
        scores = head_scores(
            _recordings(loaded, inputs), tokenizer=tokenizer, repeated_tokens=repeated, spectral=spectral
        )
    if output is not None:
        _write(scores, output)
    table = _strongest_heads(scores) if sort_by is None else _all_heads(scores, sort_by)
    Console(width=max(Console().width, MIN_WIDTH)).print(table)
    if missing := [score for score in HEAD_SCORES if not rank_heads(scores, score)]:
        note(f"not measured, because the tokens that they need do not occur: {', '.join(missing)}")


def _recordings(model: Any, inputs: list[InputText]) -> Iterator[Recording]:
    with progress("recording", len(inputs), "texts") as advance:
        for source in inputs:
            with source.naming_errors():
                recording = model.record(source.text)
            yield recording
            advance(1)


def _write(scores: Columns, path: Path) -> None:
    from regard.analysis import plot_head_scores, save_table
    from regard.files import atomic_write

    if path.suffix in TABLE_SUFFIXES:
        save_table(scores, path)
        return
    figure = plot_head_scores(scores)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:])


def _strongest_heads(scores: Columns) -> Table:
    from rich.text import Text

    from regard.analysis.head_scores import HEAD_SCORES, rank_heads
    from regard.explore.terminal import plain_table

    table = plain_table()
    table.add_column("score")
    table.add_column("strongest heads, as layer/head", overflow="fold")
    for score in HEAD_SCORES:
        rows = rank_heads(scores, score)[:NUM_STRONGEST]
        if rows:
            cells = (f"{_head_name(scores, row)} {scores[score][row]:.2f}" for row in rows)
            table.add_row(score, Text("   ".join(cells)))
    return table


def _all_heads(scores: Columns, sort_by: str) -> Table:
    from rich.text import Text

    from regard.analysis.head_scores import HEAD_SCORES, SPECTRAL_SCORES, rank_heads
    from regard.explore.terminal import plain_table

    names = [score for score in (*HEAD_SCORES, *SPECTRAL_SCORES) if score in scores]
    measured = [score for score in names if rank_heads(scores, score)]
    if sort_by not in measured:
        raise InvalidArgument(
            f"--sort-by: expected one of {', '.join(measured)} for this model, got {short_repr(sort_by)}"
        )
    table = plain_table(gap=2)
    table.add_column("head", no_wrap=True)
    for score in measured:
        heading = score.removesuffix("_token")  # full names are too wide
        for prefix in ("mean_", "effective_", "hodge_"):
            heading = heading.removeprefix(prefix)
        table.add_column(heading, justify="right", no_wrap=True, style="bold" if score == sort_by else None)
    for row in rank_heads(scores, sort_by):
        values = ("" if math.isnan(scores[score][row]) else f"{scores[score][row]:.2f}" for score in measured)
        table.add_row(Text(_head_name(scores, row)), *values)
    return table


def _head_name(scores: Columns, row: int) -> str:
    return f"{scores['layer'][row]}/{scores['head'][row]}"
