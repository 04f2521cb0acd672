"""Where SDPA is chosen for the output alone, by the table that a benchmark writes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from regard.native.library import DTYPES, LEVELS
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import select_kernel
from regard.ops.kernels.native import choices, kernel
from regard.ops.kernels.native.choices import is_sdpa_faster, similar_steps, steps_for
from regard.ops.kernels.native.kernel import Native
from regard.ops.measures import Entropy
from regard.ops.request import make_request

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
TABLE = {
    "baseline": {"1000000": {"float32": [[0, "sdpa"], [100, "native"]]}},
    "avx2": {
        "500000": {"float32": [[0, "sdpa"], [200, "native"], [1000, "sdpa"]]},
        "2000000": {"float32": [[0, "native"]]},
    },
}


@pytest.mark.parametrize(
    ("level", "cache", "work", "expected"),
    [
        ("avx2", 500_000, 199, True),
        ("avx2", 500_000, 200, False),
        ("avx2", 500_000, 1000, True),
        ("avx2", 900_000, 1000, True),  # 500,000 is nearer, as a ratio
        ("avx2", 1_100_000, 1000, False),
        ("avx512bf16", 500_000, 1000, True),  # was not measured: as the best lower one
        ("baseline", 500_000, 1000, False),
        ("baseline", 500_000, 99, True),
    ],
)
def test_the_most_similar_processor_is_used(level, cache, work, expected):
    assert is_sdpa_faster(similar_steps(TABLE, level, cache, "float32"), work) == expected


def test_the_backward_pass_counts_where_it_was_measured(monkeypatch):
    table = {
        "avx2": {"500000": {"float32": [[0, "sdpa"]], "float32, backward": [[0, "native"]], "bfloat16": [[0, "sdpa"]]}}
    }
    monkeypatch.setattr(choices, "read_choices", lambda: table)
    steps = choices.steps_for.__wrapped__
    assert is_sdpa_faster(steps("avx2", 500_000, "float32"), 1.0)
    assert not is_sdpa_faster(steps("avx2", 500_000, "float32", True), 1.0)
    assert is_sdpa_faster(steps("avx2", 500_000, "bfloat16", True), 1.0)
    given = []
    monkeypatch.setattr(kernel, "steps_for", lambda *arguments: given.append(arguments[3]) or [])
    query = torch.zeros(1, 8, 64, 64)
    for value in (query, query.clone().requires_grad_()):
        inputs = KernelInputs(value, make_request(query, query), {})
        Native().is_slower_than_sdpa(inputs)
        with torch.no_grad():
            Native().is_slower_than_sdpa(inputs)
    assert given == [False, False, True, False]


def test_a_dtype_that_was_not_measured_is_native():
    assert not is_sdpa_faster(similar_steps(TABLE, "avx2", 500_000, "float16"), 1.0)


def test_every_instruction_set_and_dtype_has_steps_in_order():
    for level in LEVELS:
        for dtype in DTYPES:
            steps = steps_for(level, 2**20, str(dtype).removeprefix("torch."))
            starts = [start for start, _ in steps]
            assert starts == sorted(set(starts))
            assert starts[0] == 0
            assert {name for _, name in steps} <= {"sdpa", "native"}


@pytest.mark.parametrize(("level", "cache", "chosen"), [("avx2", 2**19, "sdpa"), ("baseline", 2**20, "native")])
def test_a_processor_that_was_slower_gets_sdpa_for_the_output_alone(level, cache, chosen):
    native = Native(level, cache)
    if native.unavailable_reason():
        pytest.skip(native.unavailable_reason())
    query = torch.zeros(1, 8, 4096, 64)
    assert native.is_slower_than_sdpa(KernelInputs(query, make_request(query, query), {})) == (chosen == "sdpa")


def test_the_table_selects_the_kernel_for_the_output_alone():
    for tokens in (8, 64, 1024):
        query = torch.zeros(1, 8, tokens, 64)
        request = make_request(query, query)
        output = KernelInputs(query, request, {})
        chosen = "sdpa" if Native().is_slower_than_sdpa(output) else "native"
        assert select_kernel(output).name == chosen
        assert select_kernel(KernelInputs(query, request, {"entropy": Entropy()})).name == "native"


def test_the_batch_does_not_matter():
    names = set()
    for batch in (1, 64):
        query = torch.zeros(batch, 8, 64, 64)
        names.add(select_kernel(KernelInputs(query, make_request(query, query), {})).name)
    assert len(names) == 1


def test_the_benchmark_divides_where_the_faster_one_changes(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    steps = runpy.run_path(str(BENCHMARKS / "native.py"))["steps"]
    assert steps([(1e6, 1.2), (4e6, 0.9), (16e6, 0.8), (64e6, 1.01)]) == [
        (0, "sdpa"),
        (2_000_000, "native"),
        (32_000_000, "sdpa"),
    ]
    assert steps([(1e6, 0.9), (4e6, 0.9)]) == [(0, "native")]


def test_two_processors_of_a_kind_give_the_native_kernel_where_it_is_faster_on_both():
    combine = runpy.run_path(str(BENCHMARKS / "native.py"))["combine"]
    fast, slow = [(0, "sdpa"), (8, "native"), (64, "sdpa")], [(0, "native")]
    assert combine(fast, slow) == combine(slow, fast) == fast
    assert combine([(0, "sdpa"), (2, "native")], [[0, "sdpa"], [8, "native"]]) == [(0, "sdpa"), (8, "native")]
    assert combine(slow, slow) == slow
