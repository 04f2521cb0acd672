"""Models of transformers with a softmax of their own: the weights are those that they return, also in generations."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
FSMT = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
FSMT |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
CONFIGS = {
    "Mpt": {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "XGLM": {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
    "GPTNeoXJapanese": SMALL | {"intermediate_multiple_size": 2},
    "Bloom": {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "GPTJ": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "Tapas": SMALL,
    "MegatronBert": SMALL,
    "Flaubert": {"n_words": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "XLNet": {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "DebertaV2": SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
}
CAUSAL = {"Mpt": "MptForCausalLM", "XGLM": "XGLMForCausalLM", "GPTNeoXJapanese": "GPTNeoXJapaneseForCausalLM"}
PADDED = torch.ones(2, 9, dtype=torch.int64)
PADDED[1, :3] = 0


def model_of(family, name=None):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**CONFIGS[family])
    return getattr(transformers, name or f"{family}Model")(config).eval()


def ids(tokens=9, batch=2):
    return torch.randint(3, 90, (batch, tokens))


def assert_equal(layer, weights, rows=slice(None)):
    torch.testing.assert_close(layer.weights.dense()[:, :, rows], weights[:, :, rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", CONFIGS)
def test_weights_are_those_that_the_model_returns(family):
    model, tokens, seen = model_of(family), ids(), PADDED.bool()
    with torch.no_grad():
        expected = model(tokens, attention_mask=PADDED, output_attentions=True)
        with regard.watch(model, "received") as result:
            output = model(tokens, attention_mask=PADDED)
    assert torch.equal(output[0], expected[0])
    for layer, weights in zip(result.layers, expected.attentions, strict=True):
        weights = weights.masked_fill(~seen[:, None, :, None], 0)
        actual = layer.weights.dense().masked_fill(~seen[:, None, :, None], 0)
        torch.testing.assert_close(actual, weights, rtol=1e-5, atol=1e-6)
        assert torch.equal(layer.weights.valid_queries, seen)
        torch.testing.assert_close(layer.measured["received"], weights.sum(2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", CAUSAL)
def test_steps_of_a_generation_are_rows_of_one_matrix(family):
    model, tokens = model_of(family, CAUSAL[family]), ids()
    options = {"attention_mask": PADDED, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    with regard.watch(model, ["received", "entropy"]) as result:
        model.generate(tokens, use_cache=True, **options)
    steps = model.generate(
        tokens, use_cache=True, return_dict_in_generate=True, output_attentions=True, **options
    ).attentions
    mask = torch.cat([PADDED, PADDED.new_ones(2, 4)], 1)
    assert len(result.recordings) == 1
    for number, layer in enumerate(result.layers):
        rows = [torch.nn.functional.pad(step[number], (0, 13 - step[number].shape[3])) for step in steps]
        weights = torch.cat(rows, 2).masked_fill(~mask.bool()[:, None, :, None], 0)
        actual = layer.weights.dense().masked_fill(~mask.bool()[:, None, :, None], 0)
        torch.testing.assert_close(actual, weights, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.measured["received"], weights.sum(2), rtol=1e-5, atol=1e-5)
        assert torch.equal(layer.weights.valid_queries, mask.bool())
        assert layer.kind == "decoder"


@pytest.mark.parametrize("family", CAUSAL)
def test_beams_are_followed(family):
    model, tokens = model_of(family, CAUSAL[family]), ids()
    options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 6, "use_cache": True}
    with regard.watch(model) as result:
        output = model.generate(tokens, num_beams=3, return_dict_in_generate=True, **options)
    if not torch.equal(output.beam_indices, output.beam_indices[:, :1].expand_as(output.beam_indices)):
        with pytest.raises(InvalidArgument, match="beam search reordered the batch"):
            _ = result.layers[0].weights
    with torch.no_grad():
        expected = model(output.sequences[:, :-1], output_attentions=True).attentions
    for layer, weights in zip(result.select_beams(output.beam_indices).layers, expected, strict=True):
        assert_equal(layer, weights)


def test_two_forward_passes_without_a_cache_are_two_recordings():
    model = model_of("XGLM")
    with regard.watch(model) as result, torch.no_grad():
        model(ids(4))
        model(ids(5))
    assert [recording.layers[0].weights.shape[2] for recording in result.recordings] == [4, 5]


def test_cross_attention_of_a_generation():
    torch.manual_seed(0)
    config = transformers.FSMTConfig(langs=["en", "de"], src_vocab_size=99, tgt_vocab_size=99, **FSMT)
    model, tokens = transformers.FSMTForConditionalGeneration(config).eval(), ids(7)
    with regard.watch(model) as result:
        text = model.generate(tokens, max_new_tokens=5, do_sample=False, num_beams=1, eos_token_id=None)
    with torch.no_grad():
        output = model(tokens, decoder_input_ids=text[:, :-1], output_attentions=True, use_cache=False)
    found = {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }
    for kind, expected in found.items():
        for layer, weights in zip(result.layers.by_kind(kind), expected, strict=True):
            assert_equal(layer, weights)


def test_models_that_use_the_interface_alone_are_not_slowed_down():
    for name in ("GPT2", "Bert", "Llama", "T5"):
        config = getattr(transformers, f"{name}Config")(num_hidden_layers=1, num_layers=1, vocab_size=99)
        with torch.device("meta"):
            model = getattr(transformers, f"{name}Model")(config)
        from regard.watching.module_inspection import uses_only_attention_interface

        assert uses_only_attention_interface(set(map(type, model.modules())))
