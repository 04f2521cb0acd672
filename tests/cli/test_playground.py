"""`regard playground`: a page for a translator, a GPT or a BERT, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.models import GPT, Bert, BertConfig, GPTConfig, save_model
from regard.text.tokenizer import train_bpe

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 16, "max_seq_len": 24}


def test_a_translator_is_written(regard, model, tmp_path):
    result = regard("playground", "--model", model, "-o", tmp_path / "page.html")
    assert (result.code, "Playground, " in result.out) == (0, True)
    assert '"kind": "translate"' in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("generate", lambda size: GPT(GPTConfig(size, **SIZES, positions="alibi", sample_by="document"))),
        ("fill-mask", lambda size: Bert(BertConfig(size, **SIZES, positions="rotary", head="masked_lm"))),
        ("fill-mask", lambda size: Bert(BertConfig(size, **SIZES))),
    ],
    ids=["GPT", "BERT", "a BERT without a head"],
)
def test_other_models_are_written(regard, kind, make, tmp_path):
    torch.manual_seed(0)
    tokenizer = train_bpe(["the cat"], vocab_size=270, sample_by="document" if kind == "generate" else None)
    save_model(tmp_path / "model", make(tokenizer.vocab_size), tokenizer)
    result = regard("playground", "--model", tmp_path / "model", "-o", tmp_path / "page.html")
    assert result.code == 0, result.err
    assert f'"kind": "{kind}"' in (tmp_path / "page.html").read_text("utf-8")


def test_a_model_that_the_page_cannot_run_is_refused_with_the_reason(regard, tmp_path):
    tokenizer = train_bpe(["the cat"], vocab_size=270, sample_by="document")
    save_model(tmp_path / "model", GPT(GPTConfig(tokenizer.vocab_size, **SIZES, positions="relative")), tokenizer)
    result = regard("playground", "--model", tmp_path / "model", "-o", tmp_path / "page.html")
    assert result.code != 0
    assert "'alibi' or 't5', got 'relative'" in " ".join(result.err.split())
    assert not (tmp_path / "page.html").exists()
