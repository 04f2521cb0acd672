"""Gradients of the weights of 4,096 tokens, in a process that gets no more than some memory."""

from __future__ import annotations

import resource
import sys

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.recordings.layer import LayerList

TOKENS = 4096


class Model(nn.Module):
    """Two layers of attention. The weights of one would take 256 MiB."""

    def forward(self, query, key, value):
        for _ in range(2):
            query = query + scaled_dot_product_attention(query, key, value)
        return query


def record(limit: int) -> LayerList:
    """The layers of a model after a backward pass; from the forward pass on, memory is limited."""
    torch.manual_seed(0)
    model, inputs = Model(), [torch.randn(1, 4, TOKENS, 16) for _ in range(3)]
    with regard.watch(model, weight_gradients=True):  # what is allocated once per process does not count
        model(*(each[:, :, :64] for each in inputs)).sum().backward()
    with open("/proc/self/status") as status:
        used = int(next(line for line in status if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
    with regard.watch(model, weight_gradients=True) as result:
        model(*inputs)[0, 1, -1].sum().backward()
    torch.set_grad_enabled(False)
    return result.layers


def read(limit: int) -> None:
    """Write ``ran`` to standard error if what is linear fits, and then compute a dense matrix."""
    for layer in record(limit):
        product = layer.weights.grad * layer.weights
        assert product[0, :, -1].topk(3).values.isfinite().all()
        for matrix in (layer.weights.grad, product):
            assert matrix.sum(-1).isfinite().all()
            assert (matrix @ torch.ones(TOKENS)).isfinite().all()
            assert (matrix.mT @ torch.ones(TOKENS)).isfinite().all()
            assert matrix.topk(3).values.isfinite().all()
    print("ran", file=sys.stderr, flush=True)
    product.dense()


def relevance_of_row(limit: int) -> None:
    """Write ``ran`` to standard error if the relevance of one query fits."""
    layers = record(limit)
    assert regard.analysis.relevance(layers, queries=-1).isfinite().all()
    for fusion in ("mean", "max"):
        assert regard.analysis.rollout(layers, queries=-1, head_fusion=fusion, use_gradients=True).isfinite().all()
    print("ran", file=sys.stderr, flush=True)
