"""The page of `regard steps`: its numbers are those of the trace, for every head and query, at every width."""

from __future__ import annotations

import re

import pytest
import torch

import regard
from helpers.explore.axe import VIOLATIONS
from helpers.explore.browser_pages import load
from helpers.explore.traces import SOURCE, TRACES, translator
from regard.errors import InvalidArgument, InvalidFile
from regard.explore import steps_page
from regard.explore.page_format import write_block
from regard.explore.steps_page import pack_trace, steps_html, write_steps_html
from regard.explore.trace_selection import select

pytestmark = pytest.mark.browser

SLUGS = "() => [...document.querySelectorAll('nav a')].map(link => link.hash.slice(1))"
TABLES = """() => [...document.querySelectorAll(".step .numbers")].map(figure => [figure.dataset.name,
    [...figure.querySelectorAll("tbody tr")].map(row =>
        [...row.querySelectorAll("td")].map(cell => cell.textContent))])"""


@pytest.fixture
def open_steps(open_file, tmp_path):
    def open_it(trace, fragment="", head=None, query=None, **options):
        page = open_file(write_steps_html(trace, tmp_path / "steps.html", head=head, query=query), fragment, **options)
        page.wait_for_selector(".step h2")
        return page

    return open_it


@pytest.fixture(scope="module")
def encoder():
    return TRACES["encoder.0"]()


@pytest.fixture(scope="module")
def shared(tab, encoder, tmp_path_factory):
    """One page for tests that leave no trace but their address."""
    path = write_steps_html(encoder, tmp_path_factory.mktemp("steps") / "steps.html", head=0, query="ti")

    def open_it(fragment=""):
        load(tab, path.as_uri() + fragment)
        tab.wait_for_selector(".step h2")
        return tab

    return open_it


def title(page) -> str:
    return re.sub(r"^\d+", "", page.locator(".step h2").inner_text())


def number(cell: str) -> float:
    return (
        {"yes": 1.0, "no": 0.0}.get(cell)
        if cell in ("yes", "no")
        else float(cell.replace("−∞", "-inf").replace("−", "-"))
    )


