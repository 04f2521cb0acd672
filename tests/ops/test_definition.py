"""The oracle agrees with torch, scipy, numpy and transformers, and shares no code with the library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
import torch
from torch import nn
from torch.nn import functional as F
from transformers import T5Config, Wav2Vec2BertConfig
from transformers.masking_utils import packed_sequence_mask_function, sliding_window_causal_mask_function
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from helpers.ops import dense_reference as d
from helpers.ops.cases import MASKS, allowed

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 9, 14, 8
SHAPE = BATCH, HEADS, QUERIES, KEYS


def tensors(kv_heads=HEADS, queries=QUERIES, keys=KEYS):
    random = torch.Generator().manual_seed(0)
    sizes = (HEADS, queries), (kv_heads, keys), (kv_heads, keys)
    return [torch.randn(BATCH, *size, DIM, generator=random, dtype=torch.float64) for size in sizes]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def equal(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=1e-12, atol=1e-12)


def dense_results(mask="causal", offset=KEYS - QUERIES):
    _, weights, scores, actual = d.definition(*tensors(), allowed(mask, *SHAPE, offset), offset)
    return weights, scores, {name: parts[0] for name, parts in actual.items()}


def test_the_definition_imports_nothing_but_torch():
    imported = set()
    for node in ast.walk(ast.parse(Path(d.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
    assert "torch" in imported
    assert imported - {"torch"} <= sys.stdlib_module_names - {"importlib"}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_output_is_that_of_scaled_dot_product_attention(kv_heads, subtests):
    query, key, value = tensors(kv_heads)
    for mask in MASKS:
        with subtests.test(mask=mask):
            cells = allowed(mask, *SHAPE, 5)
            actual, *_ = d.definition(query, key, value, cells, 5)
            expected = F.scaled_dot_product_attention(query, key, value, attn_mask=cells, enable_gqa=True)
            equal(actual, expected.where(cells.any(-1, keepdim=True), 0.0))


@pytest.mark.parametrize("scale", [0.3, -0.7])
def test_the_scale_is_that_of_scaled_dot_product_attention(scale):
    query, key, value = tensors()
    bias = torch.randn(HEADS, QUERIES, KEYS, dtype=torch.float64)
    cells = torch.ones(SHAPE, dtype=torch.bool)
    actual, *_ = d.definition(query, key, value, cells, 5, lambda q, k, distance: d.dot(q, k, scale) + bias)
    equal(actual, F.scaled_dot_product_attention(query, key, value, attn_mask=bias.expand(SHAPE), scale=scale))


def test_the_weights_are_those_of_multihead_attention():
    reference = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True, dtype=torch.float64)
    x, y = (torch.randn(BATCH, tokens, HEADS * DIM, dtype=torch.float64) for tokens in (QUERIES, KEYS))
    to_query, to_key, _ = reference.in_proj_weight.chunk(3)
    query, key = (
        (part @ weight.mT).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for part, weight in ((x, to_query), (y, to_key))
    )
    lengths = torch.tensor([KEYS, 6])
    padding = torch.arange(KEYS) >= lengths[:, None]
    hidden = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(6)
    _, expected = reference(x, y, y, key_padding_mask=padding, attn_mask=hidden, average_attn_weights=False)
    at = d.grid(*SHAPE, 5)
    _, actual, _, _ = d.definition(query, key, key, (d.causal(at) & d.shorter(at, lengths)).expand(SHAPE), 5)
    equal(actual, expected)


@pytest.mark.parametrize("offset", [-50, -6, 0, 5, 50])
def test_masks_are_those_of_torch_transformers_and_scipy(offset):
    at = d.grid(*SHAPE, offset)
    ones = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    assert torch.equal(d.causal(at), ones.tril(offset))
    assert torch.equal(d.window(at, 4, 2), ones.triu(offset - 4) & ones.tril(offset + 2))
    assert torch.equal(d.window(at, None, -1), ones.tril(offset - 1))
    assert torch.equal(d.window(at, -1, None).expand_as(ones), ones.triu(offset + 1))
    sliding = sliding_window_causal_mask_function(5)(0, 0, at.position, at.key)
    assert torch.equal(d.window(at, 4, 0), sliding)
    ids = torch.tensor([0] * 3 + [1] * 6 + [2] * 5)
    inside = (at.position >= 0) & (at.position < KEYS)
    same = packed_sequence_mask_function(ids[None])(0, 0, at.position.clamp(0, KEYS - 1), at.key) & inside
    assert torch.equal(d.same_document(d.at_position(at, ids), ids[None])[0, 0], same)
    lengths = torch.tensor([3, KEYS])
    padded = nn.utils.rnn.pad_sequence([torch.ones(length) for length in lengths], batch_first=True).bool()
    assert torch.equal(d.shorter(at, lengths)[:, 0, 0], padded)


def test_edges_and_ranges_are_those_of_scipy_and_of_slices():
    at = d.grid(*SHAPE, 0)
    edges = torch.tensor([[3, 0, 3, 8, 0], [13, 0, 13, 2, 5]])
    links = scipy.sparse.coo_array((np.ones(5), tuple(edges.numpy())), (QUERIES, KEYS)).toarray() > 0
    assert torch.equal(d.linked(at, edges), torch.from_numpy(links))
    starts, stops = torch.randint(0, KEYS + 1, (2, BATCH, 1, QUERIES, 2), generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    for *row, number in np.ndindex(*starts.shape):
        expected[tuple(row)][starts[(*row, number)] : stops[(*row, number)]] = True
    assert torch.equal(d.in_ranges(at, starts, stops), expected)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("count", "farthest"), [(8, 20), (6, 128), (32, 128)])
def test_buckets_are_those_of_t5(count, farthest, bidirectional):
    reference = T5Attention._relative_position_bucket(torch.arange(-800, 801), bidirectional, count, farthest)
    assert [
        d.t5_bucket(distance, count, farthest, bidirectional) for distance in range(-800, 801)
    ] == reference.tolist()
    config = T5Config(
        d_model=HEADS * DIM, num_heads=HEADS, d_kv=DIM, relative_attention_num_buckets=count,
        relative_attention_max_distance=farthest, is_decoder=not bidirectional,
    )  # fmt: skip
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    distance = torch.arange(KEYS) - torch.arange(KEYS)[:, None]
    actual = d.t5_bias(module.relative_attention_bias.weight, distance, farthest, bidirectional)
    equal(actual, module.compute_bias(KEYS, KEYS)[0])


@pytest.mark.parametrize("heads", [4, 6])
def test_alibi_is_that_of_bloom(heads):
    reference = build_alibi_tensor(torch.ones(1, KEYS), heads, torch.float64)[:, 0]  # slope · key, by head
    actual = d.alibi(reference[:, 1], torch.arange(KEYS) - (KEYS - 1))  # to the last query every key is in the past
    equal(actual[:, 0] - actual[:, 0, -1:], reference - reference[:, -1:])


def test_relative_positions_are_those_of_wav2vec2_bert():
    config = Wav2Vec2BertConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        left_max_position_embeddings=5, right_max_position_embeddings=5,
    )  # fmt: skip
    reference = Wav2Vec2BertSelfAttention(config).eval().double()
    x = torch.randn(BATCH, KEYS, HEADS * DIM, dtype=torch.float64)
    query, key = (f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (reference.linear_q, reference.linear_k))
    table, scale = reference.distance_embedding.weight, DIM**-0.5
    cells = torch.ones(BATCH, HEADS, KEYS, KEYS, dtype=torch.bool)
    _, actual, *_ = d.definition(
        query, key, key, cells, 0, lambda q, k, distance: d.dot(q, k, scale) + d.relative(q, table, distance, scale)
    )
    equal(actual, reference(x, output_attentions=True)[1])
    distance = torch.arange(KEYS) - torch.arange(KEYS)[:, None]
    of_heads = d.relative(query, table.expand(HEADS, -1, -1), distance, scale)
    equal(of_heads, d.relative(query, table, distance, scale))


def test_soft_cap_and_sinks_are_those_of_gemma_and_gpt_oss():
    query, key, value = tensors()
    hidden = ~allowed("causal", *SHAPE, 5)
    bias = torch.zeros(SHAPE, dtype=torch.float64).masked_fill(hidden, -torch.inf)
    sinks = torch.randn(HEADS, dtype=torch.float64)
    module = SimpleNamespace(num_key_value_groups=1, training=False, sinks=sinks)
    output, expected = modeling_gpt_oss.eager_attention_forward(module, query, key, value, bias, scaling=0.3)
    actual = d.definition(query, key, value, ~hidden, 5, lambda q, k, distance: d.dot(q, k, 0.3), sinks)
    equal(actual[0], output.transpose(1, 2))
    equal(actual[1], expected)
    capped = modeling_gemma2.eager_attention_forward(module, query, key, value, bias, scaling=0.3, softcap=2.0)[1]
    result, _ = d.softmax(d.soft_cap(query @ key.mT * 0.3, 2.0), ~hidden)
    torch.testing.assert_close(result, capped, rtol=1e-6, atol=1e-6)  # as their softmax is in float32


def test_bilinear_additive_and_cosine_scores_are_those_of_torch():
    query, key, _ = tensors()
    rows, columns = (x.expand(*SHAPE, DIM).flatten(0, 3) for x in (query[:, :, :, None], key[:, :, None]))
    weight, vector = torch.randn(DIM, DIM, dtype=torch.float64), torch.randn(DIM, dtype=torch.float64)
    equal(d.bilinear(query, key, weight, 0.3).flatten(), 0.3 * F.bilinear(rows, columns, weight[None])[:, 0])
    for each in (vector, vector.expand(HEADS, -1)):
        equal(d.additive(query, key, each, 0.3, F.tanh).flatten(), 0.3 * F.linear(F.tanh(rows + columns), vector))
    twos = torch.full((HEADS,), 2.0, dtype=torch.float64)
    actual = d.cosine(1e6 * query, 1e6 * key, twos)  # of vectors so long that what is added to their squares is lost
    equal(actual.flatten(), 2 * F.cosine_similarity(rows, columns))


def test_entropy_and_log_sum_exp_are_those_of_scipy():
    weights, scores, actual = dense_results()
    equal(actual["entropy"], scipy.stats.entropy(weights.numpy(), axis=-1))
    equal(actual["lse"], scipy.special.logsumexp(scores.numpy(), axis=-1))
    equal(weights, scipy.special.softmax(scores.numpy(), axis=-1))


@pytest.mark.parametrize("offset", [-6, 0, 5, 7])
@pytest.mark.parametrize("mask", ["none", "causal", "empty rows", "lengths"])
def test_measures_are_those_of_torch_and_numpy(mask, offset):
    weights, scores, actual = dense_results(mask, offset)
    numbers = d.numbers_of_measures(QUERIES, KEYS)
    distance = np.arange(KEYS) - np.arange(QUERIES)[:, None] - offset
    equal(actual["received"], np.add.reduce(weights.numpy(), 2))
    equal(actual["received of some"], numbers["received of some"] @ weights)
    equal(actual["topk"], weights.topk(3).values)
    equal(actual["max"], weights.max(-1).values)
    equal(actual["mean_distance"], np.einsum("bhqk,qk->bhq", weights, abs(distance)))
    size = numbers["block_mean"]
    equal(actual["block_mean"], F.avg_pool2d(weights, size, ceil_mode=True, count_include_pad=False))
    diagonal = torch.zeros(SHAPE[:3], dtype=torch.float64)
    for i in range(QUERIES):
        j = i + offset - 1
        diagonal[..., i] = weights[..., i, j] if 0 <= j < KEYS else 0
        for b, h in np.ndindex(BATCH, HEADS):
            row = weights[b, h, i].numpy()
            histogram, _ = np.histogram(distance[i].clip(-3, 3), np.arange(-3.5, 4), weights=row)
            equal(actual["distance_histogram"][b, h, i], histogram)
            equal(actual["mass"][b, h, i], row[distance[i] < -2].sum() + row[distance[i] > 1].sum())
    equal(actual["diagonal"], diagonal)
    equal(actual["squares"], weights.square() @ numbers["squares"])
    equal(actual["total"], (weights.nan_to_num() * scores.clamp(min=-1e9)).sum((-1, -2)))


def test_groups_are_words():
    weights, _, actual = dense_results("none")
    of_query, of_key = d.numbers_of_measures(QUERIES, KEYS)["group_pool"]
    for word in range(int(of_query.max()) + 1):
        for other in range(int(of_key.max()) + 1):
            rows = [i for i in range(QUERIES) if of_query[i] == word]
            columns = [j for j in range(KEYS) if of_key[j] == other]
            equal(actual["group_pool"][..., word, other], weights[:, :, rows][..., columns].sum(-1).mean(-1))


def test_gradients_are_those_of_finite_differences():
    query, key, value = (x[:1, :2, :5].clone().requires_grad_() for x in tensors())
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)
    cells = allowed("empty rows", 1, 2, 5, 5, 0) & allowed("causal", 1, 2, 5, 5, 0)

    def function(query, key, value, sinks):
        output, weights, _, actual = d.definition(query, key, value, cells, 0, None, sinks)
        return output, weights, *(actual[name][0] for name in ("entropy", "lse", "received", "topk", "total"))

    assert torch.autograd.gradcheck(function, (query, key, value, sinks))
