"""Measures by name, in a dict, and written by users. Their results are checked with the kernels."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from helpers.ops import cases
from regard.errors import InvalidArgument, InvalidType
from regard.ops import attend, masks, weights
from regard.ops.masks import Causal, DenseMask, MaskMod, to_dense
from regard.ops.measures import Entropy, GroupPool, KLDivergence, Mass, Measure, Received, TopK, as_measures
from regard.ops.rules import builtin_classes, registered
from regard.ops.scores import ScaledDotProduct, Score
from regard.ops.tile import Tile


def _with_parts(rule, base):
    """The classes of a rule and of the rules within it."""
    actual, todo = set(), [rule]
    while todo:
        part = todo.pop()
        actual.add(type(part))
        todo += [inner for inner in vars(part).values() if isinstance(inner, base)]
    return actual


def test_the_kernels_are_tested_with_every_builtin_rule():
    measures = {type(measure) for measure in cases.measures(5, 5).values()}
    public = {cls for cls in registered(Measure).values() if cls.builtin}
    assert public - {KLDivergence} <= measures  # a divergence needs another matrix
    scores = [case.rule(case.tensors(2, 5, 5, 4)) for case in cases.SCORES.values()]
    tested = set().union(*(_with_parts(ScaledDotProduct() if each is None else each, Score) for each in scores))
    assert set(builtin_classes(Score)) <= tested
    kinds = {cls for _, cls in inspect.getmembers(masks, inspect.isclass) if issubclass(cls, masks.Mask)}
    assert kinds - {masks.Mask} == set(builtin_classes(masks.Mask))
    tested = [masks.as_mask(mask) for mask in cases.masks(2, 2, 5, 5).values() if mask is not None]
    assert kinds - {masks.Mask} <= set().union(*(_with_parts(each, masks.Mask) for each in tested))


def test_names_are_the_class_names_in_snake_case():
    names = {each.name for each in cases.measures(5, 5).values() if each.builtin} | {"kl_divergence"}
    assert names == {name for name, cls in registered(Measure).items() if cls.builtin}
    for cls in builtin_classes():
        assert cls.name.startswith("_") or registered(cls.base)[cls.name] is cls

    class MeanOfTheFirstKey(Measure):
        pass

    class Renamed(Measure, name="other"):
        pass

    assert MeanOfTheFirstKey().name == "mean_of_the_first_key"
    assert Renamed().name == "other"


def test_a_dict_names_the_results():
    query = torch.randn(1, 2, 5, 4)
    measured = attend(query, query, query, measure={"one": TopK(1), "two": TopK(2), "spread": "entropy"}).measured
    assert {name: tuple(result[0].shape) for name, result in measured.items() if name != "spread"} == {
        "one": (1, 2, 5, 1),
        "two": (1, 2, 5, 2),
    }
    assert torch.equal(measured["spread"], weights(query, query).entropy())


def test_one_name_or_measure_needs_no_list():
    assert list(as_measures("entropy")) == ["entropy"]
    assert list(as_measures(Entropy())) == ["entropy"]
    assert as_measures(()) == {}


def test_all_problems_with_names_are_listed_at_once():
    with pytest.raises(InvalidArgument) as error:
        as_measures(["entrpy", "receive", "topk", "lse", "lse"])
    lines = str(error.value).splitlines()
    assert lines[0] == "4 problems:"
    for line, part in zip(
        lines[1:],
        ("did you mean 'entropy'", "did you mean 'received'", "pass regard.TopK(k)", "got 'lse' twice"),
        strict=True,
    ):
        assert part in line


def test_a_user_s_measure_is_found_by_name():
    class SumOfSquares(Measure):
        def compute(self, block):
            return block.weights.square().sum(-1)

    W = weights(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 6, 4))
    torch.testing.assert_close(W.measure("sum_of_squares")["sum_of_squares"], W.dense().square().sum(-1))


def test_a_measure_gets_whole_rows_with_their_indices():
    blocks = []

    class Blocks(Measure):
        def compute(self, block):
            blocks.append(block)
            row_weights = torch.arange(2 * 9, dtype=block.weights.dtype).view(2, 1, 9)
            return block.slice_rows(row_weights).expand(block.weights.shape[:3]).clone()

    query, key = torch.randn(2, 1, 9, 4), torch.randn(2, 1, 7, 4)
    result = weights(query, key, mask=Causal(), offset=1).at(batch=1, queries=[6, 2]).measure(Blocks())["blocks"]
    for block in blocks:
        assert block.kv_idx.tolist() == list(range(7))
        assert block.weights.shape[-1] == 7
        assert block.index[3] == slice(0, 7)
    positions = torch.cat([block.q_pos.flatten() for block in blocks])
    assert sorted(positions.tolist()) == [3, 7]
    assert sorted(torch.cat([block.tile.q_idx.flatten() for block in blocks]).tolist()) == [2, 6]
    assert result.tolist() == [[[0, 1]]]  # rows are counted in the matrix that is measured


def test_padding_queries_can_be_left_out_of_what_keys_receive():
    query = torch.randn(2, 3, 6, 4)
    lengths = torch.tensor([6, 2])
    real = (torch.arange(6) < lengths[:, None]).float()[:, None]  # (batch, 1, queries)
    W = weights(query, query, mask=masks.Padding(lengths))
    expected = (W.dense() * real[..., None]).sum(2)
    torch.testing.assert_close(W.measure(Received(real))["received"], expected)


def test_rows_with_fewer_than_k_keys_are_filled_with_zero_and_minus_one():
    query = torch.randn(1, 1, 4, 4)
    topk = weights(query, query, mask=masks.Causal()).topk(3)
    assert (topk.indices[0, 0] >= 0).sum(1).tolist() == [1, 2, 3, 3]
    assert (topk.values[topk.indices < 0] == 0).all()


def test_matrices_with_fewer_than_k_keys_are_padded_too():
    query = torch.randn(1, 1, 4, 4)
    topk = weights(query, query, mask=masks.Causal()).topk(6)
    assert topk.values.shape == topk.indices.shape == (1, 1, 4, 6)
    assert (topk.indices[0, 0] >= 0).sum(1).tolist() == [1, 2, 3, 4]
    assert (topk.values[topk.indices < 0] == 0).all()


def test_rows_without_keys_have_no_entropy():
    query = torch.randn(1, 1, 4, 4)
    W = weights(query, query, mask=masks.Window(None, -1))
    assert W.entropy()[0, 0, 0] == 0
    assert W.lse()[0, 0, 0] == -torch.inf
    assert W[0, 0, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores_give_exact_weights(size):
    query = torch.tensor([[[[size], [1.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[1.0], [0.5]]]], dtype=torch.float64)
    W = weights(query, key, scale=1.0)
    assert W[0, 0, 0].tolist() == ([1.0, 0.0] if size > 0 else [0.0, 1.0])
    assert W.entropy()[0, 0, 0] == 0
    assert W.lse()[0, 0, 0] == max(size, size / 2)


def test_a_tensor_set_in_a_plain_init_gets_its_gradient():
    class Plain(Measure):
        def __init__(self):
            self.w = torch.linspace(-1, 1, 5, dtype=torch.float64).requires_grad_()

        def compute(self, block):
            return block.weights @ self.w

    query, measure = torch.randn(1, 1, 5, 4, dtype=torch.float64), Plain()
    W = weights(query, query)
    (actual,) = torch.autograd.grad(W.measure(measure)["plain"].square().sum(), measure.w)
    (expected,) = torch.autograd.grad((W.dense() @ measure.w).square().sum(), measure.w)
    torch.testing.assert_close(actual, expected)


def test_a_tensor_that_would_get_no_gradient_is_rejected():
    w = torch.ones(5, requires_grad=True)

    class Closure(Measure):
        def compute(self, block):
            return block.weights @ w

    query = torch.randn(1, 1, 5, 4)
    with pytest.raises(InvalidArgument, match=r"measure: Closure uses a tensor .* Assign it to an attribute"):
        weights(query, query).measure(Closure())


@pytest.mark.parametrize("name", ["entropy", "lse"])
def test_the_reference_kernel_has_second_derivatives(name):
    query, key = torch.randn(2, 1, 1, 4, 3, dtype=torch.float64).unbind(0)
    mask = torch.tensor([[True, False, True, True]])

    def function(query, key):
        return attend(query, key, key, mask=mask, measure=name, kernel="reference").measured[name]

    assert torch.autograd.gradgradcheck(function, (query.requires_grad_(), key.requires_grad_()))


class Forbidding(Score):
    """The scaled dot product, which by −∞ forbids what `Causal` does, and all keys to query 2."""

    def __call__(self, query: Tensor, key: Tensor, scale: float, tile: Tile) -> Tensor:
        rows = tile.q_pos
        return (query @ key.mT * scale).masked_fill((tile.kv_idx > rows) | (rows == 2), -torch.inf)

    def default_scale(self, head_dim: int) -> float:
        return head_dim**-0.5


@pytest.mark.parametrize("kernel", ["blockwise", "reference"])
def test_a_score_of_minus_infinity_forbids_as_a_mask_does(kernel):
    tensors = [torch.randn(1, 2, 6, 4, dtype=torch.float64).requires_grad_() for _ in range(3)]
    mask = Causal() & (torch.arange(6)[:, None] != 2)
    options = {"measure": ["entropy", "lse", "received"], "kernel": kernel}
    actual, masked = attend(*tensors, score=Forbidding(), **options), attend(*tensors, mask=mask, **options)
    assert torch.equal(actual.weights.topk(2).indices, masked.weights.topk(2).indices)
    pairs = [(actual.output, masked.output)]
    pairs += [(actual.measured[name], masked.measured[name]) for name in actual.measured]
    for value, expected in pairs:
        torch.testing.assert_close(value, expected)
        sums = [result[result.isfinite()].sum() for result in (value, expected)]
        torch.testing.assert_close(*(torch.autograd.grad(each, tensors[:2], retain_graph=True) for each in sums))


def test_entropy_loses_no_digits_where_scores_are_large():
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 50, 30, dtype=torch.float64) + 1000
    exact = -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)
    query, key = scores.float(), torch.eye(30).expand(1, 1, 30, 30)
    dense = -(query.softmax(-1) * query.log_softmax(-1)).sum(-1)
    error = (weights(query, key, scale=1.0).entropy() - exact).abs().max()
    assert error <= 2 * (dense - exact).abs().max()


def test_entropy_of_rows_whose_first_key_has_weight_zero():
    query, key = torch.ones(1, 1, 3, 1), torch.zeros(1, 1, 300, 1)
    key[0, 0, 0] = -200.0  # its weight is 0 in float32, and no logarithm of it is finite
    entropy = weights(query, key, scale=1.0).measure("entropy")["entropy"]
    torch.testing.assert_close(entropy, torch.full((1, 1, 3), 299.0).log())


def test_padding_follows_a_change_of_its_lengths():
    query = torch.randn(1, 1, 4, 4)
    lengths = torch.tensor([2])
    mask = masks.Padding(lengths)
    assert (weights(query, query, mask=mask)[0, 0, 0] > 0).sum() == 2
    lengths[0] = 3
    assert (weights(query, query, mask=mask)[0, 0, 0] > 0).sum() == 3


@pytest.mark.parametrize(
    "mask",
    [
        MaskMod(lambda b, h, q, k: h == 0),
        MaskMod(lambda b, h, q, k: q > 5),
        DenseMask(torch.ones(1, 1, dtype=torch.bool)),
    ],
    ids=["heads", "queries", "one cell"],
)
def test_mass_takes_masks_that_do_not_depend_on_keys(mask):
    W = weights(torch.randn(2, 3, 20, 4), torch.randn(2, 3, 30, 4))
    cells = to_dense(mask, tuple(W.shape), 0)
    expected = torch.where(cells, W.dense(), 0.0).sum(-1)
    torch.testing.assert_close(W.measure(Mass(mask))["mass"], expected)
    part = W.at(heads=[2, 0], queries=slice(4, 15))  # whose heads and queries are counted from 0
    cells = to_dense(mask, tuple(part.shape), 0)
    expected = torch.where(cells, part.dense(), 0.0).sum(-1)
    torch.testing.assert_close(part.measure(Mass(mask))["mass"], expected)


def test_mass_counts_positions_in_a_part_as_in_the_whole():
    W = weights(torch.randn(2, 3, 20, 4), torch.randn(2, 3, 30, 4))
    full = W.measure(Mass(masks.Window(3, 1)))["mass"]
    part = W.at(heads=[2, 0], queries=[17, 4]).measure(Mass(masks.Window(3, 1)))["mass"]
    torch.testing.assert_close(part, full[:, [2, 0]][:, :, [17, 4]])


def test_divergence_is_the_sum_of_its_definition():
    query, key, other = torch.randn(3, 2, 4, 9, 8, dtype=torch.float64).unbind()
    P, Q = weights(query, key, mask=Causal()), weights(other, key[:, :2], mask=masks.Window(5, 1))
    divergence = P.measure(KLDivergence(Q))["kl_divergence"]
    weight, logs = P.dense(), Q.dense().log()
    expected = torch.where(weight > 0, weight * (weight.where(weight > 0, 1.0).log() - logs), 0.0).sum(-1)
    torch.testing.assert_close(divergence, expected)
    assert divergence[:, :, 8].isinf().all()  # key 0 is beyond the window of P's last query, which sees it
    assert (P.measure("entropy", KLDivergence(P))["kl_divergence"].abs() < 1e-12).all()


def test_groups_that_are_not_tensors_are_rejected():
    W = weights(torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4))
    with pytest.raises(InvalidType, match=r"GroupPool\.query_groups: expected an integer tensor, got list"):
        W.measure(GroupPool([0, 0, 0], torch.zeros(3, dtype=torch.int64)))
