"""The playground in a browser: it translates what is typed, shows its attention, and requests nothing."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, quote

import pytest
import torch
from playwright.sync_api import expect

from helpers.explore.axe import VIOLATIONS
from helpers.explore.page_actions import settle
from helpers.explore.sentences import ODD, sentences
from helpers.pairwise import each_value
from regard.errors import InvalidArgument
from regard.explore.playground import EXAMPLE, model_problems, write_playground
from regard.explore.playground_tokenizer import tokenizer_problems
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.pipelines import TextEncoder, TextGenerator, Translator
from regard.text.tokenizer import Tokenizer, train_bpe, train_char, train_translation_bpe

SMALL: dict[str, Any] = {"d_model": 32, "num_heads": 2, "num_layers": 2, "d_ff": 32, "max_seq_len": 200}
ESCAPED = 'text => regard["ui/format.js"].escapeInvisible(text)'

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
@pytest.mark.slow
@pytest.mark.parametrize(("beam", "count"), [(1, 500), (5, 50)])
def test_many_sentences_are_translated_as_in_python(open_playground, translator, beam, count):
    page = open_playground(f"#greedy={int(beam == 1)}&views=text")
    texts = [text for text in sentences(count + 2) if text not in (ODD[6], ODD[7])]
    expected = [translations[0].text for translations in translator.translate(texts, beam=beam)]
    for start in range(0, count, 50):  # a minute at most
        assert page.evaluate(TRANSLATE_ALL, texts[start : start + 50]) == expected[start : start + 50]


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
def test_every_number_of_a_layer_is_computed_for_what_is_typed(open_playground, translator):
    """tests/explore/test_live_model.py compares every step with Python's."""
    page = open_playground(
        f"#text={quote(SENTENCE)}&greedy=1&views=calculation&unit=tokens&layer=cross.2&head=1&depth=numbers"
    )
    page.locator(".stage .step h4", has_text="Hidden state").wait_for()
    trace = translator.trace(SENTENCE, "cross.2", translator.translate([SENTENCE], beam=1)[0][0].text)
    assert page.locator(".model-map [aria-current]").inner_text() == "Cross-attention"
    for slug, step in (("softmax", "weights"), ("feed-forward", "feed-forward output"), ("words", "probabilities")):
        page.locator(f'.stage nav a[href="#{slug}"]').click()
        figure = page.locator(f".stage .numbers[data-name='{step}']")
        figure.wait_for()
        if figure.locator("> button").count():
            figure.locator("> button").click()
        rows = figure.locator("tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => +cell.textContent.replace('−', '-')))"
        )
        expected = trace[step][1] if step == "weights" else trace[step]
        torch.testing.assert_close(torch.tensor(rows), expected.float(), rtol=1e-3, atol=2e-4)
    page.locator('.stage nav a[href="#softmax"]').click()
    shown = page.locator(".calculation-of").inner_text()
    other = page.locator(".stage .numbers[data-name=weights] tbody tr:not(.own)").first
    other.hover()  # which highlights its token elsewhere, and does not turn to its calculation
    expect(page.locator("#details .panel b")).to_have_text(other.locator("th").inner_text())
    assert page.locator(".calculation-of").inner_text() == shown
    page.locator('.stage nav a[href="#words"]').click()
    page.locator("#live-text").fill("Thank you.")
    page.locator(".stage .step .reading", has_text="The most probable in the row of").wait_for()


def test_the_steps_say_what_is_changed(open_playground):
    page = open_playground(
        f"#text={quote(SENTENCE)}&views=calculation&layer=cross.2&head=1&calculation=scale&temperature=2&off=cross.2.1"
    )
    page.locator(".stage .sentence", has_text="The scores are multiplied by 0.0884.").wait_for()
    page.locator('.stage nav a[href="#weighted-values"]').click()
    page.locator(".stage .sentence", has_text="Switched off, so that their sums are 0: heads 1.").wait_for()


def test_any_text_is_shown_as_text_and_cut_with_a_notice(open_playground):
    page = open_playground()
    type_text(page, " \u200b ")
    assert page.locator("#live-notice").text_content() == "Nothing to translate yet."
    assert page.locator("main").is_hidden()
    type_text(page, "word " * 2000)
    assert "Only the first 100 tokens" in page.locator("#live-notice").text_content()
    for text in (*ODD[4:8], "x" * 250):
        type_text(page, text)
        assert page.locator("main").is_visible()
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("main script, main b").count() == 0


# What if?

SENTENCE = "The cat is small."


def answered(page) -> None:
    page.wait_for_selector("#live-translation:not(.outdated)", state="attached")
    settle(page)


