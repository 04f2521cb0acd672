"""torch's own checks of the operators that compiled programs call, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from helpers.ops.cases import SCORES, masks, measures
from helpers.ops.tiny_attention import TOKENS
from helpers.pairwise import everything, grouped, pairwise
from regard.ops.kernels.base import KernelInputs
from regard.ops.masks import Causal
from regard.ops.measures import TopK, as_measures
from regard.ops.request import make_request
from regard.ops.scores import Alibi, ScaledDotProduct
from regard.ops.tree import TreeEncoder

BATCH, HEADS, WIDTH = 2, 2, 4
MASKS = masks(BATCH, HEADS, TOKENS, TOKENS)
REQUESTED = {name: m for name, m in measures(TOKENS, TOKENS).items() if m.builtin}
RULES = [(mask, "blockwise") for mask in MASKS if mask not in ("own", "function", "block mask")]
RULES += [(mask, "sparse") for mask in ("neighbors", "neighbors and", "no edges")]
KNOWN = [score for score in SCORES if score not in ("own", "function")]


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, heads · width) → (batch, heads, tokens, width), a view that is not contiguous."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


LAYOUTS: dict[str, Callable[[int, Any], Tensor]] = {  # from the number of heads and torch.randn
    "contiguous": lambda heads, randn: randn(BATCH, heads, TOKENS, WIDTH),
    "transposed": lambda heads, randn: heads_of(randn(BATCH, TOKENS, heads * WIDTH), heads),
    "split": lambda heads, randn: heads_of(randn(BATCH, TOKENS, 3 * heads * WIDTH), 3 * heads).chunk(3, 1)[1],
    "sliced": lambda heads, randn: randn(BATCH, heads, TOKENS + 5, 2 * WIDTH)[:, :, 3:-2, ::2],
    "expanded over heads": lambda heads, randn: randn(BATCH, 1, TOKENS, WIDTH).expand(-1, heads, -1, -1),
    "expanded": lambda heads, randn: randn(TOKENS, 1).expand(BATCH, heads, -1, WIDTH),
    "columns first": lambda heads, randn: randn(BATCH, heads, WIDTH, TOKENS).mT,
}


def arguments(query, key, value, measure=(), dropout=0.0, kernel="blockwise", **rules) -> tuple[Any, ...]:
    """The arguments that a compiled program passes to the operator."""
    encoder = TreeEncoder()
    text = encoder.encode(KernelInputs(value, make_request(query, key, **rules), as_measures(measure), dropout))
    return *encoder.lists, text, kernel, torch.tensor(7), 0


def check(inputs: tuple[Any, ...], needed: Sequence[bool], expand: bool = False, tests: tuple[str, ...] = ()) -> None:
    """Run torch's checks on the operator, and on its backward pass for the gradients that are needed."""
    with torch.no_grad():
        results = torch.ops.regard.attend(*inputs)
    is_present = [result.is_floating_point() for result in results]
    gradients = [torch.randn_like(result) for result in results if result.is_floating_point()]
    gradients = [x.mean().expand(x.shape) for x in gradients] if expand else gradients
    backward = torch.ops.regard.attend_backward, (*inputs, [], gradients, is_present, list(needed))
    opcheck(*backward, test_utils=("test_faketensor", *tests))
    for tensor, need in zip(inputs[0], needed, strict=True):
        tensor.requires_grad_(tensor.requires_grad or need)
    opcheck(torch.ops.regard.attend, inputs, test_utils=("test_faketensor", "test_autograd_registration", *tests))
    opcheck(*backward, test_utils="test_autograd_registration")


LEARNED = {"all": (0, 1, 2, 3), "slopes": (3,), "query": (1,), "key": (2,), "value": (0,), "query and value": (0, 1)}


@pytest.mark.parametrize(
    ("learned", "cases"),
    grouped(
        pairwise([*LEARNED], *[[*LAYOUTS]] * 3, [torch.float32, torch.bfloat16], [4, 2, 1], [0.0, 0.4], [False, True])
    ),
)
def test_fake_operators_match_real_ones_for_any_layout_of_the_inputs(learned, cases, subtests):
    for query, key, value, dtype, kv_heads, dropout, expand in cases:
        with subtests.test(
            query=query, key=key, value=value, dtype=dtype, kv_heads=kv_heads, dropout=dropout, expand=expand
        ):
            check_layouts(learned, query, key, value, dtype, kv_heads, dropout, expand)


def check_layouts(learned, query, key, value, dtype, kv_heads, dropout, expand):
    randn = partial(torch.randn, dtype=dtype)
    leaves = [LAYOUTS[query](4, randn), LAYOUTS[key](kv_heads, randn), LAYOUTS[value](kv_heads, randn), torch.rand(4)]
    score = ScaledDotProduct() + Alibi(leaves[3])
    inputs = arguments(*leaves[:3], ["entropy", "received", TopK(3)], dropout, mask=Causal(), score=score)
    needed = [any(tensor is leaves[number] for number in LEARNED[learned]) for tensor in inputs[0]]
    check(inputs, needed, expand, ("test_schema",))


PAIRS = [(*rule, score, i - j) for i, rule in enumerate(RULES) for j, score in enumerate(KNOWN)]


@pytest.mark.parametrize(
    ("score", "cases"),
    grouped([(score, mask, kernel) for mask, kernel, score, diagonal in PAIRS if everything() or diagonal % 6 == 0]),
)
def test_fake_operators_match_real_ones_for_every_mask_and_score(score, cases, subtests):
    for mask, kernel in cases:
        with subtests.test(mask=mask, kernel=kernel):
            check_rules(mask, kernel, score)


def check_rules(mask, kernel, score):
    case = SCORES[score]
    stored = {name: tensor.float() for name, tensor in case.tensors(HEADS, TOKENS, TOKENS, WIDTH).items()}
    leaves = [LAYOUTS["transposed"](HEADS, torch.randn) for _ in range(3)]
    requested = {name: m for name, m in REQUESTED.items() if (name, kernel) != ("block_mean", "sparse")}
    inputs = arguments(*leaves, requested, kernel=kernel, mask=MASKS[mask], score=case.rule(stored))
    check(inputs, [tensor.is_floating_point() for tensor in inputs[0]])


@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_both_operators_can_be_traced_ahead_of_time(layout):
    inputs = arguments(*(LAYOUTS[layout](HEADS, torch.randn) for _ in range(3)), "entropy", mask=Causal())
    check(inputs, [True] * 3, tests=("test_aot_dispatch_dynamic",))


@pytest.mark.parametrize("shared", [(0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 0, 0)])
def test_gradients_of_a_tensor_passed_twice_are_those_of_two_copies(shared, subtests):
    for needed in list(product([False, True], repeat=3))[1:]:
        with subtests.test(needed=needed):
            check_shared(shared, needed)


def check_shared(shared, needed):
    leaves = [LAYOUTS["transposed"](HEADS, torch.randn) for _ in range(3)]
    tensors, *rest = inputs = arguments(*(leaves[number] for number in shared), mask=Causal())
    gradient = [], [torch.randn(BATCH, HEADS, TOKENS, WIDTH)], [True], needed
    actual = torch.ops.regard.attend_backward(tensors, *rest, *gradient)
    torch.testing.assert_close(actual, torch.ops.regard.attend_backward([x.clone() for x in tensors], *rest, *gradient))
    check(inputs, needed, tests=("test_schema",))
