"""Tables in a terminal have the right numbers and fit its width."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.analysis.word_weights import word_weights
from regard.errors import InvalidArgument
from regard.explore import terminal
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

SOURCE = ("▁The", "▁ani", "mal", "▁slept", ".", "</s>")
WRITTEN = ("▁Das", "▁Tier", "▁schl", "ief", ".", "</s>")
# Rows: the two steps that wrote "schlief" differ, so that their mean differs from either.
SHARES = torch.tensor(
    [
        [0.80, 0.05, 0.05, 0.05, 0.025, 0.025],
        [0.10, 0.30, 0.40, 0.10, 0.05, 0.05],
        [0.05, 0.05, 0.05, 0.55, 0.10, 0.20],
        [0.05, 0.05, 0.05, 0.35, 0.10, 0.40],
        [0.02, 0.02, 0.02, 0.02, 0.90, 0.02],
        [0.02, 0.02, 0.02, 0.02, 0.02, 0.90],
    ]
)


@pytest.fixture
def translated(make_weights) -> Recording:
    even = torch.full((1, 6, 6), 1 / 6)
    layers = [("cross.0", even), ("cross.1", torch.stack([SHARES, SHARES]))]
    return Recording(
        "", "", tuple(Layer(name, "cross", make_weights(shares), WRITTEN, SOURCE) for name, shares in layers)
    )


def printed(renderable, width=80, encoding="utf-8", **options) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, **options).print(renderable)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def table(recording: Recording, layer: str | None = None):
    return terminal.attention_table(word_weights(recording, layer))


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the table by the word that was written."""
    lines = text.split("\n\n")[0].splitlines()[1:]
    return {line.split()[0]: re.split(r"\s{3,}", line.strip())[1:] for line in lines}


def test_pieces_are_merged_summed_over_keys_and_averaged_over_steps(translated):
    actual = rows(printed(table(translated, "cross.1")))
    assert list(actual) == ["Das", "Tier", "schlief", "."]
    assert actual["Das"][0::2] == ["The", "0.80"]
    assert actual["Tier"][0] == "animal"
    assert actual["Tier"][2] == "0.70"
    assert actual["schlief"][0] == "slept"
    assert actual["schlief"][2:] == ["0.45", "animal 0.10  . 0.10"]


def test_bars_are_as_long_as_weights(translated):
    actual = rows(printed(table(translated, "cross.1")))
    assert actual["Das"][1] == "█" * 16  # 0.80 of 20
    assert actual["schlief"][1] == "█" * 9


def test_without_a_layer_all_of_them_are_averaged(translated):
    text = printed(table(translated))
    assert float(rows(text)["Das"][2]) == pytest.approx((2 * 0.8 + 1 / 6) / 3, abs=0.005)
    assert "mean over 3 heads of cross.0, cross.1." in " ".join(text.split())


def test_weights_of_special_tokens_are_summarized(translated):
    mean = (0.025 + 0.05 + 0.30 + 0.02) / 4
    assert f"On average </s> got {mean:.2f} of a row." in " ".join(printed(table(translated, "cross.1")).split())


def test_weights_of_equal_special_tokens_are_added(make_weights):
    names = ("[SEP]", "▁a", "[SEP]")
    layer = Layer("c", "encoder", make_weights(torch.tensor([[[0.5, 0.2, 0.3]] * 3])), names, names)
    assert "On average [SEP] got 0.80 of a row." in " ".join(printed(table(Recording("", "", (layer,)))).split())


def test_the_map_is_aligned_with_the_words_of_the_source(translated):
    lines = printed(table(translated, "cross.1")).split("\n\n")[1].splitlines()
    start = lines[0].index("animal")
    tier = next(line for line in lines if line.split()[0] == "Tier")
    assert tier[start : start + 6] == "██████"
    assert tier[lines[0].index("slept")] == "░"


@pytest.mark.parametrize("width", [24, 40, 60, 80, 200])
@pytest.mark.parametrize("long", [False, True])
def test_no_line_is_wider_than_the_terminal(translated, make_weights, width, long):
    recording = translated
    if long:
        names = tuple(f"▁{'Donaudampfschifffahrt' * 2}{index}" for index in range(40))
        recording = Recording(
            "", "", (Layer("c", "cross", make_weights(torch.full((1, 40, 40), 1 / 40)), names, names),)
        )
    lines = printed(table(recording), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert ("Shades:" in "".join(lines)) is (not long and width >= 40)


@pytest.mark.parametrize("width", range(12, 60))
def test_no_weight_is_truncated_in_a_narrow_terminal(translated, width):
    shown = printed(table(translated, "cross.1"), width).split("\n\n")[0]
    weights = [re.findall(r"(?<!\S)[01]\.\d\d(?!\S)", line)[:1] for line in shown.splitlines()]
    assert weights == [[], ["0.80"], ["0.70"], ["0.45"], ["0.90"]]
    assert max(map(cell_len, shown.splitlines())) <= width


def test_wide_letters_keep_the_columns_in_line(make_weights):
    layer = Layer("c", "cross", make_weights(torch.eye(2)[None] * 0.8 + 0.1), ("▁猫", "▁a"), ("▁日本", "▁b"))
    lines = printed(table(Recording("", "", (layer,)))).split("\n\n")[1].splitlines()
    assert lines == ["    日本 b", " 猫 ████ ░", "  a ░░░░ █"]


def test_it_works_without_colours_and_without_blocks(translated):
    assert "\x1b" in printed(table(translated), force_terminal=True)
    assert "\x1b" not in printed(table(translated))
    text = printed(table(translated), encoding="ascii")
    assert "#" * 16 in printed(table(translated, "cross.1"), encoding="ascii")
    assert text.isascii()


def test_words_are_escaped(make_weights):
    layer = Layer("[/red]", "cross", make_weights(torch.full((1, 2, 1), 1.0)), ("▁[red]", "▁\x1b[2Jx"), ("▁[/]",))
    text = printed(table(Recording("", "", (layer,))), force_terminal=True, no_color=True)
    assert "[/]" in text
    assert "\x1b[2J" not in text


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        (("</s>",), ("▁a", "</s>"), "No word was written, only </s>: there is nothing to show."),
        (("▁a", "</s>"), ("<s>", "</s>"), "No word was read, only <s> </s>: there is nothing to show."),
    ],
)
def test_a_sentence_replaces_the_table_if_there_are_no_words(make_weights, written, read, message):
    shares = torch.full((1, len(written), 2), 0.5)
    layer = Layer("c", "cross", make_weights(shares), written, read)
    assert " ".join(printed(table(Recording("", "", (layer,)))).split()) == message


def test_without_cross_attention_it_shows_how_a_text_attends_to_itself(recording):
    encoder = recording.layers.by_kind("encoder")
    shown = " ".join("".join(printed(table(Recording("", "", encoder)))).split())
    assert shown.startswith("word attended to")
    assert f"of {', '.join(layer.name for layer in encoder)}." in shown


def test_a_recording_without_layers_is_refused():
    with pytest.raises(InvalidArgument, match="expected at least one layer of attention, got none"):
        table(Recording("", "", ()))


def test_an_unknown_layer_is_refused_and_the_nearest_named(translated):
    message = r"layer: expected one of .*cross.0, cross.1.*, got 'cross1', did you mean 'cross.1'\?"
    with pytest.raises(InvalidArgument, match=message):
        table(translated, "cross1")