def part(trace, name: str, head: int, query: int) -> torch.Tensor:
    """What a page shows of a step: its last two axes, without that of heads, at a head and a query."""
    heads = len(trace["weights"])
    if name == "part of the head":
        joined = trace["W_O"].unflatten(0, (heads, -1))
        return trace["sum of weighted values"][head] @ joined[head]
    if name == "products":
        query_name, key_name = ("rotated query", "rotated key") if "rotated query" in trace else ("query", "key")
        keys = trace[key_name]
        return trace[query_name][head, query] * keys[head * len(keys) // heads]
    value = trace[name]
    if name == "W_O":
        return value.unflatten(0, (heads, -1))[head]
    axes = next(step.axes for step in trace if step.name == name)
    if axes[0] == "head":
        value, axes = value[head * len(value) // heads], axes[1:]
    if len(axes) == 3:
        value = value[query]
    return value if value.ndim == 2 else value[None]


@pytest.mark.parametrize(
    "name", ["four words", "layer", "encoder.0", "decoder.0", "relative", "recurrent", "llama", "cross.1"]
)
def test_every_number_is_that_of_the_trace(open_steps, name):
    trace = TRACES[name]()
    heads, queries, _ = trace["weights"].shape
    head, query = heads - 1, queries - 1
    page = open_steps(trace, f"#x&depth=numbers&head={head}&query={query}", head=0, query=0)
    seen = set()
    for slug in page.evaluate(SLUGS):
        page.locator(f'nav a[href="#{slug}"]').click()
        for button in page.locator(".step .numbers > button").all():
            button.click()
        for step, rows in page.evaluate(TABLES):
            seen.add(step)
            actual = torch.tensor([[number(cell) for cell in row] for row in rows], dtype=torch.float64)
            expected = part(trace, step, head, query).float().double()
            expected = expected.T if slug == "scores" and "key" in step else expected
            torch.testing.assert_close(actual, expected, atol=6e-5, rtol=1e-3, msg=f"{slug}: {step}")
    details = {"sums", "b_O", "final norm weight"}
    left = {each for each in trace.names if not re.search(r"mean|standard deviation|square", each)} - seen - details
    assert left == set()


def test_the_screens_follow_the_calculation(open_steps):
    screens = {
        "cross.1": "hidden-state norm memory query key value scores products scale softmax weighted-values joined "
        "output residual feed-forward-norm hidden-units feed-forward block final-norm logits words",
        "llama": "subwords embedding norm query key value rotation scores products scale mask softmax weighted-values "
        "joined output residual feed-forward-norm hidden-units feed-forward block final-norm logits words",
        "recurrent": "input memory query key hidden-layer scores softmax weighted-values",
        "encoder.1": "input query key value scores products scale softmax weighted-values joined output residual "
        "attention-norm hidden-units feed-forward block block-norm",
    }
    for name, expected in screens.items():
        assert " ".join(open_steps(TRACES[name]()).evaluate(SLUGS)) == expected


def test_arrow_keys_buttons_and_back_turn_the_pages(shared):
    page = shared()
    slugs = page.evaluate(SLUGS)
    assert title(page) == "Subwords and ids"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert title(page) == "Position"
    assert page.locator(".turn p").inner_text() == f"Step 3 of {len(slugs)}"
    assert page.evaluate("location.hash") == "#position"
    page.get_by_role("button", name="Norm →").click()
    page.keyboard.press("Enter")  # the button is still in focus, and goes on
    assert title(page) == "Query"
    assert page.locator("nav a[aria-current]").inner_text() == "5Query"
    page.go_back()
    assert title(page) == "Norm"
    page.locator("nav").get_by_text("Softmax").click()
    for _ in slugs:
        page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") == f"#{slugs[-1]}"
    assert page.locator(".turn button:last-child").is_disabled()


def test_head_and_query_can_be_chosen(shared, encoder):
    page = shared("#softmax&depth=numbers")
    weights = page.locator(".step .numbers[data-name=weights] tbody tr.own td")
    page.get_by_label("Head").select_option("2")
    assert weights.nth(1).inner_text() == f"{encoder['weights'][2, 3, 1]:.4f}"
    page.get_by_role("radio", name="ti", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert title(page) == "Softmax"  # the arrow chose the next token, and turned no page
    assert weights.nth(1).inner_text() == f"{encoder['weights'][2, 4, 1]:.4f}"
    assert page.evaluate("location.hash") == "#softmax&head=2&query=4&depth=numbers"
    canvas = page.locator(".picture[data-name=weights] canvas")
    canvas.click(position={"x": 5, "y": 40})  # in the third of rows of 16 pixels
    assert page.get_by_role("radio", name="was").is_checked()


def test_sentences_have_the_numbers_of_the_head_and_the_query(shared, encoder):
    head, query = 1, 2
    key = int(encoder["weights"][head, query].argmax())

    def written(value) -> str:
        return f"{value:.4f}".replace("-", "−")

    def reading(slug):
        return shared(f"#{slug}&head={head}&query={query}").locator(".reading").inner_text()

    score, scaled = (encoder[name][head, query, key] for name in ("scores", "scaled scores"))
    assert reading("scale").endswith(f": {written(score)} · 1/√8 = {written(scaled)}.")
    assert reading("norm") == (
        f"Here μ is {written(encoder['mean'][query])} and σ is {written(encoder['standard deviation'][query])}."
    )
    assert reading("query").endswith(
        f" + … + {_factor(encoder['b_Q'][head, 0])} = {written(encoder['query'][head, query, 0])}."
    )
    assert reading("softmax").endswith(f" = {written(encoder['weights'][head, query, key])}.")


def _factor(value) -> str:
    return f"{value:.4f}" if value >= 0 else f"(−{-value:.4f})"


def test_depths_are_a_minute_a_block_and_every_number(shared):
    page = shared("#scale")
    all_steps = page.evaluate(SLUGS)
    assert page.locator(".step .numbers").count() == 0
    page.get_by_label("Depth").select_option("minute")
    short = page.evaluate(SLUGS)
    assert len(short) == 10
    assert title(page) == "Scores"  # the last of them before the scale
    assert page.locator(".step .formula").count() == 0
    page.get_by_label("Depth").select_option("numbers")
    assert page.evaluate(SLUGS) == all_steps
    assert page.locator(".step .numbers").count() == 2


def test_terms_of_a_formula_have_the_colors_of_their_pictures(shared):
    page = shared("#query")
    color = "node => getComputedStyle(node).color"
    for term in ("X", "WQ", "Q"):
        formula = page.locator(".formula .term", has_text=re.compile(f"^{term}$"))
        picture = page.locator(".picture figcaption .term", has_text=re.compile(f"^{term}$"))
        assert formula.evaluate(color) == picture.evaluate(color)
    colors = {page.locator(".formula .term", has_text=re.compile(f"^{term}$")).evaluate(color) for term in ("X", "Q")}
    assert len(colors) == 2


def test_the_number_of_a_cell_is_shown_where_the_pointer_is(shared, encoder):
    page = shared("#softmax")
    page.locator(".picture[data-name=weights] canvas").hover(position={"x": 24, "y": 56})  # cells of 16 pixels
    assert page.locator(".tip").inner_text() == f"ti · animal: {encoder['weights'][0, 3, 1]:.4f}"
    page.mouse.move(0, 0)
    assert page.locator(".tip").is_hidden()


def test_a_map_says_where_a_step_is(shared):
    page = shared("#softmax")
    current = page.locator(".model-map [aria-current]")
    assert current.inner_text() == "Attention"
    assert page.locator(".model-map .here").inner_text().split("\n")[0] == "0"
    page.locator(".model-map").get_by_text("Feed-forward").click()
    assert title(page) == "Norm"
    assert current.inner_text() == "Feed-forward"


def test_pages_are_dark_or_light_as_chosen(shared):
    page = shared()
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(color) == "rgb(253, 253, 252)"
    page.get_by_label("dark").check(force=True)
    assert page.evaluate(color) == "rgb(18, 20, 24)"
    assert page.evaluate("location.hash") == "#subwords&theme=dark"


def test_all_of_it_is_reached_with_tab(shared):
    page = shared("#query&depth=numbers")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.outerHTML"))
    for each in (
        'id="head"',
        'id="depth"',
        'name="query"',
        'href="#output"',
        "Show all",
        'class="sheet"',
        "→</button>",
    ):
        assert any(each in html for html in reached), each


@pytest.mark.parametrize(("width", "theme"), [(400, "dark"), (1280, "light"), (2560, "light")])
def test_it_fits_every_width_and_nothing_serious_is_wrong(open_steps, axe, width, theme):
    words = [f"▁word{index}" for index in range(25)]
    trace = translator("decoder.0", words, words, d_model=128, num_heads=4, norm_first=True)
    page = open_steps(trace, "#x&depth=numbers", width=width, color_scheme=theme)
    page.evaluate(axe)
    for slug in page.evaluate(SLUGS):
        page.evaluate("slug => { location.hash = `${slug}&depth=numbers` }", slug)
        page.wait_for_function("slug => document.querySelector('nav a[aria-current]').hash === `#${slug}`", arg=slug)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if slug in ("subwords", "query", "softmax"):
            assert page.evaluate(VIOLATIONS) == []


def test_hostile_tokens_are_text(open_steps):
    hostile = [
        "<script>alert(1)</script>",
        "{query}",
        '"><img src=x onerror=alert(1)>',
        "▁" * 30,
        "\u202eabc",
        "x" * 200,
    ]
    page = open_steps(translator("encoder.0", hostile, SOURCE), "#softmax&depth=numbers", width=400)
    for query in range(len(hostile)):
        page.locator("#choice input").nth(query).check(force=True)
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator(".step .numbers tbody th").first.inner_text() == hostile[0]


def test_the_numbers_of_a_page_are_those_of_the_trace():
    trace = TRACES["alibi"]()
    header, tensors = pack_trace(trace, select(trace, 1, 2))
    assert set(trace.names) - set(tensors) == {steps_page.COMPUTED}
    for name, tensor in tensors.items():
        torch.testing.assert_close(torch.from_numpy(tensor).flatten(), trace[name].float().flatten())
    assert [step["name"] for step in header["steps"]] == list(trace.names)
    assert (header["head"], header["query"], header["onlyHead"]) == (1, 2, None)


def test_large_traces_have_one_head(open_steps, monkeypatch):
    trace = TRACES["decoder.0"]()
    monkeypatch.setattr(steps_page, "MAX_BYTES", 1000)
    _, tensors = pack_trace(trace, select(trace, 1, 2))
    assert {len(tensors[name]) for name in ("weights", "query", "key", "W_O")} == {1}
    page = open_steps(trace, "#softmax&depth=numbers", head=1, query=2)
    assert page.get_by_label("Head").count() == 0
    (rows,) = [rows for name, rows in page.evaluate(TABLES) if name == "weights"]
    expected = trace["weights"][1]
    torch.testing.assert_close(torch.tensor([[*map(number, row)] for row in rows]), expected.float(), atol=6e-5, rtol=0)
    page.locator("nav a").first.click()
    assert "only this head: choose with --head of regard steps" in page.locator(".step .note").inner_text()


def test_a_note_names_what_a_decoder_reads(open_steps):
    page = open_steps(TRACES["decoder.0"](), "#embedding", query="müde")
    assert "At the step that writes “müde”, the decoder reads “war”" in page.locator(".reading").inner_text()


def test_of_many_keys_those_with_the_largest_weights_are_shown(open_steps):
    source = [f"▁word{index}" for index in range(40)]
    trace = translator("encoder.0", source)
    page = open_steps(trace, "#key&depth=numbers", head=0, query=3)
    figure = page.locator(".step .numbers[data-name=key]")
    expected = sorted(trace["weights"][0, 3].topk(12).indices.tolist())
    assert figure.locator("tbody th").all_inner_texts() == [f"word{index}" for index in expected]
    figure.get_by_role("button", name="Show all 40 × 8").click()
    assert figure.locator("tbody tr").count() == 40
    assert figure.get_by_role("button").inner_text() == "Show less"


def test_what_cannot_be_written(tmp_path):
    trace = regard.trace()
    path = write_steps_html(trace, tmp_path / "steps.html", query="word 1")
    assert path.read_text(encoding="utf-8") == steps_html(trace, query=0)
    with pytest.raises(InvalidArgument, match=r"query: expected .* got 9"):
        write_steps_html(trace, tmp_path / "steps.html", query=9)
    with pytest.raises(InvalidFile):
        write_steps_html(trace, tmp_path / "no" / "folder" / "steps.html")
    assert len(write_block(pack_trace(trace, select(trace))[1])) < 5000
