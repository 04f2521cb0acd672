"""The share of attention on the segments of a text, in a real Chromium, against `segment_attention`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.browser_pages import pages_of
from helpers.explore.page_actions import layer_of, settle
from helpers.explore.saved_files import rows_of, saved
from helpers.explore.serving import get, served
from helpers.pairwise import everything
from regard.analysis import segment_attention
from regard.explore.pack import pack
from regard.explore.recording_service import RecordingService
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

COLUMNS = ["layer", "kind", "head", "segment", "num_tokens", "share"]
CHAT = (
    *("<s>", "<|im_start|>", "system", "Ċ", "Be", "Ġnice", "<|im_end|>", "Ċ"),
    *("<|im_start|>", "user", "Ċ", "Who", "Ġare", "Ġyou", "?", "<|im_end|>", "Ċ"),
    *("<|im_start|>", "assistant", "Ċ", "A", "Ġcat", ".", "<|im_end|>", "Ċ"),
    *("<|im_start|>", "user", "Ċ", "Thanks", "<|im_end|>"),
)
LONG = tuple(f"▁word{index}" for index in range(700))


def decoder(tokens, layers: int = 2, heads: int = 3, **options) -> Recording:
    generator = torch.Generator().manual_seed(len(tokens))
    return Recording(
        "A text",
        "a model",
        tuple(
            Layer(
                f"decoder.{index}",
                "decoder",
                regard.weights(
                    *torch.randn(2, 1, heads, len(tokens), 8, generator=generator), mask=regard.Causal(), **options
                ),
                tokens,
                tokens,
            )
            for index in range(layers)
        ),
    )


def printed(share: float) -> str:
    return f"{share:.3f}" if share >= 0.0005 else "< 0.001"


def shares_of(recording: Recording, name: str) -> dict[str, list[float]]:
    """The share of each segment by its name, by head, as Python computes it."""
    shares: dict[str, list[float]] = {}
    table = segment_attention([layer_of(recording, name)])
    for segment, share in zip(table["segment"], table["share"], strict=True):
        shares.setdefault(segment, []).append(share)
    return shares


def mean(shares: list[float]) -> float:
    return sum(shares) / len(shares)


def lines(page, label: str) -> dict[str, list[str]]:
    """The numbers of each row of a list, by the name of the row; and the names of the columns."""
    listed = page.get_by_role("listbox", name=label, exact=True)
    listed.locator(".segment-row .value").first.wait_for()
    header = listed.locator("xpath=../*[@class='segment-header']").locator(".segment-name").all_text_contents()
    rows = listed.locator(".segment-row").evaluate_all(
        """rows => rows.map(row => [row.querySelector(".name").textContent,
            [...row.querySelectorAll(".value")].map(cell => cell.lastChild.textContent)])"""
    )
    return {"": header, **dict(rows)}


def head_lines(page, name: str) -> dict[str, list[str]]:
    return lines(page, f"Heads of {name}")


def legend(page) -> list[str]:
    return page.locator(".segment-legend li").all_text_contents()


def selected(page) -> str:
    settle(page)
    return page.locator("#head-heading").text_content()


def assert_heads(page, recording: Recording, name: str) -> None:
    """Every number of the list of heads is Python's."""
    exact = shares_of(recording, name)
    actual = head_lines(page, name)
    assert actual.pop("") == list(exact)
    assert actual.pop("mean of heads") == [printed(mean(shares)) for shares in exact.values()]
    heads = layer_of(recording, name).head_indices
    assert actual == {
        f"head {head}": [printed(shares[index]) for shares in exact.values()] for index, head in enumerate(heads)
    }


def assert_layers(page, recording: Recording, kind: str, title: str) -> None:
    """Every number of the list of layers of a kind is Python's."""
    exact = {layer.name: shares_of(recording, layer.name) for layer in recording.layers.by_kind(kind)}
    actual = lines(page, f"Layers: {title}")
    assert actual.pop("") == list(next(iter(exact.values())))
    assert actual == {name: [printed(mean(each)) for each in shares.values()] for name, shares in exact.items()}


@pytest.mark.parametrize("name", ["encoder.1", "decoder.0", "cross.1"])
def test_numbers_of_all_kinds_of_layers_are_pythons(open_page, recording, name):
    page = open_page(recording, f"#views=segments&layer={name}&head=1")
    assert_heads(page, recording, name)
    for kind, title in (("encoder", "Encoder"), ("decoder", "Decoder"), ("cross", "Cross-attention")):
        assert_layers(page, recording, kind, title)


def test_numbers_of_a_long_text_are_pythons(open_page):
    recording = decoder(LONG)
    page = open_page(recording, "#views=segments&layer=decoder.1&head=0&token=source.9")
    assert_heads(page, recording, "decoder.1")
    assert_layers(page, recording, "decoder", "Decoder")
    assert legend(page) == [
        "first token 0 (1 of 700)",
        "beginning tokens 1–64 (64 of 700)",
        "middle all other tokens",
        "recent the 64 tokens up to each query",
    ]


