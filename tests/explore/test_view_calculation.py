"""The calculation view: every number that it prints is that of the tensors, computed in float64."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from helpers.explore.browser_pages import pages_of
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import layer_of, point_at, token
from helpers.explore.saved_files import rows_of, saved
from helpers.explore.serving import served
from regard.explore import pack
from regard.ops.scores import Alibi, ScaledDotProduct
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

pytestmark = pytest.mark.browser

WORDS = ("▁The", "▁animal", "▁was", "▁too", "▁ti", "red", ".", "</s>")
PRECISION = 1 / 6000
SLUGS = "() => [...document.querySelectorAll('.stage nav a')].map(link => link.hash.slice(1))"


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


def go(page, slug: str) -> None:
    page.wait_for_selector(".stage .step h4")
    link = page.locator(f'.stage nav a[href="#{slug}"]')
    link.click()
    link.and_(page.locator("[aria-current]")).wait_for()


def numbers(page, slug: str, name: str) -> dict[str, list[str]]:
    """The numbers of a tensor of a step, by the names of their rows."""
    go(page, slug)
    figure = page.locator(f".stage .numbers[data-name='{name}']")
    for button in figure.locator("> button").all():
        button.click()
    rows = figure.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return {row[0]: row[1:] for row in rows}


def keys_of(count: int) -> list[str]:
    """The names of the first keys; of tokens that occur twice with their positions."""
    return [WORDS[key % 8].replace("red", "·red").strip("▁") for key in range(count)]


@pytest.mark.parametrize(("head", "query"), [(0, 7), (1, 3), (2, 7), (3, 0)])
def test_every_step_has_the_numbers_of_the_tensors(open_page, head, query):
    recording, layer = decoder()
    page = open_page(recording, f"#views=calculation&head={head}&token=source.{query}&depth=numbers")
    q, k, v = vectors(layer, head, query)
    products = k @ q
    scores = products / 12**0.5
    weights = scores.softmax(0)
    exp = (scores - scores.max()).exp()
    names = keys_of(query + 1)
    own = names[query]

    def by_key(rows):
        return {name: printed(*row) for name, row in zip(names, rows, strict=True)}

    assert numbers(page, "query", "query") == {own: printed(*q)}
    assert numbers(page, "key", "key") == by_key(k)
    assert numbers(page, "value", "value") == by_key(v)
    assert numbers(page, "scores", "scores") == {own: printed(*products)}
    assert numbers(page, "products", "products") == by_key(k * q)
    assert numbers(page, "scale", "scaled scores") == {own: printed(*scores)}
    assert numbers(page, "softmax", "exponentials") == {own: printed(*exp)}
    assert numbers(page, "softmax", "weights") == {own: printed(*weights)}
    strongest = int(weights.argmax())
    reading = f"For “{names[strongest]}”: 1.0000 / {printed(exp.sum())[0]} = {printed(weights[strongest])[0]}."
    assert page.locator(".stage .reading").inner_text() == reading
    assert numbers(page, "weighted-values", "weighted values") == by_key(weights[:, None] * v)
    assert numbers(page, "weighted-values", "output") == {own: printed(*(weights @ v))}
    assert page.evaluate(SLUGS) == [
        "query",
        "key",
        "value",
        "scores",
        "products",
        "scale",
        "softmax",
        "weighted-values",
    ]


def test_tokens_that_occur_twice_have_their_positions(open_page):
    page = open_page(decoder(tokens=11)[0], "#views=calculation&head=1&token=source.9&depth=numbers")
    page.wait_for_selector(".stage .step h4")
    assert page.locator(".calculation-of b").text_content() == "animal (9)"
    names = list(numbers(page, "key", "key"))
    assert names == [
        *(f"{name} ({key})" for key, name in enumerate(keys_of(3))),
        *keys_of(8)[3:],
        "The (8)",
        "animal (9)",
    ]


def test_arrow_keys_turn_the_steps_and_the_address_has_them(open_page):
    page = open_page(decoder()[0], "#views=matrix,calculation&head=1&token=source.6&calculation=scale")
    page.wait_for_selector(".stage .step h4")
    heading = page.locator(".stage .step h4")
    assert heading.inner_text().endswith("Scale")
    page.locator(".stage .turn button").first.focus()
    page.keyboard.press("ArrowRight")
    page.locator(".stage .step h4", has_text="Softmax").wait_for()
    page.wait_for_function("() => location.hash.includes('calculation=softmax')")
    page.get_by_label("Depth").select_option("minute")
    page.wait_for_function("() => location.hash.includes('depth=minute')")
    assert page.evaluate(SLUGS) == ["query", "scores", "softmax", "weighted-values"]


def test_it_fits_narrow_and_wide_pages(open_page):
    recording, _ = decoder(tokens=20, width=64)
    for width in (400, 2560):
        page = open_page(recording, "#views=calculation&head=1&token=source.19&depth=numbers", width=width)
        for slug in ("key", "softmax"):
            page.wait_for_selector(".stage .step h4")
            page.evaluate("slug => document.querySelector(`.stage nav a[href='#${slug}']`).click()", slug)
            page.locator(f".stage .numbers[data-name={'key' if slug == 'key' else 'weights'}]").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_opens_on_a_token_with_content(open_page, recording):
    """The query of the page's opening; in other texts, the first token that is not special and not punctuation."""
    page = open_page(recording, "#views=calculation")
    opening = pack.pack(recording)[0]["opening"]
    layer = recording.layers[opening["layer"]]
    page.wait_for_selector(".stage .step h4")
    name = page.locator(".calculation-of b")
    assert name.text_content().lstrip("·") == layer.query_tokens[opening["query"]].lstrip("▁")
    tokens = ("<s>", "“", "▁Well", "▁,", "</s>")
    other = Layer(
        "encoder.0", "encoder", regard.weights(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)), tokens, tokens
    )
    page = open_page(recording.replace(layers=(other, *recording.layers.cross)), "#views=calculation&layer=encoder.0")
    page.wait_for_selector(".stage .step h4")
    assert page.locator(".calculation-of b").text_content() == "Well"
    page = open_page(recording, "#views=calculation&layer=encoder.0&token=source.6")
    page.wait_for_selector(".stage .step h4")
    assert page.locator(".calculation-of b").text_content() == "."


