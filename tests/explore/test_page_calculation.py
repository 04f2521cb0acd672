"""The calculation of one query in one head, in a real Chromium, against the tensors."""

from __future__ import annotations

import re

import pytest
import torch

import regard
from explore.opened import FOUR_DIGITS, point_at
from explore.test_page_exports import rows_of as rows_in
from explore.test_page_exports import saved
from explore.test_page_graph import long_recording, until
from regard.analysis.layer import Layer
from regard.analysis.recording import Recording
from regard.explore import packing
from regard.explore.packing import pack
from regard.ops.scores import Alibi, ScaledDotProduct

pytestmark = pytest.mark.browser

SHOWN = FOUR_DIGITS + 1e-5
WORDS = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")


def calculated(
    heads: int = 4, shared: int = 2, values: bool = True, tokens: int = 8, width: int = 12, **rules
) -> tuple[Recording, Layer]:
    """A decoder layer that reads its own text, with grouped heads and values."""
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, heads, tokens, width, generator=generator)
    key, value = (torch.randn(1, shared, tokens, width, generator=generator) for _ in range(2))
    weights = regard.weights(query, key, mask=regard.Causal(), **rules)
    text = tuple(WORDS[index % 8] for index in range(tokens))
    layer = Layer("layers.0", "decoder", weights, text, text, value=value[..., :10] if values else None)
    return Recording("t", "m", (layer,)), layer


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def rows_of(page, step: str, part: str = "tbody") -> list[tuple[int, list[str]]]:
    """The key and the cells of each row of a step."""
    page.wait_for_selector(".step")
    table = page.get_by_role("region", name=re.compile(rf"^\d {step}$"))
    rows = table.locator(f"{part} tr").evaluate_all(
        "rows => rows.map(row => [+(row.dataset.key ?? -1), [...row.cells].slice(1).map(cell => cell.textContent)])"
    )
    return [(int(key), cells) for key, cells in rows]


def numbers_of(page, step: str, part: str = "tbody") -> list[tuple[int, list[float]]]:
    return [
        (key, [number(cell) for cell in cells if cell not in ("…", "")]) for key, cells in rows_of(page, step, part)
    ]


