"""The model card of the bundled model is correct."""

from __future__ import annotations

import gzip

import pytest
import torch
from safetensors.torch import load_file

from helpers.forked import run_script
from regard.models import Transformer, TransformerConfig
from regard.models.checkpoint import load_model, save_model
from regard.text.tokenizer import Tokenizer, train_translation_bpe

PAIRS = [("a small dog", "ein kleiner Hund"), ("a small dog", "ein Hündchen"), ("the cat", "die Katze")]
ROWS = """step,epoch,loss,learning_rate,tokens,tokens_per_second,valid_loss,bleu,chrf
50,0,8.5,1e-3,900000,100,,,
50,,,,,,7.0,1.0,2.0
100,0,7.5,1e-3,900000,50,,,
"""


@pytest.fixture
def run(tmp_path):
    """A run folder, as training leaves it."""
    run = tmp_path / "run"
    tokenizer = train_translation_bpe([text for pair in PAIRS for text in pair], 270)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(tokenizer.vocab_size, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1))
    save_model(run / "averaged", model, tokenizer)
    (run / "recipe.yaml").write_text("seed: 7\ncheckpoint: {average_last: 3}\n")
    (run / "metrics.csv").write_text(ROWS)
    return run


@pytest.fixture
def data(tmp_path):
    """The folder with the test set."""
    data = tmp_path / "data"
    data.mkdir()
    with gzip.open(data / "test.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in PAIRS)
    return data


def embed(root, run, data, folder):
    options = "--place", folder, "--machine", "a small machine"
    return run_script(root / "tools/bundle_model.py", run, data, *options, folder=folder.parent, timeout=120)


def test_a_run_becomes_a_model_with_a_card(tmp_path, root, run, data):
    folder = tmp_path / "place"
    completed = embed(root, run, data, folder)
    assert completed.code == 0, completed.err
    model, tokenizer = load_model(run / "averaged"), Tokenizer.load(run / "averaged")

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(weight.dtype == torch.bfloat16 for weight in load_file(folder / "model.safetensors").values())
    assert Tokenizer.load(folder).vocab_size == tokenizer.vocab_size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for message in (
        f"| parameters | {parameters:,},",
        "1 encoder and 6 decoder layers",
        "100 steps, 2 million target tokens, 7.5 hours on a small machine; the mean of the weights of the last 3",
        "2 English sentences, none of them in the training data, with 3 German references",
        "BLEU | **",
        "tok:13a",
        "nrefs:var",
        "its seed 7",
        "CC BY 2.0",
    ):
        assert message in card, message
    assert {path.name for path in folder.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"
    }  # fmt: skip


def test_a_missing_test_set_is_found_before_anything_is_written(tmp_path, root, run):
    completed = embed(root, run, tmp_path, tmp_path / "place")
    assert completed.code == 1
    assert completed.err == f"bundle_model: {tmp_path / 'test.tsv.gz'}: no such file\n"
    assert not (tmp_path / "place").exists()


def test_a_late_failure_keeps_the_old_model(tmp_path, root, run, data):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "config.json").write_text("old")
    with gzip.open(data / "test.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("word " * 9999 + "\tWort\n")  # one sentence that cannot be translated
    completed = embed(root, run, data, folder)
    assert completed.code == 1, completed.err
    assert completed.err.startswith("bundle_model: ")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert (folder / "config.json").read_text() == "old"
