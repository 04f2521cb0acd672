"""What torch.compile and torch.export make of programs with attention in them. Eager is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ops.rules import SCORES, masks, measures
from ops.small import TOKENS, Attention, tensors
from pairwise import pairwise, sampled
from regard.ops import (
    Causal,
    Diagonal,
    DistanceHistogram,
    Padding,
    TopK,
    Window,
    attend,
    weights,
)
from regard.ops.kernels.sdpa import DENSE_CELLS
from regard.ops.kernels.spec import CLASSES, describe, is_known, restore
from regard.ops.measures import MEASURES
from regard.ops.tree import tensors_in

OWN = {"own", "function", "block mask"}  # rules that no operator can know
BUILT_IN = [name for name in masks(1, 2, TOKENS, TOKENS) if name not in OWN]
KNOWN = [name for name in SCORES if name != "own"]
ASKED = {name: measure for name, measure in measures(TOKENS, TOKENS).items() if type(measure) in MEASURES.values()}


def everything(query, key, value, **rules):
    """One number that depends on the output and on every answer that has a gradient, and an answer that has none."""
    att = attend(query, key, value, measure=ASKED, **rules)
    parts = [part for answer in att.measured.values() for part in (answer if isinstance(answer, tuple) else (answer,))]
    loss = att.output.square().sum()
    for part in parts:
        loss = loss + part.clamp(min=-9).square().sum() if part.is_floating_point() else loss
    return loss, att.measured["topk"].indices


CASES = sampled(pairwise(BUILT_IN, KNOWN, ["blockwise", None]), 30)  # each is compiled, which takes a second


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
        assert all(one is other for one, other in zip(tensors_in(again), tensors_in(thing), strict=True))


@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 2)])
def test_one_program_serves_every_length(mask):
    def program(*given):
        asked = ["entropy", "received", "max", "mean_distance", "lse", Diagonal(-1), DistanceHistogram(2), TopK(3)]
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


@pytest.mark.parametrize("strict", [True, False])
def test_queries_and_keys_of_an_exported_program_have_lengths_of_their_own(strict):
    class Program(nn.Module):
        def forward(self, query, key, value):
            return attend(query, key, value).output, weights(query, key).entropy()

    queries, keys = (torch.export.Dim(name, min=2, max=4096) for name in ("queries", "keys"))
    shapes = {2: queries}, {2: keys}, {2: keys}
    given = torch.randn(3, 1, 2, 30, 8).unbind()
    program = torch.export.export(Program(), given, dynamic_shapes=shapes, strict=strict).module()
    other = torch.randn(1, 2, 50, 8), *torch.randn(2, 1, 2, 150, 8).unbind()
    torch.testing.assert_close(program(*other), Program()(*other))


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
        att = attend(query * 2, key, value, kernel="blockwise", **own)
        return att.output.square().sum() + sum(answer.sum() for answer in att.measured.values())

    found, expected = torch.compile(program, backend="eager")(query, key, value), program(query, key, value)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, (query, key, value)) for each in (found, expected)))
