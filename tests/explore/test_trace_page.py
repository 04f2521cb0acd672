"""The page of a trace in a browser: other heads and queries, one step at a time, at every width."""

from __future__ import annotations

import re

import pytest

from helpers.explore.axe import VIOLATIONS
from helpers.explore.traces import SOURCE, TRACES, translator
from helpers.pairwise import everything
from regard.explore.trace_html import write_trace_html

pytestmark = pytest.mark.browser

TABLES = """sections => sections.map(section => [section.id, section.querySelector(".text")?.textContent,
    [...section.querySelectorAll("[data-fill]")].map(span => span.textContent),
    [...section.querySelectorAll("tr, .strip")].map(row => [row.className, row.textContent.trim(),
        [...row.querySelectorAll("td, rect")].map(part =>
            ["class", "x", "width"].map(name => part.getAttribute(name) ?? ""))])])"""
ALL_STEPS = "() => [...document.querySelectorAll('section')].map(({id}) => id)"


@pytest.fixture
def open_trace(open_file, tmp_path):
    def open_it(trace, fragment="", name="steps.html", head=None, query=None, **options):
        return open_file(write_trace_html(trace, tmp_path / name, head=head, query=query), fragment, **options)

    return open_it


def step(page) -> str:
    return page.locator("section:visible").get_attribute("id")


def drawn(page) -> list:
    """Everything that is drawn, of all steps."""
    for name in page.evaluate(ALL_STEPS):
        page.locator(f'nav a[href="#{name}"]').click()
    return page.eval_on_selector_all("section", TABLES)


@pytest.mark.parametrize("name", ["causal", "layer without bias", "decoder.0", "recurrent", "relative"])
def test_the_script_draws_what_the_page_was_written_with(open_trace, name):
    trace = TRACES[name]()
    heads, queries, _ = trace["weights"].shape
    head, query = heads - 1, queries - 1
    written = open_trace(trace, head=head, query=query, java_script_enabled=False)
    expected = written.eval_on_selector_all("section", TABLES)
    fragment = f"#softmax&head={head}&query={query}"
    page = open_trace(trace, fragment, "other.html", head=0, query=0)
    assert step(page) == "softmax"
    actual = drawn(page)
    assert len(actual) > 6
    assert actual == expected


def test_arrow_keys_and_buttons_turn_the_pages(open_trace):
    page = open_trace(TRACES["encoder.0"]())
    steps = page.evaluate(ALL_STEPS)
    assert step(page) == steps[0] == "embedding"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert step(page) == steps[2] == "norm"
    assert page.locator("#place").inner_text() == f"Step 3 of {len(steps)}"
    assert page.evaluate("location.hash") == "#norm"
    page.keyboard.press("ArrowLeft")
    assert step(page) == "position"
    page.get_by_role("button", name="Norm →").click()
    page.keyboard.press("Enter")  # the button is still in focus, and goes on
    assert step(page) == "query"
    assert page.locator("nav a[aria-current]").inner_text().split() == ["4", "Query"]
    page.get_by_role("button", name="← Norm").click()
    page.locator("nav").get_by_text("Softmax").click()
    assert step(page) == "softmax"
    for _ in steps:
        page.keyboard.press("ArrowRight")
    assert step(page) == steps[-1]
    assert page.locator("#next").is_disabled()
    page.evaluate("location.hash = '#scale'")
    page.wait_for_selector("#scale:not([hidden])")


def test_a_step_begins_with_its_heading(open_trace):
    page = open_trace(translator("encoder.0", d_model=128, num_heads=4), "#query", height=500)
    page.locator("#query .more button").click()
    page.evaluate("scrollTo(0, 1500)")
    page.keyboard.press("ArrowRight")
    assert 0 <= page.locator("#key h2").bounding_box()["y"] < 100


def test_all_of_it_is_reached_with_tab(open_trace):
    page = open_trace(TRACES["encoder.0"]())
    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.closest('select, [name=query], nav a, button')?.outerHTML ?? ''")
        )
    for part in ('<select id="head"', 'name="query"', 'href="#output"', "Show all", 'id="next"'):
        assert any(part in each for each in reached)
    assert len({each for each in reached if 'name="query"' in each}) == 1  # arrows choose among the tokens


def test_head_and_query_can_be_chosen(open_trace):
    trace = TRACES["encoder.0"]()
    page = open_trace(trace, "#softmax", head=0, query="ti")
    page.locator("#head").select_option("2")
    weight = page.locator("#softmax tbody tr").nth(1).locator("td").nth(2)
    assert weight.inner_text() == f"{trace['weights'][2, 3, 1]:.4f}"
    page.get_by_role("radio", name="ti", exact=True).focus()
    page.keyboard.press("ArrowRight")
    assert step(page) == "softmax"  # the arrow chose the next token, and turned no page
    assert page.get_by_role("radio", name="red").is_checked()
    assert weight.inner_text() == f"{trace['weights'][2, 4, 1]:.4f}"
    assert page.evaluate("location.hash") == "#softmax&head=2&query=4"
    page.locator("nav").get_by_text("Query").click()
    assert "“red”" in page.locator("#query figcaption").inner_text()