def test_turns_of_a_chat_are_the_segments(open_page):
    recording = decoder(CHAT)
    page = open_page(recording, "#views=segments&layer=decoder.0&head=0&token=source.9")
    assert list(shares_of(recording, "decoder.0")) == ["first", "system", "user 1", "assistant", "user 2"]
    assert_heads(page, recording, "decoder.0")
    assert_layers(page, recording, "decoder", "Decoder")
    assert legend(page)[1:] == [
        "system tokens 1–7 (7 of 30)",
        "user 1 tokens 8–16 (9 of 30)",
        "assistant tokens 17–24 (8 of 30)",
        "user 2 tokens 25–29 (5 of 30)",
    ]


def test_a_bar_is_as_long_as_the_shares(open_page, recording):
    page = open_page(recording, "#views=segments&layer=encoder.0&head=0")
    head_lines(page, "encoder.0")
    widths = (
        page.get_by_role("listbox", name="Heads of encoder.0")
        .locator(".segment-bar")
        .evaluate_all(
            """bars => bars.map(bar => [...bar.children].map(piece =>
            piece.getBoundingClientRect().width / bar.getBoundingClientRect().width))"""
        )
    )
    exact = shares_of(recording, "encoder.0")
    for head in range(3):
        assert widths[head] == pytest.approx([shares[head] for shares in exact.values()], abs=2e-3)


def test_sinks_take_the_rest_of_a_bar(open_page):
    score = regard.Sinks(regard.ScaledDotProduct(), torch.tensor([1.0, 2.0, 3.0]))
    recording = decoder(CHAT, score=score)
    page = open_page(recording, "#views=segments&layer=decoder.0&head=0&token=source.9")
    assert_heads(page, recording, "decoder.0")
    assert sum(shares[2] for shares in shares_of(recording, "decoder.0").values()) < 0.9
    assert legend(page)[-1] == "The rest of a bar is attention to the sink."


def test_a_click_selects_a_head_and_with_control_several(open_page, recording):
    page = open_page(recording, "#views=segments&layer=encoder.0&head=0")
    listed = page.get_by_role("listbox", name="Heads of encoder.0")
    listed.get_by_role("option").nth(2).click()
    assert selected(page) == "Encoderencoder.0, head 2"
    listed.get_by_role("option").nth(1).click(modifiers=["Control"])
    settle(page)
    chosen = page.locator(".thumbnail[aria-selected='true']").evaluate_all("all => all.map(cell => cell.ariaLabel)")
    assert chosen == ["encoder.0, head 1", "encoder.0, head 2"]
    assert [option.get_attribute("aria-selected") for option in listed.get_by_role("option").all()] == [
        *("false", "true", "true", "false")
    ]
    listed.get_by_role("option").nth(3).click()  # the mean of all
    settle(page)
    assert page.locator(".thumbnail[aria-selected='true']").count() == 3
    assert listed.locator("[aria-selected='true'] .name").all_text_contents() == ["mean of heads"]


def test_a_click_on_a_layer_lists_its_heads(open_page, recording):
    page = open_page(recording, "#views=segments&layer=encoder.0&head=2")
    page.get_by_role("listbox", name="Layers: Cross-attention").get_by_role("option").nth(1).click()
    assert selected(page) == "Cross-attentioncross.1, head 2"
    assert_heads(page, recording, "cross.1")
    assert page.locator(".segments [aria-selected='true'] .name").all_text_contents() == ["cross.1", "head 2"]


def test_arrow_keys_move_and_enter_selects(open_page, recording):
    page = open_page(recording, "#views=segments&layer=encoder.0&head=0")
    head_lines(page, "encoder.0")
    page.locator(".segments [tabindex='0']").last.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert selected(page) == "Encoderencoder.0, head 0"
    page.keyboard.press("Enter")
    assert selected(page) == "Encoderencoder.0, head 2"
    exact = shares_of(recording, "encoder.0")
    spoken = "".join(f"{name} {printed(shares[2])}" for name, shares in exact.items())
    assert page.evaluate("document.activeElement.textContent") == f"head 2{spoken}"
    listed = page.get_by_role("listbox", name="Layers: Encoder")
    listed.locator("[tabindex='0']").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert selected(page) == "Encoderencoder.1, head 2"
    assert page.evaluate("document.activeElement.textContent").startswith("encoder.1first ")
    assert [each.locator("[tabindex='0']").count() for each in page.locator(".segments [role=listbox]").all()] == [
        1
    ] * 4


