"""At 8,192 keys the matrix of one head alone is 256 MiB. Everything here fits into 250 MB with the gradients.

With ``--all`` there are twice as many keys, 1 GiB and a limit of 1 GB: what takes memory per cell takes four times as
much.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.ops.cases import SCORES, masks, measures

TESTS = Path(__file__).parents[2]
ALL = os.environ.get("REGARD_TEST_ALL") == "1"
KEYS, LIMIT = (16384, 10**9) if ALL else (8192, 262 * 10**6)
STEP = 1 if ALL else 2  # each case is a process: without --all, only every second one runs

SCRIPT = """
    import resource, sys
    sys.path.insert(0, {tests!r})
    import torch
    from helpers.ops.cases import SCORES, masks, measures
    from regard.ops import attend

    torch.set_num_threads(1)
    n, rows, dim = {keys}, {rows}, 16
    shapes = (rows, dim), (n, dim), (n, {value_dim})
    query, key, value = (torch.randn(1, 1, *shape).requires_grad_() for shape in shapes)
    rule = masks(1, 1, rows, n)[{mask!r}]
    requested = {{name: m for name, m in measures(rows, n).items() if name in {names!r}}}
    case = SCORES[{score!r}]
    learned = {{name: tensor.float().requires_grad_() for name, tensor in case.tensors(1, rows, n, dim).items()}}
    # What is allocated once per process does not count.
    attend(query[:, :, :64], key[:, :, :64], value[:, :, :64], kernel="blockwise").output.sum().backward()
    used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + {limit}, used + {limit}))
    att = attend(query, key, value, mask=rule, score=case.rule(learned), measure=requested, dropout={dropout})
    loss = att.output.square().sum() + (att.weights @ torch.randn(n)).square().sum()
    for result in att.measured.values():
        for part in result if isinstance(result, tuple) else (result,):
            loss = loss + part.clamp(min=-9).square().sum() if part.is_floating_point() else loss
    loss.backward()
    assert all(torch.isfinite(x.grad).all() for x in (query, key, value, *learned.values()) if x.grad is not None)
    print("ran", att.weights.shape[-1])
    if {dense!r}:
        att.weights.dense(limit=n * n)
"""


def run(mask="none", score="scaled_dot", names=("entropy", "received"), **options) -> subprocess.CompletedProcess[str]:
    options = {"dense": False, "dropout": 0.0, "value_dim": 16, "rows": KEYS, "keys": KEYS, "limit": LIMIT} | options
    script = textwrap.dedent(SCRIPT).format(tests=str(TESTS), mask=mask, score=score, names=tuple(names), **options)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("mask", sorted(masks(1, 1, 1, 1).keys() & masks(1, 1, 2000, 2000).keys())[::STEP])
def test_every_mask_fits_where_the_matrix_does_not(mask):
    done = run(mask)
    assert done.stdout == f"ran {KEYS}\n", done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_all_measures_fit():
    done = run(names=measures(1, 1))
    assert done.stdout == f"ran {KEYS}\n", done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("score", [name for name in SCORES if name not in ("bias", "bias that forbids")][::STEP])
def test_every_score_fits_unless_it_holds_a_matrix(score):
    rows = 512 if score.startswith("additive") else KEYS  # it holds 16 numbers per cell
    done = run(score=score, rows=rows)
    assert done.stdout == f"ran {KEYS}\n", done.stderr[-2000:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"value_dim": 8}], ids=str)
def test_the_output_alone_fits(options):
    assert run(names=(), **options).stdout == f"ran {KEYS}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_the_matrix_itself_does_not_fit():
    done = run(names=(), dense=True)
    assert done.stdout.startswith("ran")
    assert done.returncode != 0
    assert "memory" in done.stderr