@pytest.mark.parametrize("rescale", [False, True])
def test_hidden_keys_are_calculated_with_a_note(open_page, rescale):
    recording, layer = decoder()
    hidden = f"&hide=first{'&rescale=1' * rescale}"
    page = open_page(recording, f"#views=calculation&head=1&token=source.6&depth=numbers{hidden}")
    q, k, _ = vectors(layer, 1, 6)
    (weights,) = numbers(page, "softmax", "weights").values()
    assert weights == printed(*(k @ q / 12**0.5).softmax(0))
    others = "hidden, and the others rescaled, in other views" if rescale else "hidden in other views"
    note = f". This is the model’s own calculation, with all keys; some of them are {others}."
    assert page.locator(".calculation-of").inner_text().endswith(note)


def test_what_was_not_recorded_is_left_out(open_page):
    page = open_page(decoder(values=False)[0], "#views=calculation&head=0")
    page.wait_for_selector(".stage .step h4")
    assert page.evaluate(SLUGS) == ["query", "key", "scores", "products", "scale", "softmax"]


def assert_weights_alone(page, exact: torch.Tensor, error: float = 1e-6) -> None:
    """The weights of the file, with no digit that is not certain."""
    (weights,) = numbers(page, "weights", "weights").values()
    for printed_weight, weight in zip(weights, exact, strict=True):
        assert_printed(printed_weight, float(weight), error)


def test_a_score_function_is_named_and_the_weights_are_those_of_the_file(open_page):
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    recording, layer = decoder(score=ScaledDotProduct() + Alibi(slopes))
    page = open_page(recording, "#views=calculation&head=1&token=source.6&depth=numbers")
    q, k, _ = vectors(layer, 1, 6)
    (scaled,) = numbers(page, "scale", "scaled scores").values()
    assert scaled == printed(*(k @ q / 12**0.5))
    assert_weights_alone(page, layer.weights.dense()[0, 1, 6, :7].double())
    note = page.locator(".stage .sentence").inner_text()
    assert "The score function of this layer is ScaledDotProduct + Alibi." in note
    assert "not stored in this file" in note


def test_without_query_and_key_it_starts_from_the_weights(open_page, monkeypatch):
    monkeypatch.setattr(pack, "MAX_QKV_BYTES", 0)
    monkeypatch.setattr(pack, "MAX_LONG_QKV_BYTES", 0)
    recording, layer = decoder()
    page = open_page(recording, "#views=calculation&head=1&token=source.6&depth=numbers")
    assert_weights_alone(page, layer.weights.dense()[0, 1, 6, :7].double())
    note = page.locator(".stage .sentence").inner_text()
    assert "because the recording is large" in note
    assert "regard serve" in note
    assert page.evaluate(SLUGS) == ["weights"]


def sketch() -> Recording:
    generator = torch.Generator().manual_seed(1)
    text = tuple(f"▁word{index}" for index in range(301))
    query, key = (2 * torch.randn(1, 2, 301, 8, generator=generator) for _ in range(2))
    weights = regard.weights(query, key, mask=regard.Causal())
    return Recording("A long text", "a model", (Layer("layers.0", "decoder", weights, text, text),))


