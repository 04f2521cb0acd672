"""Tensors of rules whose size does not fit are refused before a kernel sees them."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.ops import attend, weights
from regard.ops.masks import DenseMask, Documents, Neighbors, Padding, Prefix, Spans
from regard.ops.measures import GroupPool, KLDivergence, Mass, Received
from regard.ops.rules import builtin_classes
from regard.ops.scores import (
    Additive,
    Alibi,
    Bias,
    Bilinear,
    RelativeKey,
    RelativeQuery,
    ScaledDotProduct,
    Sinks,
    T5RelativeBias,
)

B, H, N, M, D = 3, 4, 9, 13, 6
DOT = ScaledDotProduct()


def floats(*shape):
    return torch.rand(shape)


def numbers(*shape):
    return torch.randint(1, 5, shape)


def bools(*shape):
    return torch.rand(shape) < 0.9


def other(query, key):
    return KLDivergence(weights(query, key))


RULES = {  # how a tensor of a shape is made, and the rule of it; shapes that fit
    "Alibi": (floats, lambda t: DOT + Alibi(t), [(H,)]),
    "T5RelativeBias": (floats, lambda t: DOT + T5RelativeBias(t), [(8, H)]),
    "Bias": (floats, lambda t: DOT + Bias(t), [(N, M), (H, N, M), (B, H, N, M), (B, 1, 1, M), (M,), (N, 1)]),
    "Sinks": (floats, lambda t: Sinks(DOT, t), [(H,)]),
    "RelativeKey": (floats, lambda t: DOT + RelativeKey(t), [(5, D), (H, 5, D), (B, H, 5, D)]),
    "RelativeQuery": (floats, lambda t: DOT + RelativeQuery(t), [(5, D), (H, 5, D), (B, H, 5, D)]),
    "Bilinear": (floats, lambda t: Bilinear(t), [(D, D), (H, D, D)]),
    "Additive": (floats, lambda t: Additive(t), [(D,), (H, D)]),
    "DenseMask": (bools, lambda t: DenseMask(t), [(N, M), (H, N, M), (B, H, N, M), (B, 1, 1, M), (M,), (N, 1)]),
    "Padding": (bools, lambda t: Padding(t), [(B, M)]),
    "lengths": (numbers, lambda t: Padding(t), [(B,)]),
    "Prefix": (numbers, lambda t: Prefix(t), [(B,)]),
    "Documents": (numbers, lambda t: Documents(t), [(M,), (B, M), (1, M)]),
    "of queries": (numbers, lambda t: Documents(torch.ones(M, dtype=torch.int64), t), [(N,), (B, N), (1, N)]),
    "Spans": (numbers, lambda t: Spans(t - 1, t), [(B, H, N, 2), (1, H, N, 1), (1, 1, N, 3), (B, 1, N, 1)]),
    "Received": (floats, lambda t: Received(t), [(N,), (H, N), (B, H, N), (B, 1, N), (1,), (H, 1)]),
    "Mass": (bools, lambda t: Mass(t), [(N, M), (B, H, N, M), (M,)]),
    "Mass of padding": (bools, lambda t: Mass(Padding(t)), [(B, M)]),
    "GroupPool": (numbers, lambda t: GroupPool(torch.zeros(N, dtype=torch.int64), t), [(M,), (B, M), (1, M)]),
    "of query groups": (numbers, lambda t: GroupPool(t, torch.zeros(M, dtype=torch.int64)), [(N,), (B, N), (1, N)]),
    "KLDivergence": (floats, lambda t: other(t, floats(B, H, M, D)), [(B, H, N, D)]),
    "KLDivergence of keys": (floats, lambda t: other(floats(B, H, N, D), t), [(B, H, M, D)]),
}


def neighbors(shape):
    """Shapes near another one: an axis longer, shorter, empty, missing, first or last in excess; two exchanged."""
    for axis, size in enumerate(shape):
        for changed in (size - 1, size + 1, 2 * size, 0, 10 * size):
            yield (*shape[:axis], changed, *shape[axis + 1 :])
        yield (*shape[:axis], *shape[axis + 1 :])
        yield (*shape[:axis], size, *shape[axis:])
    yield (1, *shape)
    yield (*shape, 1)
    yield shape[::-1]


def fits(name, shape, allowed):
    """Whether a shape fits: among those listed, or broadcast to the largest where the rule broadcasts."""
    if shape in allowed:
        return True
    if name == "T5RelativeBias" and len(shape) > 1:  # the number of buckets is free
        return shape[1:] in {each[1:] for each in allowed} and shape[0] >= 4
    if name in ("RelativeKey", "RelativeQuery") and len(shape) > 1:  # the number of distances is free
        rest = {(*each[:-2], each[-1]) for each in allowed}
        return (*shape[:-2], shape[-1]) in rest and shape[-2] % 2 == 1
    if name == "Spans":
        return len(shape) == 4 and shape[0] in (1, B) and shape[1] in (1, H) and shape[2] == N and shape[3] > 0
    if name in ("Bias", "DenseMask", "Received", "Mass"):
        full_shape = (B, H, N) if name == "Received" else (B, H, N, M)
        pairs = zip(shape[::-1], full_shape[::-1], strict=False)
        return len(shape) <= len(full_shape) and all(size in (1, full) for size, full in pairs)
    return False


CASES = [
    (name, shape)
    for name, (_, _, allowed) in RULES.items()
    for shape in dict.fromkeys([*allowed, *(near for each in allowed for near in neighbors(each))])
]


def call(name, shape, kernel):
    make, rule_of, _ = RULES[name]
    query, key, value = floats(B, H, N, D), floats(B, 2, M, D), floats(B, 2, M, D)
    rule = rule_of(make(*shape))
    argument = "measure" if hasattr(rule, "compute") else "mask" if hasattr(rule, "allowed") else "score"
    return attend(query, key, value, **{argument: rule}, kernel=kernel)


def is_refused(name, shape, kernel):
    try:
        call(name, shape, kernel)
    except (InvalidArgument, InvalidType):
        return True
    return False


@pytest.mark.parametrize("name", RULES)
def test_only_compatible_sizes_are_accepted(name):
    for shape in [shape for each, shape in CASES if each == name]:
        for kernel in ("blockwise", None):
            assert is_refused(name, shape, kernel) != fits(name, shape, RULES[name][2]), shape


def test_every_rule_that_holds_a_tensor_is_tested():
    def holds(cls):
        return any("Tensor" in str(kind) for kind in vars(cls).get("__annotations__", {}).values())

    holding = {cls.__name__ for cls in builtin_classes() if holds(cls) and not cls.name.startswith("_")}
    without_shape = {Neighbors.__name__, "FlexBlockMask"}  # edges have no size; made from a BlockMask
    assert holding - without_shape <= RULES.keys()
