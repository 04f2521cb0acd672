"""Classes of texts, and masked tokens, as transformers predicts them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf

from helpers.transformers_models import BERTS, bert
from regard.text.tokenizer import Tokenizer, train_bpe

ENGLISH = ["a good film", "it is bad, really bad", "good, good and good"]


@pytest.fixture
def checkpoint(tmp_path):
    """``checkpoint(head)``: a folder with a random BERT and its tokenizer, and the model of transformers."""

    def save(head: str, **options) -> tuple[object, hf.PreTrainedModel, Tokenizer]:
        folder, tokenizer = tmp_path / head, train_bpe(ENGLISH, 280)
        reference = bert(BERTS[head], vocab_size=280, **options)
        reference.save_pretrained(folder)
        tokenizer.save(folder)
        return folder, reference, tokenizer

    return save


@torch.no_grad()
def test_classes_are_those_of_transformers(regard, checkpoint, tmp_path):
    folder, reference, tokenizer = checkpoint("sequence_classification", id2label={0: "bad", 1: "good"})
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in ENGLISH))
    lines = [json.loads(line) for line in regard("classify", file, "--model", folder, "--json").out.splitlines()]
    assert [line["text"] for line in lines] == ENGLISH
    for line in lines:
        shares = (
            reference(
                torch.tensor(tokenizer.encode([line["text"]], add_special_tokens=True, split_special_tokens=False))
            )
            .logits[0]
            .softmax(-1)
            .tolist()
        )
        assert line["probabilities"] == pytest.approx({"bad": shares[0], "good": shares[1]}, abs=1e-5)
        assert line["label"] == ("good" if shares[1] > shares[0] else "bad")
    plain = regard("classify", "--model", folder, stdin="".join(f"{text}\n" for text in ENGLISH))
    assert plain.code == 0, plain.err
    assert plain.out == "".join(f"{line['label']}\t{max(line['probabilities'].values()):.4f}\n" for line in lines)
    result = regard("classify", file, "--model", folder, "-o", tmp_path / "out.tsv")
    assert (result.out, (tmp_path / "out.tsv").read_text()) == ("", plain.out)
    with_empty = "\n".join((ENGLISH[0], "", *ENGLISH[1:], " ", ""))
    rows = plain.out.splitlines()
    assert regard("classify", "--model", folder, stdin=with_empty).out.split("\n") == [rows[0], "", *rows[1:], "", ""]
    empty = json.loads(regard("classify", "--model", folder, "--json", stdin=with_empty).out.splitlines()[1])
    assert empty == {"text": "", "label": None, "probabilities": {}}


@torch.no_grad()
def test_masked_tokens_are_those_of_transformers(regard, checkpoint):
    folder, reference, tokenizer = checkpoint("masked_lm")
    text = "a <mask> film is <mask>"
    ids = tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)[0]
    positions = [index for index, token in enumerate(ids) if token == tokenizer.mask_id]
    top = reference(torch.tensor([ids])).logits[0, positions].softmax(-1).topk(3)
    result = regard("fill-mask", text, "--model", folder, "--top-k", 3, "--json")
    assert result.code == 0, result.err
    masks = json.loads(result.out)["masks"]
    assert len(masks) == 2
    for mask, values, indices in zip(masks, top.values.tolist(), top.indices.tolist(), strict=True):
        assert list(mask) == tokenizer.unique_token_names(indices)
        assert list(mask.values()) == pytest.approx(values, abs=1e-5)
    table = regard("fill-mask", text, "--model", folder, "--top-k", 3).out
    assert all(f"{value:.4f}" in table for value in top.values[0].tolist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify"], "expected a classifier, got a masked language model in"),
        (["classify"], "use `regard fill-mask`"),
        (["fill-mask", "a film"], "text: expected <mask> in place of a token, got 'a film'"),
        (["fill-mask", " "], "text: expected a text, got ' '"),
    ],
)
def test_what_does_not_fit_is_one_message(regard, checkpoint, arguments, message):
    folder, *_ = checkpoint("masked_lm")
    result = regard(*arguments, "--model", folder, stdin="a good film\n")
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_model_of_another_class_is_refused(regard, model):
    for arguments, expected in ((["classify"], "a classifier"), (["fill-mask", "a <mask>"], "a masked language model")):
        result = regard(*arguments, "--model", model, stdin="a\n")
        assert result.code == 2
        assert f"--model: expected {expected}, got a translator in {model}; use `regard translate`" in result.err
