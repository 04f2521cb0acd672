"""Masks and positions of torch's own attention, watched: every small size, and the steps of a cache."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regard

SIZES = list(itertools.product(range(1, 7), range(1, 7)))  # queries and keys


class Call(nn.Module):
    """A plain call of SDPA."""

    def forward(self, *tensors, **options):
        return functional.scaled_dot_product_attention(*tensors, **options)


def _options(masked, queries, keys):
    if masked == "causal":
        return {"is_causal": True}
    if masked == "none":
        return {}
    if masked in ("upper left", "lower right"):
        variant = causal_upper_left if masked == "upper left" else causal_lower_right
        return {"attn_mask": variant(queries, keys)}
    allowed = torch.rand(queries, keys) < 0.6
    allowed[torch.arange(queries), torch.randint(keys, (queries,))] = True
    return {"attn_mask": allowed if masked == "bool" else torch.randn(queries, keys).masked_fill(~allowed, -torch.inf)}


@pytest.mark.parametrize("masked", ["causal", "none", "bool", "float", "upper left", "lower right"])
@pytest.mark.parametrize("groups", [1, 2])
def test_weights_are_the_output_for_the_identity_as_value(masked, groups):
    torch.manual_seed(0)
    model = Call()
    for queries, keys in SIZES:
        if masked == "lower right" and queries > keys:
            continue  # torch gives NaN for rows that see no key
        query, key = torch.randn(2, 4, queries, 8), torch.randn(2, 4 // groups, keys, 8)
        options = _options(masked, queries, keys) | ({"enable_gqa": True} if groups > 1 else {})
        with regard.watch(model) as result:
            output = model(query, key, torch.eye(keys).expand(2, 4 // groups, keys, keys), **options)
        weights = result.layers[0].weights
        torch.testing.assert_close(weights.dense(), output, msg=f"{queries} queries, {keys} keys")
        assert weights.request.offset == keys - queries == regard.weights(query, key).request.offset
        position = torch.arange(queries) + keys - queries
        distance = (position[:, None] - torch.arange(keys)).abs()
        measured = weights.measure("mean_distance", regard.Diagonal(0))
        torch.testing.assert_close(measured["mean_distance"], (output * distance).sum(-1))
        torch.testing.assert_close(measured["diagonal"], (output * (distance == 0)).sum(-1))


@pytest.mark.parametrize("extra", ["none", "bias", "zero", "both"])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_multi_head_attention_with_the_identity_as_value(extra, need_weights, padded, is_causal):
    torch.manual_seed(0)
    width = 8  # as many as the most keys
    has_bias, has_zero = extra in ("bias", "both"), extra in ("zero", "both")
    attention = nn.MultiheadAttention(width, 1, batch_first=True, add_bias_kv=has_bias, add_zero_attn=has_zero).eval()
    with torch.no_grad():
        attention.in_proj_weight[2 * width :] = attention.out_proj.weight[:] = torch.eye(width)
        if has_bias:
            attention.bias_v[:] = torch.eye(width)[7]
    for queries, keys in SIZES:
        query, key, value = torch.randn(2, queries, width), torch.randn(2, keys, width), torch.eye(width)[:keys]
        options = {"need_weights": need_weights, "is_causal": is_causal}
        options["attn_mask"] = torch.ones(queries, keys, dtype=torch.bool).triu(1) if is_causal else None
        if padded:
            options["key_padding_mask"] = torch.arange(keys) >= torch.tensor([[keys], [max(1, keys - 2)]])
        with regard.watch(attention) as result, torch.no_grad():
            output, _ = attention(query, key, value.expand(2, -1, -1), **options)
        weights = result.layers[0].weights
        expected = output[..., :keys] if not has_bias else output[..., [*range(keys), 7]]
        torch.testing.assert_close(weights.dense()[:, 0, :, : expected.shape[2]], expected, atol=1e-6, rtol=1e-5)
        assert weights.request.offset == keys - queries


def test_a_causal_hint_replaces_the_mask_as_in_torch():
    attention = nn.MultiheadAttention(8, 1, batch_first=True).eval()
    x, everything = torch.randn(1, 4, 8), torch.zeros(4, 4, dtype=torch.bool)
    for need_weights in (False, True):
        with regard.watch(attention) as result, torch.no_grad():
            attention(x, x, x, attn_mask=everything, is_causal=True, need_weights=need_weights)
        assert bool(result.layers[0].weights.dense().triu(1).any()) is need_weights


def test_static_keys_of_multi_head_attention_forward():
    torch.manual_seed(0)

    class Static(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, query, key, value, **static):
            attention = self.attention
            projections = attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0
            out_proj = attention.out_proj.weight, attention.out_proj.bias
            return functional.multi_head_attention_forward(
                query, key, value, 8, 2, *projections, *out_proj, average_attn_weights=False, **static
            )

    model, query, key = Static().eval(), torch.randn(3, 2, 8), torch.randn(5, 2, 8)
    with regard.watch(model, keep_values=True) as result, torch.no_grad():
        static = {"static_k": torch.randn(4, 6, 4), "static_v": torch.randn(4, 6, 4)}
        _, expected = model(query, key, key, **static)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected)
    assert torch.equal(result.layers[0].value, static["static_v"].view(2, 2, 6, 4))


@pytest.mark.parametrize("memory_is_causal", [False, True])
def test_decoder_layers_of_torch(memory_is_causal):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerDecoder(layer, 1).eval()
    for target, source in SIZES:
        masks = [torch.full(size, -torch.inf).triu(1) for size in ((target, target), (target, source))]
        options = {"tgt_mask": masks[0], "tgt_is_causal": True}
        options |= {"memory_mask": masks[1], "memory_is_causal": True} if memory_is_causal else {}
        x, memory = torch.randn(2, target, 8), torch.randn(2, source, 8)
        with regard.watch(model) as result, torch.no_grad():
            model(x, memory, **options)
        attention, cross = model.layers[0].self_attn, model.layers[0].multihead_attn
        with torch.no_grad():
            query = model.layers[0].norm1(x + attention(x, x, x, attn_mask=masks[0])[0])
            of_memory = masks[1] if memory_is_causal else None
            expected = [
                attention(x, x, x, attn_mask=masks[0], average_attn_weights=False)[1],
                cross(query, memory, memory, attn_mask=of_memory, average_attn_weights=False)[1],
            ]
        for recorded, weights in zip(result.layers, expected, strict=True):
            torch.testing.assert_close(recorded.weights.dense(), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
def test_encoder_layers_of_torch_which_have_a_fast_path(is_causal):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    attention = model.layers[0].self_attn
    for tokens in range(1, 7):
        x = torch.randn(2, tokens, 8)
        mask = torch.full((tokens, tokens), -torch.inf).triu(1) if is_causal else None
        with torch.no_grad():
            plain = model(x, mask=mask, is_causal=is_causal)
            with regard.watch(model) as result:
                torch.testing.assert_close(model(x, mask=mask, is_causal=is_causal), plain)
            _, expected = attention(x, x, x, attn_mask=mask, average_attn_weights=False)
        torch.testing.assert_close(result.layers[0].weights.dense(), expected, atol=1e-6, rtol=1e-5)


class Cached(nn.Module):
    """Two attention layers with a KV cache, written by hand."""

    def __init__(self, num_layers=2):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(8, 24) for _ in range(num_layers))
        self.calls = nn.ModuleList(Call() for _ in range(num_layers))
        self.cache = [None] * num_layers

    def forward(self, x, **options):
        for number, (project, call) in enumerate(zip(self.projections, self.calls, strict=True)):
            query, key, value = project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            if self.cache[number] is not None:
                key, value = (torch.cat(pair, 2) for pair in zip(self.cache[number], (key, value), strict=True))
            self.cache[number] = key, value
            x = x + call(query, key, value, is_causal=query.shape[2] > 1).transpose(1, 2).flatten(2)
        return x


@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("keep_qk", [True, False])
def test_steps_of_a_cache_join(prompt, keep_qk):
    torch.manual_seed(0)
    model, x, measures = Cached(), torch.randn(2, 7, 8), ["entropy", "received", "mean_distance"]
    with regard.watch(model) as full, torch.no_grad():
        expected = model(x)
    model.cache = [None] * 2
    with regard.watch(model, measures, positions="last", keep_qk=keep_qk) as result, torch.no_grad():
        outputs = [model(part) for part in x.split([prompt, *[1] * (7 - prompt)], 1)]
    torch.testing.assert_close(torch.cat(outputs, 1), expected)
    assert len(result.recordings) == 1
    for one, other in zip(result.layers, full.layers, strict=True):
        if keep_qk:
            torch.testing.assert_close(one.weights.dense(), other.weights.dense())
        for name, measured in other.weights.measure(*measures).items():
            torch.testing.assert_close(one.measured[name], measured, msg=name)


def test_by_default_each_step_is_a_matrix_with_the_last_position():
    model, x = Cached(), torch.randn(1, 5, 8)
    with regard.watch(model, "mean_distance") as result, torch.no_grad():
        for part in x.split([3, 1, 1], 1):
            model(part)
    assert [tuple(each.layers[0].weights.shape[2:]) for each in result.recordings] == [(3, 3), (1, 4), (1, 5)]
    last = result.layers[0]
    distance = (4 - torch.arange(5)).abs()
    torch.testing.assert_close(last.measured["mean_distance"], (last.weights.dense() * distance).sum(-1))


def test_steps_within_one_forward_join():
    model = Cached(1)
    loop = nn.Module()
    loop.model, x = model, torch.randn(1, 5, 8)
    loop.forward = lambda x: torch.cat([model(part) for part in x.split([2, 1, 1, 1], 1)], 1)
    with regard.watch(loop, positions="last") as result, torch.no_grad():
        output = loop(x)
    assert [layer.name for layer in result.layers] == ["model.calls.0"]
    model.cache = [None]
    with regard.watch(model) as full, torch.no_grad():
        torch.testing.assert_close(model(x), output)
    torch.testing.assert_close(result.layers[0].weights.dense(), full.layers[0].weights.dense())


def test_another_text_with_as_many_keys_does_not_join():
    model = Call()
    with regard.watch(model, positions="last") as result:
        model(*torch.randn(3, 1, 1, 3, 4))
        model(torch.randn(1, 1, 1, 4), *torch.randn(2, 1, 1, 4, 4))
    assert [tuple(each.layers[0].weights.shape[2:]) for each in result.recordings] == [(3, 3), (1, 4)]


def test_the_interface_of_transformers_without_a_mask_of_its_own():
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class Attention(nn.Module):
        is_causal = True

        def forward(self, *tensors):
            return ALL_ATTENTION_FUNCTIONS["sdpa"](self, *tensors, None)[0]

    class Model(transformers.PreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.attention = Attention()

        def forward(self, *tensors):
            return self.attention(*tensors)

    model = Model(transformers.PretrainedConfig())
    for queries, keys in SIZES:
        query, key, value = torch.randn(1, 2, queries, 8), torch.randn(1, 2, keys, 8), torch.eye(keys)
        with regard.watch(model) as result:
            output = model(query, key, value.expand(1, 2, keys, keys))
        weights = result.layers[0].weights
        torch.testing.assert_close(weights.dense(), output.transpose(1, 2), msg=f"{queries} queries, {keys} keys")
        assert weights.request.offset == keys - queries


def test_steps_of_cross_attention_have_the_positions_of_their_rows():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **tokens)).eval()
    with regard.watch(model, "mean_distance") as result:
        model.generate(torch.tensor([[5, 6, 7, 8]]), max_new_tokens=4, do_sample=False)
    for layer in result.layers:
        expected = layer.weights.measure("mean_distance")["mean_distance"]
        torch.testing.assert_close(layer.measured["mean_distance"], expected)
