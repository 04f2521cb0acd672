"""What a changed model of a playground computes is what Python computes with the same change."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from helpers.explore.live_models import assert_same_numbers, forward, run_in_node
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.nn.absolute_positions import NoPositions
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.relative_positions import AlibiPositions
from regard.pipelines import TextEncoder, TextGenerator, Translator
from regard.text.tokenizer import train_bpe, train_translation_bpe

SIZES: dict[str, Any] = {"d_model": 32, "num_heads": 4, "d_ff": 48, "max_seq_len": 60}
TEXT = "the cat sat on the mat"
Change = Callable[[Any], None]


@pytest.fixture(scope="module")
def pipelines() -> dict[str, Any]:
    torch.manual_seed(0)
    bpe = train_bpe([TEXT], vocab_size=290, sample_by="document")
    translation_bpe = train_translation_bpe([TEXT], vocab_size=280)
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    transformer = Transformer(TransformerConfig(translation_bpe.vocab_size, **SIZES, **layers, num_kv_heads=2))
    gpt = GPT(GPTConfig(bpe.vocab_size, **SIZES, num_layers=2, sample_by="document"))
    bert = Bert(BertConfig(bpe.vocab_size, **SIZES, num_layers=2))
    for model in (transformer, gpt, bert):
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embedding" not in name:
                parameter.data.mul_(3)
    return {
        "translate": Translator(transformer.eval(), translation_bpe),
        "generate": TextGenerator(gpt.eval(), bpe),
        "fill-mask": TextEncoder(bert.eval(), bpe),
    }


def switch_off(model: Any, name: str, head: int) -> None:
    """The share of a head in the joined heads is 0."""

    def zero(_: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        joined = inputs[0].clone()
        joined[..., 8 * head : 8 * (head + 1)] = 0
        return (joined,)

    model.attention_layers[name].out_proj.register_forward_pre_hook(zero)


def scale_scores(model: Any, factor: float) -> None:
    """All scores are multiplied by a factor, by way of the queries."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            queries = module.projection_sizes[0]
            with torch.no_grad():
                module.in_proj.weight[:queries] *= factor
                if module.in_proj.bias is not None:
                    module.in_proj.bias[:queries] *= factor


def without_positions(model: Any) -> None:
    for name in ("positions", "src_positions", "tgt_positions"):
        if hasattr(model, name):
            setattr(model, name, NoPositions())
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.positions = None


def cool(model: Any) -> None:
    """All scores are divided by 2.5."""
    scale_scores(model, 1 / 2.5)
    for positions in {module for module in model.modules() if isinstance(module, AlibiPositions)}:
        positions.slopes /= 2.5


def without_mask(model: Any) -> None:
    model.decoder.causal = False


LAYERS = {"translate": "cross.1", "generate": "decoder.1", "fill-mask": "encoder.1"}
CHANGES: dict[str, tuple[dict[str, Any], Change]] = {
    "temperature": ({"temperature": 2.5}, cool),
    "scale": ({"without": ["scale"]}, lambda model: scale_scores(model, math.sqrt(8))),
    "positions": ({"without": ["positions"]}, without_positions),
}


def run(pipeline: Any, folder, request: dict[str, Any], change: Change):
    results, numbers = run_in_node(pipeline, [{"text": TEXT, **request}], folder, example=TEXT)
    changed = copy.deepcopy(pipeline.model)
    change(changed)
    assert_same_numbers(changed, results, numbers, only_weights=True)
    return results[0], changed


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("name", [*CHANGES, "head"])
def test_a_change_is_that_of_python(pipelines, kind, name, tmp_path):
    pipeline, layer = pipelines[kind], LAYERS[kind]
    heads = {"off": [f"{layer}.2", "encoder.0.1", "decoder.0.3"]}

    def switch_off_all(model: Any) -> None:
        for head in heads["off"]:
            place, _, index = head.rpartition(".")
            if place in model.attention_layers:
                switch_off(model, place, int(index))

    options, change = (heads, switch_off_all) if name == "head" else CHANGES[name]
    result, changed = run(pipeline, tmp_path, {"change": options}, change)
    before = forward(pipeline.model, result["sequences"])
    after = forward(changed, result["sequences"])
    differs = (after[0] - before[0]).abs().max()
    assert differs > 1e-3  # or the comparison would say nothing
    if kind != "fill-mask":
        greedy = after.logits[0].argmax(-1).tolist()
        assert result["written"] == greedy[len(greedy) - len(result["written"]) :]


@pytest.mark.parametrize("positions", ["rotary", "alibi"])
@pytest.mark.parametrize("name", ["temperature", "positions"])
def test_positions_in_attention_are_changed_too(positions, name, tmp_path):
    torch.manual_seed(0)
    bpe = train_bpe([TEXT], vocab_size=290, sample_by="document")
    config = GPTConfig(bpe.vocab_size, **SIZES, num_layers=2, sample_by="document", positions=positions)
    pipeline = TextGenerator(GPT(config).eval(), bpe)
    options, change = CHANGES[name]
    run(pipeline, tmp_path, {"change": options}, change)


@pytest.mark.parametrize("kind", ["translate", "generate"])
def test_without_the_mask_each_token_sees_all(pipelines, kind, tmp_path):
    result, changed = run(pipelines[kind], tmp_path, {"change": {"without": ["mask"]}}, without_mask)
    predicted = forward(changed, result["sequences"]).logits[0].argmax(-1).tolist()
    assert result["written"] == predicted[len(predicted) - len(result["written"]) :]


@pytest.mark.parametrize("kind", ["translate", "generate"])
@pytest.mark.parametrize("begins", [[9] * 500, [9, 2, 9]], ids=["too long", "with an end"])
def test_a_beginning_that_is_not_possible_is_cut(pipelines, kind, begins, tmp_path):
    result, _ = run(pipelines[kind], tmp_path, {"begins": begins}, lambda _: None)
    assert result["written"][0] == 9
    assert len(result["sequences"].get("read", result["sequences"]["source"])) <= SIZES["max_seq_len"]


@pytest.mark.parametrize(("kind", "beam"), [("translate", 1), ("translate", 3), ("generate", 1)])
def test_another_next_word_is_continued(pipelines, kind, beam, tmp_path):
    pipeline = pipelines[kind]
    (original,), _ = run_in_node(pipeline, [{"text": TEXT, "beam": beam}], tmp_path, example=TEXT)
    other = original["choices"][2][3]["token"]
    begins = [*original["written"][:2], other]
    result, _ = run(pipeline, tmp_path, {"begins": begins, "beam": beam}, lambda _: None)
    assert result["written"][:3] == begins
    assert result["choices"][:3] == original["choices"][:3]
    if beam == 1:
        predicted = forward(pipeline.model, result["sequences"]).logits[0].argmax(-1).tolist()
        count = len(result["written"])
        assert result["written"][3:] == predicted[len(predicted) - count + 3 :]
