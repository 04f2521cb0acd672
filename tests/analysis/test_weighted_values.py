"""Norms of weighted values against the vectors that dense attention adds up."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import attentions, built, eager
from regard.analysis import weighted_values
from regard.errors import InvalidArgument, InvalidType
from regard.ops.row_blocks import RowBlocks

pytest.importorskip("transformers")
IDS = torch.randint(3, 90, (2, 11), generator=torch.Generator().manual_seed(0))


def vectors(cells, value, projection):
    """(batch, heads, queries, keys, d_model): Pᵢⱼ f(xⱼ), one by one."""
    parts = projection.unflatten(1, (value.shape[1], -1))
    transformed = torch.einsum("bhkd,mhd->bhkm", value, parts)
    return cells[..., None] * transformed[:, :, None]


PROJECTIONS = {
    "bert": lambda model: model.encoder.layer[1].attention.output.dense.weight,
    "llama": lambda model: model.model.layers[1].self_attn.o_proj.weight,
    "gpt2": lambda model: model.transformer.h[1].attn.c_proj.weight.T,
}


@pytest.mark.parametrize("heads", [None, [3, 0]])
@pytest.mark.parametrize("name", PROJECTIONS)
def test_norms_are_those_of_the_vectors(name, heads, monkeypatch):
    blocks = RowBlocks.query_blocks
    monkeypatch.setattr(RowBlocks, "query_blocks", lambda matrix: blocks(matrix, 300))
    model = built(name).double()
    projection = PROJECTIONS[name](model).detach()
    seen = []
    handle = next(
        module
        for path, module in model.named_modules()
        if path.endswith(("1.attention.output.dense", "1.self_attn.o_proj", "h.1.attn.c_proj"))
    ).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with regard.watch(model, keep_values=True, heads=heads) as result, torch.no_grad():
        model(IDS)
    handle.remove()
    with torch.no_grad():
        cells = attentions(eager(model).double()(IDS, output_attentions=True))[1]
    with regard.watch(model, keep_values=True) as whole, torch.no_grad():
        model(IDS)
    value = whole.layers[1].value.repeat_interleave(4 // whole.layers[1].value.shape[1], 1)
    each = vectors(cells, value, projection)
    torch.testing.assert_close(each.sum((1, 3)), seen[0].flatten(2) @ projection.T, atol=1e-5, rtol=1e-5)  # the output
    expected = each.norm(dim=-1) if heads is None else each.norm(dim=-1)[:, heads]
    matrix = weighted_values(result.layers[1], projection)
    reads = {
        "dense": lambda x: x.dense() if isinstance(x, RowBlocks) else x,
        "row": lambda x: x[1, 0, 3],
        "cells": lambda x: x[:, :, [3, 5], [1, 2]],
        "sum": lambda x: x.sum(-1),
        "mean": lambda x: x.mean((1, 2)),
        "topk": lambda x: x.topk(2).values,
        "product": lambda x: x @ torch.arange(11.0, dtype=torch.float64),
        "transpose": lambda x: x.mT @ torch.arange(11.0, dtype=torch.float64),
    }
    for read in reads.values():
        torch.testing.assert_close(read(matrix), read(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        matrix.at(batch=1, heads=[1], queries=slice(2, 4)).dense(), expected[1:, [1], 2:4], atol=1e-5, rtol=1e-5
    )
    plain = weighted_values(result.layers[1])
    norms = value.norm(dim=-1) if heads is None else value.norm(dim=-1)[:, heads]
    cells = cells if heads is None else cells[:, heads]
    torch.testing.assert_close(plain.dense(), cells * norms[:, :, None], atol=1e-5, rtol=1e-5)


def test_what_is_refused():
    model = built("bert")
    with regard.watch(model) as result, torch.no_grad():
        model(IDS)
    with pytest.raises(InvalidArgument, match=r"^layer: encoder.layer.0.attention.self has no values; watch with keep"):
        weighted_values(result.layers[0])
    with regard.watch(model, keep_values=True) as result, torch.no_grad():
        model(IDS)
    with pytest.raises(
        InvalidArgument, match=r"^projection: expected shape \(d_model, heads · 8\) with more than 3 he"
    ):
        weighted_values(result.layers[0], torch.ones(32, 24))
    with pytest.raises(InvalidType, match=r"^projection: expected a tensor or None, got"):
        weighted_values(result.layers[0], "o_proj")
    with pytest.raises(InvalidType, match=r"^layer: expected a layer of a recording, got WatchResult$"):
        weighted_values(result)
