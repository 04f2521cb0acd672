"""The Transformer against torch."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from regard.errors import InvalidArgument, InvalidType
from regard.models import Transformer, TransformerConfig
from regard.nn import MultiHeadAttention, linear_cross_entropy

SMALL = TransformerConfig(60, d_model=32, num_heads=4, num_encoder_layers=2, num_decoder_layers=2, d_ff=48)
RENAMED = {
    "self_attn.in_proj_": "self_attention.in_proj.",
    "self_attn.out_proj.": "self_attention.out_proj.",
    "multihead_attn.in_proj_": "cross_attention.in_proj.",
    "multihead_attn.out_proj.": "cross_attention.out_proj.",
    "linear1.": "feed_forward.fc1.",
    "linear2.": "feed_forward.fc2.",
    "norm1.": "self_attention_residual.norm.",
}


def small(seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(dataclasses.replace(SMALL, **changes))


def with_torch_weights(norm_first: bool, activation: str) -> tuple[Transformer, nn.Transformer]:
    model = small(norm_first=norm_first, activation=activation)
    reference = nn.Transformer(
        32, 4, 2, 2, 48, norm_first=norm_first, activation=activation, batch_first=True, dropout=0.1
    )
    reference.encoder.use_nested_tensor = False  # a prototype that warns
    if not norm_first:  # torch adds a final norm that the paper does not have
        reference.encoder.norm = reference.decoder.norm = None
    names = set(model.state_dict())
    copied = {}
    for name, tensor in reference.state_dict().items():
        last = (
            {"norm2.": "feed_forward_residual.norm."}
            if name.startswith("encoder")
            else {
                "norm2.": "cross_attention_residual.norm.",
                "norm3.": "feed_forward_residual.norm.",
            }
        )
        for old, new in {**RENAMED, **last}.items():
            if f".{old}" in name:
                name = name.replace(old, new)
                break
        assert name in names
        copied[name] = tensor + 0.01 * torch.randn_like(tensor)  # biases and norms that differ from the initial ones
    reference.load_state_dict({old: copied[new] for old, new in zip(reference.state_dict(), copied, strict=True)})
    model.load_state_dict(copied, strict=False)
    return model, reference


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # pre-norm has no fast path in torch
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mode", ["eval", "gradients"])
def test_equals_torch_with_the_same_weights(norm_first, activation, mode):
    model, reference = with_torch_weights(norm_first, activation)
    model.eval()
    reference.eval()
    src, tgt, lengths = torch.randint(3, 60, (3, 9)), torch.randint(3, 60, (3, 7)), torch.tensor([9, 4, 1])
    padding = torch.arange(9) >= lengths[:, None]
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    embed = model.src_embedding
    table = model.src_positions.table

    def stock():
        return reference(
            embed(src) * math.sqrt(32) + table[:9],
            embed(tgt) * math.sqrt(32) + table[:7],
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )

    if mode == "eval":
        with torch.no_grad():
            torch.testing.assert_close(model.forward_features(src, tgt, lengths)[0], stock(), rtol=0, atol=1e-5)
        return
    actual, other = (
        torch.autograd.grad((hidden**2).mean(), embed.weight)
        for hidden in (model.forward_features(src, tgt, lengths)[0], stock())
    )
    torch.testing.assert_close(actual[0], other[0], rtol=1e-4, atol=1e-5)


def test_logits_are_the_hidden_states_times_the_embeddings():
    model = small().eval()
    src, tgt = torch.randint(3, 60, (2, 5)), torch.randint(3, 60, (2, 4))
    hidden = model.forward_features(src, tgt)[0]
    torch.testing.assert_close(model(src, tgt).logits, hidden @ model.src_embedding.weight.T)


def test_attentions_are_views_of_every_layer():
    model = small(num_encoder_layers=3).eval()
    src, tgt, lengths = torch.randint(3, 60, (2, 5)), torch.randint(3, 60, (2, 4)), torch.tensor([5, 2])
    assert model(src, tgt, lengths).attentions is None
    attentions = model(src, tgt, lengths, output_attentions=True).attentions
    assert [len(kind) for kind in attentions] == [3, 2, 2]
    assert attentions.encoder[0].weights.shape == (2, 4, 5, 5)
    decoder, cross = (kind[1].weights.dense() for kind in (attentions.decoder, attentions.cross))
    assert (decoder.triu(1) == 0).all()
    assert (cross[1, :, :, 2:] == 0).all()
    torch.testing.assert_close(cross.sum(-1), torch.ones(2, 4, 4))


def test_padding_changes_nothing():
    model = small().eval()
    src, tgt = torch.randint(3, 60, (1, 5)), torch.randint(3, 60, (1, 4))
    longer = torch.cat([src, torch.zeros(1, 3, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(
        model.forward_features(longer, tgt, torch.tensor([5]))[0], model.forward_features(src, tgt)[0]
    )


def test_a_later_token_changes_nothing_before_it():
    model = small().eval()
    src, tgt = torch.randint(3, 60, (1, 5)), torch.randint(3, 60, (1, 6))
    changed = tgt.clone()
    changed[0, 4] = 3 + (tgt[0, 4] - 2) % 57
    before, after = model.forward_features(src, tgt)[0], model.forward_features(src, changed)[0]
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_tied_weights_are_one_parameter(tying):
    model = small(tie_embeddings=tying, tgt_vocab_size=60 if tying == "all" else 70)
    embeddings = {model.src_embedding.weight, model.tgt_embedding.weight, model.lm_head.weight}
    assert len(embeddings) == {"all": 1, "decoder": 2, "none": 3}[tying]
    assert model(torch.tensor([[5]]), torch.tensor([[1]])).logits.shape == (1, 1, 60 if tying == "all" else 70)


def test_weights_are_initialized_as_in_fairseq():
    model = small(vocab_size=4000, tie_embeddings="none")
    assert model.src_embedding.weight[1:].std().item() == pytest.approx(32**-0.5, rel=0.02)
    assert (model.src_embedding.weight[0] == 0).all()
    layer = model.decoder.layers[0]
    for part in layer.cross_attention.in_proj.weight.split(32):  # whose gain there is 1/√2
        assert part.abs().max().item() == pytest.approx(math.sqrt(6 / 64 / 2), rel=0.02)
    assert layer.cross_attention.out_proj.weight.abs().max().item() == pytest.approx(math.sqrt(6 / 64), rel=0.02)
    reference = nn.Linear(32, 48)
    for actual, peer in zip(layer.feed_forward.fc1.parameters(), reference.parameters(), strict=True):
        assert actual.abs().max().item() == pytest.approx(peer.abs().max().item(), rel=0.1)


def test_attention_is_initialized_as_torchs():
    attention, reference = MultiHeadAttention(64, 4), nn.MultiheadAttention(64, 4)
    assert attention.in_proj.weight.std().item() == pytest.approx(reference.in_proj_weight.std().item(), rel=0.03)
    assert attention.in_proj.weight.abs().max().item() == pytest.approx(
        reference.in_proj_weight.abs().max().item(), rel=0.01
    )
    assert not attention.in_proj.bias.any()
    assert not attention.out_proj.bias.any()


@pytest.mark.parametrize(
    "changes", [{}, {"norm_first": True, "positions": "learned", "num_kv_heads": 2, "activation": "gelu"}]
)
@pytest.mark.parametrize("training", [True, False])
def test_bfloat16_is_near_float32(changes, training):
    model = small(dropout=0.0, **changes).train(training)
    src, tgt, lengths = torch.randint(3, 60, (3, 9)), torch.randint(3, 60, (3, 7)), torch.tensor([9, 4, 2])
    gradients = []
    for low in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            hidden = model.forward_features(src, tgt, lengths)[0]
            loss = linear_cross_entropy(hidden.flatten(0, 1), model.lm_head.weight, tgt.flatten()).loss
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_only(rate):
    model = small(**{"dropout": 0.0, rate: 0.5})
    src, tgt = torch.randint(3, 60, (2, 5)), torch.randint(3, 60, (2, 4))
    assert not torch.equal(model.forward_features(src, tgt)[0], model.forward_features(src, tgt)[0])
    model.eval()
    assert torch.equal(model.forward_features(src, tgt)[0], model.forward_features(src, tgt)[0])


def test_it_learns_to_copy():
    torch.manual_seed(0)
    model = Transformer(
        dataclasses.replace(SMALL, vocab_size=12, dropout=0.0, num_encoder_layers=1, num_decoder_layers=1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        src = torch.randint(3, 12, (64, 4))
        tgt = torch.cat([torch.ones(64, 1, dtype=torch.int64), src[:, :-1]], dim=1)
        hidden = model.forward_features(src, tgt)[0]
        loss = linear_cross_entropy(hidden.flatten(0, 1), model.lm_head.weight, src.flatten()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


@pytest.mark.parametrize("with_lengths", [True, False])
@torch.no_grad()
def test_decoding_with_a_cache_equals_decoding_at_once(with_lengths):
    model = small(num_kv_heads=2).eval()
    src, tgt = torch.randint(3, 60, (3, 6)), torch.randint(3, 60, (6, 8))
    lengths = torch.tensor([6, 2, 4]) if with_lengths else None
    memory = model.encode(src, lengths)
    full = model.decode(tgt, memory, lengths)  # two rows a sentence
    singly = model.decode(
        tgt, memory.repeat_interleave(2, dim=0), None if lengths is None else lengths.repeat_interleave(2)
    )
    torch.testing.assert_close(full, singly)
    cache = model.new_cache()
    steps = [model.decode(tgt[:, i : i + 1], memory, lengths, cache=cache) for i in range(8)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full)


@torch.no_grad()
def test_reordered_rows_continue_their_sequences():
    model = small().eval()
    src, tgt, lengths = torch.randint(3, 60, (3, 6)), torch.randint(3, 60, (6, 8)), torch.tensor([6, 2, 4])
    memory, cache = model.encode(src, lengths), model.new_cache()
    model.decode(tgt[:, :5], memory, lengths, cache=cache)
    rows = torch.tensor([1, 1, 5, 4])  # the second sentence leaves
    cache.batch_select_indices(torch.tensor([0, 2]), rows)
    kept = torch.tensor([0, 2])
    step = model.decode(tgt[rows, 5:6], memory[kept], lengths[kept], cache=cache)
    full = model.decode(tgt[rows, :6], memory[kept], lengths[kept])
    torch.testing.assert_close(step, full[:, 5:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 33}, "num_heads: expected a divisor of d_model=33, got 4"),
        ({"d_model": 15, "num_heads": 3}, "d_model: expected an even number for sinusoidal positions, got 15"),
        ({"num_encoder_layers": 0}, "num_encoder_layers: expected an int of at least 1 and at most 268435456, got 0"),
        ({"dropout": 1.2}, r"dropout: expected a finite number of at least 0 and below 1, got 1\.2"),
        ({"activation": "swish"}, "activation: expected one of relu, gelu, gelu_tanh, silu, got 'swish'"),
        ({"tie_embeddings": "al"}, "tie_embeddings: expected one of all, decoder, none, got 'al', did you mean 'all'"),
        (
            {"tgt_vocab_size": 70},
            "tie_embeddings: expected 'decoder' or 'none' for vocab_size=60 and tgt_vocab_size=70, got 'all'",
        ),
        ({"eos_id": 60}, "eos_id: expected an id below vocab_size=60, got 60"),
        ({"bos_id": 2}, "eos_id: expected another id than pad_id=0 and bos_id=2, got 2"),
        ({"d_ff": "48"}, "d_ff: expected an int of at least 1 and at most 268435456, got '48'"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected an int of at least 1 and at most 268435456, or None, got 0"),
        (
            {"d_model": 10**30, "num_heads": 1},
            f"d_model: expected an int of at least 1 and at most 268435456, got {10**30}",
        ),
        (
            {"tgt_vocab_size": 2**28 + 1},
            "tgt_vocab_size: expected an int of at least 1 and at most 268435456, or None, got 268435457",
        ),
        ({"dropout": None}, "dropout: expected a finite number of at least 0 and below 1, got None"),
    ],
)
def test_invalid_configs_are_refused_with_the_reason(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        dataclasses.replace(SMALL, **changes)


def test_all_problems_of_a_config_are_in_one_error():
    with pytest.raises(InvalidArgument) as caught:
        TransformerConfig(0, d_ff=-1, norm="middle", pad_id=-5)  # pyright: ignore[reportArgumentType]
    for part in (
        "vocab_size: expected an int of at least 1 and at most 268435456, got 0",
        "d_ff: expected",
        "'middle'",
        "pad_id: expected",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("src", "tgt", "lengths", "words"),
    [
        (
            torch.zeros(2, 5),
            torch.ones(2, 3).long(),
            None,
            r"src: expected the dtype int64 or int32, got float32 \(2, 5\)",
        ),
        (torch.ones(5).long(), torch.ones(2, 3).long(), None, r"src: expected shape \(batch, tokens\) .* \(5,\)"),
        (torch.ones(2, 0).long(), torch.ones(2, 3).long(), None, r"src: .* without an empty axis, got \(2, 0\)"),
        (torch.ones(0, 5).long(), torch.ones(0, 3).long(), None, r"src: .* without an empty axis, got \(0, 5\)"),
        (torch.ones(2, 5).long(), torch.ones(0, 3).long(), None, r"tgt: .* without an empty axis, got \(0, 3\)"),
        (
            torch.ones(2, 5).long(),
            torch.ones(2, 3).long(),
            torch.ones(2).bool(),
            r"expected 2 integers .* got bool \(2,\)",
        ),
        (
            torch.full((2, 5), 60),
            torch.ones(2, 3).long(),
            None,
            "src: expected values from 0 to vocab_size - 1 = 59, got 60",
        ),
        (torch.ones(2, 5).long(), torch.full((2, 3), -1), None, "tgt: expected values from 0 .* got -1"),
        (torch.ones(2, 5).long(), torch.ones(3, 3).long(), None, "multiple of the memory's 2 sentences as rows, got 3"),
        (
            torch.ones(2, 5).long(),
            torch.ones(2, 3).long(),
            torch.tensor([5, 6]),
            "src_lengths: expected values from 0 to the 5 tokens of src, got 6",
        ),
        (
            torch.ones(2, 5).long(),
            torch.ones(2, 3).long(),
            torch.tensor([5]),
            r"src_lengths: expected 2 integers \(batch,\), got int64 \(1,\)",
        ),
    ],
)
def test_invalid_inputs_are_named(src, tgt, lengths, words):
    with pytest.raises(InvalidArgument, match=words):
        small()(src, tgt, lengths)


def test_an_invalid_memory_is_named():
    with pytest.raises(InvalidArgument, match=r"memory: expected shape \(sentences, source, 32\) .*, got \(2, 5, 31\)"):
        small().decode(torch.ones(2, 3).long(), torch.zeros(2, 5, 31))
    with pytest.raises(InvalidArgument, match=r"memory: .* with at least one sentence, .* got \(0, 5, 32\)"):
        small().decode(torch.ones(2, 3).long(), torch.zeros(0, 5, 32))


def test_lists_are_refused():
    with pytest.raises(InvalidType) as caught:
        small()([[5, 6]], torch.ones(1, 3).long(), [2])  # pyright: ignore[reportArgumentType]
    for name in ("src", "src_lengths"):
        assert f"{name}: expected a tensor, got list" in str(caught.value)
    with pytest.raises(InvalidType) as caught:
        small().decode(None, [[0.0]], (2,))  # pyright: ignore[reportArgumentType]
    for part in ("tgt: expected a tensor, got NoneType", "memory: expected", "src_lengths: expected"):
        assert part in str(caught.value)
