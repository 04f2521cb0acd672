"""Asking: names, dicts, and measures that users write. What they answer is checked with the kernels."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from ops import rules
from regard.errors import InvalidArgument
from regard.ops import Causal, GroupPool, Measure, ScaledDotProduct, Score, TopK, attend, masks, weights
from regard.ops.masks import DenseMask, MaskMod, to_dense
from regard.ops.measures import MEASURES, Entropy, Received, as_measures
from regard.ops.scores import SCORES
from regard.ops.tile import Tile


def test_every_registered_rule_is_among_those_that_the_kernels_are_tested_with():
    assert set(MEASURES.values()) <= {type(measure) for measure in rules.measures(5, 5).values()}
    tested, todo = set(), [case.rule(case.tensors(2, 5, 5, 4)) for case in rules.SCORES.values()]
    while todo:
        score = todo.pop()
        tested.add(ScaledDotProduct if score is None else type(score))
        todo += [part for part in vars(score).values() if isinstance(part, Score)] if score else []
    assert set(SCORES.values()) <= tested
    kinds = {cls for _, cls in inspect.getmembers(masks, inspect.isclass) if issubclass(cls, masks.Mask)} - {masks.Mask}
    found, todo = set(), [masks.as_mask(mask) for mask in rules.masks(2, 2, 5, 5).values() if mask is not None]
    while todo:
        mask = todo.pop()
        found.add(type(mask))
        todo += [part for part in vars(mask).values() if isinstance(part, masks.Mask)]
    assert kinds <= found


def test_answers_are_named_in_snake_case():
    answers = [each.name for each in rules.measures(5, 5).values() if type(each) in MEASURES.values()]
    assert set(answers) == set(MEASURES)

    class MeanOfTheFirstKey(Measure):
        pass

    assert MeanOfTheFirstKey().name == "mean_of_the_first_key"


def test_a_dict_renames():
    query = torch.randn(1, 2, 5, 4)
    found = attend(query, query, query, measure={"one": TopK(1), "two": TopK(2), "spread": "entropy"}).measured
    assert {name: tuple(answer[0].shape) for name, answer in found.items() if name != "spread"} == {
        "one": (1, 2, 5, 1),
        "two": (1, 2, 5, 2),
    }
    assert torch.equal(found["spread"], weights(query, query).entropy())


def test_one_name_or_measure_needs_no_list():
    assert list(as_measures("entropy")) == ["entropy"]
    assert list(as_measures(Entropy())) == ["entropy"]
    assert as_measures(()) == {}


def test_all_objections_to_names_come_at_once():
    with pytest.raises(InvalidArgument) as error:
        as_measures(["entrpy", "receive", "topk", "lse", "lse"])
    for said in (
        "did you mean 'entropy'",
        "did you mean 'received'",
        "give regard.TopK(8)",
        "'lse' is asked for twice",
    ):
        assert said in str(error.value)


def test_padding_queries_can_be_weighed_out():
    query = torch.randn(2, 3, 6, 4)
    lengths = torch.tensor([6, 2])
    real = (torch.arange(6) < lengths[:, None]).float()[:, None]  # (batch, 1, queries)
    W = weights(query, query, mask=masks.Padding(lengths))
    expected = (W.dense() * real[..., None]).sum(2)
    torch.testing.assert_close(W.measure(Received(real))["received"], expected)


def test_fewer_keys_than_k_leave_zeros_and_minus_one():
    query = torch.randn(1, 1, 4, 4)
    found = weights(query, query, mask=masks.Causal()).topk(3)
    assert (found.indices[0, 0] >= 0).sum(1).tolist() == [1, 2, 3, 3]
    assert (found.values[found.indices < 0] == 0).all()


def test_a_row_without_keys_has_no_entropy():
    query = torch.randn(1, 1, 4, 4)
    W = weights(query, query, mask=masks.Window(None, -1))
    assert W.entropy()[0, 0, 0] == 0
    assert W.lse()[0, 0, 0] == -torch.inf
    assert W[0, 0, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores_are_no_trouble(size):
    query = torch.tensor([[[[size], [1.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0], [0.5]]]], dtype=torch.float64)
    W = weights(query, key, scale=1.0)
    assert W[0, 0, 0].tolist() == ([1.0, 0.0] if size > 0 else [0.0, 1.0])
    assert W.entropy()[0, 0, 0] == 0
    assert W.lse()[0, 0, 0] == max(size, size / 2)


def test_a_tensor_that_would_get_no_gradient_is_refused():
    class Plain(Measure):
        def __init__(self):
            self.w = torch.ones(5, requires_grad=True)

    query = torch.randn(1, 1, 5, 4)
    with pytest.raises(InvalidArgument, match="Plain holds w, which would get no gradient: make the class a dataclass"):
        weights(query, query).measure(Plain())


@pytest.mark.parametrize("name", ["entropy", "lse"])
def test_the_reference_has_second_derivatives(name):
    query, key = torch.randn(2, 1, 1, 4, 3, dtype=torch.float64).unbind(0)
    mask = torch.tensor([[True, False, True, True]])

    def function(query, key):
        return attend(query, key, key, mask=mask, measure=name, kernel="reference").measured[name]

    assert torch.autograd.gradgradcheck(function, (query.requires_grad_(), key.requires_grad_()))


class Forbidding(Score):
    """The scaled dot product, which by −∞ forbids what `Causal` does, and all keys to query 2."""

    def __call__(self, query: Tensor, key: Tensor, scale: float, cells: Tile) -> Tensor:
        rows = cells.position
        return (query @ key.mT * scale).masked_fill((cells.key > rows) | (rows == 2), -torch.inf)

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5


@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
def test_a_score_of_minus_infinity_forbids_as_a_mask_does(kernel):
    given = [torch.randn(1, 2, 6, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    mask = Causal() & (torch.arange(6)[:, None] != 2)
    asked = {"measure": ["entropy", "lse", "received"], "kernel": kernel}
    ours, masked = attend(*given, score=Forbidding(), **asked), attend(*given, mask=mask, **asked)
    assert torch.equal(ours.weights.topk(2).indices, masked.weights.topk(2).indices)
    pairs = [(ours.output, masked.output), *((ours.measured[name], masked.measured[name]) for name in ours.measured)]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected)
        sums = [answer[answer.isfinite()].sum() for answer in (found, expected)]
        torch.testing.assert_close(*(torch.autograd.grad(each, given[:2], retain_graph=True) for each in sums))


def test_entropy_loses_no_digits_where_scores_are_large():
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 50, 30, dtype=torch.float64) + 1000
    exact = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)
    query, key = scores.float(), torch.eye(30).expand(1, 1, 30, 30)
    dense = -(query.softmax(-1) * query.log_softmax(-1)).sum(-1)
    error = (weights(query, key, scale=1.0).entropy() - exact).abs().max()
    assert error <= 2 * (dense - exact).abs().max()


def test_entropy_of_rows_whose_first_key_weighs_nothing():
    query, key = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 300, 1)
    key[0, 0, 0] = -200.0  # its weight is 0 in float32, and no logarithm of it is finite
    found = weights(query, key, scale=1.0).measure("entropy")["entropy"]
    torch.testing.assert_close(found, torch.full((1, 1, 3), 299.0).log())


def test_padding_sees_a_change_of_its_lengths():
    query = torch.randn(1, 1, 4, 4)
    lengths = torch.tensor([2])
    mask = masks.Padding(lengths)
    assert (weights(query, query, mask=mask)[0, 0, 0] > 0).sum() == 2
    lengths[0] = 3
    assert (weights(query, query, mask=mask)[0, 0, 0] > 0).sum() == 3


@pytest.mark.parametrize(
    "cells",
    [
        MaskMod(lambda b, h, q, k: h == 0),
        MaskMod(lambda b, h, q, k: q > 5),
        DenseMask(torch.ones(1, 1, dtype=torch.bool)),
    ],
    ids=["heads", "queries", "one cell"],
)
def test_mass_is_of_rules_that_do_not_speak_of_keys(cells):
    matrix = weights(torch.randn(2, 3, 20, 4), torch.randn(2, 3, 30, 4))
    said = to_dense(cells, tuple(matrix.shape), 0, torch.device("cpu")).expand(matrix.shape)
    expected = torch.where(said, matrix.dense(), 0.0).sum(-1)
    torch.testing.assert_close(matrix.mass(cells), expected)
    torch.testing.assert_close(matrix.at(queries=5).mass(cells), expected[:, :, 5:6])


def test_groups_that_are_no_tensor_are_named():
    matrix = weights(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    with pytest.raises(InvalidArgument, match="query_groups must be a tensor of integers, but is list"):
        matrix.measure(GroupPool([0, 0, 0], torch.zeros(3, dtype=torch.int64)))
