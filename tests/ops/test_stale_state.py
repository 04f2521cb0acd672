"""Values that a rule has read of its tensors are not used after any change of the tensors."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from math import inf

import pytest
import torch

from helpers.pairwise import pairwise
from regard.errors import InvalidArgument, StaleView
from regard.ops import attend, weights
from regard.ops.masks import Causal, Documents, Padding, Prefix, Spans, Window
from regard.ops.measures import GroupPool, KLDivergence
from regard.ops.scores import Bias, ScaledDotProduct
from regard.ops.tree import tensors_in

TOKENS = 300
QUERIES, KEYS = torch.arange(TOKENS)[:, None], torch.arange(TOKENS)
QUERY, KEY = torch.randn(2, 5, 1, TOKENS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()


def _each(lengths):
    return lengths[:, None, None, None]  # (batch, 1, 1, 1)


def _spans(start, stop):
    return [torch.full((1, 1, TOKENS, 1), end) for end in (start, stop)]


MASKS = {  # how tensors become a mask, and which cells it then allows
    "lengths": (Padding, lambda lengths: _each(lengths) > KEYS),
    "padding": (Padding, lambda real: real[:, None, None]),
    "prefix": (Prefix, lambda lengths: (KEYS <= QUERIES) | (_each(lengths) > KEYS)),
    "documents": (Documents, lambda ids: ids[:, None] == ids),
    "documents of queries": (Documents, lambda ids, query_ids: query_ids[:, None] == ids),
    "spans": (Spans, lambda starts, stops: (starts[0, 0] <= KEYS) & (stops[0, 0] > KEYS)),
    "several": (
        lambda lengths: Window(250, None) & ~(~Padding(lengths) | Causal()),
        lambda lengths: (_each(lengths) > KEYS) & (KEYS > QUERIES),
    ),
}
STATES = {  # one in which few cells are allowed, and one in which many are
    "lengths": ([torch.tensor([40, 90])], [torch.tensor([300, 170])]),
    "padding": ([torch.tensor([[40], [90]]) > KEYS], [torch.tensor([[300], [170]]) > KEYS]),
    "prefix": ([torch.tensor([0, 20])], [torch.tensor([280, 150])]),
    "documents": ([KEYS // 30], [KEYS // 200]),
    "documents of queries": ([KEYS // 30, KEYS // 30], [KEYS // 30, KEYS // 60]),
    "spans": (_spans(100, 140), _spans(20, 290)),
    "several": ([torch.tensor([60, 90])], [torch.tensor([300, 170])]),
}
EVERY_MASK = pytest.mark.parametrize("mask", MASKS)


def case(mask, grows):
    """A function that makes the mask, its tensors before and after a change, and the expected results of both."""
    make, cells = MASKS[mask]
    before, after = STATES[mask] if grows else STATES[mask][::-1]
    stored = [torch.from_numpy(tensor.numpy().copy()) for tensor in before]
    return make, stored, after, dense(cells(*before)), dense(cells(*after))


def dense(cells, batch=2):
    """Weights and their entropy, by the definition."""
    P = (QUERY[:batch] @ KEY[:batch].mT / 2).masked_fill(~cells, -inf).softmax(-1).nan_to_num(0.0)
    return P, -torch.special.xlogy(P, P).sum(-1)


def check(mask, expected):
    """Compare what the next call gives with the definition."""
    P, entropy = expected
    query, key = QUERY[: len(P)], KEY[: len(P)]
    attended = attend(query, key, key, mask=mask, measure="entropy", kernel="blockwise")
    torch.testing.assert_close(attended.measured["entropy"], entropy)
    torch.testing.assert_close(attended.output, P @ key)


def in_place(tensor, new):
    tensor.copy_(new)


def by_data(tensor, new):
    tensor.data.copy_(new)


def by_numpy(tensor, new):
    tensor.numpy()[...] = new.numpy()


@EVERY_MASK
def test_the_next_call_with_a_mask_uses_the_new_values_of_its_tensors(mask, subtests):
    for grows, change in product([True, False], [in_place, by_data, by_numpy]):
        with subtests.test(grows=grows, change=change.__name__):
            check_changed(mask, grows, change)


def check_changed(mask, grows, change):
    make, stored, after, old, new = case(mask, grows)
    rule = make(*stored)
    check(rule, old)
    view = weights(QUERY[:2], KEY[:2], mask=rule)
    for tensor, other in zip(stored, after, strict=True):
        change(tensor, other)
    check(rule, new)
    try:
        actual = view.entropy()
    except StaleView:
        assert change is in_place  # which torch counts
    else:
        torch.testing.assert_close(actual, new[1])


@EVERY_MASK
def test_a_mask_made_in_inference_mode_uses_the_new_values_of_its_tensors(mask, subtests):
    for grows in (True, False):
        with subtests.test(grows=grows), torch.inference_mode():
            make, stored, after, old, new = case(mask, grows)
            stored = [tensor.clone() for tensor in stored]
            rule = make(*stored)
            check(rule, old)
            for tensor, other in zip(stored, after, strict=True):
                tensor.copy_(other)
            check(rule, new)


def pickled(content):
    return pickle.loads(pickle.dumps(content))


@EVERY_MASK
def test_a_copy_of_a_mask_uses_the_values_of_its_own_tensors(mask, subtests):
    for grows, duplicate in product([True, False], [copy.deepcopy, pickled]):
        with subtests.test(grows=grows, duplicate=duplicate.__name__):
            check_copy(mask, grows, duplicate)


def check_copy(mask, grows, duplicate):
    make, stored, after, old, new = case(mask, grows)
    for changes in range(3):  # torch counts those of a tensor, and the count of its copy may come to the same
        if changes:
            for tensor in stored:
                tensor.add_(0) if tensor.dtype != torch.bool else tensor.logical_or_(tensor)
        rule = make(*stored)
        check(rule, old)
        copied = duplicate(rule)
        for tensor, other in zip(tensors_in(copied), after, strict=True):
            if not torch.equal(tensor, other):
                tensor.copy_(other)
        check(copied, new)


def grouped(P, of_query, of_key):
    """The definition: sums over the keys of a group, means over the queries of a group."""
    sums = torch.stack([P[..., of_key == group].sum(-1) for group in range(int(of_key.max()) + 1)], -1)
    members = [sums[..., of_query == group, :] for group in range(int(of_query.max()) + 1)]
    return torch.stack([part.sum(-2) / max(1, part.shape[-2]) for part in members], -2)


@pytest.mark.parametrize("which", [0, 1], ids=["query_groups", "key_groups"])
def test_a_group_number_that_is_raised_drops_no_tokens(which, subtests):
    cases = pairwise([in_place, by_data, by_numpy], [1, 2, 7], ["blockwise", "reference"], [True, False])
    for change, by, kernel, used in cases:
        with subtests.test(change=change.__name__, by=by, kernel=kernel, used=used):
            check_raised(which, change, by, kernel, used)


def check_raised(which, change, by, kernel, used):
    query, key = QUERY[:2], KEY[:2]
    groups = [torch.arange(TOKENS) // 100, torch.arange(TOKENS) // 60]
    measure = GroupPool(*groups)
    P, _ = dense(torch.ones(1, dtype=torch.bool))

    def measured():
        return attend(query, key, key, measure={"groups": measure}, kernel=kernel).measured["groups"]

    if used:
        torch.testing.assert_close(measured(), grouped(P, *groups))
    change(groups[which][-50:], groups[which][-50:] + by)
    try:
        actual, refusal = measured(), ""
    except (InvalidArgument, StaleView) as error:
        actual, refusal = None, str(error)
    if actual is None:
        assert "group_pool" in refusal
    else:
        torch.testing.assert_close(actual, grouped(P, *groups))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_queries", [False, True])
def test_documents_may_be_numbered_by_hashes(seed, of_queries):
    random = torch.Generator().manual_seed(seed)
    extremes = torch.tensor([2**62 - 1, 2**62, 2**63 - 1, 2**63 - 2, -(2**62), -(2**63), 0])
    names = torch.cat((torch.randint(-(2**62), 2**62, (9,), generator=random), extremes))
    drawn = names[torch.randint(0, len(names), (2, 5, TOKENS), generator=random)]
    ids, query_ids = drawn.sort(-1).values.roll(40, -1)  # the tokens of a document side by side
    if not of_queries:
        query_ids = ids
    mask = Documents(ids, query_ids) if of_queries else Documents(ids)
    cells = ((query_ids[:, :, None] == ids[:, None]) & (ids[:, None] >= 0))[:, None]
    expected = dense(cells, 5)
    check(mask, expected)
    W = weights(QUERY, KEY, mask=mask)
    torch.testing.assert_close(W.entropy(), expected[1])
    torch.testing.assert_close(W.at(batch=4, queries=slice(5, 8)).entropy(), expected[1][4:, :, 5:8])


@pytest.mark.parametrize("part", ["query", "key", "bias"])
def test_a_divergence_does_not_mix_two_states_of_the_other_matrix(part):
    query, key, other = torch.randn(3, 1, 2, 5, 4)
    tensors = {"query": query.clone(), "key": other, "bias": torch.zeros(5, 5)}
    score = ScaledDotProduct() + Bias(tensors["bias"])
    W, divergence = weights(query, key), KLDivergence(weights(tensors["query"], tensors["key"], score=score))
    before = W.measure(divergence)["kl_divergence"]
    assert torch.equal(W.measure(copy.deepcopy(divergence))["kl_divergence"], before)
    tensors[part].add_(torch.arange(tensors[part].shape[-1]))
    for call in (lambda: W.measure(divergence), lambda: attend(query, key, key, measure=divergence)):
        with pytest.raises(StaleView, match="KLDivergence compares with query, key, mask and score of the other"):
            call()