def test_a_sketch_with_query_and_key_has_every_weight(open_page):
    recording = sketch()
    page = open_page(recording, "#views=calculation&head=1&token=source.250&depth=numbers")
    q, k, _ = vectors(recording.layers[0], 1, 250)
    (weights,) = numbers(page, "softmax", "weights").values()
    assert weights == printed(*(k @ q / 8**0.5).softmax(0))


def test_a_note_for_a_sketch_without_query_and_key(open_page, monkeypatch):
    recording = sketch()
    monkeypatch.setattr(pack, "MAX_QKV_BYTES", 0)
    monkeypatch.setattr(pack, "MAX_LONG_QKV_BYTES", 0)
    exact = recording.layers[0].weights.dense()[0, 1, 250].double()
    page = open_page(recording, "#views=calculation&head=1&token=source.250&depth=numbers")
    go(page, "weights")
    note = page.locator(".stage .sentence").inner_text()
    rest = re.search(r"The keys that are not stored have (.*) together", note)[1]
    assert_printed(rest, 1 - float(exact.topk(16).values.sum()), PRECISION)
    assert "within 0.00017" in note
    assert_weights_alone(page, exact[exact.topk(16).indices.sort().values])


def test_a_query_whose_keys_are_all_masked_has_no_calculation(open_page):
    mask = torch.ones(3, 3, dtype=torch.bool).tril(-1)
    weights = regard.weights(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), mask=mask)
    words = ("▁a", "▁b", "c")
    recording = Recording("t", "m", (Layer("encoder.0", "encoder", weights, words, words),))
    page = open_page(recording, "#views=calculation&token=source.0")
    page.locator(".hint", has_text="Every key of this query is masked").wait_for()
    page.get_by_role("group", name="Save: Calculation").get_by_role("button", name="as CSV").click()
    page.get_by_text("Nothing is shown here for this selection, so no file was saved.").wait_for()


def test_selecting_in_the_matrix_selects_the_query(open_page):
    page = open_page(decoder()[0], "#views=matrix,calculation&head=2&depth=numbers&calculation=scale")
    page.wait_for_selector(".stage .step h4")
    point_at(page, 3, 1)
    page.locator(".calculation-of b").get_by_text("too", exact=True).wait_for()
    assert list(numbers(page, "scale", "scores")) == ["too"]


def test_pointing_at_a_row_of_a_step_highlights_its_token_elsewhere(open_page):
    page = open_page(decoder()[0], "#views=text,calculation&head=1&token=source.6&depth=numbers&calculation=key")
    picture = page.locator(".stage .picture[data-name=key] canvas")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    picture.hover(position={"x": 5, "y": box["height"] * 2.5 / 7})
    expect(token(page, 0, 2)).to_have_class(re.compile("as-key"))
    expect(token(page, 0, 6)).to_have_class(re.compile("as-query"))
    table = page.locator(".stage .numbers[data-name=key] tbody tr")
    table.nth(4).hover()
    expect(token(page, 0, 4)).to_have_class(re.compile("as-key"))
    expect(token(page, 0, 2)).not_to_have_class(re.compile("as-key"))
    assert page.locator(".calculation-of b").inner_text() == "."
    page.locator("h1").hover()
    expect(page.locator("#text .as-key")).to_have_count(0)
    go(page, "query")
    page.locator(".stage .numbers[data-name=query] tbody tr").hover()
    expect(token(page, 0, 6)).to_have_class(re.compile("focused"))


def test_of_several_heads_the_first_is_calculated(open_page):
    page = open_page(decoder()[0], "#views=calculation&head=2,3&token=source.7")
    page.wait_for_selector(".stage .step h4")
    assert page.locator(".calculation-of").inner_text() == "</s> in layers.0, head 2, the first of the 2 selected heads"


def test_the_csv_has_a_line_for_each_key_and_one_for_the_output(open_page):
    recording, layer = decoder()
    page = open_page(recording, "#views=calculation&head=2&token=source.6")
    page.wait_for_selector(".stage .step h4")
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
    page.wait_for_selector(".stage .step h4")
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
        page = open_it("#layer=long&head=2&token=source.500&views=calculation&depth=numbers")
        q, k, _ = vectors(layer_of(long_recording, "long"), 2, 500)
        (weights,) = numbers(page, "softmax", "weights").values()
        assert weights == printed(*(k @ q / 8**0.5).softmax(0))
        assert "file" not in page.locator(".stage").inner_text()
        rows = rows_of(saved(page, "calculation", "CSV")[1])[1:]
        assert sorted(int(row[2]) for row in rows) == list(range(501))
