"""``torch.set_default_device`` says where new tensors go, not where a call computes: that is where its tensors are."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.analysis.head_scores import repeated_random_tokens
from regard.diagnostics.cases import CASES
from regard.models import Bert, BertConfig
from regard.ops.kernels.dispatch import KERNELS

CPU_KERNELS = [kernel for kernel in KERNELS if kernel.devices is None or "cpu" in kernel.devices]
OTHER = torch.device("meta")  # what is on it has no numbers


@pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda kernel: kernel.name)
def test_each_kernel_computes_where_its_tensors_are(kernel, subtests):
    count = 0
    for case in CASES[:: 1 if kernel.name in ("native", "sparse") else 3]:
        call = case.call(torch.float32).to(torch.float32).with_measures_of(kernel)
        if any(kernel.unsupported_reasons(call.inputs())):
            continue
        count += 1
        expected = call.results(kernel)
        with subtests.test(case=case.name), OTHER:
            actual = call.to(torch.float32).results(kernel)
            for name, each in expected.items():
                assert actual[name].device.type == "cpu", name
                assert torch.equal(actual[name].nan_to_num(), each.nan_to_num()), name
    assert count > 2


READS = {
    "row": lambda W, X: W[0, 1, 3],
    "cells": lambda W, X: W[[0, 0], [1, 0], [2, 5], [1, 3]],
    "at": lambda W, X: W.at(heads=[1], queries=[3, 4]).entropy(),
    "columns": lambda W, X: W.sum(-2),
    "top keys": lambda W, X: W.topk(3).values,
    "product": lambda W, X: W.mT @ X,
    "blocks": lambda W, X: W.measure(regard.BlockMean(8))["block_mean"],
    "singular values": lambda W, X: W.singular_values(2),
    "entropy of the spectrum": lambda W, X: W.spectral_entropy(),
}


@pytest.mark.parametrize("read", READS)
def test_a_matrix_is_read_where_it_is(read):
    query, key, other = torch.randn(3, 1, 2, 40, 8).unbind()
    W = regard.weights(query, key, mask=regard.Causal())
    expected = READS[read](W, other)
    with OTHER:
        actual = READS[read](W, other)
    assert actual.device.type == "cpu"
    torch.testing.assert_close(actual, expected)


def test_recordings_are_analyzed_where_they_are():
    model = Bert(BertConfig(vocab_size=20, d_model=16, num_layers=2, num_heads=2, d_ff=16)).eval()
    words = ["the", "cat", "sat", "on", "the", "mat"] * 3
    with torch.no_grad(), regard.watch(model) as watched:
        model(torch.arange(18)[None])
    recording = watched.recordings[-1].select(0, tokens=words)
    layer = recording.layers[0]

    def analyses():
        scores = regard.analysis.head_scores(recording)
        return [
            regard.analysis.rollout(recording.layers),
            regard.analysis.flow(recording.layers, queries=[3]),
            *(torch.tensor(scores[name], device="cpu") for name in ("entropy", "induction", "duplicate_token")),
            torch.tensor(repeated_random_tokens(range(30), 8), device="cpu"),
            layer.weights.mean(1)[0, 4],
        ]

    expected = analyses()
    with OTHER:
        actual = analyses()
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
