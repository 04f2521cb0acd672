"""Keys that are left out, and what remains rescaled."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.page_actions import arcs, layer_of, number_of, open_options, point_at, settle, token
from helpers.explore.page_cases import NOT_COMPUTED
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

SPECIAL = (
    *("[PAD]", "<pad>", "<|endoftext|>", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "<unk>", "<extra_id_0>"),
    *(
        "<bos>",
        "<eos>",
        "<start_of_turn>",
        "<|im_start|>",
        "<|begin_of_text|>",
        "[unused12]",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    ),
)
PLAIN = ("<", "<0x0A>", "[1]", "a<b>", "[ ]", "<a b>", "<|>", "▁[", "s>", "[]")


def saved(page) -> dict[tuple[int, int], float]:
    with page.expect_download() as coming:
        page.locator("section.view:visible").first.get_by_role("button", name="as CSV").click()
    text = coming.value.path().read_bytes().decode("utf-8-sig")
    return {(int(row[0]), int(row[2])): float(row[4]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:]}


def inside(page, query: int, key: int) -> list[tuple[int, ...]]:
    """The pixels within a cell of the matrix."""
    settle(page)
    data = page.locator("#matrix canvas").evaluate(
        """(node, [query, key]) => {
            const [left, top, cell] = ["left", "top", "cell"].map(name => Number(node.dataset[name]));
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d");
            copy.drawImage(node, 0, 0);
            return [...copy.getImageData(left + key * cell + 3, top + query * cell + 3, cell - 7, cell - 7).data];
        }""",
        [query, key],
    )
    return list(zip(*[iter(data)] * 4, strict=True))


def test_hidden_columns_are_blank_and_faintly_hatched(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    before = {key: inside(page, 3, key) for key in (0, 1, 7)}
    assert all(alpha == 255 for pixels in before.values() for *_, alpha in pixels)
    open_options(page)
    page.get_by_label("the first token").check()
    page.get_by_label("special tokens").check()
    page.wait_for_url("**hide=first,special*")
    for key in (0, 7):
        alphas = [alpha for *_, alpha in inside(page, 3, key)]
        assert 0 in alphas
        assert any(alphas)  # the hatch
    assert inside(page, 3, 1) == before[1]
    point_at(page, 3, 0)
    assert page.locator(".tip .rank").text_content() == "hidden"
    assert page.locator("#details [role=status]").text_content() == "The is hidden."
    page.get_by_label("the first token").uncheck()
    assert inside(page, 3, 0) == before[0]


def test_hidden_keys_are_in_no_view_and_no_file(open_page, recording):
    page = open_page(recording, "#layer=encoder.1&head=1&hide=first,special&token=source.3")
    weights = layer_of(recording, "encoder.1").weights[0, 1]
    assert arcs(page, "out") == {(3, key) for key in range(1, 7) if weights[3, key] >= 0.01}
    assert page.locator(".panel").first.locator("li").count() == 6
    assert {key for query, key in saved(page) if query == 3} == set(range(1, 7))
    page.keyboard.press("Escape")
    token(page, 0, 7).hover()
    assert arcs(page, "in") == set()
    assert "Hidden: see “Hide” at the color scale." in page.locator(".panel").nth(1).inner_text()


@pytest.mark.parametrize(("name", "heads"), [("encoder.0", [1]), ("decoder.1", [0]), ("cross.0", [0, 2])])
def test_the_rest_is_divided_by_one_less_what_is_left_out(open_page, recording, name, heads):
    layer = layer_of(recording, name)
    page = open_page(recording, f"#layer={name}&head={','.join(map(str, heads))}&hide=first,special&rescale=1")
    weights = layer.weights.dense()[0, heads].mean(0)
    hidden = torch.tensor([key == 0 or each in ("<s>", "</s>") for key, each in enumerate(layer.key_tokens)])
    rest = 1 - weights[:, hidden].sum(-1, keepdim=True)
    exact = weights / rest
    cells = saved(page)
    assert {key for _, key in cells} == set((~hidden).nonzero().flatten().tolist())
    for (query, key), weight in cells.items():
        assert weight == pytest.approx(exact[query, key].item(), rel=2e-5, abs=1e-6)
    query = next(query for query in range(3, len(layer.query_tokens)) if rest[query] > 0.1)
    point_at(page, query, 1)
    shown = number_of(page.locator(".tip .value").text_content())
    assert shown == pytest.approx(exact[query, 1].item(), abs=0.5001e-3)
    assert "Rescaled: " in page.locator("#legend").inner_text()


def test_a_row_with_almost_no_weight_left_is_not_rescaled_and_has_a_note(open_page, make_weights):
    shares = torch.tensor([[[0.9, 0.06, 0.04], [0.9996, 0.0003, 0.0001], [0.2, 0.4, 0.4]]])
    tokens = ("▁a", "▁b", "▁c")
    weights = make_weights(shares)
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#hide=first&rescale=1")
    cells = saved(page)
    assert [cells[0, 1], cells[0, 2]] == pytest.approx([0.6, 0.4], rel=1e-5)
    assert [cells[1, 1], cells[1, 2]] == pytest.approx([0.0003, 0.0001], abs=1e-6)
    assert [cells[2, 1], cells[2, 2]] == pytest.approx([0.5, 0.5], rel=1e-5)
    panel = page.locator(".panel").first
    token(page, 0, 1).hover()
    expect(panel).to_contain_text("Some rows are not rescaled")
    token(page, 0, 0).hover()
    expect(panel).not_to_contain_text("Some rows are not rescaled")


def test_with_sinks_the_rest_keeps_what_they_take(open_page):
    torch.manual_seed(2)
    tokens = tuple(f"▁w{index}" for index in range(6))
    score = regard.Sinks(regard.ScaledDotProduct(), torch.tensor([1.0]))
    weights = regard.weights(torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4), score=score)
    page = open_page(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#hide=first&rescale=1")
    exact = weights[0, 0] / (1 - weights[0, 0][:, :1])
    assert exact[:, 1:].sum(-1).max() < 0.95
    for cell, weight in saved(page).items():
        assert weight == pytest.approx(exact[cell].item(), rel=0.02, abs=2e-4)


def test_rescaling_needs_something_left_out_and_works_by_keyboard(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=0")
    open_options(page)
    rescale, first = page.get_by_label("rescale the rest"), page.get_by_label("the first token")
    assert rescale.is_disabled()
    first.focus()
    page.keyboard.press("Space")
    assert rescale.is_enabled()
    rescale.focus()
    page.keyboard.press("Space")
    page.wait_for_url("**hide=first&rescale=1*")


@pytest.fixture(scope="module")
def sinking() -> Recording:
    """A sketch of 800 tokens: head 0 gives half and more to the first, head 1 nothing in particular."""
    torch.manual_seed(3)
    tokens = ("<s>", *(f"▁w{index}" for index in range(799)))
    query, key = torch.randn(1, 2, 800, 8), torch.randn(1, 2, 800, 8)
    query[:, 0, :, 0], key[:, 0, :, 0] = 8.0, 0.0
    key[:, 0, 0] = 0
    key[:, 0, 0, 0] = 2.8
    weights = regard.weights(query, key, mask=regard.Causal(), score=NOT_COMPUTED)
    return Recording("t", "m", (Layer("l", "decoder", weights, tokens, tokens),))


def squares(page) -> torch.Tensor:
    """How light the pixels of the map are, each column of squares on average over its lower half."""
    settle(page)
    actual = page.locator("#matrix canvas").evaluate(
        """node => {
            const [left, top, cell] = ["left", "top", "cell"].map(name => Number(node.dataset[name]));
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d", {willReadFrequently: true});
            copy.drawImage(node, 0, 0);
            const side = 4 * cell;  // a square
            return Array.from({length: 3}, (_, square) => {
                const data = copy.getImageData(left + square * side, top + 500 * cell, 1, 200 * cell).data;
                let sum = 0;
                data.forEach((value, place) => (sum += place % 4 === 3 ? 0 : value));
                return sum / (data.length / 4);
            });
        }"""
    )
    return torch.tensor(actual)


def test_of_a_sketch_squares_are_less_what_is_known_to_be_left_out(open_page, sinking):
    page = open_page(sinking, "#head=0&token=source.790", color_scheme="light")
    dark = squares(page)
    assert dark[0] < dark[1] - 150  # the first token
    open_options(page)
    page.get_by_label("the first token").check()
    page.wait_for_url("**hide=first*")
    page.wait_for_timeout(100)
    light = squares(page)
    assert light[0] > dark[0] + 150
    assert light[1:] == pytest.approx(dark[1:])


def test_of_a_sketch_rows_are_rescaled_where_what_is_left_out_is_known(open_page, sinking):
    weights = sinking.layers[0].weights.dense()[0]
    known = (weights.topk(16).indices == 0).any(-1)
    assert known[0, 20:].all()
    page = open_page(sinking, "#head=0&hide=first&rescale=1&token=source.600")
    rest = 1 - weights[0, 600, 0]
    row = {key: weight for (query, key), weight in saved(page).items() if query == 600}
    assert len(row) == 15
    for key, weight in row.items():
        assert weight == pytest.approx((weights[0, 600, key] / rest).item(), rel=0.03, abs=1e-3)
    left = (1 - weights[0, 600].topk(16).values.sum()) / rest
    note = page.locator(".panel").first.locator(".hint", has_text="on others").inner_text()
    assert float(note.split()[0]) == pytest.approx(left.item(), rel=0.05)
    query = int((~known[1, 500:]).nonzero()[0]) + 500
    page = open_page(sinking, f"#head=1&hide=first&rescale=1&token=source.{query}")
    assert "Some rows are not rescaled" in page.locator(".panel").first.inner_text()
    row = {key: weight for (each, key), weight in saved(page).items() if each == query}
    for key, weight in row.items():
        assert weight == pytest.approx(weights[1, query, key].item(), abs=2.5e-4)


def test_padding_and_other_marks_are_special(open_page):
    tokens = (*SPECIAL, *PLAIN)
    weights = regard.weights(torch.randn(1, 1, len(tokens), 4), torch.randn(1, 1, len(tokens), 4))
    page = open_page(
        Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),)), "#hide=special&token=source.0"
    )
    special = page.locator(".token").evaluate_all("nodes => nodes.map(node => node.classList.contains('special'))")
    assert special == [True] * len(SPECIAL) + [False] * len(PLAIN)
    assert {key for query, key in saved(page) if query == 1} <= set(range(len(SPECIAL), len(tokens)))


def test_words_are_left_out_and_rescaled_as_tokens_are(open_page, recording):
    page = open_page(recording, "#layer=encoder.0&head=2&unit=words&hide=first,special&rescale=1")
    weights = layer_of(recording, "encoder.0").weights[0, 2]
    rescaled = weights / (1 - weights[:, [0, 7]].sum(-1, keepdim=True))
    words = torch.stack([*rescaled[:4], rescaled[4:6].mean(0), *rescaled[6:]])
    exact = torch.cat([words[:, :4], words[:, 4:6].sum(-1, keepdim=True), words[:, 6:]], -1)
    cells = saved(page)
    assert {key for _, key in cells} == {1, 2, 3, 4, 5}
    for cell, weight in cells.items():
        assert weight == pytest.approx(exact[cell].item(), rel=2e-5, abs=1e-6)
