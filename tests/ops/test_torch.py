"""What torch does with programs: compile, export, transform, checkpoint, cast. Eager and dense are the oracles."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

from ops.rules import SCORES, masks, measures
from pairwise import pairwise, sampled
from regard.errors import InvalidArgument
from regard.ops import (
    ByDistance,
    Causal,
    Diagonal,
    Measure,
    Neighbours,
    Padding,
    ScaledDot,
    Sinks,
    SoftCap,
    TopK,
    Window,
    attend,
    weights,
)
from regard.ops.kernels import threads
from regard.ops.kernels.fused import DENSE_CELLS
from regard.ops.kernels.spec import CLASSES, describe, is_known, restore
from regard.ops.measures import MEASURES
from regard.ops.tensors import tensors_of

TOKENS = 19
OWN = {"own", "function", "block mask"}  # rules that no operator can know
BUILT_IN = [name for name in masks(1, 2, TOKENS, TOKENS) if name not in OWN]
KNOWN = [name for name in SCORES if name != "own"]
ASKED = {name: measure for name, measure in measures(TOKENS, TOKENS).items() if type(measure) in MEASURES.values()}


def tensors(dtype=torch.float32, count=3):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, TOKENS, 4, generator=random).to(dtype).requires_grad_() for _ in range(count)]


def everything(query, key, value, **rules):
    """One number that depends on the output and on every answer that has a gradient, and an answer that has none."""
    att = attend(query, key, value, measure=ASKED, **rules)
    parts = [part for answer in att.measured.values() for part in (answer if isinstance(answer, tuple) else (answer,))]
    loss = att.output.square().sum()
    for part in parts:
        loss = loss + part.clamp(min=-9).square().sum() if part.is_floating_point() else loss
    return loss, att.measured["topk"].indices


CASES = sampled(pairwise(BUILT_IN, KNOWN, ["streamed", None]), 30)  # each is compiled, which takes a second


@pytest.mark.parametrize(("mask", "score", "kernel"), CASES)
def test_built_in_rules_are_one_node_of_a_compiled_program(mask, score, kernel):
    torch._dynamo.reset()
    case, rule = SCORES[score], masks(1, 2, TOKENS, TOKENS)[mask]
    held = {name: tensor.float().requires_grad_() for name, tensor in case.tensors(2, TOKENS, TOKENS, 4).items()}
    leaves = [*tensors(), *held.values()]

    def program(*given):
        score = case.rule(dict(zip(held, given[3:], strict=True)))
        return everything(*given[:3], mask=rule, score=score, kernel=kernel)

    graphs = []

    def backend(graph, example):
        graphs.append(graph)
        return graph

    compiled, plain = torch.compile(program, backend=backend, fullgraph=True)(*leaves), program(*leaves)
    nodes = [str(node.target) for node in graphs[0].graph.nodes if "regard" in str(node.target)]
    assert nodes == ["regard.attend"] or nodes == ["regard.attend.default"], nodes
    assert torch.equal(compiled[1], plain[1])
    torch.testing.assert_close(compiled[0], plain[0])
    gradients = [
        torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True) for loss, _ in (compiled, plain)
    ]
    torch.testing.assert_close(*gradients)


class Attention(nn.Module):
    """A module with rules that learn, to be exported."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(2))

    def forward(self, query, key, value, lengths):
        score = Sinks(SoftCap(ScaledDot(), 2.0), self.sinks)
        mask = Causal() & Padding(lengths)
        att = attend(query, key, value, mask=mask, score=score, measure=["entropy", TopK(3)], kernel="streamed")
        return att.output, att.measured["entropy"], att.measured["topk"].indices


