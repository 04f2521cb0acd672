"""What `regard check` compares, and that it finds errors."""

from __future__ import annotations

from math import inf

import pytest
import torch

from helpers.pairwise import sampled
from regard.diagnostics.calls import TOLERANCES
from regard.diagnostics.cases import CASES, MASKS, SHAPES, Case
from regard.diagnostics.comparison import Difference, compare, dtypes_of, in_order_of_coverage, runs_on
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.native.kernel import Native
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.rules import builtin_classes
from regard.ops.tree import subtrees

CPU = torch.device("cpu")
SOME = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", sampled(CASES, 20), ids=lambda case: case.name)
def test_every_kernel_is_right(case):
    comparisons = [
        each for kernel in KERNELS for dtype in dtypes_of(kernel, CPU) for each in compare(kernel, case, dtype, CPU)
    ]
    assert [str(each) for each in comparisons if each.is_wrong] == []
    assert {"blockwise", "reference"} <= {each.kernel for each in comparisons}


def test_the_first_cases_cover_each_kernel_and_each_kind():
    kernels = [kernel for kernel in KERNELS if runs_on(kernel, CPU)]
    cases = in_order_of_coverage(CASES, kernels, CPU)
    assert sorted(case.name for case in cases) == sorted(SOME)
    first = cases[: len(kernels)]
    for kernel in kernels:
        assert any(compare(kernel, case, torch.float32, CPU) for case in first), kernel.name
    kinds = {case.name.split()[0] for case in cases[: len(kernels) + 6]}
    assert {"mask", "score", "causal,"} < kinds


def test_every_kernel_is_compared_and_the_cases_differ():
    assert len(SOME) == len(CASES)
    for kernel in KERNELS:
        compared = [case for case in CASES if compare(kernel, case, torch.float32, CPU)]
        assert compared or not runs_on(kernel, CPU), kernel.name


def test_every_rule_of_the_library_is_compared():
    compared = set()
    for case in CASES:
        inputs = case.call(torch.float32).inputs()
        rules = inputs.request.mask, inputs.request.score, *inputs.measures.values()
        compared |= {type(part) for rule in rules for part in subtrees(rule)}
    assert {cls.__name__ for cls in builtin_classes() if cls not in compared} == {
        "FlexBlockMask",  # which torch makes
        "KLDivergence",  # which compares two matrices
        "SelectCells",  # which reads of weights use
        "TransposedProduct",  # which products with weights use
    }


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (lambda output: output * 1.001, "kernel sdpa, case 'square', float32: output differs by "),
        (lambda output: output * torch.nan, "kernel sdpa, case 'square', float32: output differs by inf"),
        (lambda output: output[:1], "kernel sdpa, case 'square', float32: output differs by inf"),
    ],
    ids=["slightly", "nan", "shape"],
)
def test_a_wrong_output_is_found(monkeypatch, broken, expected):
    run = Sdpa.run
    monkeypatch.setattr(Sdpa, "run", lambda self, inputs: (broken(run(self, inputs)[0]), {}))
    wrong = [each for each in compare(Sdpa(), SOME["square"], torch.float32, CPU) if each.is_wrong]
    assert str(wrong[0]).startswith(expected)


def test_a_wrong_gradient_is_found(monkeypatch):
    backward = Blockwise.backward
    monkeypatch.setattr(Blockwise, "backward", lambda self, *rest: [part * 1.001 for part in backward(self, *rest)])
    wrong = [each for each in compare(Blockwise(), SOME["score bias"], torch.float32, CPU) if each.is_wrong]
    assert {each.result for each in wrong} == {f"gradient of {name}" for name in ("query", "key", "value", "b")}


def test_a_wrong_measure_is_found(monkeypatch):
    forward = Native.forward

    def wrong_forward(self, inputs, options):
        attended = forward(self, inputs, options)
        attended.results.whole("received")[0][0, 0, -1] += 0.01
        return attended

    monkeypatch.setattr(Native, "forward", wrong_forward)
    case = SOME["one more than blocks"]
    comparisons = compare(Native(), case, torch.bfloat16, CPU)
    if not runs_on(Native(), CPU):
        pytest.skip("native is not available")
    assert [each.result for each in comparisons if each.is_wrong] == ["received"]


def test_an_error_is_a_difference(monkeypatch):
    def fail(self, inputs):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(Sdpa, "run", fail)
    (comparison,) = compare(Sdpa(), SOME["causal, square"], torch.bfloat16, CPU)
    assert comparison.is_wrong
    assert str(comparison) == "kernel sdpa, case 'causal, square', bfloat16: RuntimeError: no such instruction"
    assert comparison.as_dict()["difference"] == "inf"


def test_kernels_that_do_not_run_here():
    assert runs_on(Reference(), torch.device("cuda"))
    assert not runs_on(Native(), torch.device("cuda"))
    missing = Native(level="none")
    assert not runs_on(missing, CPU)
    assert compare(missing, SOME["causal, square"], torch.float32, CPU) == []


def test_mps_has_no_float64():
    assert torch.float64 not in dtypes_of(Reference(), torch.device("mps"))
    assert set(dtypes_of(Reference(), CPU)) == set(TOLERANCES)


def test_a_case_that_a_kernel_does_not_support_is_left_out():
    assert compare(Sdpa(), SOME["score bias"], torch.float32, CPU) == []
    assert compare(Native(), SOME["square"], torch.float64, CPU) == []


def test_infinity_in_another_place_is_wrong(monkeypatch):
    case = Case("empty", MASKS["lengths"], shape=SHAPES["many lengths"])
    forward = Blockwise.forward

    def wrong_forward(self, inputs, options):
        attended = forward(self, inputs, options)
        attended.results.whole("lse")[0].clamp_(min=-99)
        return attended

    monkeypatch.setattr(Blockwise, "forward", wrong_forward)
    wrong = [each for each in compare(Blockwise(), case, torch.float32, CPU) if each.is_wrong]
    assert [(each.result, each.difference) for each in wrong] == [("lse", inf)]


def test_a_difference_is_plain_data():
    each = Difference("sdpa", "causal", "float32", "output", 0.25, 0.5)
    assert not each.is_wrong
    assert each.as_dict() == {
        "kernel": "sdpa",
        "case": "causal",
        "dtype": "float32",
        "result": "output",
        "difference": 0.25,
        "tolerance": 0.5,
        "error": "",
    }
