"""The host never waits for the GPU: it reads no value of a tensor, and copies nothing between devices."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.ops.cases import SCORES, masks, masks_of, measures, scores_of
from helpers.pairwise import each_value, everything
from regard.ops import attend, weights
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.tree import map_tensors

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not (sys.platform == "linux" and os.environ.get("CI") == "true"),
    reason="Triton is not installed",
)
SHAPE = 2, 4, 31, 37
META = torch.device("meta")
READ_ITS_VALUES = {"group_pool"}
"""Measures whose result has as many groups as their tensors say."""


class Prepared(Triton):
    """Prepares its launches, and launches nothing; on the meta device, on which no value can be read."""

    devices = ("meta",)

    def __init__(self):
        super().__init__()
        self.launched = []
        self._launcher = lambda kernel, programs, args, options: self.launched.append(kernel.__name__)

    def unavailable_reason(self):
        return None

    def run(self, inputs):
        return self.run_eager(inputs)


class OnOneDevice(TorchDispatchMode):
    """Fails at a tensor on a CPU, except for an empty one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [each for each in (*args, result) if isinstance(each, torch.Tensor)]
        assert all(tensor.device == META or not tensor.numel() for tensor in tensors), function.name()
        return result


@pytest.mark.parametrize("mode", [nullcontext, OnOneDevice])
def test_no_value_is_read_and_nothing_is_copied(mode, subtests):
    kernel = Prepared()
    scores = [name for name in scores_of(kernel) if name not in ("bias of keys alone", "relative of heads")]
    cases = each_value(masks_of(kernel), scores)
    for mask, score in cases if everything() or mode is nullcontext else cases[::4]:
        with subtests.test(mask=mask, score=score):
            kernel.launched.clear()
            check_call(kernel, mask, score, mode)
            assert {"forward", "sweep_rows", "sweep_columns", "backward_queries", "backward_keys"} <= {*kernel.launched}


def check_call(kernel, mask, score, mode):
    """A call with dropout and all measures, its gradients, and what is read from its weights."""
    batch, heads, queries, keys = SHAPE
    rule = map_tensors(masks(*SHAPE)[mask], lambda tensor: tensor.to(META))
    parts = SCORES[score].tensors(heads, queries, keys, 8)
    tensors = {name: each.to(META, torch.float32).requires_grad_() for name, each in parts.items()}
    requested = {
        name: map_tensors(each, lambda tensor: tensor.to(META))
        for name, each in measures(queries, keys).items()
        if kernel.supports(type(each)) and name not in READ_ITS_VALUES
    }
    shapes = (batch, heads, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 5)
    leaves = [torch.empty(shape, device=META, requires_grad=True) for shape in shapes]
    rules = {"mask": rule, "score": SCORES[score].rule(tensors), "kernel": kernel}
    with mode():
        att = attend(*leaves, **rules, measure=requested, dropout=0.1)
        results = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
        results = [att.output, *(part for part in results if part.is_floating_point())]
        torch.autograd.grad(results, [*leaves, *tensors.values()], [*map(torch.ones_like, results)], allow_unused=True)
        W = weights(*leaves[:2], **rules)
        W.entropy(), W.received(), W.dense(), W[0, 1], W[:, 2, 3:6], W @ leaves[2], W.mT @ leaves[0]
