"""Calls of flex_attention, watched: the weights are what it computes with the identity as value."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

import regard
from regard.errors import InvalidArgument, InvalidType

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 150, 150, 8
compiled_flex_attention = torch.compile(flex_attention, backend="eager")


class Attention(nn.Module):
    """Attention as in models that are written with flex_attention."""

    def __init__(self, function=flex_attention):
        super().__init__()
        self.function = function
        self.slopes = nn.Parameter(torch.linspace(0.1, 0.4, HEADS), requires_grad=False)

    def alibi(self, score, b, h, q_idx, kv_idx):
        return score + self.slopes[h] * (kv_idx - q_idx)

    def forward(self, query, key, value, has_alibi=False, **options):
        score_mod = self.alibi if has_alibi else None
        return self.function(query, key, value, score_mod, **options)


def tensors(queries=QUERIES, keys=KEYS, kv_heads=HEADS, seed=0):
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(BATCH, HEADS, queries, DIM, generator=random)
    return query, torch.randn(BATCH, kv_heads, keys, DIM, generator=random), identity(keys, kv_heads)


def identity(keys, kv_heads=HEADS):
    return torch.eye(keys).expand(BATCH, kv_heads, keys, keys).contiguous()


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


DOCUMENTS = torch.tensor([[0] * 30 + [1] * 50 + [2] * 70, [0] * 120 + [1] * 30])


def same_document(b, h, q_idx, kv_idx):
    return DOCUMENTS[b][q_idx] == DOCUMENTS[b][kv_idx]


def by_head(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx).abs() <= 3 * h


BLOCK_MASKS = {
    "none": None,
    "causal": create_block_mask(causal, None, None, QUERIES, KEYS, device="cpu"),
    "documents": create_block_mask(same_document, BATCH, None, QUERIES, KEYS, device="cpu"),
    "by head": create_block_mask(by_head, None, HEADS, QUERIES, KEYS, device="cpu", BLOCK_SIZE=32),
    "nothing": create_block_mask(lambda b, h, q, k: k < q - 20, None, None, QUERIES, KEYS, device="cpu", BLOCK_SIZE=16),
}


@pytest.mark.parametrize("has_alibi", [False, True])
@pytest.mark.parametrize("name", BLOCK_MASKS)
@pytest.mark.parametrize("function", [flex_attention, compiled_flex_attention], ids=["eager", "compiled"])
def test_weights_are_the_output_for_the_identity_as_value(function, name, has_alibi):
    model, inputs = Attention(function), tensors(kv_heads=2)
    options = {"block_mask": BLOCK_MASKS[name], "enable_gqa": True, "scale": 0.7, "has_alibi": has_alibi}
    with torch.no_grad():
        plain = Attention()(*inputs, **options)
        with regard.watch(model, ["entropy"]) as result:
            output = model(*inputs, **options)
    assert torch.equal(output, plain)
    layer = result.layers[0]
    torch.testing.assert_close(layer.weights.dense(), output, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.weights[1, 3, 77], output[1, 3, 77], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.measured["entropy"], torch.special.entr(output).sum(-1), rtol=1e-4, atol=1e-5)
    assert layer.kind == ("decoder" if name in ("causal", "nothing") else "encoder")


@pytest.mark.parametrize("options", [{"return_lse": True}, {"return_aux": AuxRequest(lse=True)}])
@pytest.mark.filterwarnings("ignore:return_lse is deprecated")
def test_what_it_returns_is_unchanged(options):
    inputs, options = tensors(), options | {"kernel_options": {"BLOCK_M": 32}}
    plain = flex_attention(*inputs, **options)
    model = Attention()
    with regard.watch(model) as result, torch.no_grad():
        output = model(*inputs, **options)
    assert type(output) is type(plain)
    torch.testing.assert_close(output, plain, rtol=0, atol=0)
    torch.testing.assert_close(result.layers[0].weights.dense(), output[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (4, 9), (9, 4)])
def test_queries_are_the_last_keys(queries, keys):
    inputs = tensors(queries, keys)
    mask = create_block_mask(lambda b, h, q, k: k <= q + 1, None, None, queries, keys, device="cpu")
    model = Attention()
    with regard.watch(model) as result, torch.no_grad():
        output = model(*inputs, block_mask=mask)
    weights = result.layers[0].weights
    torch.testing.assert_close(weights.dense(), output, rtol=1e-4, atol=1e-6)
    assert weights.request.offset == keys - queries


def test_one_entry_of_keys_for_the_whole_batch():
    query, key, value = tensors()
    mask = create_block_mask(causal, BATCH, None, QUERIES, KEYS, device="cpu")
    model = Attention()
    with regard.watch(model, keep_values=True) as result, torch.no_grad():
        output = model(query, key[:1], value[:1], block_mask=mask)
    torch.testing.assert_close(result.layers[0].weights.dense(), output, rtol=1e-4, atol=1e-6)
    assert len(result.layers[0].value) == BATCH


class Decoder(nn.Module):
    """Three calls with the same query and key, of which two have the same weights."""

    def forward(self, query, key, value):
        options = {"block_mask": BLOCK_MASKS["causal"]}
        first = flex_attention(query, key, value, **options)
        again = flex_attention(query, key, value[..., :4], **options)
        return first, again, flex_attention(query, key, value, self.score_mod, **options)

    def score_mod(self, score, b, h, q_idx, kv_idx):
        return score * 3


def test_calls_with_the_same_weights_are_one_layer():
    model, inputs = Decoder(), tensors()
    with regard.watch(model) as result, torch.no_grad():
        first, _, other = model(*inputs)
    assert [layer.name for layer in result.layers] == ["", "#2"]
    for layer, output in zip(result.layers, (first, other), strict=True):
        torch.testing.assert_close(layer.weights.dense(), output, rtol=1e-4, atol=1e-6)


def test_select_and_part_follow_the_batch():
    model, inputs = Attention(), tensors()
    with regard.watch(model, heads=[3, 1]) as result, torch.no_grad():
        output = model(*inputs, block_mask=BLOCK_MASKS["documents"], has_alibi=True)
    weights = result.recording.select(1).layers[0].weights
    torch.testing.assert_close(weights.dense(), output[1:, [3, 1]], rtol=1e-4, atol=1e-6)


def test_under_autocast_and_in_half_precision():
    model, (query, key, value) = Attention(), tensors()
    half = [part.bfloat16() for part in (query, key, value)]
    with torch.no_grad(), regard.watch(model) as result:
        output = model(*half, block_mask=BLOCK_MASKS["causal"], has_alibi=True)
    torch.testing.assert_close(result.layers[0].weights.dense(), output.float(), rtol=1e-2, atol=1e-3)
    assert result.layers[0].weights.request.query.dtype == torch.bfloat16


def test_a_model_reads_and_changes_what_a_score_mod_captures():
    model, inputs = Attention(), tensors()
    with regard.watch(model) as result, torch.no_grad():
        model(*inputs, has_alibi=True)
    model.slopes.data = model.slopes.data * 2
    with torch.no_grad():
        model.slopes.mul_(2)
    with pytest.raises(regard.errors.StaleView, match=r"shape \(4,\)"):
        result.layers[0].weights.dense()


def _bool_score(score, b, h, q_idx, kv_idx):
    return score > 0


def _writes(score, b, h, q_idx, kv_idx):
    return score.add_(1)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"score_mod": _bool_score}, InvalidType, "a floating-point score, got bool"),
        ({"score_mod": _writes}, InvalidArgument, "attention (Calls): score: _writes cannot be used: it changes a"),
        (
            {"block_mask": BlockMask.from_kv_blocks(torch.tensor([[[1]]]), torch.tensor([[[[1, 0]]]]), BLOCK_SIZE=80,
             seq_lengths=(80, 150))},
            InvalidArgument,
            "attention (Calls): the blocks of its BlockMask are not those that its mask_mod allows",
        ),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_read_are_refused(options, kind, message):
    class Calls(nn.Module):
        def forward(self, *inputs):
            return flex_attention(*inputs, **options)

    model, inputs = nn.ModuleDict({"attention": Calls(), "other": Attention()}), tensors(80, 150)
    model.forward = lambda: [each(*inputs) for each in model.values()]
    with pytest.raises(kind, match=re.escape(message)), regard.watch(model), torch.no_grad():
        model()
    with regard.watch(model, layers=["other"]) as result, torch.no_grad():
        model()
    assert [layer.name for layer in result.layers] == ["other"]


def test_interventions_are_refused():
    model = nn.ModuleDict({"attention": Attention()})
    model.forward = lambda: model["attention"](*tensors())
    message = "attention is a Attention, which can be watched but not changed"
    with pytest.raises(InvalidArgument, match=message), regard.watch(model, ablate={"attention": [0]}), torch.no_grad():
        model()
