"""Every field of a configuration survives a save in the format of transformers, or the save is refused."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel, MarianMTModel

from regard.errors import InvalidArgument
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model

SMALL = {"d_model": 16, "num_heads": 4, "d_ff": 32}
SHAPES = {
    "bert": lambda **changes: Bert(BertConfig(9, num_layers=1, **{**SMALL, **changes})),
    "gpt2": lambda **changes: GPT(GPTConfig(9, num_layers=1, **{**SMALL, **changes})),
    "llama": lambda **changes: GPT(GPTConfig.llama(9, num_layers=1, **{**SMALL, **changes})),
    "marian": lambda **changes: Transformer(
        TransformerConfig(9, num_encoder_layers=1, num_decoder_layers=1, **{**SMALL, **changes})
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "changes",
    [{"num_kv_heads": 2}, {"num_kv_heads": 4}, {"head_dim": 8}, {"head_dim": 4}, {"activation": "silu"},
     {"gated": True}, {"gated": False}, {"norm": "rms_norm"}, {"norm": "layer_norm"}, {"norm_first": True},
     {"norm_first": False},
     {"norm_eps": 0.5}, {"attention_bias": False}, {"attention_bias": True}, {"attention_out_bias": False},
     {"attention_out_bias": True}, {"feed_forward_bias": False}, {"feed_forward_bias": True}, {"positions": "learned"},
     {"positions": "rotary"}, {"positions": "rotary", "rotary_base": 50.0}, {"positions": "sinusoidal"},
     {"positions": "rotary", "rotary_scaling": {"factor": 4.0}}, {"positions": "t5"}, {"sliding_window": 2},
     {"dropout": 0.3}, {"attention_dropout": 0.3}, {"activation_dropout": 0.3}],
)  # fmt: skip
def test_a_saved_model_is_the_same_or_is_refused(tmp_path, shape, changes):
    if "sliding_window" in changes and shape in ("bert", "marian"):
        return  # not a field of these
    torch.manual_seed(0)
    model = SHAPES[shape](**changes).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    words = torch.randint(3, 9, (2, 7))
    args = (words, words) if shape == "marian" else (words,)
    try:
        save_model(tmp_path, model, format="transformers")
    except InvalidArgument as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert re.search(r"^(\d problems:|\w+: expected .* in a checkpoint of )", refusal)
        assert not [*tmp_path.iterdir()]
        return
    torch.testing.assert_close(load_model(tmp_path)(*args)[0], model(*args)[0], rtol=0, atol=1e-6)
    classes = {
        "bert": BertModel,
        "gpt2": AutoModelForCausalLM,
        "llama": AutoModelForCausalLM,
        "marian": MarianMTModel,
    }
    loaded = classes[shape].from_pretrained(tmp_path).eval()
    out = loaded(words, **({"decoder_input_ids": words} if shape == "marian" else {}))[0]
    torch.testing.assert_close(out, model(*args)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
@pytest.mark.parametrize("file_format", ["regard", "transformers"])
def test_what_a_language_model_was_trained_on_is_saved(tmp_path, shape, file_format):
    save_model(tmp_path, SHAPES[shape](sample_by="line"), format=file_format)
    assert load_model(tmp_path).config.sample_by == "line"
    with pytest.raises(InvalidArgument, match="sample_by: expected one of document, line, or None, got 'file'"):
        SHAPES[shape](sample_by="file")
