"""The calculation view: every number that it prints is that of the tensors, computed in float64."""

from __future__ import annotations

import math
import re

import pytest
import torch

import regard
from helpers.explore.browser_pages import pages_of
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import layer_of, point_at, settle
from helpers.explore.saved_files import rows_of, saved
from helpers.explore.serving import served
from regard.explore import pack
from regard.ops.scores import Alibi, ScaledDotProduct
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

WORDS = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
SOFTMAX = "Softmax"
PRECISION = 1 / 6000


def decoder(
    heads: int = 4, shared: int = 2, values: bool = True, tokens: int = 8, width: int = 12, **options
) -> tuple[Recording, Layer]:
    """A decoder layer that reads its own text, with grouped heads, keys of another width than values."""
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, heads, tokens, width, generator=generator)
    key, value = (torch.randn(1, shared, tokens, width, generator=generator) for _ in range(2))
    weights = regard.weights(query, key, mask=regard.Causal(), **options)
    text = tuple(WORDS[index % 8] for index in range(tokens))
    layer = Layer("layers.0", "decoder", weights, text, text, value=value[..., :10] if values else None)
    return Recording("t", "m", (layer,)), layer


def vectors(layer: Layer, head: int, query: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query, and the keys and values that it attends to, in float64."""
    request = layer.weights.request
    shared = head * request.key.shape[1] // request.query.shape[1]
    q, k = request.query[0, head, query], request.key[0, shared, : query + 1]
    value = layer.value[0, shared, : query + 1] if layer.value is not None else torch.empty(query + 1, 0)
    return q.double(), k.double(), value.double()


def printed(*numbers: float | torch.Tensor) -> list[str]:
    """As the view writes exact numbers."""
    texts = [f"{abs(float(number)):.4f}" for number in numbers]
    return [
        f"−{text}" if float(number) < 0 and float(text) else text for number, text in zip(numbers, texts, strict=True)
    ]


def lines(page, step: str, part: str = "tbody") -> list[tuple[int, list[str]]]:
    """The key and the cells of each row of a step; -1 where a row is of no key."""
    page.wait_for_selector(".step")
    table = page.get_by_role("region", name=re.compile(rf"^\d {step}$"))
    rows = table.locator(f"{part} tr").evaluate_all(
        """rows => rows.map(row => [
            +(row.dataset.key ?? -1), [...row.querySelectorAll('td')].map(cell => cell.textContent)
        ])"""
    )
    return [(int(key), [cell for cell in cells if cell]) for key, cells in rows]


@pytest.mark.parametrize(("head", "query"), [(0, 7), (1, 3), (2, 7), (3, 0)])
def test_every_step_has_the_numbers_of_the_tensors(open_page, head, query):
    recording, layer = decoder()
    page = open_page(recording, f"#views=calculation&head={head}&token=source.{query}")
    q, k, v = vectors(layer, head, query)
    products = k @ q
    scores = products / 12**0.5
    weights = scores.softmax(0)
    order = weights.argsort(descending=True).tolist()

    assert lines(page, "Query") == [(-1, [*printed(*q[:8]), "…"])]
    assert lines(page, "Products with the keys") == [
        (key, [*printed(products[key], *k[key, :8]), "…"]) for key in order
    ]
    assert lines(page, "Scale") == [(key, printed(products[key], scores[key])) for key in order]
    exp = (scores - scores.max()).exp()
    assert lines(page, SOFTMAX) == [
        (key, printed(scores[key], scores[key] - scores.max(), exp[key], weights[key])) for key in order
    ]
    assert lines(page, SOFTMAX, "tfoot") == [(-1, printed(exp.sum(), 1.0))]
    assert f"max s = {printed(scores.max())[0]}." in page.get_by_role("region", name=SOFTMAX).inner_text()
    assert lines(page, "Values by weight") == [(key, [*printed(*(weights[key] * v[key, :8])), "…"]) for key in order]
    assert lines(page, "Values by weight", "tfoot") == [(-1, [*printed(*(weights @ v)[:8]), "…"])]


@pytest.mark.parametrize("width", [12, 64])
def test_a_score_is_the_sum_of_what_its_features_add(open_page, width):
    recording, layer = decoder(width=width)
    page = open_page(recording, "#views=calculation&head=1&token=source.6")
    q, k, _ = vectors(layer, 1, 6)
    parts = k * q / width**0.5
    strongest = int(parts.sum(1).argmax())
    for number, key in enumerate((strongest, 2, 4)):
        if number:
            page.get_by_role("region", name=SOFTMAX).locator(f"tr[data-key='{key}'] td").first.click()
        order = parts[key].abs().argsort(descending=True).tolist()
        actual = lines(page, "Score by feature")
        assert [cells for _, cells in actual] == [
            printed(q[feature], k[key, feature], parts[key, feature]) for feature in order[:12]
        ]
        names = page.get_by_role("region", name="Score by feature").locator("tbody th").all_text_contents()
        assert names == [str(feature) for feature in order[:12]]
        foot = [cells for _, cells in lines(page, "Score by feature", "tfoot")]
        rest = parts[key, order[12:]].sum()
        assert foot == ([] if width == 12 else [printed(rest)]) + [printed(parts[key].sum())]
        assert (
            page.locator("tbody button[aria-pressed=true]").evaluate_all(
                "all => all.map(node => +node.closest('tr').dataset.key)"
            )
            == [key] * 4
        )
    bars = page.locator(".signed-bar > span").evaluate_all(
        """all => all.map(node => [
            node.className, ...[node, node.parentNode].map(each => each.getBoundingClientRect().width)
        ])"""
    )
    shares = [*parts[4, order[:12]].tolist(), *([] if width == 12 else [float(rest)])]
    largest = max(map(abs, shares))
    for share, (name, length, room) in zip(shares, bars, strict=True):
        assert name == ("negative" if share < 0 else "positive")
        assert length == pytest.approx(room / 2 * abs(share) / largest, abs=0.05)
    if width == 64:
        assert "… the other 52 together" in page.get_by_role("region", name="Score by feature").inner_text()


def test_tokens_that_occur_twice_have_their_positions(open_page):
    page = open_page(decoder(tokens=11)[0], "#views=calculation&head=1&token=source.9")
    names = {key: WORDS[key % 8].strip("▁") for key in range(10)}
    names |= {key: f"{names[key]} ({key})" for key in (0, 1, 2, 8, 9)} | {5: "·red"}
    assert page.locator(".calculation-of b").text_content() == "animal (9)"
    for key, _ in lines(page, "Scale"):
        button = page.get_by_role("region", name="Scale").locator(f"tr[data-key='{key}'] button")
        assert button.text_content() == names[key]


def test_enter_splits_the_score_of_a_key_and_keeps_the_focus(open_page):
    page = open_page(decoder()[0], "#views=calculation&head=1&token=source.6")
    page.get_by_role("region", name="Scale").locator("tbody button").first.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    key = lines(page, "Scale")[-1][0]
    assert f"adds to the score of {WORDS[key].strip('▁')}" in page.get_by_role("region", name="4 Score").inner_text()
    assert page.evaluate("+document.activeElement.closest('tr').dataset.key") == key


def test_all_keys_and_all_features_are_listed_on_demand(open_page):
    recording, layer = decoder(tokens=20)
    page = open_page(recording, "#views=calculation&head=1&token=source.19")
    q, k, v = vectors(layer, 1, 19)
    weights = (k @ q / 12**0.5).softmax(0)
    order = weights.argsort(descending=True).tolist()
    assert len(lines(page, SOFTMAX)) == 12
    rest = weights[order[12:]].sum()
    assert lines(page, SOFTMAX, "tfoot")[0][1][1] == printed(rest)[0]
    assert lines(page, "Values by weight", "tfoot")[0][1][:8] == printed(*(weights[order[12:]] @ v[order[12:]])[:8])
    page.get_by_role("button", name="Show all 20 keys").click()
    page.get_by_role("button", name="Show all 12 features").press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.step')[1].querySelectorAll('tbody tr').length === 20")
    assert [key for key, _ in lines(page, SOFTMAX)] == order
    assert lines(page, "Query")[0][1] == printed(*q)
    assert lines(page, "Values by weight", "tfoot")[-1][1] == printed(*(weights @ v))
    page.get_by_role("button", name="Show the 12 strongest keys").click()
    page.wait_for_function("() => document.querySelectorAll('.step')[1].querySelectorAll('tbody tr').length === 12")


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("features", [8, 64])
def test_no_number_is_cut_wherever_a_table_is_scrolled(open_page, width, features):
    recording, _ = decoder(tokens=20, width=64)
    page = open_page(recording, "#views=calculation&head=1&token=source.19", width=width)
    page.wait_for_selector(".step")
    if features == 64:
        page.get_by_role("button", name="Show all 64 features").click()
        page.wait_for_function("() => document.querySelector('.step').querySelectorAll('tbody td').length === 64")
    cut = """([node, left]) => {
        node.scrollLeft = left;
        return new Promise(resolve => setTimeout(() => {
            const frame = node.getBoundingClientRect();
            const names = parseFloat(getComputedStyle(node).scrollPaddingLeft) || 0;
            const [start, end] = [frame.left + names, frame.left + node.clientWidth];
            const isCut = ({left, right}) => [start, end].some(edge => left < edge - 1 && right > edge + 1);
            const cells = [...node.querySelectorAll('td')].map(cell => cell.getBoundingClientRect());
            const visible = cells.filter(({left, right}) => right > start && left < end);
            resolve([visible.length, cells.filter(isCut).length]);
        }, 80));
    }"""
    sheets = page.locator(".sheet").element_handles()
    assert len(sheets) == 6
    assert page.locator(".sheet.scrolls").count() >= (2 if width == 400 or features == 64 else 0)
    for sheet in sheets:
        for left in (0, 100, 333, 100_000):
            visible, cells = page.evaluate(cut, [sheet, left])
            assert (visible > 0, cells) == (True, 0), left
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_opens_on_a_token_with_content(open_page, recording):
    """The query of the page's opening; in other texts, the first token that is not special and not punctuation."""
    page = open_page(recording, "#views=calculation")
    opening = pack.pack(recording)[0]["opening"]
    layer = recording.layers[opening["layer"]]
    page.wait_for_selector(".step")
    name = page.locator(".calculation-of b")
    assert name.text_content().lstrip("·") == layer.query_tokens[opening["query"]].lstrip("▁")
    tokens = ("<s>", "“", "▁Well", "▁,", "</s>")
    other = Layer(
        "encoder.0", "encoder", regard.weights(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)), tokens, tokens
    )
    page = open_page(recording.replace(layers=(other, *recording.layers.cross)), "#views=calculation&layer=encoder.0")
    page.wait_for_selector(".step")
    assert page.locator(".calculation-of b").text_content() == "Well"
    page = open_page(recording, "#views=calculation&layer=encoder.0&token=source.6")
    page.wait_for_selector(".step")
    assert page.locator(".calculation-of b").text_content() == "."


