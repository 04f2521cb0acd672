"""The model of a playground computes in JavaScript what Python computes: ids, translations, logits, weights, words."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import torch

from helpers.explore.javascript import HERE, missing
from helpers.explore.sentences import ODD, sentences
from regard.explore.playground import pack_model
from regard.models import Transformer, TransformerConfig
from regard.pipelines import Translator
from regard.pipelines.recording import teacher_forcing_batch
from regard.text.display import display_tokens
from regard.text.tokenizer import train_translation_bpe
from regard.text.words import group_into_words


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load()


def run_in_node(pipeline: Translator, texts, folder, beam: int, *, wasm: bool = True):
    """What the modules of the page compute in node: a result for each text, and all numbers, one after the other."""
    node = shutil.which("node")
    if node is None:
        missing("no node was found")
    header, block = pack_model(pipeline, example="a b")
    (folder / "header.json").write_text(json.dumps(header), "utf-8")
    (folder / "texts.json").write_text(json.dumps(texts), "utf-8")
    (folder / "block").write_bytes(block)
    command = [node, HERE / "run_translator.js", folder, str(beam), json.dumps(wasm)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return json.loads((folder / "results.json").read_text("utf-8")), np.fromfile(folder / "numbers", np.float32)


def assert_same_numbers(pipeline: Translator, results, numbers: np.ndarray) -> None:
    """Query, key, value and weights of each layer, and the logits, of each result."""
    start, model = 0, pipeline.model
    for result in results:
        source, target = result["source"], result["target"]
        with torch.no_grad():
            output = model(*teacher_forcing_batch(model, source[:-1], target), output_attentions=True)
        expected = []
        for attention in (each for kind in output.attentions for each in kind):
            request, weights = attention.weights.request, attention.weights.dense()
            expected += [request.query, request.key, attention.value]
            if weights.shape[-1] == weights.shape[-2] and bool((weights.triu(1) == 0).all()) and weights.shape[-1] > 1:
                weights = weights.masked_fill(torch.ones_like(weights, dtype=torch.bool).triu(1), torch.nan)
            expected.append(weights)
        expected = torch.cat([each.flatten() for each in (*expected, output.logits)]).numpy()
        np.testing.assert_allclose(numbers[start : start + len(expected)], expected, rtol=0, atol=1e-4)
        start += len(expected)
    assert start == len(numbers)


def assert_same(pipeline: Translator, texts, folder, beam: int, **options) -> None:
    results, numbers = run_in_node(pipeline, texts, folder, beam, **options)
    expected = [translations[0].text for translations in pipeline.translate(texts, beam=beam)]
    assert [result["translation"] for result in results] == expected
    eos = pipeline.model.config.eos_id
    assert [result["source"] for result in results] == [[*ids, eos] for ids in pipeline.tokenizer.encode(texts)]
    for result in results:
        for ids, sequence in zip((result["source"], result["target"]), result["sequences"], strict=True):
            tokens = pipeline.tokenizer.convert_ids_to_tokens(ids)
            words = group_into_words(tokens)
            assert sequence["tokens"] == tokens
            assert sequence["display"] == display_tokens(tokens)
            assert sequence["word_texts"] == [text for text, _ in words]
            assert sequence["words"] == [index for index, (_, positions) in enumerate(words) for _ in positions]
    assert_same_numbers(pipeline, results, numbers)


def test_greedy_translations_are_those_of_python(translator, tmp_path):
    assert_same(translator, sentences(100), tmp_path, beam=1)


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 5])
def test_many_translations_are_those_of_python(translator, tmp_path, beam):
    assert_same(translator, sentences(288 + len(ODD)), tmp_path, beam=beam)


def test_beam_search_is_that_of_python(translator, tmp_path):
    assert_same(translator, sentences(20), tmp_path, beam=5)


def test_plain_javascript_computes_the_same(translator, tmp_path):
    assert_same(translator, ["Thank you.", "The cat is small."], tmp_path, beam=2, wasm=False)


CONFIGS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "gated": {"norm_first": True, "gated": True, "activation": "silu", "norm": "rms_norm"},
    "grouped": {"num_kv_heads": 2, "head_dim": 12, "activation": "gelu", "attention_bias": False},
    "learned": {"positions": "learned", "activation": "gelu_tanh", "tie_embeddings": "none", "output_bias": True},
    "none": {"positions": "none", "tie_embeddings": "decoder", "scale_embeddings": False, "feed_forward_bias": False},
    "odd sizes": {"d_model": 20, "d_ff": 24},
}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_other_models_compute_the_same(options, tmp_path):
    torch.manual_seed(0)
    tokenizer = train_translation_bpe(["the cat sat on the mat", "die Katze saß"], vocab_size=280)
    sizes: dict[str, Any] = {
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 48,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    }
    config = TransformerConfig(tokenizer.vocab_size, **{**sizes, "max_seq_len": 40, **options})
    pipeline = Translator(Transformer(config).eval(), tokenizer)
    assert_same(pipeline, ["the cat sat on the mat", "a", "Straße 😀"], tmp_path, beam=3)
