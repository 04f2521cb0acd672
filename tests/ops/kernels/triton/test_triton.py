"""The Triton kernel without a GPU: what it declares, in Triton's interpreter, and compiled ahead of time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from helpers.pairwise import everything
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.triton.kernel import Tiles, Triton, column_tiles, row_tiles
from regard.ops.masks import Causal, Padding
from regard.ops.measures import Entropy
from regard.ops.request import make_request

has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not (sys.platform == "linux" and os.environ.get("CI") == "true"),
    reason="Triton is not installed",
)
QUERY = torch.randn(2, 2, 5, 8)


def run_helper(root, name, **environment):
    return subprocess.run(
        [sys.executable, root / "tests/helpers/ops" / name],
        env=os.environ | {"PYTHONWARNINGS": "ignore"} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@has_triton
def test_the_interpreted_kernel_gives_what_the_definition_says(root):
    done = run_helper(root, "triton_interpreter.py", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


@has_triton
@pytest.mark.parametrize("architecture", ["80", "86", "90"] if everything() else ["90"])
def test_configurations_are_compiled_and_fit(root, architecture):
    done = run_helper(root, "triton_compile.py", ARCHITECTURE=architecture)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_machine_without_a_device_says_so():
    assert Triton().unavailable_reason() == "torch finds no CUDA or ROCm device"
    with pytest.raises(KernelNotSupported, match="runs on cuda, the tensors are on cpu; torch finds no CUDA or ROCm"):
        attend(QUERY, QUERY, QUERY, measure="entropy", kernel="triton")


def test_triton_is_not_imported_with_the_package():
    code = "import regard, sys; regard.ops.attend; assert 'triton' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dropout": 0.5}, "it has no dropout"),
        ({"mask": Padding(torch.ones(2, 5, dtype=torch.bool))}, "it supports Padding with lengths only"),
        ({"mask": Causal() & Padding(torch.tensor([1, 2]))}, "it does not support the mask And"),
        ({"width": 257}, "it supports head_dim and value_dim up to 256, not 257 and 257"),
        ({"value": QUERY.half()}, "the value is torch.float16, the query is torch.float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_does_not_support_has_a_reason(changes, reason):
    query = torch.randn(2, 2, 5, changes.get("width", 8))
    request = make_request(query, query, mask=changes.get("mask"))
    inputs = KernelInputs(changes.get("value", query), request, {"entropy": Entropy()}, changes.get("dropout", 0.0))
    assert reason in list(Triton().unsupported_reasons(inputs))


def test_a_part_of_a_matrix_is_not_supported():
    request = make_request(QUERY, QUERY).at(rows=torch.tensor([1, 3]))
    reasons = list(Triton().unsupported_reasons(KernelInputs(QUERY, request, {})))
    assert "it does not support a selection of batch entries, heads or queries" in reasons


def test_sdpa_is_tried_first_for_the_output_alone():
    names = [kernel.name for kernel in KERNELS]
    assert names.index("sdpa") < names.index("triton") < names.index("blockwise")


@pytest.mark.parametrize("limit", [2**16, 101376, 232448])
def test_tiles_fit_into_shared_memory_where_one_stage_does(limit):
    for dtype in Triton.dtypes:
        for width in (16, 32, 64, 128, 256):
            for queries in (1, 17, 64, 65, 10**6):
                rows, columns = (
                    row_tiles(dtype, width, width, queries, limit),
                    column_tiles(dtype, width, queries, limit),
                )
                for tiles, held, streamed in (
                    (rows, rows.queries, 2 * rows.keys),
                    (columns, columns.keys, columns.queries),
                ):
                    assert tiles.stages == 1 or (held + tiles.stages * streamed) * width * dtype.itemsize <= limit


def test_a_short_call_has_few_rows_in_a_tile():
    assert row_tiles(torch.bfloat16, 128, 128, 1, 232448) == Tiles(16, 64, 4, 3)