@pytest.mark.parametrize("rescale", [False, True])
def test_hidden_keys_are_calculated_with_a_note(open_page, rescale):
    recording, layer = decoder()
    page = open_page(recording, f"#views=calculation&head=1&token=source.6&hide=first{'&rescale=1' * rescale}")
    q, k, _ = vectors(layer, 1, 6)
    weights = (k @ q / 12**0.5).softmax(0)
    assert {key: cells[3] for key, cells in lines(page, SOFTMAX)} == {
        key: printed(weight)[0] for key, weight in enumerate(weights)
    }
    others = "hidden, and the others rescaled, in other views" if rescale else "hidden in other views"
    note = f". This is the model’s own calculation, with all keys; some of them are {others}."
    assert page.locator(".calculation-of").inner_text().endswith(note)


def test_a_note_if_values_were_not_recorded(open_page):
    page = open_page(decoder(values=False)[0], "#views=calculation&head=0")
    assert "The recording has no values" in page.get_by_role("region", name="6 Values").inner_text()


def assert_weights_alone(actual: list[tuple[int, list[str]]], exact: torch.Tensor) -> None:
    """Scores and weights, of stored ones, with no digit that is not certain."""
    largest = exact.max()
    for key, (score, weight) in actual:
        assert_printed(weight, float(exact[key]), 1e-6)
        expected = math.log(exact[key] / largest)
        bound = re.fullmatch(r"< (−[\d.]+)", score)
        if bound:
            assert expected < -float(bound[1][1:])
        else:
            assert_printed(score, expected, 1e-6)


