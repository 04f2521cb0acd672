"""Which kernel computes a call, and the error where the requested one cannot."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from helpers.ops.cases import CPU_KERNELS
from regard.errors import InvalidArgument, InvalidType, KernelNotSupported
from regard.ops import attend
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.blocks import CPU
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.dispatch import KERNELS, NATIVE, as_kernel, select_kernel
from regard.ops.kernels.native.kernel import Native
from regard.ops.kernels.sdpa import Sdpa
from regard.ops.kernels.sparse import Sparse
from regard.ops.masks import Causal, Neighbors, Padding, Window
from regard.ops.measures import Entropy
from regard.ops.request import make_request
from regard.ops.scores import Bias, ScaledDotProduct

SMALL = torch.zeros(1, 2, 5, 4)


def inputs(measures=(), value=SMALL, **rules):
    return KernelInputs(value, make_request(SMALL, SMALL, **rules), dict(measures))


def test_the_first_suitable_kernel_is_selected():
    blocks = "blockwise" if Native().unavailable_reason() else "native"
    assert select_kernel(inputs({"entropy": Entropy()})).name == blocks
    assert select_kernel(inputs({"entropy": Entropy()}, value=None)).name == blocks
    long = torch.zeros(1, 1, 3000, 4)
    assert select_kernel(KernelInputs(long, make_request(long, long, mask=Window(5, 0)), {})).name == blocks
    for call in (inputs(), inputs(mask=Causal()), KernelInputs(long, make_request(long, long), {})):
        is_sdpa = blocks == "blockwise" or NATIVE.is_slower_than_sdpa(call)  # as was measured on such a processor
        assert select_kernel(call).name == ("sdpa" if is_sdpa else "native")
    doubles = long.double()
    assert select_kernel(KernelInputs(doubles, make_request(doubles, doubles), {})).name == "sdpa"
    assert select_kernel(KernelInputs(None, make_request(doubles, doubles), {})).name == "blockwise"


@pytest.mark.parametrize("kernel", CPU_KERNELS, ids=lambda kernel: kernel.name)
def test_every_kernel_can_be_requested(kernel):
    query, nodes = SMALL.clone().requires_grad_(), torch.arange(SMALL.shape[2])
    mask = kernel.required_mask and kernel.required_mask(nodes[:1], nodes[:1])
    assert select_kernel(KernelInputs(SMALL, make_request(query, SMALL, mask=mask), {}), kernel.name) is kernel


def test_a_kernel_of_a_user_is_used_where_it_is_passed_and_nowhere_else():
    class Mine(Blockwise):
        name = "native"
        calls = 0

        def forward(self, inputs, options):
            Mine.calls += 1
            return super().forward(inputs, options)

    custom = Mine()

    def call(kernel):
        return attend(SMALL, SMALL, SMALL, measure="entropy", kernel=kernel).measured["entropy"]

    for run in (call, torch.compile(call, backend="eager")):
        before = Mine.calls
        call(None)
        run(None)
        assert Mine.calls == before
        torch.testing.assert_close(run(custom), run(None))
        assert Mine.calls == before + 1


def test_a_kernel_of_a_user_is_refused_for_what_it_cannot_compute():
    with pytest.raises(KernelNotSupported, match="kernel 'sdpa' cannot compute this call"):
        select_kernel(inputs({"entropy": Entropy()}), Sdpa())
    with pytest.raises(InvalidArgument, match=r"kernel: unknown name \['native'\].*; known: native, sdpa"):
        select_kernel(inputs(), ["native"])


def test_every_kernel_has_a_name_and_a_description():
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    for kernel in KERNELS:
        assert kernel.description
        assert "\n" not in kernel.description


def test_kernels_may_be_inefficient_only_on_request():
    """A reason why another kernel is better does not count where a kernel is requested by name."""
    nodes = torch.arange(5)
    dense_graph = Neighbors(*torch.cartesian_prod(nodes, nodes).T)
    long = torch.zeros(1, 1, 3000, 4)
    cases = [
        (Sparse(), inputs(mask=dense_graph), "the graph is too dense: more than 12.5% of the cells are edges"),
        (Sdpa(), KernelInputs(long, make_request(long, long, mask=Window(5, 0)), {}), "the mask would need a dense"),
    ]
    for kernel, call, reason in cases:
        assert list(kernel.unsupported_reasons(call)) == []
        assert [each[: len(reason)] for each in kernel.inefficient_reasons(call)] == [reason]
        assert select_kernel(call).name != kernel.name
        assert select_kernel(call, kernel.name).name == kernel.name
    assert list(Sparse(max_density=1).inefficient_reasons(cases[0][1])) == []


def test_the_limits_of_a_kernel_are_data():
    class Narrow(Blockwise):
        required_mask = Causal
        max_width = 3
        needs_value = needs_equal_dtypes = True
        has_dropout = has_selections = False

    request = make_request(SMALL, SMALL, mask=Window(1, 0))
    part = request.at(heads=torch.tensor([1]))
    assert list(Narrow().unsupported_reasons(KernelInputs(SMALL[:, :1].double(), part, {}, dropout=0.5))) == [
        "the value is torch.float64, the query is torch.float32",
        "it supports head_dim and value_dim up to 3, not 4 and 4",
        "it has no dropout",
        "it does not support a selection of batch entries, heads or queries",
        "the mask is not a Causal (alone or combined by &)",
    ]
    narrow = SMALL[..., :3]
    request = make_request(narrow, narrow, mask=Window(1, 0) & (Causal() & Padding(torch.tensor([5]))))
    assert list(Narrow().unsupported_reasons(KernelInputs(narrow, request, {}))) == []
    assert list(Narrow().unsupported_reasons(KernelInputs(None, request, {}))) == [
        "it computes nothing without a value"
    ]
    for rule in (Causal() | Window(1, 0), type("Mine", (Causal,), {})()):
        request = make_request(narrow, narrow, mask=rule)
        (reason,) = Narrow().unsupported_reasons(KernelInputs(narrow, request, {}))
        assert reason.startswith("the mask is not a Causal")


def test_kernels_with_the_same_settings_are_equal():
    assert Blockwise() == Blockwise(min_multiply_adds=2**32) != Blockwise(min_multiply_adds=0)
    assert Sparse() != Blockwise()
    assert len({Sparse(), Sparse(max_density=0.5), Sparse(max_density=1 / 8)}) == 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Blockwise(sizes=3), InvalidType, "sizes: expected BlockSizes or None, got 3"),
        (lambda: Blockwise(min_multiply_adds=None), InvalidType, "min_multiply_adds: expected an int"),
        (lambda: replace(CPU, rows=0), InvalidArgument, "BlockSizes.rows: expected an int of at least 1, got 0"),
        (lambda: Sparse(max_density=math.nan), InvalidArgument, "max_density: expected a finite number"),
        (lambda: Native(cache_bytes=0), InvalidArgument, "cache_bytes: expected"),
        (lambda: as_kernel(Blockwise), InvalidType, "got the class Blockwise; use Blockwise()"),
    ],
)
def test_settings_are_checked_where_a_kernel_is_made(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_a_graph_may_be_too_dense_for_a_density_of_zero():
    node = torch.zeros(1, dtype=torch.int64)
    reasons = Sparse(max_density=0).inefficient_reasons(inputs(mask=Neighbors(node, node)))
    assert list(reasons) == ["the graph is too dense: more than 0.0% of the cells are edges"]


def test_an_unknown_name_gets_a_hint():
    names = ", ".join(kernel.name for kernel in KERNELS)
    with pytest.raises(InvalidArgument, match=rf"'blokwise', did you mean 'blockwise'\?; known: {names}"):
        attend(SMALL, SMALL, SMALL, kernel="blokwise")


def test_a_kernel_that_cannot_compute_a_call_lists_all_reasons():
    class Narrow(Sdpa):
        devices = ("cuda",)
        dtypes = (torch.float16,)

    reasons = list(Narrow().unsupported_reasons(inputs({"entropy": Entropy()})))
    assert reasons == [
        "it runs on cuda, the tensors are on cpu",
        "it does not support torch.float32",
        "it does not support the measure Entropy",
    ]
    with pytest.raises(KernelNotSupported, match=r"kernel 'sdpa' cannot compute this call: .* the measure Entropy"):
        select_kernel(inputs({"entropy": Entropy()}), "sdpa")


def test_kernels_limit_rules_by_exact_class_also_within_others():
    class Narrow(Kernel):
        masks = frozenset({Causal})
        scores = frozenset({ScaledDotProduct})

    class Strict(Causal):
        pass

    assert list(Narrow().unsupported_reasons(inputs(mask=Causal()))) == []
    assert list(Narrow().unsupported_reasons(inputs(mask=Strict()))) == ["it does not support the mask Strict"]
    both = inputs(mask=Causal() & Padding(torch.tensor([3])), score=ScaledDotProduct() + Bias(torch.zeros(5)))
    assert sorted(Narrow().unsupported_reasons(both)) == [
        "it does not support the mask And",
        "it does not support the mask Padding",
        "it does not support the score Bias",
        "it does not support the score Sum",
    ]


@pytest.mark.parametrize(("heads", "kv_heads", "value_heads"), [(6, 3, 2), (12, 4, 6), (12, 6, 4), (6, 1, 3)])
def test_key_and_value_may_differ_in_their_numbers_of_heads(heads, kv_heads, value_heads):
    torch.manual_seed(0)
    shapes = ((heads, 30), (kv_heads, 20), (value_heads, 20))
    tensors = [torch.randn(2, count, tokens, 4, dtype=torch.float64, requires_grad=True) for count, tokens in shapes]
    graph = Neighbors(*torch.randint(0, 20, (2, 60)))
    actual, expected = (attend(*tensors, mask=graph, kernel=kernel).output for kernel in ("sparse", "reference"))
    torch.testing.assert_close(actual, expected)
    gradients = (torch.autograd.grad(output.square().sum(), tensors) for output in (actual, expected))
    torch.testing.assert_close(*gradients)


def test_masks_nested_deeper_than_the_native_kernel_remembers_are_computed():
    query, key, value = torch.randn(3, 1, 2, 20, 8).unbind()
    mask = Window(1, 1)
    for width in range(40):
        mask = Window(width % 5, 0) | (Window(0, 3) & mask)
    actual, expected = (
        attend(query, key, value, mask=mask, measure=["entropy", "received"], kernel=kernel)
        for kernel in (None, "reference")
    )
    torch.testing.assert_close(actual.output, expected.output)
    torch.testing.assert_close(actual.measured["received"], expected.measured["received"])
