"""Attention in a terminal: the words that each word attends to most, and rankings for one word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, zip_longest
from typing import TYPE_CHECKING

import torch
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from regard.text.tokens import is_special

if TYPE_CHECKING:
    from regard.analysis.word_weights import WordWeights

BAR = 20
"""Columns of a bar; in a narrow terminal, where it would be below SHORT_BAR, the runners-up are left out."""
SHORT_BAR = 8
GAP = 3
"""Columns of a terminal between two columns of a table."""
LONGEST = 16
"""Columns of the longest word, and at least SHORTEST if there are bars."""
SHORTEST = 4
RUNNERS_UP = 2
FAINTEST = 0.05
"""Smallest weight of a runner-up."""
MAX_RANKED, RANKED_BAR = 10, 12
"""Number of words in a ranking, and columns of their bars: two rankings fit into 80 columns side by side."""
STYLE = "cyan"

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES = ((0.6, "█"), (0.35, "▓"), (0.15, "▒"), (0.05, "░"))
_ASCII_SHADES = ((0.6, "#"), (0.35, "+"), (0.15, "-"), (0.05, "."))


def plain_table(gap: int = GAP, *, has_header: bool = True) -> Table:
    """An empty table without lines: all tables in a terminal look like it."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim", show_header=has_header)