def test_a_score_function_is_named_and_the_weights_are_those_of_the_file(open_page):
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    recording, layer = decoder(score=ScaledDotProduct() + Alibi(slopes))
    page = open_page(recording, "#views=calculation&head=1&token=source.6")
    q, k, _ = vectors(layer, 1, 6)
    exact = layer.weights.dense()[0, 1, 6].double()
    for key, cells in lines(page, "Scale"):
        assert cells == printed(k[key] @ q, k[key] @ q / 12**0.5)
    note = page.get_by_role("region", name="5 Score function").inner_text()
    assert "The score function of this layer is ScaledDotProduct + Alibi." in note
    assert "not stored in this file" in note
    actual = lines(page, "Scores and weights")
    assert [key for key, _ in actual] == exact[:7].argsort(descending=True).tolist()
    assert_weights_alone(actual, exact)


def test_without_query_and_key_it_starts_from_the_weights(open_page, monkeypatch):
    monkeypatch.setattr(pack, "MAX_QKV_BYTES", 0)
    monkeypatch.setattr(pack, "MAX_LONG_QKV_BYTES", 0)
    recording, layer = decoder()
    page = open_page(recording, "#views=calculation&head=1&token=source.6")
    note = page.get_by_role("region", name="1 Query, key and value").inner_text()
    assert "because the recording is large" in note
    assert "regard serve" in note
    exact = layer.weights.dense()[0, 1, 6].double()
    actual = lines(page, "Scores and weights")
    assert [key for key, _ in actual] == exact[:7].argsort(descending=True).tolist()
    assert_weights_alone(actual, exact)
    assert page.locator("button[aria-pressed=true]", has_text="The").count() == 0


