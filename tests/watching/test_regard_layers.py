"""Watched models of this library: their layers return views, and a generation is one pass."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import InvalidArgument
from regard.generation import beam_search, greedy
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig

SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 32, "max_seq_len": 40}


@pytest.mark.parametrize("positions", ["learned", "rotary", "relative", "alibi", "t5"])
def test_a_generation_is_one_matrix(positions):
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, num_layers=2, positions=positions, **SIZES)).eval()
    prompts = torch.randint(3, 50, (2, 6))
    with regard.watch(model, ["entropy", "received"]) as result:
        best = greedy(model, prompts, max_new_tokens=7, min_new_tokens=7)
    assert len(result.recordings) == 1
    words = torch.cat([prompts, torch.tensor([each.tokens for each in best])], 1)
    with torch.no_grad():
        full = model(words[:, :-1], output_attentions=True).attentions
    for layer, expected in zip(result.layers, full, strict=True):
        torch.testing.assert_close(layer.weights.dense(), expected.weights.dense(), atol=1e-5, rtol=0)
        torch.testing.assert_close(layer.measured["received"], expected.weights.received(), atol=1e-5, rtol=1e-5)
    names = [f"decoder.layers.{number}.self_attention" for number in range(2)]
    assert [layer.name for layer in result.layers.decoder] == names


def test_a_translator_and_a_bert():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, num_encoder_layers=2, num_decoder_layers=2, **SIZES)).eval()
    src, tgt, lengths = torch.randint(3, 50, (2, 6)), torch.randint(3, 50, (2, 5)), torch.tensor([6, 4])
    with regard.watch(model) as result, torch.no_grad():
        expected = model(src, tgt, lengths, output_attentions=True).attentions
    for kind in ("encoder", "decoder", "cross"):
        for layer, reference in zip(getattr(result.layers, kind), getattr(expected, kind), strict=True):
            torch.testing.assert_close(layer.weights.dense(), reference.weights.dense())
    bert = Bert(BertConfig(50, num_layers=2, **SIZES)).eval()
    with regard.watch(bert, "entropy", keep_qk=False) as result, torch.no_grad():
        bert(src, lengths)
    assert [layer.measured["entropy"].shape for layer in result.layers.encoder] == [(2, 4, 6)] * 2
    with pytest.raises(InvalidArgument, match="its weights were not kept"):
        assert result.layers.encoder[0].weights


def test_beams_can_be_watched():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(50, num_encoder_layers=1, num_decoder_layers=1, **SIZES)).eval()
    src = torch.randint(3, 50, (2, 6))
    expected = beam_search(model, src, beam=3)
    with regard.watch(model, "entropy", keep_qk=False):
        assert beam_search(model, src, beam=3) == expected
