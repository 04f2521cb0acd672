"""RNNsearch against the paper's equations, written out token by token in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from regard.errors import InvalidArgument, InvalidCheckpoint
from regard.generation import greedy
from regard.models import RNNSearch, RNNSearchConfig, load_model, save_model
from regard.nn import AdditiveAttention, alignment_loss

CONFIG = RNNSearchConfig(40, tgt_vocab_size=30, d_model=6, hidden_size=5, d_attention=7)


def random_model(config: RNNSearchConfig = CONFIG) -> RNNSearch:
    """A model with large random weights, so that its attention is not uniform."""
    torch.manual_seed(3)
    model = RNNSearch(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def gru_step(x: Tensor, state: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """One step of a GRU, as torch documents it."""
    w_x, w_s, b_x, b_s = weights
    (x_r, x_z, x_n), (s_r, s_z, s_n) = (w_x @ x + b_x).chunk(3), (w_s @ state + b_s).chunk(3)
    reset, update = torch.sigmoid(x_r + s_r), torch.sigmoid(x_z + s_z)
    return (1 - update) * torch.tanh(x_n + reset * s_n) + update * state


def reference(model: RNNSearch, src: list[int], tgt: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (target, vocab) and weights (target, source) of one sentence."""
    p = dict(model.named_parameters())
    of = {
        name: tuple(p[f"{name}.{part}{end}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        for name, end in (("decoder_cell", ""),)
    }
    for direction in ("", "_reverse"):
        of[direction] = tuple(
            p[f"encoder.{part}_l0{direction}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
    embedded = p["src_embedding.weight"][src]
    forward, backward = [torch.zeros(5).double()], [torch.zeros(5).double()]
    for x in embedded:
        forward.append(gru_step(x, forward[-1], of[""]))
    for x in embedded.flip(0):
        backward.append(gru_step(x, backward[-1], of["_reverse"]))
    h = torch.cat([torch.stack(forward[1:]), torch.stack(backward[1:]).flip(0)], 1)
    state = torch.tanh(p["initial_state.weight"] @ h[0, 5:] + p["initial_state.bias"])
    logits, weights = [], []
    for token in tgt:
        y = p["tgt_embedding.weight"][token]
        energy = torch.tanh(
            p["attention.query_proj.weight"] @ state
            + h @ p["attention.key_proj.weight"].mT
            + p["attention.key_proj.bias"]
        )
        weights.append((energy @ p["attention.v"]).softmax(0))
        context = weights[-1] @ h
        state = gru_step(torch.cat([y, context]), state, of["decoder_cell"])
        merged = p["readout.weight"] @ torch.cat([state, y, context]) + p["readout.bias"]
        logits.append(p["lm_head.weight"] @ torch.maximum(merged[0::2], merged[1::2]))
    return torch.stack(logits), torch.stack(weights)


SRC = torch.tensor([[5, 9, 4, 30, 8], [7, 39, 6, 0, 0]])
TGT = torch.tensor([[1, 29, 3, 4], [1, 6, 20, 11]])
LENGTHS = torch.tensor([5, 3])


def test_forward_computes_the_equations_of_the_paper():
    model = random_model()
    output = model(SRC, TGT, LENGTHS, output_attentions=True)
    for row, length in enumerate(LENGTHS.tolist()):
        logits, weights = reference(model, SRC[row, :length].tolist(), TGT[row].tolist())
        torch.testing.assert_close(output.logits[row], logits)
        dense = output.attentions.cross[0].weights.dense()[row, 0]
        torch.testing.assert_close(dense[:, :length], weights)
        assert (dense[:, length:] == 0).all()
    assert output.attentions.encoder == output.attentions.decoder == ()


def test_decoding_token_by_token_with_a_cache_equals_one_call():
    model = random_model()
    memory, cache = model.encode(SRC, LENGTHS), model.new_cache()
    steps = [model.decode(token[:, None], memory, LENGTHS, cache=cache) for token in TGT.unbind(1)]
    torch.testing.assert_close(model.lm_head(torch.cat(steps, 1)), model(SRC, TGT, LENGTHS).logits)
    assert cache.length == 4


def test_several_targets_of_a_sentence_share_its_memory():
    model, rows = random_model(), torch.randint(1, 30, (6, 4))
    actual = model.decode(rows, model.encode(SRC, LENGTHS), LENGTHS)
    apart = model.forward_features(SRC.repeat_interleave(3, 0), rows, LENGTHS.repeat_interleave(3))[0]
    torch.testing.assert_close(actual, apart)


def test_losses_on_logits_and_attention_give_every_weight_a_gradient():
    model = random_model().train()
    hidden, attentions = model.forward_features(SRC, TGT, LENGTHS, output_attentions=True)
    loss = alignment_loss(attentions.cross[0].weights, torch.tensor([[0, 1, 2, 4], [0, 0, 1, 2]]))
    (loss + model.lm_head(hidden).square().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_autocast_computes_in_its_dtype():
    model = random_model().float()
    with torch.autocast("cpu", torch.bfloat16):
        actual = model(SRC, TGT, LENGTHS, output_attentions=True)
    assert actual.logits.dtype == torch.bfloat16
    assert actual.attentions.cross[0].output.dtype == torch.bfloat16
    actual.logits.float().square().mean().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    torch.testing.assert_close(actual.logits.float(), model(SRC, TGT, LENGTHS).logits, atol=0.3, rtol=0.05)


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_a_saved_model_loads_unchanged(tmp_path, tying):
    config = dataclasses.replace(CONFIG, tgt_vocab_size=None if tying == "all" else 30, tie_embeddings=tying)
    model = random_model(config).float()
    save_model(tmp_path, model)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, RNNSearch)
    assert loaded.config == config
    assert torch.equal(loaded(SRC, TGT % 30, LENGTHS).logits, model(SRC, TGT % 30, LENGTHS).logits)


def test_invalid_configs_and_inputs_raise():
    for keys, message in (
        ({"hidden_size": 0}, "hidden_size: expected an int of at least 1"),
        ({"dropout": 1.5}, "dropout: expected"),
        ({"tie_embeddings": "all"}, "vocab_size=40 and tgt_vocab_size=30, got 'all', which needs one vocabulary"),
        ({"eos_id": 30}, "eos_id: expected an id below tgt_vocab_size=30, got 30"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            dataclasses.replace(CONFIG, **keys)
    model = random_model()
    with pytest.raises(InvalidArgument, match="src_lengths: expected values from 1 to the 5 tokens of src, got 0"):
        model(SRC, TGT, torch.tensor([5, 0]))
    with pytest.raises(InvalidArgument, match=r"memory: expected shape \(sentences, source, 10\)"):
        model.decode(TGT, torch.zeros(2, 5, 9).double())
    with pytest.raises(InvalidArgument, match="tgt: expected values from 0"):
        model(SRC, SRC, LENGTHS)
    with pytest.raises(InvalidArgument, match=r"key: expected shape \(batch, tokens, key_size=8\)"):
        AdditiveAttention(6, 8, 5)(torch.randn(1, 2, 6), torch.randn(1, 3, 6))


def test_the_transformers_layout_does_not_take_an_rnn_search(tmp_path):
    with pytest.raises(InvalidArgument, match="format: expected 'regard' for an RNNSearch"):
        save_model(tmp_path / "out", random_model(), format="transformers")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidCheckpoint, match="expected a folder with"):
        load_model(tmp_path / "out")


def test_the_memory_is_projected_once(monkeypatch):
    model, calls = random_model(), []
    project = model.attention.project_key
    monkeypatch.setattr(model.attention, "project_key", lambda key: calls.append(key) or project(key))
    src = torch.randint(3, 30, (2, 5))
    greedy(model.eval(), src, max_new_tokens=6, min_new_tokens=5)
    model(src, src)
    assert len(calls) == 2