def test_show_all_shows_all(open_trace):
    trace = translator("encoder.0", d_model=64, num_heads=2)
    page = open_trace(trace, "#query")
    figure = page.locator("#query figure")
    assert re.fullmatch(r"… \d+ more features and 56 more rows Show all", figure.locator(".more").inner_text().strip())
    figure.get_by_role("button").click()
    assert figure.get_by_role("button").inner_text() == "Show less"
    assert figure.get_by_role("button").evaluate("button => button === document.activeElement")
    headings = [text for text in figure.locator("thead th").all_inner_texts() if text != "x"]
    assert headings == [str(index) for index in range(32)]
    tables = figure.locator("table").count()
    assert tables > 1
    assert figure.locator("tbody tr").count() == tables * (64 + 2)
    figure.get_by_role("button").click()
    assert figure.locator("tbody tr").count() == 8 + 1 + 2


@pytest.mark.parametrize("width", [400, 1280, 2560] if everything() else [400, 2560])
def test_it_fits_every_width_and_no_number_is_cut(open_trace, width):
    words = [f"▁word{index}" for index in range(25)]
    page = open_trace(translator("decoder.0", words, words, d_model=128, num_heads=4, norm_first=True), width=width)
    for name in page.evaluate(ALL_STEPS):
        page.evaluate("name => { location.hash = name }", f"#{name}")
        page.wait_for_selector(f"#{name}:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 1280:
            assert page.evaluate("document.documentElement.scrollHeight") <= 1400
        cut = page.eval_on_selector_all(
            "section:not([hidden]) .fit td",
            """cells => cells.filter(cell => cell.textContent !== "" && cell.offsetParent).filter(cell => {
                const [own, frame] = [cell, cell.closest(".fit")].map(node => node.getBoundingClientRect());
                const partly = own.left < frame.right - 1 && own.right > frame.right + 1;
                return partly || cell.scrollWidth > cell.clientWidth + 1 || frame.right > innerWidth;
            }).map(cell => cell.textContent)""",
        )
        assert cut == []


def test_without_a_script_all_steps_are_below_one_another(open_trace):
    page = open_trace(TRACES["encoder.0"](), java_script_enabled=False)
    steps = page.locator("section")
    assert steps.count() == 11
    assert all(each.is_visible() for each in steps.all())
    assert not page.locator(".turn").is_visible()
    tops = [each.bounding_box()["y"] for each in steps.all()]
    assert tops == sorted(tops)
    assert page.locator("nav a").first.get_attribute("href") == "#embedding"


def test_colors_follow_the_theme(open_trace):
    light, dark = (
        open_trace(TRACES["encoder.0"](), name=f"{theme}.html", color_scheme=theme) for theme in ("light", "dark")
    )
    color = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(color) == "rgb(253, 253, 252)"
    assert dark.evaluate(color) == "rgb(18, 20, 24)"
    cell = light.locator("section:visible td[class^=up], section:visible td[class^=down]").first
    assert cell.evaluate("node => getComputedStyle(node).backgroundColor") != "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 400)])
def test_nothing_serious_is_wrong_for_assistive_technology(open_trace, axe, theme, width):
    page = open_trace(TRACES["decoder.0"](), color_scheme=theme, width=width)
    page.evaluate(axe)
    for name in ("embedding", "query", "mask", "softmax", "output"):
        page.evaluate("name => { location.hash = name }", f"#{name}")
        page.wait_for_selector(f"#{name}:not([hidden])")
        for button in page.locator("section:visible .more button").all():
            button.click()
        assert page.evaluate(VIOLATIONS) == []


def test_hostile_tokens_are_text(open_trace):
    hostile = [
        "<script>alert(1)</script>",
        "{query}",
        '"><img src=x onerror=alert(1)>',
        "▁" * 30,
        "\u202eabc",
        "x" * 200,
    ]
    page = open_trace(translator("encoder.0", hostile, SOURCE), width=400)
    for query in range(len(hostile)):
        page.locator("#choice input").nth(query).check(force=True)
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("#choice .token").nth(1).inner_text() == "{query}"
    page.locator("nav summary").click()
    page.locator("nav").get_by_text("Softmax").click()
    assert page.locator("#softmax tbody th").nth(1).inner_text() == "{query}"
