"""Rules as steps: every class of the library has them and the native library knows them, or it is listed here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.ops import cases
from regard.errors import InvalidArgument, KernelNotSupported
from regard.ops import attend, weights
from regard.ops.indexing import SelectCells
from regard.ops.kernels.native.pack import KINDS
from regard.ops.masks import Causal, FlexBlockMask, Mask, MaskMod, Neighbors, Window, as_mask
from regard.ops.measures import Entropy, KLDivergence, Mass, Measure, TransposedProduct
from regard.ops.request import make_request
from regard.ops.rules import Rule, builtin_classes, has_steps
from regard.ops.scores import Additive, Bias, Bilinear, ScaledDotProduct, Score, ScoreMod
from regard.ops.steps import Step
from regard.ops.tree import subtrees

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 3, 5, 7, 4
RANDOM = torch.Generator().manual_seed(0)
QUERY, KEY = (torch.randn(BATCH, HEADS, tokens, DIM, generator=RANDOM) for tokens in (QUERIES, KEYS))
TABLE = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=RANDOM)
REQUEST = make_request(QUERY, KEY)

WITHOUT_STEPS = {Neighbors, MaskMod, FlexBlockMask, ScoreMod, Bilinear, Additive}
"""Computed by blockwise, sparse and the reference only."""

IN_CASES = (
    *(as_mask(mask) for mask in cases.masks(BATCH, HEADS, QUERIES, KEYS).values() if mask is not None),
    *(case.rule(case.tensors(HEADS, QUERIES, KEYS, DIM)) for case in cases.SCORES.values()),
    *cases.measures(QUERIES, KEYS).values(),
)
OTHERS = KLDivergence(weights(QUERY, KEY)), SelectCells("weights", slice(1, 4)), TransposedProduct(TABLE)
RULES = {
    type(part): part
    for rule in (*IN_CASES, *OTHERS)
    for part in subtrees(rule)
    if isinstance(part, Rule) and part.builtin and type(part) not in WITHOUT_STEPS
}
"""An instance of each class."""

METHODS = {Mask: "allowed", Score: "__call__", Measure: "compute"}


def steps_of(rule, request=REQUEST):
    return rule.steps(request.local_place if isinstance(rule, Measure) else request.place)


def test_every_rule_of_the_library_has_steps_that_the_native_library_knows(subtests):
    for cls in builtin_classes():
        with subtests.test(cls.__name__):
            check_steps(cls, cls.__name__)


def check_steps(cls, name):
    if cls in WITHOUT_STEPS:
        assert not has_steps(cls), f"{name} has steps: remove it from WITHOUT_STEPS"
        return
    assert has_steps(cls), f"{name} has no method steps(place): add it, or add the class to WITHOUT_STEPS"
    assert cls in RULES, f"there is no instance of {name}: add a case to regard.diagnostics.cases, or add it to OTHERS"
    steps = steps_of(RULES[cls])
    assert steps, f"{name}.steps gives none for the instance in RULES"
    unknown = [step.kind for step in steps if step.kind not in KINDS[cls.base]]
    assert not unknown, f"{name}: add {unknown} to csrc/call.h or csrc/measures/all.h, and to native/library.py"


def test_tensors_of_steps_have_four_axes_and_are_on_the_device_of_the_request(subtests):
    for cls, rule in RULES.items():
        with subtests.test(cls.__name__):
            with torch.device("meta"):  # where a tensor would be that is made without a device
                tensors = [tensor for step in steps_of(rule) for tensor in step.tensors() if tensor is not None]
            for tensor in tensors:
                assert tensor.device.type == "cpu"
                sizes = zip(tensor.shape, (BATCH, HEADS), strict=False)
                assert tensor.ndim == 4
                assert all(size in (1, full) for size, full in sizes)
                if cls.base is Mask:
                    assert tensor.dtype in (torch.int64, torch.bool)


def test_a_subclass_has_the_steps_of_its_parent_only_if_it_keeps_its_rule(subtests):
    for cls in RULES:
        with subtests.test(cls.__name__):
            own = getattr(cls, METHODS[cls.base])
            same = type("Same", (cls,), {})
            other = type("Other", (cls,), {METHODS[cls.base]: lambda self, *arguments, own=own: own(self, *arguments)})
            both = type("Both", (other,), {"steps": cls.steps})
            assert [has_steps(each) for each in (same, other, both)] == [True, False, True]


def call(kernel, mask=None, score=None, measure=()):
    leaves = [QUERY.clone().requires_grad_(), KEY.clone().requires_grad_()]
    att = attend(*leaves, leaves[1], mask=mask, score=score, measure=measure, kernel=kernel)
    results = [att.output, *att.measured.values()]
    return [*results, *torch.autograd.grad(sum(result.sum() for result in results), leaves)]


def test_the_native_kernel_computes_a_subclass_that_keeps_the_rules_and_no_other():
    class MyWindow(Window):
        pass

    class MyBias(Bias):
        pass

    class MyEntropy(Entropy):
        pass

    class Strict(Window):
        def allowed(self, tile):
            return super().allowed(tile) & (tile.kv_idx < tile.q_pos)

    rules = {"mask": MyWindow(2, 0), "score": ScaledDotProduct() + MyBias(TABLE), "measure": MyEntropy()}
    expected = call("reference", Window(2, 0), ScaledDotProduct() + Bias(TABLE), "entropy")
    torch.testing.assert_close(call("native", **rules), expected, rtol=1e-5, atol=1e-5)
    for mask, measure in ((~(Strict(2, 0) & Causal()), "entropy"), (None, Mass(Strict(2, 0)))):
        with pytest.raises(KernelNotSupported, match=r"it does not support the mask Strict$"):
            call("native", mask=mask, measure=measure)


class ByParity(Score):
    """A user's score whose steps are those of the library: a learned bias for keys of even and odd distance."""

    table: torch.Tensor

    def bias(self, distance):
        return self.table[distance % 2]

    def __call__(self, query, key, scale, tile):
        return query * scale @ key.mT + self.bias(tile.kv_idx - tile.q_pos)

    def steps(self, place):
        def tensors():
            return (self.bias(place.distances).expand(1, HEADS, 1, -1),)

        return [Step("dot_product"), Step("add_distances", (place.last_position,), tensors)]


