"""`regard export`: a checkpoint of transformers with the same outputs, or a refusal before anything is written."""

from __future__ import annotations

import shutil

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from regard.models import GPT, GPTConfig, load_model, save_model
from regard.text.tokenizer import load_tokenizer, train_bpe

TEXTS = ["the cat sat on the  mat", "wo ist der Bahnhof?"]


@torch.no_grad()
def test_transformers_loads_an_exported_translator_and_its_tokenizer(regard, model, tmp_path):
    done = regard("export", model, "-o", tmp_path / "out")
    assert (done.code, done.out) == (0, f"{tmp_path / 'out'}: MarianMTModel\n")
    tokenizer, ours = AutoTokenizer.from_pretrained(tmp_path / "out"), load_tokenizer(model)
    ids = [tokenizer(text).input_ids for text in TEXTS]
    assert ids == ours.encode(TEXTS, add_special_tokens=True)
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == ours.decode(ids)
    reference, source, target = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), torch.tensor(ids[:1]), [[1, 7]]
    expected = load_model(model)(source, torch.tensor(target)).logits
    output = reference(source, decoder_input_ids=torch.tensor(target)).logits
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


def test_of_a_run_the_best_or_last_model_is_exported(regard, model, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(model, run / "last")
    assert regard("export", run).out == f"{run}/last-transformers: MarianMTModel\n"
    shutil.copytree(model, run / "best")
    assert regard("export", run, "--dtype", "bfloat16").out == f"{run}/best-transformers: MarianMTModel\n"
    assert torch.equal(
        load_model(run / "best-transformers").lm_head.weight, load_model(model).lm_head.weight.bfloat16().float()
    )
    assert regard("export", run, "--format", "regard").out == f"{run}/best-regard: Transformer\n"
    assert load_model(run / "best-regard").config == load_model(model).config


def test_what_cannot_be_exported_is_refused_before_anything_is_written(regard, model, tmp_path):
    tokenizer = train_bpe(TEXTS, 270)
    config = GPTConfig(tokenizer.vocab_size, d_model=16, num_heads=2, num_layers=1, d_ff=16, positions="alibi")
    save_model(tmp_path / "gpt", GPT(config), tokenizer)
    (tmp_path / "file").touch()
    for arguments, message in (
        (
            (tmp_path / "gpt",),
            "regard: positions: expected 'learned' or 'sinusoidal' or 'none' in a checkpoint of GPT-2",
        ),
        (
            (tmp_path / "none",),
            f"regard: {tmp_path}/none: expected a run with best or last, or a model folder, got no ",
        ),
        ((tmp_path,), f"regard: {tmp_path}: expected a run with best or last, or a model folder, got a folder without"),
        ((model, "-o", f"{model}/"), "regard: --output: expected another folder than that of the model, got "),
        ((model, "-o", tmp_path / "file"), f"regard: --output: expected a folder, got the file {tmp_path}/file"),
    ):
        done = regard("export", *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(message)
    assert {path.name for path in tmp_path.iterdir()} == {"gpt", "file"}
