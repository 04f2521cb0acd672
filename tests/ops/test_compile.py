"""Compiled and exported programs with attention, compared with eager ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.ops.cases import SCORES, masks, measures
from helpers.ops.tiny_attention import TOKENS, Attention, tensors
from helpers.pairwise import each_value, pairwise, sampled
from regard.ops import attend, weights
from regard.ops.indexing import SelectCells
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.sdpa import MAX_DENSE_CELLS
from regard.ops.masks import Causal, Padding, Window, as_mask
from regard.ops.measures import Diagonal, DistanceHistogram, KLDivergence, TopK
from regard.ops.measures.received import TransposedProduct
from regard.ops.request import AttentionRequest, make_request
from regard.ops.rules import Rule, builtin_classes
from regard.ops.scores import Alibi, ScaledDotProduct, Sinks
from regard.ops.tree import TreeEncoder, decode, tensors_in

PYTHON = {"own", "function", "block mask"}  # rules with Python code of the user, which no operator can hold
BUILTIN_MASKS = [name for name in masks(1, 2, TOKENS, TOKENS) if name not in PYTHON]
BUILTIN_SCORES = [name for name in SCORES if name not in PYTHON]
NOT_ENCODED = {"MaskMod", "FlexBlockMask", "ScoreMod"}  # they hold functions
BUILTIN_MEASURES = {name: measure for name, measure in measures(TOKENS, TOKENS).items() if measure.builtin}


def everything(query, key, value, **rules):
    """One number that depends on the output and on every result that has a gradient, and a result without one."""
    att = attend(query, key, value, measure=BUILTIN_MEASURES, **rules)
    parts = [part for result in att.measured.values() for part in (result if isinstance(result, tuple) else (result,))]
    loss = att.output.square().sum()
    for part in parts:
        loss = loss + part.clamp(min=-9).square().sum() if part.is_floating_point() else loss
    return loss, att.measured["topk"].indices


CASES = sampled(
    pairwise(BUILTIN_MASKS, BUILTIN_SCORES, ["blockwise", None]), 15
)  # each is compiled, which takes a second


@pytest.mark.parametrize(("mask", "score", "kernel"), CASES)
def test_builtin_rules_are_one_node_of_a_compiled_program(mask, score, kernel):
    torch._dynamo.reset()
    case, rule = SCORES[score], masks(1, 2, TOKENS, TOKENS)[mask]
    learned = {name: tensor.float().requires_grad_() for name, tensor in case.tensors(2, TOKENS, TOKENS, 4).items()}
    leaves = [*tensors(), *learned.values()]

    def program(*arguments):
        score = case.rule(dict(zip(learned, arguments[3:], strict=True)))
        return everything(*arguments[:3], mask=rule, score=score, kernel=kernel)

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


def test_an_exported_program_computes_the_same():
    module, example = Attention(), (*tensors(), torch.tensor([15]))
    program = torch.export.export(module, example)
    assert "regard.attend" in str(program.graph)
    other = (*(tensor.detach() + 1 for tensor in example[:3]), torch.tensor([9]))
    for actual, expected in zip(program.module()(*other), module(*other), strict=True):
        torch.testing.assert_close(actual, expected)


CLASSES = {cls.__name__: cls for cls in builtin_classes() if cls.__name__ not in NOT_ENCODED}


def test_every_builtin_rule_is_encoded_and_decoded(subtests):
    rules = [
        *(as_mask(mask) for mask in masks(1, 2, 5, 5).values() if mask is not None),
        *BUILTIN_MEASURES.values(),
        KLDivergence(weights(*torch.randn(2, 1, 2, 5, 4).unbind(), mask=Causal())),
        SelectCells("scores", slice(1, None)),
        TransposedProduct(torch.randn(1, 2, 5, 3)),
        ScaledDotProduct(),
        *(SCORES[each].rule(SCORES[each].tensors(2, 5, 5, 4)) for each in BUILTIN_SCORES),
    ]
    todo, parts = [rule for rule in rules if isinstance(rule, Rule)], []
    while todo:
        rule = todo.pop()
        parts += [rule] if type(rule).__name__ in CLASSES else []
        todo += [part for part in vars(rule).values() if isinstance(part, Rule)]
    assert {type(rule).__name__ for rule in parts} == CLASSES.keys()
    for rule in parts:
        with subtests.test(rule=type(rule).__name__):
            encoder, again = TreeEncoder(), TreeEncoder()
            text = encoder.encode(rule)
            decoded = decode(text, *encoder.lists, {**CLASSES, "AttentionRequest": AttentionRequest})
            assert type(decoded) is type(rule)
            assert (again.encode(decoded), again.lists[1:]) == (text, encoder.lists[1:])
            assert all(one is other for one, other in zip(tensors_in(decoded), tensors_in(rule), strict=True))


@pytest.mark.parametrize("mask", sampled([None, Causal(), Window(3, 2)], 1))
def test_one_program_takes_every_length(mask):
    def program(*arguments):
        measures = ["entropy", "received", "max", "mean_distance", "lse", Diagonal(-1), DistanceHistogram(2), TopK(3)]
        att = attend(*arguments, mask=mask, measure=measures)
        parts = [result if isinstance(result, torch.Tensor) else result[0] for result in att.measured.values()]
        return torch.stack([part.clamp(min=-9).square().sum() for part in (att.output, *parts)])

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((16, 24, 50, 150)):
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            leaves = [torch.randn(2, 4, length, 8, requires_grad=True) for _ in range(3)]
            actual, expected = compiled(*leaves), program(*leaves)
            torch.testing.assert_close(actual, expected)
            gradients = [torch.autograd.grad(sums.sum(), leaves) for sums in (actual, expected)]
            torch.testing.assert_close(*gradients)


MASKS = None, Causal(), Window(3, 2), Padding(torch.tensor([9, 12])), Causal() & Padding(torch.tensor([9, 12]))


@pytest.mark.parametrize(("mask", "kv_heads"), each_value(MASKS, [4, 2]))
def test_one_program_takes_every_length_without_measures(mask, kv_heads):
    def program(query, key, value):
        return attend(query, key, value, mask=mask).output

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for number, length in enumerate((16, 24, 150, 2000)):
        # Where a dense mask would have more cells than this, another kernel runs.
        may_recompile = number == 0 or 8 * length**2 > MAX_DENSE_CELLS
        with torch._dynamo.config.patch(error_on_recompile=not may_recompile):
            arguments = [torch.randn(2, heads, length, 8) for heads in (4, kv_heads, kv_heads)]
            torch.testing.assert_close(compiled(*arguments), program(*arguments))


def test_a_decoder_whose_keys_grow_can_be_compiled():
    def program(query, key, value):
        return attend(query, key, value, mask=Causal()).output

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    for queries, keys in ((10, 10), (10, 12), (10, 13), (1, 14), (1, 15)):
        query, (key, value) = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 4, keys, 8).unbind()
        torch.testing.assert_close(compiled(query, key, value), program(query, key, value))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 2)])
def test_an_exported_program_takes_every_length(mask, strict):
    class Program(nn.Module):
        def forward(self, query, key, value):
            att = attend(query, key, value, mask=mask, measure="entropy")
            return attend(query, key, value, mask=None if mask is None else Causal()).output, *att.measured.values()

    length = torch.export.Dim("length", min=2, max=4096)
    example = torch.randn(3, 1, 2, 30, 8).unbind()
    program = torch.export.export(Program(), example, dynamic_shapes=({2: length},) * 3, strict=strict).module()
    longer = torch.randn(3, 1, 2, 150, 8).unbind()
    torch.testing.assert_close(program(*longer), Program()(*longer))


def test_an_exported_program_can_be_saved_and_loaded(tmp_path):
    class Program(nn.Module):
        def forward(self, query, key, value):
            score = ScaledDotProduct() + Alibi.for_heads(2)
            att = attend(query, key, value, mask=Window(3, 2), score=score, measure=["entropy", TopK(3)])
            return att.output, att.measured["entropy"], att.measured["topk"].indices

    length = torch.export.Dim("length", min=2, max=4096)
    example = torch.randn(3, 1, 2, 30, 8).unbind()
    program = torch.export.export(Program(), example, dynamic_shapes=({2: length},) * 3)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    longer = torch.randn(3, 1, 2, 150, 8).unbind()
    torch.testing.assert_close(loaded(*longer), Program()(*longer))


@pytest.mark.parametrize("strict", [True, False])
def test_queries_and_keys_of_an_exported_program_may_differ_in_length(strict):
    class Program(nn.Module):
        def forward(self, query, key, value):
            return attend(query, key, value).output, weights(query, key).entropy()

    queries, keys = (torch.export.Dim(name, min=2, max=4096) for name in ("queries", "keys"))
    shapes = {2: queries}, {2: keys}, {2: keys}
    example = torch.randn(3, 1, 2, 30, 8).unbind()
    program = torch.export.export(Program(), example, dynamic_shapes=shapes, strict=strict).module()
    other = torch.randn(1, 2, 50, 8), *torch.randn(2, 1, 2, 150, 8).unbind()
    torch.testing.assert_close(program(*other), Program()(*other))


def test_the_matrix_of_a_compiled_program_can_be_computed():
    query, key, _ = tensors()
    torch._dynamo.reset()
    for compute in (lambda W: W.dense(), lambda W: W.scores.dense(), lambda W: W.at(heads=1).dense()):
        compiled = torch.compile(lambda q, k, fn=compute: fn(weights(q, k)), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(query, key), compute(weights(query, key)))


@pytest.mark.parametrize("mask", ["causal", "window", "padding", "prefix", "dense", "documents", "function"])
def test_the_output_alone_compiles_as_one_graph(mask, subtests):
    rule = masks(1, 2, TOKENS, TOKENS)[mask]

    def program(query, key, value):
        return attend(query * 2, key, value, mask=rule).output

    for requires_grad in (True, False):
        with subtests.test(requires_grad=requires_grad):
            torch._dynamo.reset()
            inputs = [tensor.detach().requires_grad_(requires_grad) for tensor in tensors()]
            compiled = torch.compile(program, backend="eager", fullgraph=True)
            torch.testing.assert_close(compiled(*inputs), program(*inputs))


def test_calls_with_a_user_s_rule_are_not_builtin():
    query = torch.zeros(1, 1, 3, 4)
    for mask in ("own", "function", "causal"):
        request = make_request(query, query, mask=masks(1, 1, 3, 3)[mask])
        assert KernelInputs(None, request, {}).is_builtin == (mask == "causal")
    request = make_request(query, query, mask=~masks(1, 1, 3, 3)["own"] & Causal())
    assert not KernelInputs(None, request, {}).is_builtin
    request = make_request(query, query)
    assert KernelInputs(None, request, {"a": measures(3, 3)["entropy"]}).is_builtin
    assert not KernelInputs(None, request, {"a": measures(3, 3)["total"]}).is_builtin
    request = make_request(query, query, score=SCORES["own"].rule({"t": torch.ones(1)}))
    assert not KernelInputs(None, request, {}).is_builtin


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by the compiler
@pytest.mark.parametrize("part", ["mask", "function", "block mask", "score", "measure"])
def test_a_user_s_rule_breaks_the_graph_and_is_right(part):
    torch._dynamo.reset()
    query, key, value = tensors()
    rule = {
        "mask": {"mask": masks(1, 2, TOKENS, TOKENS)["own"]},
        "function": {"mask": ~Window(3, 1) & masks(1, 2, TOKENS, TOKENS)["function"], "measure": "entropy"},
        "block mask": {"mask": masks(1, 2, TOKENS, TOKENS)["block mask"], "measure": "entropy"},
        "score": {"score": SCORES["own"].rule({"t": torch.ones(2)})},
        "measure": {"measure": {"x": measures(TOKENS, TOKENS)["total"]}},
    }[part]

    def program(query, key, value):
        att = attend(query * 2, key, value, kernel="blockwise", **rule)
        return att.output.square().sum() + sum(result.sum() for result in att.measured.values())

    actual, expected = torch.compile(program, backend="eager")(query, key, value), program(query, key, value)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, (query, key, value)) for each in (actual, expected)))


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"score": Sinks(ScaledDotProduct(), torch.ones(4))},
        lambda: {"score": ScaledDotProduct() + Alibi.for_heads(4)},
        lambda: {"mask": Padding(torch.tensor([4, 7]))},
    ],
)
def test_a_program_of_any_shape_takes_tensors_with_an_entry_per_head_or_sentence(options):
    def function(query, key, value):
        return attend(query, key, value, measure="entropy", **options()).output

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (10, 17):
        inputs = torch.randn(3, 2, 4, tokens, 8)
        assert torch.allclose(compiled(*inputs), function(*inputs), atol=1e-6)


@pytest.mark.parametrize(
    "read",
    [
        lambda W, x: W @ x,
        lambda W, x: torch.matmul(W, x),
        lambda W, x: W.mT @ x,
        lambda W, x: torch.einsum("bhqk,bhkd->bhqd", W, x),
        lambda W, x: W.sum(-1),
        lambda W, x: W.sum(2),
        lambda W, x: W.entropy(),
    ],
    ids=["product", "function", "transposed", "einsum", "sum over keys", "sum over queries", "measure"],
)
def test_matrices_are_read_in_compiled_code_of_all_sizes(read):
    def program(query, key, x):
        return read(weights(query, key, mask=Causal()), x)

    compiled = torch.compile(program, backend="eager")
    for size in (9, 7):
        tensors = torch.randn(3, 2, 2, size, 4).unbind()
        torch.testing.assert_close(compiled(*tensors), program(*tensors))
