"""``regard compare``: two recordings side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import PAGE_SUFFIXES, check_suffix
from regard.cli.output import print_path
from regard.errors import InvalidArgument


def compare(
    first: Annotated[Path, typer.Argument(help="A recording (`.regard`).")],
    second: Annotated[Path, typer.Argument(help="The recording to compare it with.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Page (.html) to write.")] = Path("compare.html"),
) -> None:
    """Compare two recordings on a page: side by side, with heads ranked by difference.

    The recordings can be of two texts, two models or two checkpoints. The page shows both, and the difference for the
    tokens that both have. Layers are matched by name, or else by kind and order; heads by number.

        regard show "It was tired." -o first.regard
        regard show "It was tired." --model runs/my-model/best -o second.regard
        regard compare first.regard second.regard

    Python saves recordings of any model:

        with regard.watch(model) as result:
            model(ids)
        result.recording.select(tokens=["It", "was", "tired"]).save("second.regard")
    """
    check_suffix(output, PAGE_SUFFIXES)
    import regard
    from regard.explore import write_html

    left, right = regard.load(first), regard.load(second)
    if (left.title, left.model_name) == (right.title, right.model_name):  # file names distinguish them
        left = left.replace(model_name=f"{left.model_name} {first.name}".strip())
        right = right.replace(model_name=f"{right.model_name} {second.name}".strip())
    try:
        write_html(left, output, compare_with=right)
    except InvalidArgument as error:
        message = str(error)
        path = second if message.startswith("compare_with: ") else first
        raise InvalidArgument(f"{path}: {message.removeprefix('compare_with: ')}") from None
    print_path("Both recordings and their difference", output)