@pytest.mark.browser
def test_a_head_is_switched_off_and_compared_and_is_in_the_address(open_playground, translator):
    page = open_playground(f"#text={quote(SENTENCE)}&layer=cross.2&head=5&views=text")
    original = page.locator("#live-translation").text_content()
    page.get_by_text("What if?", exact=True).press("Enter")
    page.get_by_role("button", name="Switch off cross.2, head 5").press("Enter")
    expect(page.locator("#live-changed")).to_be_visible()
    answered(page)
    assert page.locator("#live-translation").text_content() == original
    page.wait_for_function("() => location.hash.includes('off=cross.2.5')")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator(".compare-panel.b")).to_contain_text("The model as it is")
    page.get_by_role("button", name="Swap A and B").press("Enter")
    expect(page.locator("#sides")).to_contain_text("show A alone (The model as it is).")
    expect(page.locator(".compare-panel.b")).to_contain_text("With the change")
    page = open_playground(page.evaluate("location.hash"))
    expect(page.get_by_role("button", name="Switch on cross.2, head 5")).to_be_visible()
    page.get_by_role("button", name="Undo all changes").press("Enter")
    expect(page.get_by_role("button", name="Switch off cross.2, head 5")).to_be_focused()
    expect(page.locator("#live-changed")).to_be_hidden()
    expect(page.locator("label[for=live-translation]")).to_be_hidden()
    page.wait_for_function("() => !location.hash.includes('off=')")


@pytest.mark.browser
def test_the_temperature_and_what_is_left_out_change_the_text_and_the_differences_are_marked(open_playground):
    page = open_playground("#temperature=10&without=positions")
    answered(page)
    texts = [page.locator(f"#live-{name}") for name in ("translation", "changed")]
    assert texts[0].text_content() != texts[1].text_content()
    assert texts[1].locator("mark").count() > 0
    expect(page.get_by_label("The model as it is")).to_have_id("live-translation")
    expect(page.get_by_label("With the change")).to_have_id("live-changed")
    expect(page.locator("label[for=live-translation]")).to_be_visible()
    expect(page.locator("#live-difference")).to_contain_text("words differ")
    expect(page.locator("#temperature")).to_have_value("10")
    page.locator("#temperature").fill("1")
    page.get_by_label("without positions").uncheck()
    page.get_by_label("without the mask").check()
    page.wait_for_function("() => /without=mask/.test(location.hash) && !/temperature/.test(location.hash)")
    answered(page)
    assert page.locator("#matrix canvas").count() == 1