def test_an_exported_program_gives_the_same():
    module, given = Attention(), (*tensors(), torch.tensor([15]))
    program = torch.export.export(module, given)
    assert "regard.attend" in str(program.graph)
    other = (*(tensor.detach() + 1 for tensor in given[:3]), torch.tensor([9]))
    for found, expected in zip(program.module()(*other), module(*other), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_known_class_is_told_and_read_back(name):
    whole = [
        *masks(1, 2, 5, 5).values(),
        *ASKED.values(),
        *(SCORES[each].rule(SCORES[each].tensors(2, 5, 5, 4)) for each in KNOWN),
    ]
    todo, found = [thing for thing in whole if not isinstance(thing, torch.Tensor)], []
    while todo:
        thing = todo.pop()
        found += [thing] if type(thing).__name__ == name else []
        todo += [part for part in getattr(thing, "__dict__", {}).values() if type(part) in CLASSES.values()]
    for thing in found:
        held, numbers, again_numbers = [], [], []
        text = describe(thing, held, numbers)
        again = restore(text, held, numbers)
        assert type(again) is type(thing)
        assert (describe(again, [], again_numbers), again_numbers) == (text, numbers)
        assert all(one is other for one, other in zip(tensors_of(again), tensors_of(thing), strict=True))


@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 2)])
def test_one_program_serves_every_length(mask):
    def program(*given):
        asked = ["entropy", "received", "max", "mean_distance", "lse", Diagonal(-1), ByDistance(2), TopK(3)]
        att = attend(*given, mask=mask, measure=asked)
        parts = [answer if isinstance(answer, torch.Tensor) else answer[0] for answer in att.measured.values()]
        return torch.stack([part.clamp(min=-9).square().sum() for part in (att.output, *parts)])

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((16, 24, 50, 150)):
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            given = [torch.randn(2, 4, length, 8, requires_grad=True) for _ in range(3)]
            found, expected = compiled(*given), program(*given)
            torch.testing.assert_close(found, expected)
            gradients = [torch.autograd.grad(sums.sum(), given) for sums in (found, expected)]
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    "mask", [None, Causal(), Window(3, 2), Padding(torch.tensor([9, 12])), Causal() & Padding(torch.tensor([9, 12]))]
)
def test_one_program_serves_every_length_where_nothing_is_asked(mask, kv_heads):
    def program(query, key, value):
        return attend(query, key, value, mask=mask).output

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((16, 24, 150, 2000)):
        # Where the mask would have more than so many cells written out, another kernel serves.
        may_recompile = number == 0 or 8 * length**2 > DENSE_CELLS
        with torch._dynamo.config.patch(error_on_recompile=not may_recompile):
            given = [torch.randn(2, heads, length, 8) for heads in (4, kv_heads, kv_heads)]
            torch.testing.assert_close(compiled(*given), program(*given))


def test_a_decoder_whose_keys_grow_may_be_compiled():
    def program(query, key, value):
        return attend(query, key, value, mask=Causal()).output

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    for queries, keys in ((10, 10), (10, 12), (10, 13), (1, 14), (1, 15)):
        query, (key, value) = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 4, keys, 8).unbind()
        torch.testing.assert_close(compiled(query, key, value), program(query, key, value))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 2)])
def test_an_exported_program_serves_every_length(mask, strict):
    class Program(nn.Module):
        def forward(self, query, key, value):
            att = attend(query, key, value, mask=mask, measure="entropy")
            return attend(query, key, value, mask=None if mask is None else Causal()).output, *att.measured.values()

    length = torch.export.Dim("length", min=2, max=4096)
    given = torch.randn(3, 1, 2, 30, 8).unbind()
    program = torch.export.export(Program(), given, dynamic_shapes=({2: length},) * 3, strict=strict).module()
    longer = torch.randn(3, 1, 2, 150, 8).unbind()
    torch.testing.assert_close(program(*longer), Program()(*longer))


def test_the_matrix_of_a_compiled_program_may_be_made():
    query, key, _ = tensors()
    torch._dynamo.reset()
    for made in (lambda W: W.dense(), lambda W: W.scores.dense(), lambda W: W.at(heads=1).dense()):
        compiled = torch.compile(lambda q, k, made=made: made(weights(q, k)), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(query, key), made(weights(query, key)))