def attention_table(words: WordWeights) -> RenderableType:
    """Show the words that each word attends to most: in cross-attention those of the source, else those of its text.

    Special tokens such as ``</s>`` have no row; a note states the weight that they get.

    Args:
        words: As `regard.analysis.word_weights` returns them.

    Returns:
        A renderable for ``rich.print``: a table with bars, and a shaded map if the terminal is wide enough for it; one
        sentence if there are only special tokens.

    Example:
        >>> import regard, torch
        >>> from regard.analysis import word_weights
        >>> from regard.recordings import Layer, Recording
        >>> shares = torch.tensor([[[[0.75, 0.25], [0.125, 0.875]]]])
        >>> weights = regard.weights(shares.log(), torch.eye(2)[None, None], scale=1.0)
        >>> cross = Layer("cross.0", "cross", weights, ("▁ja", "▁gut"), ("▁yes", "▁good"))
        >>> Console(width=60).print(attention_table(word_weights(Recording("a title", "a model", [cross]))))
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
    for action, names in (("written" if words.is_cross else "read", words.query_words), ("read", words.key_words)):
        if all(map(is_special, names)):
            return Text(f"No word was {action}, only {' '.join(names)}: there is nothing to show.")
    return _Picture(words)


def token_tables(words: WordWeights, word: str) -> RenderableType:
    """Show what each occurrence of a word attends to, and what attends to it, strongest first.

    Args:
        words: As `regard.analysis.word_weights` returns them.
        word: One of its words.

    Raises:
        InvalidArgument: If the word does not occur.

    Example:
        >>> import regard, torch
        >>> from regard.analysis import word_weights
        >>> from regard.recordings import Layer, Recording
        >>> shares = torch.tensor([[[[0.75, 0.25], [0.125, 0.875]]]])
        >>> weights = regard.weights(shares.log(), torch.eye(2)[None, None], scale=1.0)
        >>> layer = Layer("encoder.0", "encoder", weights, ("▁very", "▁good"), ("▁very", "▁good"))
        >>> Console(width=80).print(token_tables(word_weights(Recording("", "", [layer])), "good"))
        good (1) attends to             good (1) is attended to by
        good (1)   ██████████▌    0.88   good (1)   ██████████▌    0.88
        very (0)   █▌             0.12   very (0)   ███            0.25
        <BLANKLINE>
        Share of attention, 0 to 1: mean over 1 head of encoder.0. Positions in
        parentheses start at 0.
    """
    rows, columns = words.find(word)
    tables = [_ranking(f"{word} ({row}) attends to", words.weights[row], words.key_words) for row in rows]
    other = [
        _ranking(f"{word} ({column}) is attended to by", words.weights[:, column], words.query_words)
        for column in columns
    ]
    pairs = zip_longest(tables, other, fillvalue="")
    parts = [part for pair in pairs for part in (Columns(pair, padding=(0, 3)), Text())]
    length = max(len(words.query_words), len(words.key_words))
    more = f" The {MAX_RANKED} strongest of up to {length}." if length > MAX_RANKED else ""
    note = f"{_share_of_attention(words)} Positions in parentheses start at 0.{more}"
    return Group(*parts, Text(note))


def _ranking(title: str, weights: torch.Tensor, names: Sequence[str]) -> Table:
    """The strongest of a row or column of weights, with their names and positions."""
    ranking = plain_table(has_header=False)
    ranking.title, ranking.title_justify = Text(title, "bold"), "left"
    for width in (None, RANKED_BAR, 4):
        ranking.add_column(no_wrap=True, width=width)
    order: list[int] = weights.argsort(dim=0, descending=True, stable=True).tolist()
    for index in order[:MAX_RANKED]:
        weight = weights[index].item()
        if weight == 0:  # hidden by the mask, as the tokens before a key of a causal model
            break
        ranking.add_row(Text(f"{short(names[index])} ({index})"), Bar(weight), f"{weight:.2f}")
    return ranking


class Bar:
    """A bar for a weight, of characters that the terminal has."""

    def __init__(self, weight: float, length: int = RANKED_BAR) -> None:
        self.weight, self.length = weight, length

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_bar(self.weight, self.length, options.ascii_only), STYLE)


def _share_of_attention(words: WordWeights) -> str:
    heads = f"{words.num_heads} head{'' if words.num_heads == 1 else 's'}"
    return f"Share of attention, 0 to 1: mean over {heads} of {', '.join(words.layers)}."


class _Picture:
    """A table and a map that rich draws into the width of the terminal."""

    def __init__(self, words: WordWeights) -> None:
        self.note = _share_of_attention(words)
        self.query_heading = "written" if words.is_cross else "word"
        rows = [index for index, word in enumerate(words.query_words) if not is_special(word)]
        columns = [index for index, word in enumerate(words.key_words) if not is_special(word)]
        self.rows = [words.query_words[index] for index in rows]
        self.columns = [words.key_words[index] for index in columns]
        weights = words.weights[rows]
        self.weights = weights[:, columns]
        special: dict[str, float] = {}  # a text can have several [SEP]
        for index, word in enumerate(words.key_words):
            if is_special(word):
                special[word] = special.get(word, 0.0) + weights[:, index].mean().item()
        if special:
            listed = " and ".join(f"{word} got {weight:.2f}" for word, weight in special.items())
            self.note += f" On average {listed} of a row."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(options)
        shades = _ASCII_SHADES if options.ascii_only else _SHADES
        lines = self._map(shades)
        fits = max(line.cell_len for line in lines) <= options.max_width
        if fits:
            yield from (Text(), *lines)
        yield Text()
        yield Text(self.note)
        if fits:
            yield Text(f"Shades: {', '.join(f'{shade} from {weight}' for weight, shade in reversed(shades))}.")

    def _table(self, options: ConsoleOptions) -> Table:
        fixed = len("0.00") + 3 * GAP
        has_bars = options.max_width > fixed + 2 * SHORTEST
        room = options.max_width - (fixed if has_bars else fixed - GAP)
        longest = min(LONGEST, max(SHORTEST, (room - SHORT_BAR) // 2) if has_bars else max(1, room // 2))
        entries = [self._entry(row, longest) for row in self.weights]
        queries = [self.query_heading, *(short(word, longest) for word in self.rows)]
        runners_up_width = GAP + max(cell_len(runners_up) for _, _, runners_up in entries)
        key_width = min(longest, max(len("attended to"), *(cell_len(word) for word, _, _ in entries)))
        room -= min(longest, max(map(cell_len, queries))) + key_width
        has_runners_up = room - runners_up_width >= SHORT_BAR
        length = max(1, min(BAR, room - runners_up_width if has_runners_up else room))
        table = plain_table()
        is_shown = (True, True, has_bars, True, has_runners_up)
        headings = ((self.query_heading, longest), ("attended to", longest), ("", length), ("", 4), ("", None))
        for heading, max_width in compress(headings, is_shown):
            table.add_column(heading, no_wrap=True, overflow="ellipsis", max_width=max_width)
        for query, (key, weight, runners_up) in zip(queries[1:], entries, strict=True):
            bar = Text(_bar(weight, length, options.ascii_only), STYLE)
            cells = (Text(query), Text(key, "bold"), bar, Text(f"{weight:.2f}"), Text(runners_up, "dim"))
            table.add_row(*compress(cells, is_shown))
        return table

    def _entry(self, row: torch.Tensor, longest: int) -> tuple[str, float, str]:
        """The strongest word of a row, its weight, and the runners-up with theirs."""
        best, *others = row.argsort(descending=True, stable=True).tolist()[: 1 + RUNNERS_UP]
        runners_up = "  ".join(f"{short(self.columns[i], longest)} {row[i]:.2f}" for i in others if row[i] >= FAINTEST)
        return short(self.columns[best], longest), row[best].item(), runners_up

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
