"""The card of the embedded model says what is true of it."""

from __future__ import annotations

import gzip
import subprocess
import sys

import torch
from safetensors.torch import load_file

from regard.models import Transformer, TransformerConfig
from regard.models.checkpoint import save_model
from regard.text.tokenizer import Tokenizer

PAIRS = [("a small dog", "ein kleiner Hund"), ("a small dog", "ein Hündchen"), ("the cat", "die Katze")]
ROWS = """step,epoch,loss,learning_rate,tokens,tokens_per_second,valid_loss,bleu,chrf
50,0,8.5,1e-3,900000,100,,,
50,,,,,,7.0,1.0,2.0
100,0,7.5,1e-3,900000,50,,,
"""


def test_a_run_becomes_a_model_with_a_card(tmp_path, root):
    run, data, place = (tmp_path / name for name in ("run", "data", "place"))
    data.mkdir()
    tokenizer = Tokenizer.train([text for pair in PAIRS for text in pair], 270)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(tokenizer.vocab_size, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1))
    save_model(run / "averaged", model, tokenizer)
    (run / "recipe.yaml").write_text("seed: 7\ncheckpoint: {average: 3}\n")
    (run / "metrics.csv").write_text(ROWS)
    with gzip.open(data / "test.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(f"{source}\t{target}\n" for source, target in PAIRS)

    command = [sys.executable, root / "recipes/embed.py", run, data, "--place", place, "--machine", "a small machine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

    card = (place / "README.md").read_text(encoding="utf-8")
    assert all(weight.dtype == torch.bfloat16 for weight in load_file(place / "model.safetensors").values())
    assert Tokenizer.load(place).vocab_size == tokenizer.vocab_size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for said in (
        f"| parameters | {parameters:,},",
        "1 encoder and 6 decoder layers",
        "100 steps, 2 million target tokens; weights averaged over the last 3",
        "7.5 hours on a small machine",
        "2 English sentences, none of them in the training data, with 3 German references",
        "BLEU | **",
        "tok:13a",
        "nrefs:var",
        "its seed 7",
        "CC BY 2.0",
    ):
        assert said in card, said