@pytest.mark.parametrize("mask", ["causal", "window", "padding", "prefix", "dense", "documents", "function"])
@pytest.mark.parametrize("learns", [True, False])
def test_so_is_the_output_alone(mask, learns):
    torch._dynamo.reset()
    query, key, value = (tensor.detach().requires_grad_(learns) for tensor in tensors())
    rule = masks(1, 2, TOKENS, TOKENS)[mask]

    def program(query, key, value):
        return attend(query * 2, key, value, mask=rule).output

    compiled = torch.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, key, value), program(query, key, value))


def test_a_rule_of_one_s_own_is_not_known():
    assert not is_known(masks(1, 1, 3, 3)["own"])
    assert not is_known({"a": measures(3, 3)["total"]})


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # of the compiler, about itself
@pytest.mark.parametrize("part", ["mask", "score", "measure"])
def test_a_rule_of_one_s_own_breaks_the_graph_and_is_right(part):
    torch._dynamo.reset()
    query, key, value = tensors()
    own = {
        "mask": {"mask": masks(1, 2, TOKENS, TOKENS)["own"]},
        "score": {"score": SCORES["own"].rule({"t": torch.ones(2)})},
        "measure": {"measure": {"x": measures(TOKENS, TOKENS)["total"]}},
    }[part]

    def program(query, key, value):
        att = attend(query * 2, key, value, kernel="streamed", **own)
        return att.output.square().sum() + sum(answer.sum() for answer in att.measured.values())

    found, expected = torch.compile(program, backend="eager")(query, key, value), program(query, key, value)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, (query, key, value)) for each in (found, expected)))


