"""Every key of every configuration, damaged: the model is read, or one sentence names the file and the key."""

from __future__ import annotations

import json

import pytest
import torch

from regard.errors import InvalidCheckpoint
from regard.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    RNNSearch,
    RNNSearchConfig,
    Transformer,
    TransformerConfig,
    load_model,
    save_model,
)

SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 32}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
LLAMA = {"num_layers": 1, "max_seq_len": 16, **SIZES, "rotary_scaling": LLAMA3}
MARIAN = {"interleaved_sinusoids": False, "output_bias": True, "bos_id": 0, **SIZES}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
MODELS = {
    ("transformer", "regard"): lambda: Transformer(TransformerConfig(40, **LAYERS, **SIZES)),
    ("relative", "regard"): lambda: Transformer(TransformerConfig(40, positions="relative", **LAYERS, **SIZES)),
    ("t5", "regard"): lambda: Transformer(TransformerConfig(40, positions="t5", **LAYERS, **SIZES)),
    ("alibi", "regard"): lambda: GPT(GPTConfig(40, num_layers=1, positions="alibi", **SIZES)),
    ("gpt", "regard"): lambda: GPT(GPTConfig(40, num_layers=1, max_seq_len=16, **SIZES)),
    ("llama", "regard"): lambda: GPT(GPTConfig.llama(40, **LLAMA)),
    ("bert", "regard"): lambda: Bert(
        BertConfig(40, num_layers=1, head="sequence_classification", labels=("a", "b"), **SIZES)
    ),
    ("rnn_search", "regard"): lambda: RNNSearch(RNNSearchConfig(40, d_model=16, hidden_size=12)),
    ("gpt2", "transformers"): lambda: GPT(GPTConfig(40, num_layers=1, max_seq_len=16, **SIZES)),
    ("llama", "transformers"): lambda: GPT(GPTConfig.llama(40, **LLAMA)),
    ("bert", "transformers"): lambda: Bert(BertConfig(40, num_layers=1, head="masked_lm", **SIZES)),
    ("marian", "transformers"): lambda: Transformer(TransformerConfig(40, **LAYERS, **MARIAN)),
}
DAMAGED = [10**18, 10**30, 10**400, -1, 0, 1.5, float("nan"), float("inf"), "x", None, True, [], [[]], {}, {"a": []}]


@pytest.mark.filterwarnings("ignore:.*is outside the vocabulary")
@pytest.mark.parametrize(("name", "format_"), MODELS)
def test_every_key_that_is_damaged_is_named(tmp_path, name, format_):
    torch.manual_seed(0)
    save_model(tmp_path, MODELS[name, format_](), format=format_)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    nested = [(key, inner) for key, value in values.items() if isinstance(value, dict) for inner in value]
    for key, *inner in [*((key,) for key in values), *nested]:
        for damage in DAMAGED:
            changed = json.loads(json.dumps(values))
            if inner:
                changed[key][inner[0]] = damage
            else:
                changed[key] = damage
            path.write_text(json.dumps(changed))
            try:
                load_model(tmp_path)
            except InvalidCheckpoint as error:
                message = str(error)
                assert str(tmp_path) in message, message
                names_key = key in message or (inner and inner[0] in message)
                assert names_key or "model.safetensors" in message, message  # a valid value that the weights do not fit