class Hidden(ByParity):
    hidden = torch.ones(2, requires_grad=True)

    def bias(self, distance):
        return (self.table * self.hidden)[distance % 2]


def test_the_native_kernel_computes_a_users_score_with_steps_and_its_gradient():
    table = torch.tensor([0.5, -1.0], requires_grad=True)
    outputs = [
        attend(QUERY, KEY, KEY, score=ByParity(table), kernel=kernel).output for kernel in ("native", "reference")
    ]
    actual, expected = (torch.autograd.grad(output.square().sum(), table) for output in outputs)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_hidden_tensor_is_found_in_the_steps_of_a_users_score():
    with pytest.raises(InvalidArgument, match="score: Hidden uses a tensor that requires grad"):
        attend(QUERY, KEY, KEY, score=Hidden(torch.ones(2)), kernel="native")


def test_a_kind_that_the_library_does_not_have_is_named():
    class Odd(Mask):
        def allowed(self, tile):
            return tile.kv_idx % 2 == 1

        def steps(self, place):
            return [Step("odd")]

    with pytest.raises(KernelNotSupported, match="it has no step 'odd' of the mask Odd"):
        attend(QUERY, KEY, KEY, mask=Odd(), kernel="native")


def test_a_place_that_selects_rows_has_their_positions():
    place = replace(REQUEST, rows=torch.tensor([4, 0, 0, 1, 2])).local_place
    assert place.positions.tolist() == [6, 2, 2, 3, 4]
    assert REQUEST.place.positions.tolist() == [2, 3, 4, 5, 6]
    assert REQUEST.place.distances.tolist() == list(range(-6, 5))
    assert REQUEST.place.last_position == 6
