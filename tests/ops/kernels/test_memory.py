"""At 16,384 keys the matrix of one head alone is 1 GiB. Everything here fits into 1 GB with the gradients."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ops.rules import masks, measures

TESTS = Path(__file__).parents[2]

SCRIPT = """
    import resource, sys
    sys.path.insert(0, {tests!r})
    import torch
    from ops.rules import masks, measures
    from regard.ops import attend

    torch.set_num_threads(1)
    n = 16384
    query, key, value = (torch.randn(1, 1, n, dim).requires_grad_() for dim in (16, 16, {value_dim}))
    rule, asked = masks(1, 1, n, n)[{mask!r}], {{name: m for name, m in measures(n).items() if name in {names!r}}}
    # What is started once is not counted.
    attend(query[:, :, :64], key[:, :, :64], value[:, :, :64], kernel="streamed").output.sum().backward()
    held = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + 10**9, held + 10**9))
    att = attend(query, key, value, mask=rule, measure=asked, dropout={dropout})
    loss = att.output.square().sum() + (att.weights @ torch.randn(n)).square().sum()
    for answer in att.measured.values():
        answer = answer.values if isinstance(answer, tuple) else answer
        loss = loss + answer.clamp(min=-9).square().sum()
    loss.backward()
    assert all(torch.isfinite(x.grad).all() for x in (query, key, value))
    print("ran", att.weights.shape[-1])
    if {dense!r}:
        att.weights.dense(limit=n * n)
"""


def run(
    mask: str, names: tuple[str, ...], *, dense: bool = False, dropout: float = 0.0, value_dim: int = 16
) -> subprocess.CompletedProcess[str]:
    script = textwrap.dedent(SCRIPT).format(
        tests=str(TESTS), mask=mask, names=names, dense=dense, dropout=dropout, value_dim=value_dim
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to so much memory")
@pytest.mark.parametrize("mask", sorted(masks(1, 1, 1, 1).keys() - {"dense"}))  # which is itself a matrix
def test_forward_and_backward_fit_where_the_matrix_would_not(mask):
    done = run(mask, tuple(measures(1)))
    assert done.stdout == "ran 16384\n", done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to so much memory")
@pytest.mark.parametrize("given", [{}, {"dropout": 0.1}, {"value_dim": 8}], ids=str)
def test_so_does_the_output_alone(given):
    assert run("none", (), **given).stdout == "ran 16384\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to so much memory")
def test_the_matrix_itself_does_not_fit():
    done = run("none", (), dense=True)
    assert done.stdout.startswith("ran")
    assert done.returncode != 0
    assert "memory" in done.stderr
