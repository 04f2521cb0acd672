"""Every model refuses configurations of other models."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict, replace

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.models import (
    GAT,
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    RNNSearch,
    SaganDiscriminator,
    SaganGenerator,
    Transformer,
    TransformerConfig,
)
from regard.nn import RelativePositions, T5Positions


@pytest.mark.parametrize("model", [Bert, GAT, GPT, RNNSearch, SaganDiscriminator, SaganGenerator, Transformer])
@pytest.mark.parametrize("config", [3, {"vocab_size": 9}, GPTConfig])
def test_a_configuration_of_another_kind_is_refused(model, config):
    with pytest.raises(InvalidType, match=rf"config: expected a \w+Config, got {type(config).__name__}$"):
        model(config)


def test_a_configuration_is_hashable_and_cannot_be_changed():
    scaling = {"factor": 2.0}
    config = GPTConfig.llama(9, d_model=16, num_heads=2, rotary_scaling=scaling)
    same = GPTConfig.llama(9, d_model=16, num_heads=2, rotary_scaling={"factor": 2.0})
    assert config == same
    assert hash(config) == hash(same)
    scaling["factor"] = 3.0
    assert config.rotary_scaling == {"factor": 2.0}
    with pytest.raises(TypeError, match="cannot be changed"):
        config.rotary_scaling["factor"] = 3.0
    for copied in (
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
        replace(config),
        GPTConfig(**asdict(config)),
    ):
        assert copied == config
        assert hash(copied) == hash(config)


def test_a_special_token_must_be_in_both_vocabularies():
    message = "eos_id: expected an id below tgt_vocab_size=100, got 500"
    with pytest.raises(InvalidArgument, match=message):
        TransformerConfig(1000, tgt_vocab_size=100, eos_id=500, tie_embeddings="none")


@pytest.mark.parametrize("positions", ["relative", "t5"])
def test_positions_in_attention_start_alike_in_every_model(positions):
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "positions": positions}
    models = [
        GPT(GPTConfig(9, num_layers=1, **sizes)),
        Bert(BertConfig(9, num_layers=1, **sizes)),
        Transformer(TransformerConfig(9, num_encoder_layers=1, num_decoder_layers=1, **sizes)),
    ]
    for model in models:
        for module in model.modules():
            if isinstance(module, T5Positions):
                assert not module.weight.any()
            if isinstance(module, RelativePositions):  # Xavier's uniform distribution
                bound = (6 / sum(module.key_embedding.shape)) ** 0.5
                assert bound / 2 < module.key_embedding.abs().max() <= bound


@pytest.mark.parametrize("words", [torch.tensor(3), torch.tensor([3, 4]), torch.zeros(2, 0, dtype=torch.int64)])
def test_token_ids_without_a_batch_axis_are_refused(words):
    with pytest.raises(InvalidArgument, match=r"input_ids: expected shape \(batch, tokens\)"):
        GPT(GPTConfig(9, d_model=16, num_heads=2, num_layers=1, d_ff=16))(words)