@pytest.mark.parametrize(("head", "query"), [(0, 7), (1, 3), (2, 7), (3, 0)])
def test_every_step_has_the_numbers_of_the_tensors(open_page, head, query):
    recording, layer = calculated()
    page = open_page(recording, f"#views=calculation&head={head}&token=source.{query}")
    request = layer.weights.request
    q, k, v = request.query[0, head, query], request.key[0, head // 2], layer.value[0, head // 2]
    exact = layer.weights[0, head][query]
    order = exact[: query + 1].argsort(descending=True).tolist()

    assert numbers_of(page, "Query")[0][1] == pytest.approx(q[:8].tolist(), abs=SHOWN)
    products = numbers_of(page, "Products with the keys")
    assert [key for key, _ in products] == order
    for key, (product, *features) in products:
        assert product == pytest.approx((q @ k[key]).item(), abs=SHOWN)
        assert features == pytest.approx(k[key, :8].tolist(), abs=SHOWN)
    for key, (_, score) in numbers_of(page, "Scale"):
        assert score == pytest.approx(((q @ k[key]) / 12**0.5).item(), abs=SHOWN)
    most = (k[: query + 1] @ q).max() / 12**0.5
    for key, (_, less, exp, weight, stored) in numbers_of(page, "Softmax"):
        assert less == pytest.approx(((q @ k[key]) / 12**0.5 - most).item(), abs=SHOWN)
        assert exp == pytest.approx(((q @ k[key]) / 12**0.5 - most).exp().item(), abs=SHOWN)
        assert weight == pytest.approx(exact[key].item(), abs=SHOWN)
        assert stored == pytest.approx(exact[key].item(), rel=0.011, abs=2e-4)
    ((_, (total, shares)),) = numbers_of(page, "Softmax", "tfoot")
    assert shares == 1
    assert total == pytest.approx(((k[: query + 1] @ q) / 12**0.5 - most).exp().sum().item(), abs=SHOWN)
    for key, features in numbers_of(page, "Values by weight"):
        assert features == pytest.approx((exact[key] * v[key, :8]).tolist(), abs=SHOWN)
    ((_, output),) = numbers_of(page, "Values by weight", "tfoot")
    assert output == pytest.approx((exact @ v)[:8].tolist(), abs=SHOWN)
    assert "These weights are those in the file" in page.locator(".steps").inner_text()


def test_all_keys_and_all_features_are_shown_on_demand(open_page):
    recording, layer = calculated(tokens=20)
    page = open_page(recording, "#views=calculation&head=1")
    assert len(rows_of(page, "Softmax")) == 12
    request = layer.weights.request
    exact = layer.weights[0, 1][19]
    rest = exact.sort(descending=True).values[12:].sum().item()
    assert number(rows_of(page, "Softmax", "tfoot")[0][1][3]) == pytest.approx(rest, abs=SHOWN)
    output = (exact @ layer.value[0, 0]).tolist()
    assert numbers_of(page, "Values by weight", "tfoot")[-1][1] == pytest.approx(output[:8], abs=SHOWN)
    page.get_by_role("button", name="Show all 20 keys").click()
    page.get_by_role("button", name="Show all 12 features").press("Enter")
    until(page, "document.querySelectorAll('.step')[1].querySelectorAll('tbody tr').length === 20")
    assert [key for key, _ in rows_of(page, "Softmax")] == exact.argsort(descending=True).tolist()
    assert numbers_of(page, "Query")[0][1] == pytest.approx(request.query[0, 1, 19].tolist(), abs=SHOWN)
    assert numbers_of(page, "Values by weight", "tfoot")[-1][1] == pytest.approx(output, abs=SHOWN)
    page.get_by_role("button", name="Show the 12 strongest keys").click()
    until(page, "document.querySelectorAll('.step')[1].querySelectorAll('tbody tr').length === 12")


def test_where_values_were_not_kept_it_says_so(open_page):
    page = open_page(calculated(values=False)[0], "#views=calculation&head=0")
    assert "values were not kept" in page.get_by_role("region", name="5 Values").inner_text()


def test_a_rule_is_named_and_its_weights_are_those_of_the_file(open_page):
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    recording, layer = calculated(score=ScaledDotProduct() + Alibi(slopes))
    assert pack(recording)[0]["layers"][0]["rule"] == "ScaledDotProduct + Alibi"
    page = open_page(recording, "#views=calculation&head=1&token=source.6")
    q, k = layer.weights.request.query[0, 1, 6], layer.weights.request.key[0, 0]
    exact = layer.weights[0, 1][6]
    for key, (product, score) in numbers_of(page, "Scale"):
        assert (product, score) == pytest.approx(((q @ k[key]).item(), (q @ k[key] / 12**0.5).item()), abs=SHOWN)
    assert "ScaledDotProduct + Alibi" in page.get_by_role("region", name="4 Rule").inner_text()
    weights = numbers_of(page, "Scores and weights")
    for key, (less, exp, weight) in weights:
        assert weight == pytest.approx(exact[key].item(), rel=0.011, abs=2e-4)
        assert less == pytest.approx((exact[key] / exact.max()).log().item(), abs=0.03)
        assert exp == pytest.approx((exact[key] / exact.max()).item(), abs=0.03)


def test_where_there_are_no_vectors_it_tells_what_follows_from_the_weights(open_page, monkeypatch):
    monkeypatch.setattr(packing, "VECTORS", 0)
    recording, layer = calculated()
    page = open_page(recording, "#views=calculation&head=1&token=source.6")
    assert "regard serve" in page.get_by_role("region", name="1 Vectors").inner_text()
    exact = layer.weights[0, 1][6]
    rows = numbers_of(page, "Scores and weights")
    assert [key for key, _ in rows] == exact[:7].argsort(descending=True).tolist()
    for key, (less, _, weight) in rows:
        assert weight == pytest.approx(exact[key].item(), rel=0.011, abs=2e-4)
        assert less == pytest.approx((exact[key] / exact.max()).log().item(), abs=0.03)


def test_a_sketch_with_vectors_has_every_weight_and_one_without_says_what_is_left(open_page, monkeypatch):
    recording = long_recording(layers=1)
    exact = recording.layers[0].weights[0, 1][250]
    page = open_page(recording, "#views=calculation&head=1&token=source.250")
    rows = rows_of(page, "Softmax")
    for key, cells in rows:
        assert number(cells[3]) == pytest.approx(exact[key].item(), abs=SHOWN)
    assert "Σ of 251" in page.get_by_role("region", name="4 Softmax").inner_text()
    monkeypatch.setattr(packing, "VECTORS", 0)
    page = open_page(recording, "#views=calculation&head=1&token=source.250")
    page.wait_for_selector(".step tfoot")
    left = page.locator("tfoot tr", has_text="keys not named").locator("td").last.text_content()
    assert number(left) == pytest.approx(1 - exact.topk(16).values.sum().item(), abs=0.01)


def test_a_row_that_may_see_nothing_has_no_calculation(open_page):
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    weights = regard.weights(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), mask=mask)
    words = ("▁a", "▁b", "c")
    recording = Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),))
    page = open_page(recording, "#views=calculation&token=source.0")
    until(page, "document.querySelector('.steps').textContent.includes('the mask leaves it no key')")


