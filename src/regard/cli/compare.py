"""``regard compare``: two recordings side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import InvalidArgument

if TYPE_CHECKING:
    from regard.analysis.recording import Recording


def compare(
    one: Annotated[Path, typer.Argument(help="A recording, *.regard.", metavar="ONE", show_default=False)],
    other: Annotated[Path, typer.Argument(help="The one to compare it with.", metavar="OTHER", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("compare.html"),
) -> None:
    """Compare what was attended to in two recordings: two texts, two models, two checkpoints, with a head and without.

    Writes a page with both side by side and, for the tokens that are in both, their difference; it also ranks the heads
    by how much they differ. Layers belong together by name, else by kind and order; heads by number.

    Recordings are written in Python: of a model of this library, as `regard.pipelines.Translator.load()` gives one, by

        translator.record("It was tired.").save("one.regard")

    and of any model of transformers or torch, when it has run in `with regard.watch(model) as result:`, by

        result.recording.select(tokens=["It", "was", "tired"]).save("other.regard")

    Both are then compared by

        regard compare one.regard other.regard -o compare.html
    """
    from rich.console import Console

    import regard
    from regard.explore.page import write_page

    pair = _told_apart([regard.load(path) for path in (one, other)], [one, other])
    try:
        write_page(pair[0], output, compare_with=pair[1])
    except InvalidArgument as error:  # which names the second one compare_with
        said = str(error)
        blamed = other if said.startswith("compare_with: ") else one
        raise InvalidArgument(f"{blamed}: {said.removeprefix('compare_with: ')}") from None
    Console().print(f"Both, and their difference: {output.resolve()}", soft_wrap=True, markup=False, highlight=False)


def _told_apart(pair: list[Recording], paths: list[Path]) -> list[Recording]:
    """The recordings, with the names of their files where title and model do not tell one from the other."""
    if (pair[0].title, pair[0].model_name) != (pair[1].title, pair[1].model_name):
        return pair
    return [
        each.replace(model_name=f"{each.model_name} {path.name}".strip())
        for each, path in zip(pair, paths, strict=True)
    ]
