"""A folder with an OPUS-MT model gives the translations of transformers."""

from __future__ import annotations

import warnings

import pytest
import torch

from helpers.sentencepiece_models import write_marian
from regard.errors import InvalidArgument
from regard.models import Transformer, TransformerConfig, load_model, save_model
from regard.pipelines import Translator
from regard.text.sentencepiece import MarianTokenizer
from regard.text.tokenizer import train_bpe, train_translation_bpe

TEXTS = ["the", "is the mat", "where", "near", "sat", "is"]  # of few pieces, as in the training data


@pytest.fixture(scope="module", params=["saved", "original"])
def folder(request, models, tmp_path_factory):
    """A translator trained to copy words once or twice, saved by this library and then by transformers."""
    from transformers import MarianMTModel

    folder = tmp_path_factory.mktemp("opus")
    write_marian(folder, ["<pad>", "<s>", "</s>", "<unk>"], most=models["plain"].config.vocab_size)
    save_model(folder, models["plain"], MarianTokenizer.load(folder), format="transformers")
    if request.param == "original":
        MarianMTModel.from_pretrained(folder).save_pretrained(folder)
    return folder


def translate_with_transformers(folder, texts, **options):
    """The translation of each text by transformers; None where its length limit forced an end."""
    from transformers import MarianMTModel, MarianTokenizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder).eval()
    model.generation_config.max_length = None
    translations = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        limit = 2 * inputs["input_ids"].shape[1] + 20  # the limit of this library
        words = model.generate(**inputs, max_new_tokens=limit, **options)
        ended = words.shape[1] - 1 < limit
        translations += tokenizer.batch_decode(words, skip_special_tokens=True) if ended else [None]
    return translations


@pytest.mark.parametrize("beam", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_translations_are_those_of_transformers(folder, beam):
    translator = Translator.load(folder, dtype=torch.float32)
    output = [best[0] for best in translator.translate(TEXTS, beam=beam)]
    expected = translate_with_transformers(
        folder, TEXTS, num_beams=beam, do_sample=False, length_penalty=1.0, early_stopping=False
    )
    compared = [(each.text, text) for each, text in zip(output, expected, strict=True) if text is not None]
    assert [actual for actual, _ in compared] == [other for _, other in compared]
    assert len(compared) > 2


def test_saved_models_translate_alike_in_both_libraries(folder, tmp_path):
    translator = Translator.load(folder, dtype=torch.float32)
    save_model(tmp_path, translator.model, translator.tokenizer, format="transformers")
    again = Translator.load(tmp_path, dtype=torch.float32)
    actual, expected = ([best[0].text for best in each.translate(TEXTS)] for each in (again, translator))
    assert actual == expected


def test_it_is_recorded_and_traced_as_any_other(folder):
    translator = Translator.load(folder, dtype=torch.float32)
    recording = translator.record(TEXTS[0])
    assert recording.layers.by_kind("cross")[0].key_tokens[-1] == "</s>"
    assert recording.texts["source"] == TEXTS[0]
    assert translator.trace("the cat", layer="cross.1")["weights"].shape[-1] == 1 + len(
        translator.tokenizer.encode(["the cat"])[0]
    )


def test_a_tokenizer_of_another_kind_is_refused(folder, tmp_path):
    save_model(tmp_path, load_model(folder), train_bpe(TEXTS, 300))
    with pytest.raises(InvalidArgument, match="expected a tokenizer with at most 30 tokens as in the model, got 274"):
        Translator.load(tmp_path)


def test_a_translator_with_the_own_tokenizer_translates_alike_in_transformers(tmp_path):
    """As a folder that names no class of transformers': ``AutoTokenizer`` and ``AutoModelForSeq2SeqLM`` find them."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.manual_seed(0)
    words = train_translation_bpe(["The  cat's on the mat.", "Die Straße ist naß."], vocab_size=280)
    config = TransformerConfig(words.vocab_size, d_model=32, num_heads=4, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "embedding" not in name:
            torch.nn.init.normal_(parameter)  # large, so that a word is not followed by itself
    save_model(tmp_path, model, words, format="transformers")
    texts = ["The cat's  mat", "naß", "☃ on the Straße."]
    reference = AutoTokenizer.from_pretrained(tmp_path)
    inputs = reference(texts, padding=True, return_tensors="pt")
    assert reference(texts)["input_ids"] == [[*ids, words.eos_id] for ids in words.encode(texts)]
    assert reference.batch_decode(inputs["input_ids"], skip_special_tokens=True) == words.decode(words.encode(texts))
    copy = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    copy.generation_config.max_length = None
    made = copy.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=9)[:, 1:9]  # its ninth is made an end
    translations = Translator.load(tmp_path, dtype=torch.float32).translate(texts, beam=1)
    output = [list(best[0].tokens[:8]) for best in translations]
    assert output == [words.convert_ids_to_tokens(ids) for ids in made.tolist()]
    assert len({token for tokens in output for token in tokens}) > 3, output
