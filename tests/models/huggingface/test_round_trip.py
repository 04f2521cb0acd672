"""Every field of a configuration survives a save in the format of transformers, or the save is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from helpers.pairwise import sampled
from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model
from regard.models.huggingface import CONVERTERS
from regard.models.huggingface.llama import _Llama

SMALL: dict[str, Any] = {"vocab_size": 9, "d_model": 16, "num_heads": 4, "d_ff": 32}
QWEN2 = {"attention_bias": True, "attention_out_bias": False}
ONE, TWO_SIDES = {**SMALL, "num_layers": 1}, {**SMALL, "num_encoder_layers": 1, "num_decoder_layers": 1}
SHAPES: dict[str, Callable[..., Any]] = {
    "bert": lambda **changes: Bert(BertConfig(**{**ONE, **changes})),
    "roberta": lambda **changes: Bert(BertConfig(**{**ONE, "model_type": "roberta", **changes})),
    "gpt2": lambda **changes: GPT(GPTConfig(**{**ONE, **changes})),
    "llama": lambda **changes: GPT(GPTConfig.llama(**{**ONE, **changes})),
    "qwen2": lambda **changes: GPT(GPTConfig.llama(**{**ONE, **QWEN2, **changes})),
    "mistral": lambda **changes: GPT(GPTConfig.llama(**{**ONE, "sliding_window": 3, **changes})),
    "gemma": lambda **changes: GPT(GPTConfig.llama(**{**ONE, "scale_embeddings": True, **changes})),
    "marian": lambda **changes: Transformer(TransformerConfig(**{**TWO_SIDES, **changes})),
    "pegasus": lambda **changes: Transformer(TransformerConfig(**{**TWO_SIDES, "norm_first": True, **changes})),
}
VALUES: dict[str, list[Any]] = {
    "vocab_size": [11],
    "tgt_vocab_size": [9, 11],
    "d_model": [24],
    "num_heads": [2],
    "num_kv_heads": [2, 4],
    "head_dim": [8, 4],
    "num_layers": [2],
    "num_encoder_layers": [2],
    "num_decoder_layers": [2],
    "d_ff": [24],
    "activation": ["relu", "gelu", "gelu_tanh", "silu"],
    "gated": [True, False],
    "norm": ["rms_norm", "layer_norm"],
    "norm_first": [True, False],
    "norm_eps": [0.5],
    "attention_bias": [True, False],
    "attention_out_bias": [True, False],
    "feed_forward_bias": [True, False],
    "positions": ["sinusoidal", "learned", "relative", "rotary", "alibi", "t5", "none"],
    "max_distance": [None],
    "rotary_base": [50.0],
    "rotary_scaling": [{"factor": 4.0}],
    "dropout": [0.3],
    "attention_dropout": [0.3],
    "activation_dropout": [0.3],
    "max_seq_len": [12],
    "sliding_window": [2],
    "tie_embeddings": [True, False, "all", "decoder", "none"],
    "scale_embeddings": [True, False],
    "interleaved_sinusoids": [True, False],
    "output_bias": [True, False],
    "pad_id": [5],
    "bos_id": [5],
    "eos_id": [5],
    "eos_ids": [(5,)],
    "sample_by": ["line"],
    "truncation_length": [4],
    "type_vocab_size": [0, 1],
    "head": ["masked_lm"],
    "labels": [("a", "b")],
    "pooler": [True],
    "pooling": ["cls"],
    "normalize_embeddings": [False],
    "model_type": ["bert", "roberta"],
}
BIASED = {*SHAPES} - {"mistral", "gemma"}
WRITTEN = {
    "attention_bias": BIASED,
    "attention_out_bias": BIASED,
    "feed_forward_bias": BIASED,
    "type_vocab_size": {*SHAPES},
    "norm_first": {"marian"},
    "tie_embeddings": {*SHAPES} - {"pegasus"},
    "output_bias": {*SHAPES},
    "interleaved_sinusoids": {*SHAPES},
}
"""Fields whose values can all be saved, and by which shapes."""
TABLES = ("sinusoidal", "learned", "none")


def test_the_table_has_all_fields():
    assert VALUES.keys() == {
        field.name for each in (BertConfig, GPTConfig, TransformerConfig) for field in fields(each)
    }


def test_each_family_is_changed_here_and_named_in_the_guides():
    assert {*SHAPES} == {*CONVERTERS}
    guide = (
        (Path(__file__).parents[3] / "docs" / "how_to" / "checkpoints.md").read_text("utf-8").lower().replace("-", "")
    )
    assert [name for name in CONVERTERS if name not in guide] == []


@torch.no_grad()
@pytest.mark.parametrize(("field", "shape"), sampled([*product(VALUES, SHAPES)], 130))
def test_a_saved_model_is_the_same_or_is_refused(tmp_path, shape, field):
    default = SHAPES[shape]().config
    if not hasattr(default, field):
        return
    for number, value in enumerate(VALUES[field]):
        folder = tmp_path / str(number)
        torch.manual_seed(0)
        changes = {"positions": "rotary"} if field.startswith("rotary") else {}
        try:
            model = SHAPES[shape](**{**changes, field: value}).eval()
        except InvalidArgument:  # of another model, such as tie_embeddings="all" of a GPT
            continue
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("norm.weight"):
                parameter.clamp_(0.5, 2)  # of which Gemma stores the difference from 1 exactly
        try:
            save_model(folder, model, format="transformers")
        except InvalidArgument as error:
            refusal = str(error)
        else:
            assert_same(folder, model)
            continue
        assert re.search(r"^(\d problems:|\w+: expected .* in a checkpoint of )", refusal)
        assert not folder.exists()
        assert shape not in WRITTEN.get(field, ())
        assert field != "positions" or value not in TABLES or default.positions == "rotary"


def assert_same(folder, model):
    """Check that transformers and we compute the outputs of a model from its folder."""
    words = torch.randint(6, 9, (2, 4))
    is_pair, is_headless = isinstance(model, Transformer), isinstance(model, Bert) and model.config.head == "none"
    args = (words, words) if is_pair else (words,)
    expected = model(*args)[0] if is_pair or is_headless or isinstance(model, GPT) else model(*args).logits
    kind = AutoModelForCausalLM if isinstance(model, GPT) else AutoModel if is_headless else AutoModelForMaskedLM
    reference, info = (AutoModelForSeq2SeqLM if is_pair else kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    output = reference.eval()(words, **({"decoder_input_ids": words} if is_pair else {}))[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    again = load_model(folder)
    output = again(*args)[0] if is_pair or is_headless or isinstance(model, GPT) else again(*args).logits
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class _Extended(GPTConfig):
    logit_scale: float = 1.0


@pytest.mark.parametrize("kind", CONVERTERS)
def test_a_field_that_a_converter_forgets_is_an_error_at_import(kind):
    parent = type(CONVERTERS[kind])
    changes = {"__annotations__": {"new_field": "float"}, "new_field": 1.0}
    extended = dataclass(frozen=True, kw_only=True)(type("Extended", (parent.config_type,), changes))
    with pytest.raises(
        TypeError, match=r"Forgetful: expected each field of Extended once in .*, got missing: new_field$"
    ):
        type("Forgetful", (parent,), {"config_type": extended})
    type("Complete", (parent,), {"config_type": extended, "fixed_fields": {**parent.fixed_fields, "new_field": 1.0}})


def test_a_fixed_field_that_is_new_is_refused(tmp_path):
    class Scaled(_Llama):
        config_type = _Extended
        fixed_fields: ClassVar = {**_Llama.fixed_fields, "logit_scale": 1.0}

    for value, count in ((1.0, 0), (2.0, 1)):
        checks = Checks()
        Scaled().check_config(_Extended(**{**vars(SHAPES["llama"]().config), "logit_scale": value}), checks)
        assert len(checks.problems) == count


@pytest.mark.parametrize("changes", [{"unknown": 1}, {"d_model": 16}])
def test_a_field_that_a_converter_lists_wrongly_is_an_error_at_import(changes):
    with pytest.raises(TypeError, match=r"got (unknown: unknown|listed twice: d_model)$"):
        type("Wrong", (_Llama,), {"fixed_fields": {**_Llama.fixed_fields, **changes}})


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
@pytest.mark.parametrize("file_format", ["regard", "transformers"])
def test_what_a_language_model_was_trained_on_is_saved(tmp_path, shape, file_format):
    save_model(tmp_path, SHAPES[shape](sample_by="line"), format=file_format)
    assert load_model(tmp_path).config.sample_by == "line"
    with pytest.raises(InvalidArgument, match="sample_by: expected one of document, line, got 'file'"):
        SHAPES[shape](sample_by="file")
