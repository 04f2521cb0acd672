"""The playground in a browser: it translates what is typed, shows its attention, and requests nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import pytest

from helpers.explore.sentences import ODD, sentences
from regard.errors import InvalidArgument
from regard.explore.playground import EXAMPLE, write_playground
from regard.models import Transformer, TransformerConfig
from regard.pipelines import Translator
from regard.text.tokenizer import train_char, train_translation_bpe

TRANSLATE_ALL = """async (texts) => {
    const results = [];
    for (const text of texts) {
        document.querySelector("#live-text").value = text;
        document.querySelector("#live-text").dispatchEvent(new Event("input"));
        const done = () => !document.querySelector("#live-translation").classList.contains("outdated");
        while (!done()) await new Promise((resolve) => setTimeout(resolve, 1));
        results.push(document.querySelector("#live-translation").textContent);
    }
    return results;
}"""


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load()


@pytest.fixture(scope="module")
def playground(translator, tmp_path_factory):
    return write_playground(translator, tmp_path_factory.mktemp("playground") / "playground.html")


@pytest.fixture
def open_playground(playground, open_file, tmp_path):
    def open_it(fragment: str = "", **options):
        page = open_file(Path(shutil.copy(playground, tmp_path)), fragment, **options)
        page.wait_for_selector(".panel")
        return page

    return open_it


def type_text(page, text: str) -> None:
    page.locator("#live-text").fill(text)
    page.wait_for_selector("#live-translation:not(.outdated)", state="attached")


@pytest.mark.browser
def test_typed_sentences_are_translated_and_shown(open_playground, translator, playground):
    page = open_playground()
    assert playground.stat().st_size < 17e6
    assert page.locator("#live-translation").text_content() == translator.translate([EXAMPLE])[0][0].text
    texts = [text for text in sentences(24) if text not in (ODD[6], ODD[7])]
    expected = [translations[0].text for translations in translator.translate(texts)]
    assert page.evaluate(TRANSLATE_ALL, texts) == expected

    type_text(page, "The cat is small.")
    recording = translator.record("The cat is small.")
    tokens = page.locator("#text .token").all_text_contents()
    assert [token.strip() for token in tokens][:3] == ["The", "cat", "is"]
    cells = page.locator("#details .panel li")
    weights = recording.layers["cross.2"].weights.dense()[0, 5]
    strongest = cells.first.locator(".value").text_content()
    assert float(strongest) == pytest.approx(float(weights.max()), abs=1e-3)
    page.wait_for_function("() => location.hash.includes('text=The+cat')")
    assert parse_qs(page.evaluate("location.hash.slice(1)"))["text"] == ["The cat is small."]


@pytest.mark.browser
def test_an_address_opens_its_text_and_state(open_playground, translator):
    text = "Thank you & <script>alert(1)</script>"
    page = open_playground(f"#layer=encoder.1&head=3&text={quote(text)}&greedy=1")
    assert page.locator("#live-text").input_value() == text
    assert page.locator("#live-translation").text_content() == translator.translate([text], beam=1)[0][0].text
    assert "encoder.1, head 3" in page.locator("#head-heading").text_content()
    page.evaluate("location.hash = 'text=' + encodeURIComponent('We see him.')")
    page.wait_for_function("() => document.querySelector('#live-text').value === 'We see him.'")
    page.wait_for_selector("#live-translation:not(.outdated)", state="attached")
    assert page.locator("#live-translation").text_content() == translator.translate(["We see him."])[0][0].text


@pytest.mark.browser
def test_any_text_is_shown_as_text_and_cut_with_a_notice(open_playground):
    page = open_playground()
    type_text(page, " \u200b ")
    assert page.locator("#live-notice").text_content() == "Nothing to translate yet."
    assert page.locator("main").is_hidden()
    type_text(page, "word " * 2000)
    assert "Only the first 100 tokens" in page.locator("#live-notice").text_content()
    for text in ODD[4:8]:
        type_text(page, text)
        assert page.locator("main").is_visible()
    assert page.locator("main script, main b").count() == 0


def test_a_model_that_the_page_cannot_run_is_refused_with_the_reasons(tmp_path):
    sizes: dict[str, Any] = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    }
    characters = train_char(["ab"])
    rotary = TransformerConfig(characters.vocab_size, **sizes, positions="rotary")
    pipeline = Translator(Transformer(rotary).eval(), characters)
    with pytest.raises(InvalidArgument) as raised:
        write_playground(pipeline, tmp_path / "a.html")
    assert "model: expected positions that are added to embeddings, got 'rotary' in attention" in str(raised.value)
    assert "tokenizer: expected a byte-level BPE or WordPiece, got another" in str(raised.value)
    assert not (tmp_path / "a.html").exists()


def test_the_policy_opens_only_what_the_model_needs(tmp_path):
    tokenizer = train_translation_bpe(["the cat"], vocab_size=260)
    sizes: dict[str, Any] = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    }
    pipeline = Translator(Transformer(TransformerConfig(tokenizer.vocab_size, **sizes)).eval(), tokenizer)
    shares: list[float] = []
    path = write_playground(pipeline, tmp_path / "a.html", example="the cat", progress=shares.append)
    policy = path.read_text("utf-8").partition('Content-Security-Policy" content="')[2].partition('">')[0]
    directives = dict(each.split(" ", 1) for each in policy.split("; "))
    assert directives.pop("worker-src") == "blob:"
    scripts = directives.pop("script-src").split()
    assert [source for source in scripts if not source.startswith("'sha256-")] == ["'wasm-unsafe-eval'"]
    assert directives["default-src"] == directives["connect-src"] == "'none'"
    assert sum(shares) == pytest.approx(1)
    assert json.dumps("the cat") in path.read_text("utf-8")