@pytest.mark.browser
def test_another_next_word_is_continued(open_playground, translator):
    page = open_playground(f"#text={quote(SENTENCE)}&views=text")
    page.locator(".choices summary").click()
    choices = page.locator(".probabilities li")
    expect(choices.first).to_have_class("written")
    other = choices.nth(1).get_by_role("button")
    word = other.text_content()
    other.press("Enter")
    answered(page)
    expect(page.locator(".steps button").first).to_be_focused()
    assert page.locator("#live-changed").text_content().startswith(word)
    page.wait_for_function("() => location.hash.includes('begins=')")
    begin = parse_qs(page.evaluate("location.hash.slice(1)"))["begins"][0]
    assert translator.tokenizer.decode([[int(begin)]]) == [word]
    type_text(page, "Thank you.")
    expect(page.locator("#live-changed")).to_be_hidden()  # of another sentence


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), each_value(["light", "dark"], [1280, 400]))
def test_nothing_serious_is_found_by_axe(open_playground, axe, theme, width):
    fragment = f"#text={quote(SENTENCE)}&theme={theme}&off=cross.2.5,encoder.0.1&begins=300&layer=decoder.1&head=5"
    fragment += "&step=0&token=read.0&views=text,matrix,translation,generation,compare"
    page = open_playground(fragment, width=width)
    for summary in page.locator(".live summary").all():
        if summary.evaluate("node => !node.parentElement.open"):
            summary.click()
    settle(page)
    page.evaluate(axe)
    assert page.evaluate(VIOLATIONS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_the_text_and_its_arcs_are_on_the_first_screen(open_playground):
    page = open_playground(width=1280, height=720)
    settle(page)
    assert page.locator("#text .token").first.bounding_box()["y"] < 640


# Other models


@pytest.mark.browser
def test_a_gpt_continues_a_text(open_file, tmp_path):
    torch.manual_seed(0)
    tokenizer = train_bpe(["the cat sat on the mat"], vocab_size=290, sample_by="document")
    model = GPT(GPTConfig(tokenizer.vocab_size, **SMALL, sample_by="document")).eval()
    pipeline = TextGenerator(model, tokenizer)
    page = open_file(write_playground(pipeline, tmp_path / "gpt.html", example="the cat"))
    page.wait_for_selector(".panel")
    type_text(page, "the mat")
    (text,) = pipeline.generate(["the mat"], max_new_tokens=20)
    assert page.locator("#live-translation").text_content() == f"… {page.evaluate(ESCAPED, text)}"
    ids = pipeline.encode_prompts(["the mat"])
    best = model(torch.tensor(ids)).logits[0, -1].detach().softmax(-1).max()
    assert float(page.locator(".probabilities .value").first.text_content()) == pytest.approx(float(best), abs=1e-3)
    assert page.locator(".view-buttons button").all_text_contents()[:2] == ["Text", "Matrix"]


@pytest.mark.browser
def test_a_bert_fills_masks(open_file, tmp_path):
    torch.manual_seed(0)
    tokenizer = train_bpe(["the cat sat on the mat"], vocab_size=290)
    pipeline = TextEncoder(Bert(BertConfig(tokenizer.vocab_size, **SMALL, head="masked_lm")).eval(), tokenizer)
    page = open_file(write_playground(pipeline, tmp_path / "bert.html"))
    page.wait_for_selector(".panel")
    type_text(page, "the <mask> sat")
    (prediction,) = pipeline.fill_mask("the <mask> sat")
    assert page.locator(".probabilities li").count() == 5
    best = max(prediction.probabilities.values())
    assert float(page.locator(".probabilities .value").first.text_content()) == pytest.approx(best, abs=1e-3)
    (ids,) = tokenizer.encode(["the <mask> sat"], add_special_tokens=True, split_special_tokens=False)
    mask, layer = ids.index(tokenizer.mask_id), list(pipeline.model.attention_layers)[-1]
    views = f"views=calculation&calculation=words&layer={layer}&token=source.{mask}"
    page.evaluate(f"location.hash = 'text={quote('the <mask> sat')}&{views}'")
    name = page.locator(".probabilities li span").first.text_content()
    reading = f"The most probable in the row of “<mask>”: “{name}” {best:.4f}, "
    page.locator(".stage .reading", has_text=reading).wait_for()
    type_text(page, "the cat")
    assert page.locator(".choices").is_hidden()
    assert page.locator("main").is_visible()


def test_a_model_that_the_page_cannot_run_is_refused_with_the_reasons(tmp_path):
    sizes: dict[str, Any] = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 16,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    }
    characters = train_char(["ab"])
    relative = TransformerConfig(characters.vocab_size, **sizes, positions="relative")
    pipeline = Translator(Transformer(relative).eval(), characters)
    with pytest.raises(InvalidArgument) as raised:
        write_playground(pipeline, tmp_path / "a.html")
    assert "'alibi' or 't5', got 'relative'" in str(raised.value)
    assert "tokenizer: expected a byte-level BPE or WordPiece, got another" in str(raised.value)
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            GPT(GPTConfig(290, **SMALL, positions="relative")),
            "positions that are added to embeddings, 'rotary', 'alibi' or 't5', got 'relative'",
        ),
        (GPT(GPTConfig(290, **SMALL, sliding_window=50)), "a sliding_window of at least 120 tokens, got 50"),
    ],
    ids=["relative", "window"],
)
def test_models_that_would_be_computed_wrongly_are_refused(model, reason):
    (problem,) = model_problems(model)
    assert reason in problem


def edited_bpe(change) -> Tokenizer:
    tokenizer = train_bpe(["the cat"], vocab_size=290)
    parts = tokenizer.parts()
    change(parts)
    return Tokenizer({"tokenizer.json": json.dumps(parts).encode()})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda parts: parts["model"].update(byte_fallback=True), "a byte-level BPE or WordPiece"),
        (lambda parts: parts.update(pre_tokenizer={"type": "Whitespace"}), "a Split by a regular expression"),
        (lambda parts: parts.update(normalizer={"type": "NFKC"}), "only NFC, Strip, Prepend, Replace as normalizers"),
        (lambda parts: parts.update(decoder={"type": "Fuse"}), "ByteLevel and Replace as decoder"),
        (
            lambda parts: parts["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": r"(?i:a)|\s+"}),
            "a regular expression that JavaScript has, too",
        ),
        (
            lambda parts: parts["added_tokens"][0].update(rstrip=True),
            "special tokens that are found before normalization, with spaces only before them",
        ),
    ],
)
def test_tokenizers_that_would_be_computed_wrongly_are_refused(change, reason):
    assert reason in "; ".join(tokenizer_problems(edited_bpe(change), reads_special=True))
    assert tokenizer_problems(edited_bpe(lambda _: None), reads_special=True) == []


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