GRAPH = Neighbours(torch.stack((torch.arange(TOKENS), torch.arange(TOKENS).flip(0))))
KERNELS = {"streamed": Causal(), "edges": GRAPH, "short": Causal(), "fused": None, "reference": Causal()}


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_and_batches_of_torch_func(kernel):
    query, key, value = (tensor.detach() for tensor in tensors(torch.float64))
    asked, mask = [] if kernel in ("short", "fused") else ["entropy", "received", "lse", "max"], KERNELS[kernel]

    def loss(query, key, value, kernel=kernel):
        att = attend(query, key, value, mask=mask, measure=asked, kernel=kernel)
        parts = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
        return att.output.square().sum() + sum(part.square().sum() for part in parts)

    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    expected = torch.autograd.grad(loss(*leaves, kernel="reference"), leaves)
    torch.testing.assert_close(grad(loss, argnums=(0, 1, 2))(query, key, value), expected)
    several = torch.stack((query, query + 1, query - 1))
    one_by_one = torch.stack([grad(loss)(each, key, value) for each in several])
    torch.testing.assert_close(vmap(grad(loss), (0, None, None))(several, key, value), one_by_one)
    if kernel != "short":  # which is for training alone
        summed = torch.stack([loss(each, key, value) for each in several])
        torch.testing.assert_close(vmap(loss, (0, None, None))(several, key, value), summed)
    rows = jacrev(lambda query: attend(query, key, value, mask=mask, kernel=kernel).output[0, 0, 3])(query)
    assert rows.shape == (4, *query.shape)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of torch, which calls it
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "short"])
def test_forward_mode_is_right_or_refused(kernel):
    query, key, value = (tensor.detach() for tensor in tensors(torch.float64))
    tangent = torch.randn_like(query)

    def output(query):
        return attend(query, key, value, mask=KERNELS[kernel], kernel=kernel).output

    try:
        _, found = jvp(output, (query,), (tangent,))
    except (NotImplementedError, RuntimeError):
        assert kernel != "reference"
        return
    step = 1e-6
    expected = (output(query + step * tangent) - output(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kernel", ["streamed", "edges", "short"])
def test_a_second_derivative_is_refused_and_never_zero(kernel):
    query, key, value = tensors(torch.float64)
    mask = KERNELS[kernel]
    output = attend(query, key, value, mask=mask, kernel=kernel).output
    (first,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
    with pytest.raises(InvalidArgument, match="kernel='reference' has second derivatives"):
        torch.autograd.grad(first.square().sum(), query)
    inner = grad(lambda query: attend(query, key, value, mask=mask, kernel=kernel).output.square().sum())
    with pytest.raises(InvalidArgument, match="kernel='reference' has second derivatives"):
        grad(lambda query: inner(query).square().sum())(query.detach())


def test_autocast_leaves_the_answers_in_float32():
    query, key, value = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        att = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), measure=["entropy"], kernel="streamed")
        att.measured["entropy"].sum().backward()
    assert att.output.dtype == torch.bfloat16
    assert att.measured["entropy"].dtype == torch.float32
    exact = weights(query.bfloat16().double(), key.bfloat16().double()).entropy()
    torch.testing.assert_close(att.measured["entropy"].double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_activation_checkpointing_gives_the_same_gradients(reentrant, dropout):
    leaves = tensors()

    def loss(query, key, value):
        att = attend(query, key, value, mask=Causal(), dropout=dropout, measure=["entropy"], kernel="streamed")
        return att.output.square().sum() + att.measured["entropy"].square().sum()

    found = []
    for again in (False, True):
        torch.manual_seed(3)
        total = checkpoint(loss, *leaves, use_reentrant=reentrant) if again else loss(*leaves)
        for leaf in leaves:
            leaf.grad = None
        total.backward()
        found.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*found)


def test_parameters_given_from_outside():
    module = Attention()
    given = (*(tensor.detach() for tensor in tensors()), torch.tensor([12]))

    def loss(parameters):
        return functional_call(module, parameters, given)[0].square().sum()

    parameters = dict(module.named_parameters())
    found = grad(loss)({name: parameter.detach() for name, parameter in parameters.items()})
    (expected,) = torch.autograd.grad(loss(parameters), [module.sinks])
    torch.testing.assert_close(found["sinks"], expected)


@pytest.mark.parametrize("mask", ["none", "causal", "neighbours"])
def test_opcheck(mask):
    query, key, value = tensors()
    rule = masks(1, 2, TOKENS, TOKENS)[mask]
    held, numbers = [], []
    text = describe(_job(query, key, value, rule), held, numbers)
    kernel = "edges" if mask == "neighbours" else "streamed"
    seed = torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(torch.ops.regard.attend.default, (held, numbers, text, kernel, seed))
    plain = [tensor.detach() for tensor in held]
    found = torch.ops.regard.attend(plain, numbers, text, kernel, seed)
    came = [part.is_floating_point() for part in found]
    gradients = [torch.ones_like(part) for part in found if part.is_floating_point()]
    needed = [tensor.is_floating_point() for tensor in held]
    arguments = plain, numbers, text, kernel, seed, gradients, came, needed
    torch.library.opcheck(torch.ops.regard.attend_backward.default, arguments)


def _job(query, key, value, mask):
    from regard.ops.kernels.base import Job
    from regard.ops.measures import as_measures
    from regard.ops.request import make_request

    return Job(make_request(query, key, value=value, mask=mask), value, as_measures(["entropy", "received", TopK(2)]))


def test_a_measure_of_one_s_own_under_torch_func():
    class Peak(Measure):
        def of(self, block):
            return block.weights.square().sum(-1)

    query, key, _ = (tensor.detach() for tensor in tensors(torch.float64))

    def loss(query, kernel):
        return attend(query, key, key, measure=Peak(), kernel=kernel).measured["peak"].sum()

    torch.testing.assert_close(grad(loss)(query, "streamed"), grad(loss)(query, "reference"))


def test_transformed_and_compiled_programs_may_run_on_threads(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0)
    query, key, value = torch.randn(3, 2, 8, 500, 8).unbind()
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]

    def loss(query, key, value, kernel="streamed"):
        att = attend(query, key, value, mask=Causal(), measure=["entropy", "received"], kernel=kernel)
        return att.output.square().sum() + sum(answer.square().sum() for answer in att.measured.values())

    expected = torch.autograd.grad(loss(*leaves, kernel="reference"), leaves)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = [
            grad(loss, argnums=(0, 1, 2))(query, key, value),
            torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves), leaves),
            torch.autograd.grad(checkpoint(loss, *leaves, use_reentrant=False), leaves),
        ]
    finally:
        torch.set_num_threads(before)
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4)
