"""At 8,192 keys the matrix of one head alone is 256 MiB. Everything here fits into 250 MB with the gradients.

With ``--all`` there are twice as many keys, 1 GiB and a limit of 1 GB: what takes memory per cell takes four times as
much.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from helpers.forked import start
from helpers.ops import limited_memory
from helpers.ops.cases import SCORES, masks, measures

ALL = os.environ.get("REGARD_TEST_ALL") == "1"
KEYS, LIMIT = (16384, 10**9) if ALL else (8192, 262 * 10**6)
STEP = 1 if ALL else 3  # each case takes a second: without --all, only every third one runs


@pytest.fixture
def run(tmp_path):
    """``run(mask="causal")`` runs a call in a process with little memory; returns its exit code and output."""

    def run(mask="none", score="scaled_dot", names=("entropy", "received"), **options) -> tuple[int | None, str]:
        options = {"dense": False, "dropout": 0.0, "value_dim": 16, "rows": KEYS, "keys": KEYS} | options
        process = start(
            partial(limited_memory.run, limit=LIMIT, **options), mask, score, names, errors=tmp_path / "errors"
        )
        process.join(300)
        return process.exitcode, (tmp_path / "errors").read_text()

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("mask", sorted(masks(1, 1, 1, 1).keys() & masks(1, 1, 2000, 2000).keys())[::STEP])
def test_every_mask_fits_where_the_matrix_does_not(run, mask):
    completed = run(mask)
    assert completed == (0, f"ran {KEYS}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_all_measures_fit(run):
    completed = run(names=measures(1, 1))
    assert completed == (0, f"ran {KEYS}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("score", [name for name in SCORES if name not in ("bias", "bias that forbids")][::STEP])
def test_every_score_fits_unless_it_holds_a_matrix(run, score):
    rows = 512 if score.startswith("additive") else KEYS  # it holds 16 numbers per cell
    completed = run(score=score, rows=rows)
    assert completed == (0, f"ran {KEYS}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"value_dim": 8}], ids=str)
def test_the_output_alone_fits(run, options):
    assert run(names=(), **options) == (0, f"ran {KEYS}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_a_hessian_vector_product_fits(tmp_path):
    """Of 4,096 tokens in 4 heads, whose matrix is 256 MiB."""
    errors = tmp_path / "errors"
    process = start(partial(limited_memory.multiply_hessian, limit=LIMIT, tokens=4096, heads=4), errors=errors)
    process.join(300)
    assert (process.exitcode, errors.read_text()) == (0, "ran 4096\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_the_matrix_itself_does_not_fit(run):
    code, written = run(names=(), dense=True)
    assert written.startswith("ran")
    assert code == 1
    assert "memory" in written