def sketch() -> Recording:
    generator = torch.Generator().manual_seed(1)
    text = tuple(f"▁word{index}" for index in range(301))
    query, key = (2 * torch.randn(1, 2, 301, 8, generator=generator) for _ in range(2))
    weights = regard.weights(query, key, mask=regard.Causal())
    return Recording("A long text", "a model", (Layer("layers.0", "decoder", weights, text, text),))


def test_a_sketch_with_query_and_key_has_every_weight(open_page):
    recording = sketch()
    page = open_page(recording, "#views=calculation&head=1&token=source.250")
    q, k, _ = vectors(recording.layers[0], 1, 250)
    weights = (k @ q / 8**0.5).softmax(0)
    order = weights.argsort(descending=True).tolist()
    assert [(key, cells[3]) for key, cells in lines(page, SOFTMAX)] == [
        (key, printed(weights[key])[0]) for key in order[:12]
    ]
    assert "Σ of 251" in page.get_by_role("region", name=SOFTMAX).inner_text()


def test_a_note_for_a_sketch_without_query_and_key(open_page, monkeypatch):
    recording = sketch()
    monkeypatch.setattr(pack, "MAX_QKV_BYTES", 0)
    monkeypatch.setattr(pack, "MAX_LONG_QKV_BYTES", 0)
    exact = recording.layers[0].weights.dense()[0, 1, 250].double()
    page = open_page(recording, "#views=calculation&head=1&token=source.250")
    page.wait_for_selector(".step tfoot")
    rest = page.locator("tfoot tr", has_text="keys that are not stored").locator("td").last.text_content()
    assert_printed(rest, 1 - float(exact.topk(16).values.sum()), PRECISION)
    assert_weights_alone(lines(page, "Scores and weights"), exact)


def test_a_query_whose_keys_are_all_masked_has_no_calculation(open_page):
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    weights = regard.weights(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), mask=mask)
    words = ("▁a", "▁b", "c")
    recording = Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),))
    page = open_page(recording, "#views=calculation&token=source.0")
    page.locator(".steps", has_text="Every key of this query is masked").wait_for()
    page.get_by_role("group", name="Save: Calculation").get_by_role("button", name="as CSV").click()
    page.get_by_text("Nothing is shown here for this selection, so no file was saved.").wait_for()


def test_pointing_at_a_row_points_at_its_key_and_selecting_in_the_matrix_selects_the_query(open_page):
    page = open_page(decoder()[0], "#views=matrix,calculation&head=2")
    page.wait_for_selector(".step")
    name = page.locator(".calculation-of b")
    point_at(page, 3, 1)
    name.get_by_text("too", exact=True).wait_for()
    assert {key for key, _ in lines(page, "Scale")} == {0, 1, 2, 3}
    assert page.locator("tr.focused").first.get_attribute("data-key") == "1"
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    name.get_by_text("too", exact=True).wait_for()
    row = page.get_by_role("region", name="3 Scale").locator("tr[data-key='2'] td").first
    row.scroll_into_view_if_needed()
    row.hover()
    page.wait_for_selector(".tip:not([hidden])")
    settle(page)
    assert page.locator("tr.focused").evaluate_all("rows => rows.map(row => row.dataset.key)") == ["2"] * 4


