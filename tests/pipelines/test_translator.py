"""From text to text, with an untrained model: tokenization, batches and decoding."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from regard.data.pairs import collate_sources
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, InvalidType
from regard.generation import Hypothesis, SamplingParams, beam_search
from regard.models import save_model
from regard.pipelines import Translation, Translator, fastest_dtype
from regard.text.tokenizer import Tokenizer, train_translation_bpe

TEXTS = ["the cat sat on the mat", "a dog ran", "where is the station?", "yes."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_translation_bpe(TEXTS * 5, vocab_size=290)


@pytest.fixture
def translator(fresh, tokenizer) -> Translator:
    return Translator(fresh(vocab_size=tokenizer.vocab_size), tokenizer)


def test_each_line_gets_what_it_gets_alone_in_its_place(translator, tokenizer):
    lines = [TEXTS[1], "", TEXTS[0], TEXTS[3], "  ", TEXTS[2]]
    actual = translator.translate(lines, beam=3, nbest=2, length_penalty=0.5)
    assert actual[1] == actual[4] == [Translation("", 0.0, ())]
    for number in (0, 2, 3, 5):
        src, lengths = collate_sources(tokenizer.encode([lines[number]]))
        expected = beam_search(translator.model, src, lengths, beam=3, nbest=2, length_penalty=0.5)[0]
        assert [each.text for each in actual[number]] == tokenizer.decode([each.tokens for each in expected])
        for translation, hypothesis in zip(actual[number], expected, strict=True):
            assert translation.score == pytest.approx(hypothesis.score, abs=1e-4)
            assert translation.tokens == tuple(tokenizer.convert_ids_to_tokens(hypothesis.tokens))


def test_no_lines_give_none(translator):
    assert translator.translate([]) == []


def test_sampling_draws_nbest_translations(translator):
    first, again, other = (
        translator.translate(TEXTS, nbest=3, sampling=SamplingParams(top_k=5, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    for drawn in first:
        assert len(drawn) == 3
        assert [each.score for each in drawn] == sorted((each.score for each in drawn), reverse=True)


def test_a_long_line_is_translated_sentence_by_sentence(translator, monkeypatch):
    longest = translator.model.config.max_seq_len - 1
    sentence = "a dog ran on the mat."
    words = len(translator.tokenizer.encode([sentence])[0])
    line = " ".join([sentence] * (longest // words + 1))
    together, rest = (translator.translate([" ".join([sentence] * count)])[0][0] for count in (longest // words, 1))
    actual = translator.translate([line])[0][0]
    assert actual.text == f"{together.text} {rest.text}"
    assert actual.score == pytest.approx(together.score + rest.score, abs=1e-4)


def test_sentences_that_are_too_long_are_refused_with_their_lines(translator):
    long = "cat " * 200
    with pytest.raises(InvalidArgument) as caught:
        translator.translate(["yes.", long, "no.", f"yes. {long}"])
    assert "lines[1]: expected sentences of at most 63 tokens, got one of 200; split it" in str(caught.value)
    assert "lines[3]: expected sentences of at most 63 tokens, got one of 200; split it" in str(caught.value)
    with pytest.raises(InvalidArgument, match=r"book\.en, page 3: expected sentences of at most 63 tokens"):
        translator.translate(["yes.", long], line_names=["book.en, page 2", "book.en, page 3"])
    with pytest.raises(InvalidArgument, match="line_names: expected one for each of 2 lines, got 1"):
        translator.translate(["yes.", "no."], line_names=["line 1"])
    with pytest.raises(InvalidType, match="lines: expected a sequence of str, got generator"):
        translator.translate((line for line in ["yes."]), line_names=["line 1"])


def test_it_is_saved_and_loaded(translator, tmp_path):
    save_model(tmp_path / "small", translator.model, translator.tokenizer)
    loaded = Translator.load(tmp_path / "small", dtype=torch.float32)
    assert loaded.name == "small"
    assert loaded.translate(TEXTS) == translator.translate(TEXTS)
    (tmp_path / "small" / "tokenizer.json").unlink()
    with pytest.raises(InvalidFile, match=r"tokenizer\.json"):
        Translator.load(tmp_path / "small")
    with pytest.raises(InvalidCheckpoint, match="nowhere: expected a folder with"):
        Translator.load(tmp_path / "nowhere")


@pytest.mark.parametrize("fast", [True, False])
def test_the_default_dtype_is_the_fastest_of_the_cpu(translator, tmp_path, monkeypatch, fast):
    save_model(tmp_path, translator.model, translator.tokenizer)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast}, raising=False)
    loaded = Translator.load(tmp_path, dtype=fastest_dtype())
    assert loaded.model.src_embedding.weight.dtype == (torch.bfloat16 if fast else torch.float32)
    output, exact = loaded.translate(TEXTS, beam=2), translator.translate(TEXTS, beam=2)
    for actual, other in zip(output, exact, strict=True):
        assert actual[0].score == pytest.approx(other[0].score, abs=0.05)
    assert loaded.record(TEXTS[0]).layers[0].weights.dense().sum(-1).allclose(torch.ones(1))


def test_a_recording_has_every_layer_with_its_tokens(translator, tokenizer):
    recording = translator.record(TEXTS[1], "the mat")
    assert recording.texts == {"source": TEXTS[1], "translation": "the mat"}
    assert [layer.name for layer in recording.layers] == [
        f"{kind}.{number}" for kind in ("encoder", "decoder", "cross") for number in (0, 1)
    ]
    source, target = tokenizer.encode([TEXTS[1], "the mat"])
    read, written = ((*tokenizer.convert_ids_to_tokens(ids), "</s>") for ids in (source, target))
    axes = {"encoder": (read, read), "decoder": (written, ("<s>", *written[:-1])), "cross": (written, read)}
    for layer in recording.layers:
        assert (layer.query_tokens, layer.key_tokens) == axes[layer.kind]
        assert layer.weights.shape == (1, 4, len(layer.query_tokens), len(layer.key_tokens))
    src, tgt = torch.tensor([[*source, 2]]), torch.tensor([[1, *target]])
    expected = translator.model(src, tgt, output_attentions=True).attentions.cross[1].weights.dense()
    torch.testing.assert_close(recording.layers.by_kind("cross")[1].weights.dense(), expected)


def test_a_recording_finds_its_own_translation(translator):
    recording = translator.record(TEXTS[2])
    assert recording.texts["translation"] == translator.translate([TEXTS[2]])[0][0].text


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_truncated_translation_has_no_eos_row(fresh, tokenizer, positions):
    model = fresh(vocab_size=tokenizer.vocab_size, positions=positions, max_seq_len=12)
    with torch.no_grad():
        model.tgt_embedding.weight[tokenizer.eos_id] *= 0  # EOS is never the most likely token
    translator = Translator(model, tokenizer)
    (best,) = translator.translate(["a dog ran"])[0]
    recording = translator.record("a dog ran")
    assert not best.finished
    assert next(each for each in recording.layers if each.kind == "cross").query_tokens == best.tokens
    decoder = next(each for each in recording.layers if each.kind == "decoder")
    assert decoder.key_tokens == ("<s>", *best.tokens[:-1])
    assert translator.trace("a dog ran", "cross.0")["weights"].shape[-2] == len(best.tokens)


def test_unsupported_recordings_are_refused(translator):
    with pytest.raises(InvalidArgument, match="text: expected a text, got an empty one"):
        translator.record(" ")
    with pytest.raises(InvalidArgument) as caught:
        translator.record("cat " * 200, "mat " * 200)
    assert "text: expected at most 63 tokens, got 200; shorten it" in str(caught.value)
    assert "target: expected at most 63 tokens, got 200" in str(caught.value)
    with pytest.raises(InvalidType, match="text: expected a str, got NoneType"):
        translator.record(None)
    with pytest.raises(InvalidArgument, match=r"target: expected Unicode text, .* at character 2"):
        translator.record("yes.", "a\ud800")


def test_a_tokenizer_of_another_model_is_refused(fresh, tokenizer):
    with pytest.raises(InvalidArgument, match="expected a tokenizer with at most 100 tokens as in the model"):
        Translator(fresh(vocab_size=100), tokenizer)
    with pytest.raises(InvalidType) as error:
        Translator(tokenizer, fresh())
    assert "model: expected an encoder-decoder of this library, got Tokenizer" in str(error.value)
    assert "tokenizer: expected a tokenizer of this library, got Transformer" in str(error.value)
    with pytest.raises(InvalidArgument, match="expected a tokenizer with eos_id 5 as in the model, got 2"):
        Translator(fresh(vocab_size=tokenizer.vocab_size, eos_id=5), tokenizer)


def test_a_single_string_is_refused(translator):
    with pytest.raises(InvalidType, match=r"lines: expected a sequence of str, got str; pass a list"):
        translator.translate("yes")


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        (["yes.", None], InvalidType, r"lines\[1\]: expected a str, got NoneType"),
        ((line for line in TEXTS), InvalidType, "lines: expected a sequence of str, got generator"),
        (["yes.", "no\udc80"], InvalidArgument, r"lines\[1\]: expected Unicode text, .* '\\udc80' at character 3"),
        (
            ["#" * 10000],
            InvalidArgument,
            r"lines\[0\]: expected sentences of at most 63 .* got one of 1000",
        ),
    ],
)
def test_only_texts_are_accepted(translator, lines, error, words):
    with pytest.raises(error, match=words):
        translator.translate(lines)


def test_a_dtype_that_no_model_computes_in_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"dtype: expected one of torch\.float32, .*, got torch\.int64"):
        Translator.load(tmp_path, dtype=torch.int64)


def test_truncated_lines_are_marked_and_translated_by_sentence(translator):
    one, other = "a dog ran.", "yes."
    alone = [translator.translate([line])[0][0] for line in (one, other)]
    together = translator.translate([f"{one} {other}"])[0][0]
    assert not any(translation.finished for translation in (*alone, together))
    assert together.text == " ".join(translation.text for translation in alone)
    assert together.score == pytest.approx(sum(translation.score for translation in alone), abs=1e-4)


def test_a_line_is_as_finished_as_all_its_parts(translator):
    full, cut = Hypothesis([5], -1.0), Hypothesis([6], -2.0, finished=False)
    assert translator._join_parts("two", [[full], [full]], None)[0].finished
    assert not translator._join_parts("two", [[full], [cut]], None)[0].finished


def test_a_line_longer_than_those_of_the_training_is_cut_at_sentence_ends(fresh, tokenizer, monkeypatch):
    translator = Translator(fresh(vocab_size=tokenizer.vocab_size, max_seq_len=300), tokenizer)
    lengths = []

    def generate(sources, nbest, **options):
        lengths.extend(len(source) for source in sources)
        return [[Hypothesis([5], 0.0)] for _ in sources]

    monkeypatch.setattr(translator, "_generate", generate)
    sentence = "a dog ran on the mat."
    words = len(tokenizer.encode([sentence])[0])
    translator.translate([" ".join([sentence] * (150 // words))])
    assert sum(lengths) == 150 // words * words
    assert max(lengths) == 100 // words * words
    lengths.clear()
    translator.translate(["cat " * 149 + "mat"])
    assert lengths == [150]


def test_equal_lines_get_draws_of_their_own_in_different_batches(translator, monkeypatch):
    monkeypatch.setattr(Translator, "max_batch_tokens", 1)
    drawn = translator.translate(["yes."] * 4, sampling=SamplingParams(temperature=5.0, seed=1))
    assert len({best[0].text for best in drawn}) == 4


def test_options_are_checked(translator):
    with pytest.raises(InvalidArgument, match="nbest: expected at most beam = 2, got 3"):
        translator.translate(["yes."], beam=2, nbest=3)
    with pytest.raises(InvalidArgument, match="nbest: expected an int of at least 1, got 0"):
        translator.translate(["yes."], nbest=0, sampling=SamplingParams())
    with pytest.raises(InvalidArgument, match="temperature: expected a finite number above 0, got -1"):
        SamplingParams(temperature=-1)
    with pytest.raises(InvalidType, match=r"temperature: expected a finite number above 0, got '0\.5'"):
        SamplingParams(temperature="0.5")
    for options in ({"seed": 1.5}, {"seed": True}, {"top_p": "x"}, {"top_p": True}):
        with pytest.raises(InvalidType, match=rf"{next(iter(options))}: expected .* got"):
            SamplingParams(**options)
    with pytest.raises(InvalidType, match="sampling: expected a SamplingParams or None, got str"):
        translator.translate(["yes."], sampling="x")
    for options in ({"length_penalty": "1"}, {"length_penalty": True}, {"beam": "x"}, {"nbest": 1.0}):
        with pytest.raises(InvalidType, match=rf"{next(iter(options))}: expected .* got"):
            translator.translate([""], **options)
    with pytest.raises(
        InvalidArgument, match=r"seed: expected an int of at least -2\*\*63 .* got 18446744073709551616"
    ):
        SamplingParams(seed=2**64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("options", [{"beam": 99999}, {"length_penalty": 2.0}])
def test_sampling_takes_no_options_of_a_search(options):
    (name,) = options
    with pytest.raises(InvalidArgument, match=rf"{name}: expected None with sampling, got"):
        Translator.load().translate(["Thank you."], sampling=SamplingParams(seed=1), **options)


@pytest.mark.parametrize("line", ["\u200b", "\ufeff", " \u200b\u00a0\u2060", "\u00ad", "\x07", "\u3164", "\ufe0f"])
def test_a_line_without_a_visible_character_has_an_empty_translation(line):
    translator = Translator.load()
    both = translator.translate([line, "Thank you."])
    assert [translation.text for translation in both[0]] == [""]
    assert both[1] == translator.translate(["Thank you."])[0]
    with pytest.raises(InvalidArgument, match="text: expected a text, got an empty one"):
        translator.record(line)


def test_progress_is_reported_within_a_long_line(monkeypatch):
    translator = Translator.load()
    monkeypatch.setattr(translator, "max_batch_tokens", 400)
    steps = []
    long = "The cat sat on the mat. " * 200
    expected = translator.translate([long, ""])
    assert translator.translate([long, ""], progress=steps.append) == expected
    assert len(steps) > 3
    assert sum(steps) == pytest.approx(2)
    translator.translate([""], progress=steps.append)
    assert steps[-1] == 1
