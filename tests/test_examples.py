"""Examples run and print the expected results."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from helpers.forked import run_script
from helpers.pairwise import everything

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path):
    """``run("singular_values.py", "--count", "3")`` returns the output of an example."""

    def run(name: str, *arguments: str) -> str:
        completed = run_script(EXAMPLES / name, *arguments, folder=tmp_path, timeout=900)
        assert completed.code == 0, completed.err
        return completed.out

    return run


def test_singular_values(run):
    lines = run("singular_values.py", "--tokens", "300", "--count", "3").splitlines()
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 300, 64)
    for line, mask in zip(lines, (None, regard.Window(63, 0)), strict=True):
        dense = regard.weights(query, key, mask=mask).dense()[0, 0]
        expected = torch.linalg.svdvals(dense)[:3]
        np.testing.assert_allclose([float(value) for value in line.split()[-5:-2]], expected, atol=2e-3)


def test_a_loss_on_attention_aligns_a_head(run):
    """With ``--all``; with fewer steps the processor decides, as it does about BLEU with these."""
    options = () if everything() else ("--steps", "10", "--pairs", "200")
    head, *lines = run("aligned_heads.py", *options).splitlines()
    assert head.split() == ["weight", "of", "the", "loss", "BLEU", "correctly", "aligned"]
    assert [line.split()[0] for line in lines] == ["0.0", "0.5"]
    aligned, aligned_with_loss = (float(line.split()[2].rstrip("%")) for line in lines)
    assert 0 < min(aligned, aligned_with_loss) < 100
    assert not everything() or aligned_with_loss > aligned + 5


def small_writer(folder: Path, text: str):
    """A language model of few weights and its tokenizer, as transformers saves them; two heads share one of keys."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=["?"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model, tokenizer(text, return_tensors="pt").input_ids


def test_a_model_that_forgets_keys_costs_nothing_where_it_keeps_all(run, tmp_path):
    pytest.importorskip("transformers")
    text = " ".join(f"w{number * number % 37}" for number in range(130))
    model, words = small_writer(tmp_path, text)
    (tmp_path / "text.txt").write_text(text)
    head, *lines = run("cache_eviction.py", str(tmp_path), str(tmp_path / "text.txt"), "--window", "64").splitlines()
    assert head.split() == ["budget", "keys", "heavy", "hitters", "recent", "only"]
    table = [[float(number.rstrip("%")) for number in line.split()] for line in lines]
    assert [row[:2] for row in table] == [[100, 32], [50, 16], [25, 8], [12, 4]]
    with torch.no_grad():
        parts = words[0, :128].view(2, 64)
        logits = model(parts).logits[:, 32:-1]
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), parts[:, 33:].flatten()).exp()
    np.testing.assert_allclose(table[0][2:], [plain, plain], rtol=1e-4)
    assert all(len({row[2], row[3], float(plain)}) == 3 for row in table[1:])


def test_the_keys_that_stay_are_the_last_and_those_that_received_most():
    pytest.importorskip("transformers")
    kept = runpy.run_path(str(EXAMPLES / "cache_eviction.py"))["POLICIES"]
    received = torch.tensor([[[0.1, 9, 0.2, 5, 0.3, 0.4, 0.5, 7], [5.0, 4, 3, 2, 1, 0, 0, 0]]])
    assert kept["recent only"](received, 3).tolist() == [[[5, 6, 7]] * 2]
    assert kept["heavy hitters"](received, 4).tolist() == [[[1, 3, 6, 7], [0, 1, 6, 7]]]
    assert kept["heavy hitters"](received, 1).tolist() == [[[1], [0]]]
    assert kept["heavy hitters"](received, 8).tolist() == [[list(range(8))] * 2]
