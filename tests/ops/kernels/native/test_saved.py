"""A backward call uses the log-sum-exp of the forward pass, and gives the same gradients without it."""

from __future__ import annotations

import pytest
import torch

from regard.native.library import Library, library
from regard.ops import attend
from regard.ops.masks import Causal, Padding
from regard.ops.scores import ScaledDotProduct, Sinks

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")

RULES = {
    "causal": {"mask": Causal()},
    "rows without keys": {"mask": Padding(torch.tensor([150, 0]))},
    "sinks": {"score": Sinks(ScaledDotProduct(), torch.linspace(-1, 1, 4))},
    "dropout": {"dropout": 0.3},
}


def gradients(inputs, measures, saved, monkeypatch, dtype=torch.float32, kernel="native", **rules):
    """The gradients where `saved` replaces the saved log-sum-exp; of the library's choice if it is None."""
    torch.manual_seed(0)
    leaves = [tensor.to(dtype).detach().requires_grad_() for tensor in inputs]
    att = attend(*leaves, measure=["lse", *measures], kernel=kernel, **rules)
    weights = torch.linspace(-1, 1, att.output.numel(), dtype=dtype).view(att.output.shape)
    loss = (att.output * weights).sum()
    loss = loss + sum((att.measured[name] * att.measured[name].detach().sin()).sum() for name in measures)
    lse = None if saved is None else saved(att.measured["lse"].detach())
    run = Library.run

    def run_with_saved(self, call, backward=False):
        if backward and saved is not None:
            call.saved_lse = None if lse is None else lse.data_ptr()
        run(self, call, backward)

    with monkeypatch.context() as patch:
        patch.setattr(Library, "run", run_with_saved)
        return torch.autograd.grad(loss, leaves)


@pytest.fixture
def inputs():
    random = torch.Generator().manual_seed(0)
    shapes = (2, 4, 150, 24), (2, 2, 150, 24), (2, 2, 150, 40)
    return [3 * torch.randn(shape, generator=random) for shape in shapes]


@pytest.mark.parametrize("keep", [lambda lse: lse, lambda lse: None], ids=["saved", "computed again"])
@pytest.mark.parametrize("measures", [[], ["entropy", "received"]], ids=["output", "measures"])
@pytest.mark.parametrize("rules", RULES)
def test_gradients_from_saved_tensors(inputs, measures, rules, keep, monkeypatch):
    saved = gradients(inputs, measures, keep, monkeypatch, **RULES[rules])
    if rules == "dropout":  # another kernel may drop other weights
        exact = gradients(inputs, measures, None, monkeypatch, **RULES[rules])
    else:
        exact = gradients(inputs, measures, None, monkeypatch, torch.float64, "reference", **RULES[rules])
    for actual, expected in zip(saved, exact, strict=True):
        assert (actual - expected).abs().max() <= 5e-6 * expected.abs().max()


def test_saved_tensors_are_used(inputs, monkeypatch):
    exact = gradients(inputs, [], None, monkeypatch)
    wrong_lse = gradients(inputs, [], lambda lse: lse + 200, monkeypatch)
    assert (wrong_lse[0] - exact[0]).abs().max() > 0.1 * exact[0].abs().max()
