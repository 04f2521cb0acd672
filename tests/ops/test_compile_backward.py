"""The backward pass of compiled calls: gradients are right, with the memory layout that the fake operators declare."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from helpers.ops.cases import SCORES, allowed, masks, measures
from helpers.ops.dense_reference import definition
from helpers.ops.tiny_attention import TOKENS
from helpers.pairwise import everything, pairwise
from regard.ops import attend, weights
from regard.ops.kernels.base import Kernel
from regard.ops.masks import Causal
from regard.ops.measures import Max

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor

BATCH, HEADS, WIDTH = 2, 2, 4
MASKS = masks(BATCH, HEADS, TOKENS, TOKENS)
CELLS = {mask: allowed(mask, BATCH, HEADS, TOKENS, TOKENS, 0) for mask in MASKS}
RULES = [(mask, "blockwise") for mask in MASKS if mask not in ("own", "function", "block mask")]
RULES += [(mask, "sparse") for mask in ("neighbors", "neighbors and", "no edges")]
KNOWN = [score for score in SCORES if score not in ("own", "function")]
REQUESTED = {name: m for name, m in measures(TOKENS, TOKENS).items() if m.builtin}


@pytest.fixture(scope="module")
def inductor():
    """Options for Inductor with its caches off, as their keys do not depend on our fake operators.

    Mode "lite" generates no C++, which takes a second per kernel, but checks the layouts that operators return.
    """
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.utils import fresh_cache

    with (
        fresh_cache(),  # an empty TORCHINDUCTOR_CACHE_DIR
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield {"fullgraph": True, "mode": "default" if everything() else "lite"}


def strict() -> tuple[Any, list[str]]:
    """A backend that compares what our operators return with their fakes, and a list of the operators that ran."""
    names: list[str] = []

    class Checked(torch.fx.Interpreter):
        def run_node(self, n):
            actual = super().run_node(n)
            if "regard" in str(n.target):
                names.append(str(n.target))
                assert [layout(real) for real in actual] == [layout(fake) for fake in n.meta["val"]], names[-1]
            return actual

    def partition(joint, *args, **options):
        for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
            node.replace_all_uses_with(node.args[0])  # as Inductor does
        return min_cut_rematerialization_partition(joint, *args, **options)

    return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(Checked(graph).run), partition_fn=partition), names


def layout(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.storage_offset()


def transposed(x: Tensor) -> Tensor:
    """The heads of a projection: (batch, tokens, heads · width) → (batch, heads, tokens, width)."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


PARTS = pairwise(
    [*REQUESTED, "all"], [False, True], ["all", "query", "value", "rules"], ["output", "measures", "both", "weights"]
)
PAIRS = [(*rule, score, i - j) for i, rule in enumerate(RULES) for j, score in enumerate(KNOWN)]
CASES = [case for *case, diagonal in PAIRS if everything() or diagonal % len(KNOWN) == 0]  # each mask once
CASES = [(*case, *parts) for case, parts in zip(CASES, cycle(PARTS), strict=False)]


@pytest.mark.parametrize(
    ("mask", "kernel", "score", "measure", "shared", "learned", "loss_of"), CASES if everything() else CASES[::2]
)
def test_compiled_backward_matches_the_definition_and_the_layouts_of_the_fakes(
    mask, kernel, score, measure, shared, learned, loss_of
):
    backend, names = strict()
    compare({"backend": backend, "fullgraph": True}, mask, kernel, score, measure, shared, learned, loss_of)
    assert names == ["regard.attend.default", "regard.attend_backward.default"]


@pytest.mark.parametrize("case", CASES[3::7])
def test_inductor_matches_the_definition_forward_and_backward(inductor, case):
    compare(inductor, *case)


