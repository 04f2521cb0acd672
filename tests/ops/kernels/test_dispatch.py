"""Which kernel serves a job, and what is said where none can."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, KernelNotSupported
from regard.ops import Causal, Neighbours, Window, attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import KERNELS, choose
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.measures import Entropy
from regard.ops.request import make_request

SMALL = torch.zeros(1, 2, 5, 4)


def job(measures=(), value=SMALL, **rules):
    return KernelInputs(make_request(SMALL, SMALL, **rules), value, dict(measures))


def test_the_first_without_objection_runs():
    assert choose(job()).name == "sdpa"
    assert choose(job(mask=Causal())).name == "sdpa"
    assert choose(job({"entropy": Entropy()})).name == "blockwise"
    assert choose(job({"entropy": Entropy()}, value=None)).name == "blockwise"
    long = torch.zeros(1, 1, 3000, 4)
    assert choose(KernelInputs(make_request(long, long, mask=Window(5, 0)), long, {})).name == "blockwise"


@pytest.mark.parametrize("name", [kernel.name for kernel in KERNELS])
def test_a_kernel_can_be_forced(name):
    query, nodes = SMALL.clone().requires_grad_(), torch.arange(SMALL.shape[2])
    graph = Neighbours(torch.stack((nodes[:1], nodes[:1])))
    mask = graph if name == "sparse" else None
    assert choose(KernelInputs(make_request(query, SMALL, mask=mask), SMALL, {}), name).name == name


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(
        InvalidArgument, match=r"unknown name 'streamd', did you mean 'blockwise'\? \(known: edges, short, fused, str"
    ):
        attend(SMALL, SMALL, SMALL, kernel="streamd")


def test_a_refusal_prints_all_reasons():
    class Narrow(Sdpa):
        devices = ("cuda",)
        dtypes = (torch.float16,)

    reasons = list(Narrow().why_not(job({"entropy": Entropy()})))
    assert reasons == [
        "it runs on cuda, the tensors lie on cpu",
        "it does not take torch.float32",
        "it cannot measure entropy",
    ]
    with pytest.raises(KernelNotSupported, match="cannot measure entropy"):
        choose(job({"entropy": Entropy()}), "sdpa")


@pytest.mark.parametrize(("heads", "kv_heads", "value_heads"), [(6, 3, 2), (12, 4, 6), (12, 6, 4), (6, 1, 3)])
def test_heads_of_keys_and_of_values_may_be_shared_by_different_numbers(heads, kv_heads, value_heads):
    torch.manual_seed(0)
    shapes = ((heads, 30), (kv_heads, 20), (value_heads, 20))
    given = [torch.randn(2, count, tokens, 4, dtype=torch.float64, requires_grad=True) for count, tokens in shapes]
    graph = Neighbours(torch.randint(0, 20, (2, 60)))
    found, expected = (attend(*given, mask=graph, kernel=kernel).output for kernel in ("sparse", "reference"))
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(output.square().sum(), given) for output in (found, expected))
    torch.testing.assert_close(ours, theirs)