def test_shares_include_hidden_keys_with_a_note(open_page, recording):
    page = open_page(recording, "#views=segments&layer=encoder.0&head=0&hide=first")
    assert_heads(page, recording, "encoder.0")
    assert page.locator(".segments > .note").inner_text() == "Shares count all keys, hidden ones too."
    page.get_by_label("the first token").click()
    settle(page)
    assert page.locator(".segments > .note").is_hidden()


@pytest.mark.parametrize("tokens", [CHAT, LONG])
def test_csv_is_the_table_of_python(open_page, tokens):
    recording = decoder(tokens)
    page = open_page(recording, "#views=segments&layer=decoder.1&head=0&token=source.9")
    name, data = saved(page, "segments", "CSV")
    assert name == "regard-decoder.1-head-0-segments.csv"
    assert_csv(data, recording)


def assert_csv(data: bytes, recording: Recording) -> None:
    header, *rows = rows_of(data)
    assert header == COLUMNS
    table = segment_attention(recording)
    exact = list(zip(*(table[name] for name in COLUMNS), strict=True))
    assert [row[:5] for row in rows] == [[str(cell) for cell in row[:5]] for row in exact]
    for row, expected in zip(rows, exact, strict=True):
        assert float(row[5]) == pytest.approx(expected[5], rel=5e-6, abs=6e-9)


def test_an_image_has_no_segments(open_page):
    vision = decoder(CHAT).replace(texts={"image": "cat.png"})
    assert [layer["segments"] for layer in pack(vision)[0]["layers"]] == [[], []]
    page = open_page(vision, "#token=source.9")
    assert page.locator(".view-buttons button", has_text="Segments").count() == 0


@pytest.mark.parametrize("width", [400, 1280, 2560] if everything() else [400, 2560])
def test_nothing_is_wider_than_the_page(open_page, recording, width):
    page = open_page(recording, "#views=segments&layer=decoder.0&head=0&token=source.9", width=width)
    head_lines(page, "decoder.0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for texts in (".segment-row .name", ".segment-values > *", ".segment-table"):
        cut = page.locator(texts).evaluate_all("all => all.map(each => each.scrollWidth - each.clientWidth)")
        assert max(cut) <= 0, texts
    below = """all => all.map((row) => {
        const left = (node) => [...node.querySelector(".segment-values").children].map((each) => each.offsetLeft);
        return String(left(row)) === String(left(row.closest(".segment-table").querySelector(".segment-header")));
    })"""
    assert all(page.locator(".segment-row").evaluate_all(below))  # each number is below its name
    bars = page.locator(".segment-bar").evaluate_all("all => all.map(bar => bar.getBoundingClientRect().width)")
    assert min(bars) >= 40


# Of padding.


def padded(valid: list[bool]) -> Layer:
    layer = decoder(CHAT).layers[0]
    return layer.replace(weights=regard.WeightMatrix(layer.weights.request, torch.tensor([valid])))


def test_padding_does_not_count():
    layer = padded([False] * 3 + [True] * 27)
    (header,) = pack(Recording("", "", (layer,)))[0]["layers"]
    table = segment_attention([layer])
    exact = {name: [] for name in table["segment"]}
    for name, share in zip(table["segment"], table["share"], strict=True):
        exact[name].append(round(share, 8))
    assert {segment["name"]: segment["shares"] for segment in header["segments"]} == exact
    assert header["segments"][0]["ranges"] == [(3, 3)]


# Of a server.


@pytest.fixture
def served_page(take_page) -> Iterator:
    """The page of a long decoder on a server, whose layers are loaded one by one."""
    recording = decoder(LONG, layers=3)
    with served(recording) as address, pages_of(take_page, address) as open_it:
        yield recording, open_it("#views=segments&layer=decoder.2&head=1")


def test_numbers_of_a_served_page_are_pythons(served_page):
    recording, page = served_page
    assert_heads(page, recording, "decoder.2")
    expect(page.locator(".segment-row .hint")).to_have_count(0)  # layers are loaded one by one
    assert_layers(page, recording, "decoder", "Decoder")
    _, data = saved(page, "segments", "CSV")
    assert_csv(data, recording)


def test_a_server_computes_the_segments_of_a_layer_once():
    recording = decoder(LONG)
    service = RecordingService(recording)
    assert [layer["segments"] for layer in service.header["layers"]] == [[], []]
    with served(recording) as address:
        status, body, _ = get(f"{address}segments/1")
        assert (status, json.loads(body)) == (200, json.loads(json.dumps(service.segments(1))))
        assert get(f"{address}segments/2")[0] == 404
    assert service.segments(1) is service.segments(1)
    assert [(each["name"], each["ranges"]) for each in service.segments(1)] == [
        *(("first", [(0, 0)]), ("beginning", [(1, 64)]), ("middle", None), ("recent", None))
    ]
