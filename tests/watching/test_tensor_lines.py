"""Functions of transformers that take weights as tensors run on those of a model with SDPA, inside a watch."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import EsmConfig, EsmModel, WhisperConfig, WhisperForConditionalGeneration
from transformers.utils import ModelOutput

import regard
from regard.ops import WeightMatrix


def both(model_class, config):
    """The same model with eager attention and with SDPA."""
    torch.manual_seed(0)
    eager = model_class._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    sdpa = model_class._from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    sdpa.load_state_dict(eager.state_dict())
    return eager, sdpa


def test_contacts_of_esm():
    config = EsmConfig(
        vocab_size=33,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        pad_token_id=1,
        mask_token_id=32,
        position_embedding_type="rotary",
    )
    eager, sdpa = both(EsmModel, config)
    with torch.no_grad():
        torch.nn.init.normal_(eager.contact_head.regression.weight, std=20)
    sdpa.load_state_dict(eager.state_dict())
    ids, mask = torch.randint(4, 24, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    ids[1, 15:], mask[1, 15:] = 1, 0
    with torch.no_grad():
        expected = eager.predict_contacts(ids, mask)
        with pytest.raises(RuntimeError, match="stack expects a non-empty TensorList"):
            sdpa.predict_contacts(ids, mask)
        with regard.watch(sdpa):
            contacts = sdpa.predict_contacts(ids, mask)
    assert expected.std() > 0.01
    torch.testing.assert_close(contacts, expected)


def test_timestamps_of_whisper():
    config = WhisperConfig(
        vocab_size=60,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        median_filter_width=3,
    )
    eager, sdpa = both(WhisperForConditionalGeneration, config)
    features, tokens = torch.randn(2, 8, 100), torch.randint(4, 60, (2, 12))
    heads = [(0, 1), (1, 2), (1, 3)]
    stamps = []
    with torch.no_grad():
        outputs = [eager(features, decoder_input_ids=tokens, output_attentions=True)]
        with regard.watch(sdpa):
            outputs.append(sdpa(features, decoder_input_ids=tokens, output_attentions=True))
    assert isinstance(outputs[1].cross_attentions[0], WeightMatrix)
    for output in outputs:
        generated = ModelOutput(
            sequences=torch.cat((tokens, torch.full((2, 1), 2)), 1), cross_attentions=(output.cross_attentions,)
        )
        stamps.append(sdpa._extract_token_timestamps(generated, heads, num_frames=100, num_input_ids=1))
    assert len(stamps[0].unique()) > 5
    assert torch.equal(*stamps)
