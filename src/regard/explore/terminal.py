"""Attention in a terminal: for each word that was written, or read, the words that it attended to most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import torch
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from regard.errors import InvalidArgument, did_you_mean
from regard.ops.measures import GroupPool
from regard.text.words import group_into_words_or_tokens, is_special

if TYPE_CHECKING:
    from regard.analysis.layer import Layer
    from regard.analysis.recording import Recording

BAR = 20
"""How many columns a bar takes where there is room; below SHORT_BAR the runners-up have to go, at none the bars."""
SHORT_BAR = 8
GAP = 3
LONGEST = 16
"""How many columns a word may take, at least SHORTEST where there are bars."""
SHORTEST = 4
RUNNERS_UP = 2
FAINTEST = 0.05
"""A runner-up that got less of a row than this is not named."""
STYLE = "cyan"

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES = ((0.6, "█"), (0.35, "▓"), (0.15, "▒"), (0.05, "░"))
_ASCII_SHADES = ((0.6, "#"), (0.35, "+"), (0.15, "-"), (0.05, "."))


def table(recording: Recording, layer: str | None = None, *, merge: bool = True) -> RenderableType:
    """Show what each word attended to, word by word: of a translation in the source, else in its own text.

    The weights are the mean over the heads of one layer, or of all: of the cross-attention, where a model has it, else
    of its self-attention. Pieces of a word are merged: a word that was attended to has the sum of its pieces, one that
    attends their mean. Marks such as ``</s>`` are no words: they have no row, and what they got is told below.

    Args:
        recording: With at least one layer.
        layer: The name of a layer; None takes the mean over all, of the cross-attention where there is one.
        merge: Whether pieces are merged to words.

    Returns:
        A renderable for ``rich.print``: a table with bars, and a shaded map where the terminal is wide enough for it;
        one sentence where no word was written.

    Raises:
        InvalidArgument: If there is no layer, or none of this name.

    Example:
        >>> import regard, torch
        >>> from regard.analysis.layer import Layer
        >>> from regard.analysis.recording import Recording
        >>> shares = torch.tensor([[[[0.75, 0.25], [0.125, 0.875]]]])
        >>> weights = regard.weights(shares.log(), torch.eye(2)[None, None], scale=1.0)
        >>> cross = Layer("cross.0", "cross", weights, ("▁ja", "▁gut"), ("▁yes", "▁good"))
        >>> Console(width=60).print(table(Recording("a title", "a model", (cross,))))
        written   attended to
        ja        yes           ████████████▊     0.75   good 0.25
        gut       good          ██████████████▉   0.88   yes 0.12
        <BLANKLINE>
             yes good
          ja ███ ▒▒▒▒
         gut ░░░ ████
        <BLANKLINE>
        Share of attention, 0 to 1: mean over 1 head of cross.0.
        Shades: ░ from 0.05, ▒ from 0.15, ▓ from 0.35, █ from 0.6.
    """
    layers = _chosen(recording, layer)
    asking = "written" if layers[0].kind == "cross" else "read"
    for done, tokens in ((asking, layers[0].query_tokens), ("read", layers[0].key_tokens)):
        if all(map(is_special, tokens)):
            return Text(f"No word was {done}, only {' '.join(tokens)}: there is nothing to show.")
    return _Picture(layers, group_into_words_or_tokens if merge else _pieces)


def _numbers(words: Sequence[Sequence[int]], tokens: int) -> torch.Tensor:
    """Which of the words each token is of, (tokens,); −1 where of none."""
    found = torch.full((tokens,), -1)
    for number, positions in enumerate(words):
        found[list(positions)] = number
    return found


class _Picture:
    """Words, their weights, and how rich draws them into the width that there is."""

    def __init__(self, layers: Sequence[Layer], words: Callable[[Sequence[str]], list[tuple[str, list[int]]]]) -> None:
        self.names = [layer.name for layer in layers]
        self.asking = "written" if layers[0].kind == "cross" else "word"
        rows, columns = words(layers[0].query_tokens), words(layers[0].key_tokens)
        asking = [positions for word, positions in rows if not is_special(word)]
        merged = torch.zeros(len(asking), len(columns), dtype=torch.float64)  # (row words, column words)
        for layer in layers:
            device = layer.weights.device
            sides = zip((asking, [positions for _, positions in columns]), layer.weights.shape[2:], strict=True)
            query_groups, key_groups = (_numbers(words, tokens).to(device) for words, tokens in sides)
            of_words = GroupPool(query_groups, key_groups)
            for head in range(layer.weights.shape[1]):  # one at a time: there may be many, of many words
                merged += layer.weights.detach().at(heads=head).measure({"words": of_words})["words"][0, 0].cpu()
        self.heads = sum(layer.weights.shape[1] for layer in layers)
        merged /= self.heads
        self.rows = [word for word, _ in rows if not is_special(word)]
        self.columns = [word for word, _ in columns if not is_special(word)]
        kept = [index for index, (word, _) in enumerate(columns) if not is_special(word)]
        self.weights = merged[:, kept]
        self.marks = {
            word: merged[:, index].mean().item() for index, (word, _) in enumerate(columns) if is_special(word)
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options)
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        lines = self._map(shades)
        fits = max(line.cell_len for line in lines) <= options.max_width
        if fits:
            yield from (Text(), *lines)
        yield Text()
        yield Text(self._note())
        if fits:
            yield Text(f"Shades: {', '.join(f'{shade} from {weight}' for weight, shade in reversed(shades))}.")

    def _table(self, options: ConsoleOptions) -> Table:
        fixed = len("0.00") + 3 * GAP
        with_bars = options.max_width > fixed + 2 * SHORTEST
        fixed = fixed if with_bars else fixed - GAP
        room = options.max_width - fixed
        longest = min(LONGEST, max(SHORTEST, (room - SHORT_BAR) // 2) if with_bars else max(1, room // 2))
        entries = [self._entry(row, longest) for row in self.weights]
        written = [self.asking, *(short(word, longest) for word in self.rows)]
        others = GAP + max(cell_len(also) for _, _, also in entries)
        best = min(longest, max(len("attended to"), *(cell_len(word) for word, _, _ in entries)))
        room -= min(longest, max(map(cell_len, written))) + best
        with_others = room - others >= SHORT_BAR
        length = max(1, min(BAR, room - others if with_others else room))
        drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        kept = (True, True, with_bars, True, with_others)
        limits = ((self.asking, longest), ("attended to", longest), ("", length), ("", 4), ("", None))
        for name, at_most in compress(limits, kept):
            drawn.add_column(name, no_wrap=True, overflow="ellipsis", max_width=at_most)
        for word, (most, weight, also) in zip(written[1:], entries, strict=True):
            bar = Text(_bar(weight, length, options.ascii_only), STYLE)
            cells = (Text(word), Text(most, "bold"), bar, Text(f"{weight:.2f}"), Text(also, "dim"))
            drawn.add_row(*compress(cells, kept))
        return drawn

    def _entry(self, row: torch.Tensor, longest: int) -> tuple[str, float, str]:
        """The word that got most of a row, how much, and who came after it."""
        best, *others = row.argsort(descending=True, stable=True).tolist()[: 1 + RUNNERS_UP]
        also = "  ".join(f"{short(self.columns[i], longest)} {row[i]:.2f}" for i in others if row[i] >= FAINTEST)
        return short(self.columns[best], longest), row[best].item(), also

    def _map(self, shades: Sequence[tuple[float, str]]) -> list[Text]:
        """The source as a line of text, and below it, word under word, how much each written word took from it."""
        margin = max(cell_len(short(word)) for word in self.rows) + 1
        lines = [Text(" " * (margin + 1) + " ".join(short(word) for word in self.columns))]
        for word, row in zip(self.rows, self.weights.tolist(), strict=True):
            line = Text(" " * (margin - cell_len(short(word))) + short(word) + " ")
            for column, weight in zip(self.columns, row, strict=True):
                line.append(_shade(weight, shades) * cell_len(short(column)) + " ", STYLE)
            line.rstrip()
            lines.append(line)
        return lines

    def _note(self) -> str:
        heads = f"{self.heads} head{'' if self.heads == 1 else 's'}"
        note = f"Share of attention, 0 to 1: mean over {heads} of {', '.join(self.names)}."
        marks = [f"{word} got {weight:.2f}" for word, weight in self.marks.items()]
        return f"{note} On average {' and '.join(marks)} of a row." if marks else note


def _pieces(tokens: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Each piece as a word of its own; where nothing but a space would be left, it stays as it is."""
    return [(token.replace("▁", " ").strip() or token, [place]) for place, token in enumerate(tokens)]


def _chosen(recording: Recording, name: str | None) -> Sequence[Layer]:
    if not recording.layers:
        raise InvalidArgument("recording: expected at least one layer of attention, got none")
    names = [layer.name for layer in recording.layers]
    if name is not None and name not in names:
        raise InvalidArgument(f"layer: expected one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}")
    if name is not None:
        return tuple(layer for layer in recording.layers if layer.name == name)
    return next(layers for kind in ("cross", "decoder", "encoder") if (layers := recording.layers.by_kind(kind)))


def _bar(weight: float, length: int, ascii_only: bool) -> str:
    """A bar as long as a weight, in eighths of a column where the terminal has them."""
    if ascii_only:
        return "#" * round(weight * length)
    whole, eighth = divmod(round(weight * length * 8), 8)
    return "█" * whole + _EIGHTHS[eighth].strip()


def _shade(weight: float, shades: Sequence[tuple[float, str]]) -> str:
    return next((shade for least, shade in shades if weight >= least), " ")


def short(word: str, longest: int = LONGEST) -> str:
    """A word cut to a number of columns, of which some letters take two."""
    text = Text(word)
    text.truncate(longest, overflow="ellipsis")
    return text.plain