def test_the_tables_are_used_by_keyboard(open_page):
    page = open_page(decoder()[0], "#views=matrix,calculation&head=2&token=source.5")
    page.wait_for_selector(".step")
    order = [key for key, _ in lines(page, "Scale")]
    assert page.locator(".step tbody button[tabindex='0']").count() == 4  # one of each table of keys
    page.locator(".step tbody button[tabindex='0']").first.focus()
    key = "+document.activeElement.closest('tr').dataset.key"
    assert page.evaluate(key) == order[0]
    for stroke, position in [("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", -1), ("Home", 0)]:
        page.keyboard.press(stroke)
        assert page.evaluate(key) == order[position]
        page.locator(f"tr.focused[data-key='{order[position]}']").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').ariaLabel") == "3 Scale"


def test_of_several_heads_the_first_is_calculated(open_page):
    page = open_page(decoder()[0], "#views=calculation&head=2,3&token=source.7")
    page.wait_for_selector(".step")
    assert page.locator(".calculation-of").inner_text() == "</s> in layers.0, head 2, the first of the 2 selected heads"


def test_the_csv_has_a_line_for_each_key_and_one_for_the_output(open_page):
    recording, layer = decoder()
    page = open_page(recording, "#views=calculation&head=2&token=source.6")
    page.wait_for_selector(".step")
    name, data = saved(page, "calculation", "CSV")
    assert name == "regard-layers.0-head-2-calculation.csv"
    header, *rows, output = rows_of(data)
    assert header == [
        *("query index", "query token", "key index", "key token", "product", "scaled product", "weight"),
        *(f"scale × query × key {feature}" for feature in range(12)),
        *(f"weight × value {feature}" for feature in range(10)),
    ]
    q, k, v = vectors(layer, 2, 6)
    weights = (k @ q / 12**0.5).softmax(0)
    assert [int(row[2]) for row in rows] == weights.argsort(descending=True).tolist()
    for row in rows:
        key = int(row[2])
        assert (row[0], row[1], row[3]) == ("6", ".", WORDS[key])
        expected = [k[key] @ q, k[key] @ q / 12**0.5, weights[key], *(k[key] * q / 12**0.5), *(weights[key] * v[key])]
        assert [float(cell) for cell in row[4:]] == pytest.approx(list(map(float, expected)), rel=6e-6)
    assert output[:19] == ["6", ".", "", "output", *[""] * 15]
    assert [float(cell) for cell in output[19:]] == pytest.approx((weights @ v).tolist(), rel=6e-6)


def test_the_csv_of_what_follows_from_weights_alone_has_no_products(open_page, monkeypatch):
    monkeypatch.setattr(pack, "MAX_QKV_BYTES", 0)
    monkeypatch.setattr(pack, "MAX_LONG_QKV_BYTES", 0)
    recording = sketch()
    page = open_page(recording, "#views=calculation&head=0&token=source.200")
    page.wait_for_selector(".step")
    header, *rows = rows_of(saved(page, "calculation", "CSV")[1])
    assert header[4:] == ["weight (± 0.0002)"]
    exact = recording.layers[0].weights.dense()[0, 0, 200]
    assert len(rows) == 16
    assert {int(row[2]): float(row[4]) for row in rows} == {
        int(key): pytest.approx(float(exact[key]), abs=0.0002) for key in exact.topk(16).indices
    }


@pytest.fixture(scope="module")
def served_address(long_recording):
    with served(long_recording) as address:
        yield address


def test_a_served_token_is_calculated_from_its_vectors(take_page, served_address, long_recording):
    with pages_of(take_page, served_address) as open_it:
        page = open_it("#layer=long&head=2&token=source.500&views=calculation")
        q, k, _ = vectors(layer_of(long_recording, "long"), 2, 500)
        scores = k @ q / 8**0.5
        weights = scores.softmax(0)
        page.get_by_role("region", name=SOFTMAX).wait_for()
        assert lines(page, SOFTMAX) == [
            (key, printed(scores[key], scores[key] - scores.max(), (scores[key] - scores.max()).exp(), weights[key]))
            for key in weights.topk(12).indices.tolist()
        ]
        assert "file" not in page.locator(".steps").inner_text()
        rows = rows_of(saved(page, "calculation", "CSV")[1])[1:]
        assert sorted(int(row[2]) for row in rows) == list(range(501))