def test_pointing_at_a_row_points_at_its_key_and_choosing_in_the_matrix_chooses_the_query(open_page):
    page = open_page(calculated()[0], "#views=matrix,calculation&head=2")
    page.wait_for_selector(".step")
    assert page.locator(".calculation-of b").text_content() == "</s>"
    point_at(page, 3, 1)
    until(page, "document.querySelector('.calculation-of b').textContent === 'too'")
    assert {key for key, _ in rows_of(page, "Scale")} == {0, 1, 2, 3}
    assert page.locator("tr.chosen").first.get_attribute("data-key") == "1"
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    until(page, "document.querySelector('.calculation-of b').textContent === 'too'")
    row = page.get_by_role("region", name="3 Scale").locator("tr[data-key='2']")
    row.scroll_into_view_if_needed()
    row.hover()
    page.wait_for_selector(".tip:not([hidden])")
    assert page.locator(".tip .places").text_content() == "3 → 2"
    assert page.locator("tr.chosen").evaluate_all("rows => rows.map(row => row.dataset.key)") == ["2"] * 4


def test_the_tables_are_used_by_keyboard(open_page):
    page = open_page(calculated()[0], "#views=matrix,calculation&head=2&token=source.5")
    page.wait_for_selector(".step")
    order = [key for key, _ in rows_of(page, "Scale")]
    assert page.locator(".step tbody button[tabindex='0']").count() == 4  # one of each table
    page.locator(".step tbody button[tabindex='0']").first.focus()
    key = "+document.activeElement.closest('tr').dataset.key"
    assert page.evaluate(key) == order[0]
    for stroke, place in [("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", -1), ("Home", 0)]:
        page.keyboard.press(stroke)
        assert page.evaluate(key) == order[place]
        until(page, f"document.querySelector('.tip .places').textContent === '5 → {order[place]}'")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').ariaLabel") == "3 Scale"


def test_of_several_heads_the_first_is_calculated(open_page):
    page = open_page(calculated()[0], "#views=calculation&head=2,3")
    page.wait_for_selector(".step")
    assert page.locator(".calculation-of").inner_text() == "</s> in layers.0, head 2, the first of the 2 heads chosen"


def test_the_csv_has_a_line_for_each_key_and_one_for_the_output(open_page):
    recording, layer = calculated()
    page = open_page(recording, "#views=calculation&head=2&token=source.6")
    page.wait_for_selector(".step")
    name, data = saved(page, "calculation", "CSV")
    assert name == "regard-layers.0-head-2-calculation.csv"
    header, *rows, output = rows_in(data)
    given = ["query index", "query token", "key index", "key token", "product", "scaled", "weight", "stored"]
    assert header == [*given, *(f"weight × value {feature}" for feature in range(10))]
    query, keys, values = layer.weights.request.query[0, 2, 6], layer.weights.request.key[0, 1], layer.value[0, 1]
    exact = layer.weights[0, 2][6]
    assert sorted(int(row[2]) for row in rows) == list(range(7))
    for row in rows:
        key = int(row[2])
        assert (row[0], row[1], row[3]) == ("6", ".", WORDS[key])
        product = (query @ keys[key]).item()
        numbers = [product, product / 12**0.5, exact[key].item()]
        assert [float(cell) for cell in row[4:7]] == pytest.approx(numbers, abs=1e-3)
        assert float(row[7]) == pytest.approx(exact[key].item(), rel=0.0103, abs=1e-4)
        assert [float(cell) for cell in row[8:]] == pytest.approx((exact[key] * values[key]).tolist(), abs=1e-3)
    assert output[:8] == ["6", ".", "", "output", "", "", "", ""]
    assert [float(cell) for cell in output[8:]] == pytest.approx((exact[:7] @ values[:7]).tolist(), abs=2e-3)


def test_the_csv_of_what_follows_from_weights_alone_has_no_products(open_page, monkeypatch):
    monkeypatch.setattr(packing, "VECTORS", 0)
    page = open_page(long_recording(), "#views=calculation&head=0&token=source.200")
    page.wait_for_selector(".step")
    header, *rows = rows_in(saved(page, "calculation", "CSV")[1])
    assert header[-2:] == ["weight", "stored"]
    assert len(rows) > 4
    assert all(row[4:6] == ["", ""] and row[6] == row[7] for row in rows)
