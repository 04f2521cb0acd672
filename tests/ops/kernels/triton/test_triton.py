"""The Triton kernel without a GPU: what it declares, in Triton's interpreter, and compiled ahead of time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import regard
from helpers.pairwise import everything
from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.triton import kernel as kernel_module
from regard.ops.kernels.triton import pack
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.kernels.triton.pack import precision
from regard.ops.masks import Neighbors, Spans
from regard.ops.measures import BlockMean, Entropy, TopK
from regard.ops.request import make_request
from regard.ops.scores import Bilinear

has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and not (sys.platform == "linux" and os.environ.get("CI") == "true"),
    reason="Triton is not installed",
)
CPU = torch.device("cpu")
QUERY = torch.randn(2, 2, 5, 8)
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "gfx942"] if everything() else ["sm_90"]


def run_helper(root, name, *arguments, **environment):
    arguments += ("--all",) if everything() else ()
    environment = {key: each for key, each in os.environ.items() if key != "REGARD_TEST_ALL"} | environment
    done = subprocess.run(
        [sys.executable, root / "tests/helpers/ops" / name, *arguments],
        env=environment | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@has_triton
@pytest.mark.parametrize("checks", ["conformance", "reads dropout sizes undefined divergence relative needed offsets"])
def test_the_interpreted_kernel_gives_what_the_definition_says(root, checks):
    run_helper(root, "triton_interpreter.py", *(f"{check}: " for check in checks.split()), TRITON_INTERPRET="1")


@has_triton
def test_the_compiler_takes_every_rule_measure_and_read(root):
    run_helper(root, "triton_front_end.py")


@has_triton
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_configurations_are_compiled_and_fit_without_spills(root, architecture):
    run_helper(root, "triton_compile.py", architecture)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_machine_without_a_device_says_so():
    assert Triton().unavailable_reason() == "torch finds no CUDA or ROCm device"
    with pytest.raises(
        KernelNotSupported, match="torch finds no CUDA or ROCm device; it runs on cuda, the tensors are"
    ):
        attend(QUERY, QUERY, QUERY, measure="entropy", kernel="triton")


def test_triton_is_not_imported_with_the_package():
    code = "import regard, sys; regard.ops.attend; assert 'triton' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_gpu_of_the_tensors_counts_not_the_first_one(monkeypatch):
    capabilities = (7, 5), (9, 0)
    monkeypatch.setattr(kernel_module, "_too_old_reason", kernel_module._too_old_reason.__wrapped__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
    reason = "it needs compute capability 8.0, the GPU has 7.5"
    assert kernel_module._unavailable_reason.__wrapped__() is None
    assert kernel_module._too_old_reason(torch.device("cuda", 0)) == reason
    assert kernel_module._too_old_reason(torch.device("cuda", 1)) is None
    capabilities = (7, 5), (7, 5)
    assert kernel_module._unavailable_reason.__wrapped__() == reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tf32_is_named_for_float32_alone_and_where_triton_has_it(dtype, monkeypatch):
    """Triton refuses the name on most of AMD's GPUs, in half precision, too."""
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=SimpleNamespace(fp32_precision="tf32")))
    assert precision(dtype, CPU) == ("tf32" if dtype == torch.float32 else "ieee")
    monkeypatch.setattr(pack, "has_tf32", lambda device: False)
    assert precision(dtype, CPU) == "ieee"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": Neighbors(torch.tensor([0]), torch.tensor([1]))}, "it does not support the mask Neighbors"),
        ({"mask": Spans(*[torch.zeros(1, 1, 5, 20, dtype=torch.int64)] * 2)}, "masks of up to 32 steps, not 39"),
        ({"measure": TopK(17)}, "it finds up to 16 keys, not 17"),
        ({"width": 257}, "it supports head_dim and value_dim up to 256, not 257 and 257"),
        ({"value": QUERY.half()}, "the value is torch.float16, the query is torch.float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_does_not_support_has_a_reason(changes, reason):
    query = torch.randn(2, 2, 5, changes.get("width", 8))
    request = make_request(query, query, mask=changes.get("mask"))
    measures = {"measure": changes.get("measure", Entropy())}
    reasons = list(Triton().unsupported_reasons(KernelInputs(changes.get("value", query), request, measures)))
    assert any(reason in each for each in reasons), reasons


def test_a_class_is_supported_if_its_steps_are():
    kernel = Triton()
    assert kernel.supports(regard.Documents)
    assert kernel.supports(regard.Sinks)
    assert kernel.supports(BlockMean)
    assert not kernel.supports(Bilinear)
    assert not kernel.supports(Neighbors)


@has_triton
def test_each_kind_has_its_functions():
    from regard.ops.kernels.triton import gradients, kinds
    from regard.ops.kernels.triton.jit import columns, masks, rows, scores

    assert {"ranges" if name in ("before", "between") else _kind(name) for name in masks.STEPS} == kinds.MASK_KINDS
    assert {_kind(name) for name in scores.STEPS} - {"scale_only"} | {"dot_product"} == kinds.SCORE_KINDS
    assert rows.FUSED.keys() == kinds.FUSED_KINDS
    assert rows.SWEPT.keys() - {"products", "terms", "total"} == kinds.SWEPT_KINDS
    assert columns.KINDS.keys() - {"weighted", "histogram"} == kinds.COLUMN_KINDS  # these are of the backward pass
    assert rows.GRADIENTS.keys() == gradients.ROW_GRADIENTS == kinds.FUSED_KINDS | kinds.SWEPT_KINDS


def _kind(name):
    return name.partition("_of_")[0]


def test_sdpa_is_tried_first_for_the_output_alone():
    names = [kernel.name for kernel in KERNELS]
    assert names.index("sdpa") < names.index("triton") < names.index("blockwise")