@pytest.mark.parametrize("learned", ["query", "key"])
@pytest.mark.parametrize("compiler", ["strict", "inductor"])
def test_no_gradient_flows_through_a_detached_query_or_key(inductor, compiler, learned):
    """Inductor passes `x` and `x.detach()` to the operator as the same tensor, unless its mode is "lite"."""

    def pair(x):
        heads = transposed(x)
        return (heads, heads.detach()) if learned == "query" else (heads.detach(), heads)

    def program(x, value):
        return {"output": attend(*pair(x), transposed(value), mask=Causal(), kernel="blockwise").output}

    torch._dynamo.reset()
    leaves = [torch.randn(BATCH, TOKENS, HEADS * WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    output, *_ = definition(*pair(leaves[0]), transposed(leaves[1]), CELLS["causal"], 0)
    options = inductor if compiler == "inductor" else {"backend": strict()[0]}
    same(torch.compile(program, **options)(*leaves), {"output": output}, leaves)


def test_backward_of_one_dynamic_program_is_right_at_every_length(inductor):
    case = SCORES["alibi"]

    def program(query, key, value, slopes):
        heads = [transposed(x) for x in (query, key, value)]
        att = attend(*heads, mask=Causal(), score=case.rule({"m": slopes}), measure=["entropy", "received"])
        return {"output": att.output, **att.measured}

    torch._dynamo.reset()
    compiled = torch.compile(program, **inductor, dynamic=True)
    for number, length in enumerate((16, 24, 51)):
        leaves = [torch.randn(BATCH, length, HEADS * WIDTH, dtype=torch.float64) for _ in range(3)]
        leaves = [leaf.requires_grad_() for leaf in (*leaves, case.tensors(HEADS, length, length, WIDTH)["m"])]
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            actual = compiled(*leaves)
            cells = allowed("causal", BATCH, HEADS, length, length, 0)
            heads = [transposed(leaf) for leaf in leaves[:3]]
            output, _, _, results = definition(*heads, cells, 0, partial(case.dense, {"m": leaves[3]}))
            expected = {"output": output, "entropy": results["entropy"][0], "received": results["received"][0]}
            same(actual, expected, leaves)


def test_backward_drops_the_weights_that_forward_dropped(inductor):
    def program(query, key, value):
        heads = [transposed(x) for x in (query, key, value)]
        return {"output": attend(*heads, mask=Causal(), dropout=0.5, kernel="blockwise").output}

    torch._dynamo.reset()
    eye = torch.eye(TOKENS, dtype=torch.float64).repeat_interleave(HEADS, 0).view(1, TOKENS, -1).expand(BATCH, -1, -1)
    leaves = [*torch.randn(2, BATCH, TOKENS, HEADS * WIDTH, dtype=torch.float64), eye.clone()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    actual = torch.compile(program, mode="lite", fullgraph=True)(*leaves)  # which drops by torch's own numbers
    kept = actual["output"].detach() != 0  # as the values are one-hot
    assert 0.3 < kept.sum() / CELLS["causal"].sum() < 0.7
    _, dropless, *_ = definition(*(transposed(leaf) for leaf in leaves), CELLS["causal"], 0)
    same(actual, {"output": (dropless * kept * 2) @ transposed(leaves[2])}, leaves)


def compare(options, mask, kernel, score, measure, shared, learned, loss_of):
    """Compare a compiled program with the dense definition in float64; the heads are transposed views."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    case, rule = SCORES[score], MASKS[mask]
    stored = case.tensors(HEADS, TOKENS, TOKENS, WIDTH)
    requested = REQUESTED if measure == "all" else {measure: REQUESTED[measure]}
    supported = {name: m for name, m in requested.items() if Kernel.registered[kernel].supports(type(m))}
    requested = supported or {"max": Max()}
    names = "query", "key", "value"
    inputs = {name: torch.randn(BATCH, TOKENS, HEADS * WIDTH, dtype=torch.float64) for name in names}
    learns = {"all": {*inputs, *stored}, "rules": {*stored}}.get(learned, {learned})
    if not learns or loss_of == "weights":
        learns = {*learns, "query"}
    leaves = {name: tensor.requires_grad_(name in learns) for name, tensor in {**inputs, **stored}.items()}

    def apart(arguments):
        query, key, value = (transposed(x) for x in arguments[:3])
        return query, query if shared else key, value, dict(zip(stored, arguments[3:], strict=True))

    def program(*arguments):
        query, key, value, stored = apart(arguments)
        rules = {"mask": rule, "score": case.rule(stored)}
        if loss_of == "weights":
            return weights(query, key, **rules, kernel=kernel).measure(requested)
        att = attend(query, key, value, **rules, measure={} if loss_of == "output" else requested, kernel=kernel)
        return att.measured if loss_of == "measures" else {"output": att.output, **att.measured}

    def defined(*arguments):
        query, key, value, stored = apart(arguments)
        output, _, _, results = definition(
            query, key, value, CELLS[mask], 0, partial(case.dense, stored), stored.get("sinks")
        )
        return {"output": output, **results}

    actual = flat(torch.compile(program, **options)(*leaves.values()))
    expected = flat(defined(*leaves.values()))
    same(actual, {name: expected[name] for name in actual}, leaves.values())


def flat(results):
    """The floating-point tensors by name and position."""
    every = {name: measure if isinstance(measure, tuple) else (measure,) for name, measure in results.items()}
    return {(name, i): x for name, parts in every.items() for i, x in enumerate(parts) if x.is_floating_point()}


def same(actual, expected, leaves):
    """Check that the tensors are equal, and the gradients of a number that depends on all of them."""
    torch.testing.assert_close(actual, expected)
    gradients = []
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    for results in (actual, expected):
        loss = sum(leaf.sum() for leaf in leaves) * 0
        for part in results.values():
            finite = part.masked_fill(~part.isfinite(), 0.0)
            loss = loss + (finite * torch.linspace(1, 2, part.numel()).view_as(part)).sum()
        gradients.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(*gradients)
